// Callbacks one by one: what each changes in a fit, against the same by hand.
#include "hasten/learner/callbacks.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/conv.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "hasten/learner/recorder.h"
#include "learner/small_tasks.h"
#include "support/folder.h"

namespace hasten::learner {
namespace {

namespace nn = torch::nn;
using hasten::testing::words_of;
using CallbackFiles = hasten::testing::InFolder;

/// Three steps of two features each; the outputs are (prediction, raw, dropped).
struct StepsNetImpl : nn::Module {
  StepsNetImpl() {
    torch::manual_seed(4);
    linear = register_module("linear", nn::Linear(2, 3));
  }
  std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(const at::Tensor& x) {
    const auto raw = linear->forward(x.reshape({-1, 3, 2}));
    return {raw.sum(1), raw, raw * 0.5};
  }
  nn::Linear linear{nullptr};
};
TORCH_MODULE(StepsNet);

TEST(Callbacks, TheRegularizerAddsMeansOfSquaresToTheLossOfBackwardOnly) {
  constexpr double kAlpha = 0.7, kBeta = 0.3, kRate = 0.1;
  StepsNet mine, plain;
  const auto data = rows(16, 1);
  const Learner learn(tensor_loaders(data, rows(8, 2), {.batch_size = 8, .shuffle = false}), mine,
                      {.loss = cross_entropy(), .opt_func = optim::fastai::sgd()});
  const auto collect = std::make_shared<CollectData>();

  learn.no_logging(
      [&] { learn.fit(1, kRate, {.cbs = callbacks(RNNCallback(), RNNRegularizer(kAlpha, kBeta), collect)}); });

  for (int64_t batch = 0; batch < 2; ++batch) {
    const auto x = data.data.slice(0, 8 * batch, 8 * batch + 8), y = data.target.slice(0, 8 * batch, 8 * batch + 8);
    const auto [prediction, raw, dropped] = plain->forward(x);
    const auto loss = nn::functional::cross_entropy(prediction, y);
    const auto steps = raw.slice(1, 1) - raw.slice(1, 0, 2);
    (loss + kAlpha * dropped.pow(2).mean() + kBeta * steps.pow(2).mean()).backward();
    EXPECT_TRUE(collect->data[static_cast<size_t>(batch)].loss.equal(loss.detach())) << "the loss shown has no terms";
    const at::NoGradGuard no_grad;
    for (auto& parameter : plain->parameters()) {
      parameter.sub_(parameter.grad(), kRate);
      parameter.mutable_grad().zero_();
    }
  }
  for (const auto& [name, tensor] : state_of(*plain))
    EXPECT_TRUE(at::allclose(state_of(*mine).at(name), tensor, 1e-5, 1e-6)) << name;
}

TEST(Callbacks, TheRegularizerNeedsHiddenOutputs) {
  const Learner learn(data_of(), net(), quiet());

  const auto words = words_of<UsageError>(
      [&] { learn.no_logging([&] { learn.fit(1, 0.1, {.cbs = callbacks(RNNCallback(), RNNRegularizer(1, 1))}); }); });

  EXPECT_NE(words.find("callback 'rnn_regularizer' in after_loss"), std::string::npos) << words;
  EXPECT_NE(words.find("expected RNNCallback and a model that gives (prediction, raw, dropped)"), std::string::npos);
}

TEST(Callbacks, BnFreezeKeepsTheStatisticsOfFrozenNormsOnly) {
  const auto mean_after = [](bool freeze_first_group, const Callbacks& more) {
    auto model = net();
    auto options = quiet();
    options.train_bn = false;
    const Learner learn(data_of(), model, options);
    if (freeze_first_group) learn.freeze();
    learn.no_logging([&] { learn.fit(1, 0.02, {.cbs = more}); });
    return state_of(*model).at("1.running_mean");
  };
  const auto untouched = at::zeros({8});

  EXPECT_TRUE(mean_after(true, callbacks(BnFreeze())).equal(untouched));
  EXPECT_FALSE(mean_after(true, {}).equal(untouched)) << "frozen weights alone keep no statistics";
  EXPECT_FALSE(mean_after(false, callbacks(BnFreeze())).equal(untouched)) << "a norm that trains goes on";
}

TEST(Callbacks, MCDropoutKeepsDropoutAndNothingElseOnInValidation) {
  struct Modes : Callback {
    std::string_view name() const override { return "modes"; }
    Phases phases() const override { return Phases::kValid; }
    void after_pred(Learner& learn) override {
      for (const auto& module : learn.model().module()->children()) training.push_back(module->is_training());
    }
    std::vector<bool> training;
  };
  const Learner learn(data_of(), net(0.5), quiet());
  const auto modes_with = [&](const Callbacks& more) {
    const auto modes = std::make_shared<Modes>();
    auto all = more;
    all.push_back(entry_of(modes));
    learn.validate({.cbs = all});
    return std::vector<bool>(modes->training.begin(), modes->training.begin() + 5);
  };

  EXPECT_EQ(modes_with(callbacks(MCDropout())), (std::vector<bool>{false, false, false, true, false}));
  EXPECT_EQ(modes_with({}), std::vector<bool>(5, false));
  const auto twice = [&](const Callbacks& more) {
    return learn.get_preds({.cbs = more}).preds.equal(learn.get_preds({.cbs = more}).preds);
  };
  EXPECT_FALSE(twice(callbacks(MCDropout())));
  EXPECT_TRUE(twice({}));
}

/// Records of one kind in the journals below a folder.
std::vector<nlohmann::json> records(const std::filesystem::path& folder, const std::string& op) {
  std::vector<nlohmann::json> found;
  std::istringstream lines(contents_of_journals(folder));
  for (std::string line; std::getline(lines, line);) {
    auto record = nlohmann::json::parse(line);
    if (record.value("op", "") == op) found.push_back(std::move(record));
  }
  return found;
}

TEST_F(CallbackFiles, ShowGraphDrawsBothLossesInOneChart) {
  AcceleratorOptions settings{.cpu = true, .log_with = {"tensorboard"}, .project = {.project_dir = folder_}};
  const Accelerator accelerator(process::Process(process::RankInfo{}, comm::Group()), settings);
  auto options = quiet(folder_);
  options.accelerator = accelerator;
  const Learner learn(data_of(48), net(), options);
  learn.add(ShowGraph(4));
  const auto without_run = words_of<UsageError>([&] { learn.no_logging([&] { learn.fit(1, 0.02); }); });
  learn.find<ShowGraph>()->step = 0;

  accelerator.init_trackers("graph");
  learn.no_logging([&] { learn.fit(2, 0.02); });
  accelerator.end_training();

  EXPECT_NE(without_run.find("show_graph without a run"), std::string::npos) << without_run;
  std::map<int64_t, double> train, valid;
  for (const auto& record : records(folder_, "log")) {
    const auto text = record.dump();
    if (text.find("graph") == std::string::npos) continue;
    const auto& graph = record.at("values").at("graph");
    if (graph.contains("train")) train[record.at("step")] = graph.at("train");
    if (graph.contains("valid")) valid[record.at("step")] = graph.at("valid");
  }
  const auto& losses = learn.recorder().losses();  // of 12 batches
  ASSERT_EQ(train.size(), 3U);
  for (const auto& [step, loss] : train) EXPECT_EQ(loss, losses[static_cast<size_t>(step) - 1]) << step;
  const auto& epochs = learn.recorder().values();
  EXPECT_EQ(valid, (std::map<int64_t, double>{{6, epochs[0][1]}, {12, epochs[1][1]}}));
}

TEST_F(CallbackFiles, TensorBoardTracesTheModelOnceUnlessToldNotTo) {
  const auto graphs_of = [&](const std::string& board, bool trace_model) {
    {
      const Learner learn(data_of(), net(), quiet(folder_));
      learn.add(TensorBoard({.log_dir = path(board), .trace_model = trace_model, .log_preds = false}));
      learn.no_logging([&] {
        learn.fit(1, 0.02);
        learn.fit(1, 0.02);
      });
    }
    return records(path(board), "graph");
  };

  const auto traced = graphs_of("traced", true);

  ASSERT_EQ(traced.size(), 1U);
  std::vector<std::string> nodes;
  for (const auto& node : traced[0].at("nodes"))
    nodes.push_back(text(node.at("name").get<std::string>(), ":", node.at("op").get<std::string>()));
  EXPECT_EQ(nodes, (std::vector<std::string>{"input:Placeholder", "0:LinearImpl", "1:BatchNorm1dImpl", "2:ReLUImpl",
                                             "3:DropoutImpl", "4:LinearImpl"}));
  EXPECT_EQ(traced[0].at("nodes").back().at("inputs"), nlohmann::json({"3"}));
  EXPECT_EQ(graphs_of("untraced", false).size(), 0U);
}

std::vector<std::string> lines_of(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST_F(CallbackFiles, CSVLoggerWritesTheRowsOfTheTable) {
  const Learner learn(data_of(), net(), quiet(folder_));
  // Nothing is written while tables are off.
  ::testing::internal::CaptureStdout();
  learn.add(CSVLogger("logs/rows.csv", true));

  learn.fit(2, 0.02);
  const auto first = learn.recorder().values();
  learn.recorder().options().add_time = false;
  learn.fit(1, 0.02);
  ::testing::internal::GetCapturedStdout();

  const auto lines = lines_of(path("logs/rows.csv"));
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_EQ(lines[0], "epoch,train_loss,valid_loss,accuracy,time");
  EXPECT_EQ(lines[3], "epoch,train_loss,valid_loss,accuracy");
  for (size_t row = 0; row < 2; ++row) {
    std::istringstream cells(lines[1 + row]);
    std::vector<double> values;
    for (std::string cell; std::getline(cells, cell, ',');) values.push_back(std::stod(cell));
    ASSERT_EQ(values.size(), 5U);
    EXPECT_EQ(values[0], static_cast<double>(row));
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(values[1 + i], first[row][i], 1e-7);
  }
  learn.remove_cb("csv_logger");
  learn.add(CSVLogger("logs/rows.csv"));
  ::testing::internal::CaptureStdout();
  learn.fit(1, 0.02);
  ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(lines_of(path("logs/rows.csv")).size(), 2U) << "without append it begins anew";
}

TEST(Callbacks, GradientClipCutsTheNormThatIsNamed) {
  struct Norms : Callback {
    std::string_view name() const override { return "norms"; }
    int order() const override { return 50; }
    void before_step(Learner& learn) override {
      std::vector<at::Tensor> all;
      for (const auto& parameter : learn.model().module()->parameters()) all.push_back(parameter.grad().flatten());
      seen.push_back(at::cat(all));
    }
    std::vector<at::Tensor> seen;
  };
  const auto gradients = [](const Callbacks& more) {
    const auto norms = std::make_shared<Norms>();
    const Learner learn(data_of(48, false), net(), quiet());
    auto all = more;
    all.push_back(entry_of(norms));
    learn.no_logging([&] { learn.fit(1, 0.0, {.cbs = all}); });
    return norms->seen;
  };
  const auto free = gradients({}), by_norm = gradients(callbacks(GradientClip(0.1))),
             by_largest = gradients(callbacks(GradientClip(0.01, std::numeric_limits<double>::infinity())));

  for (size_t i = 0; i < free.size(); ++i) {
    const double norm = free[i].norm().item<double>(), largest = free[i].abs().max().item<double>();
    ASSERT_GT(norm, 0.1);
    EXPECT_TRUE(at::allclose(by_norm[i], free[i] * (0.1 / norm), 1e-4)) << i;
    EXPECT_TRUE(at::allclose(by_largest[i], free[i] * (0.01 / largest), 1e-3)) << i;
  }
}

TEST(Callbacks, ChannelsLastReachesWeightsAndInputs) {
  struct Layout : Callback {
    std::string_view name() const override { return "layout"; }
    void after_pred(Learner& learn) override {
      inputs = inputs && learn.inputs().front().is_contiguous(at::MemoryFormat::ChannelsLast);
    }
    bool inputs = true;
  };
  torch::nn::Sequential images(torch::nn::Conv2d(3, 4, 3), torch::nn::Flatten(), torch::nn::Linear(4 * 4 * 4, 2));
  const auto x = at::randn({16, 3, 6, 6});
  const Learner learn(
      tensor_loaders({x, at::arange(16).remainder(2)}, {x, at::arange(16).remainder(2)}, {.batch_size = 8}), images,
      {.loss = cross_entropy()});
  const auto layout = std::make_shared<Layout>();

  learn.no_logging([&] { learn.fit(1, 0.01, {.cbs = callbacks(ChannelsLast(), layout)}); });

  EXPECT_TRUE(layout->inputs);
  EXPECT_TRUE(images->parameters()[0].is_contiguous(at::MemoryFormat::ChannelsLast));
}

/// Batches of training and of validation by epoch.
struct PassLengths : Callback {
  std::string_view name() const override { return "pass_lengths"; }
  void after_batch(Learner& learn) override { ++counts[{learn.epoch(), learn.training()}]; }
  std::map<std::pair<int64_t, bool>, int64_t> counts;
};

TEST(Callbacks, ShortEpochAndSkipToEpochLeaveOutWhatTheySay) {
  const auto counts_with = [](const Callbacks& more) {
    const auto lengths = std::make_shared<PassLengths>();
    const Learner learn(data_of(80), net(), quiet());  // 10 batches, 3 of validation
    auto all = more;
    all.push_back(entry_of(lengths));
    learn.no_logging([&] { learn.fit(2, 0.01, {.cbs = all}); });
    return lengths->counts;
  };
  using Counts = std::map<std::pair<int64_t, bool>, int64_t>;

  // The batch at which the part is reached is cancelled with the pass, so that later callbacks do not see it.
  EXPECT_EQ(counts_with(callbacks(ShortEpoch(0.5))),
            (Counts{{{0, true}, 5}, {{0, false}, 2}, {{1, true}, 5}, {{1, false}, 2}}));
  EXPECT_EQ(counts_with(callbacks(ShortEpoch(0.5, false))),
            (Counts{{{0, true}, 5}, {{0, false}, 3}, {{1, true}, 5}, {{1, false}, 3}}));
  EXPECT_EQ(counts_with(callbacks(SkipToEpoch(1))), (Counts{{{1, true}, 10}, {{1, false}, 3}}));
}

TEST(Callbacks, TheRecorderKeepsTheColumnsThatAreAskedFor) {
  const auto trained = [](const RecorderOptions& options) {
    auto own = quiet();
    own.default_cbs = false;
    own.cbs = callbacks(TrainEval(), Recorder(options));
    const Learner learn(data_of(48, false), net(), own);
    learn.no_logging([&] { learn.fit(1, 0.0); });
    return learn;
  };
  using Names = std::vector<std::string>;

  const auto both = trained({.train_metrics = true}), neither = trained({.valid_metrics = false});
  const auto training_only = trained({.train_metrics = true, .valid_metrics = false});

  EXPECT_EQ(both.recorder().columns(), (Names{"train_loss", "train_accuracy", "valid_loss", "valid_accuracy"}));
  EXPECT_EQ(neither.recorder().columns(), (Names{"train_loss", "valid_loss"}));
  EXPECT_EQ(training_only.recorder().columns(), (Names{"train_loss", "accuracy", "valid_loss"}));
  EXPECT_EQ(both.recorder().value_of("train_accuracy"), training_only.recorder().value_of("accuracy"));
  // The last row, by beta: 0 forgets all losses but the last one.
  const auto forgetful = trained({.beta = 0.0});
  const auto collect = std::make_shared<CollectData>();
  forgetful.no_logging([&] { forgetful.fit(1, 0.0, {.cbs = callbacks(collect)}); });
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(forgetful.recorder().losses()[i], collect->data[i].loss.item<double>());
}

TEST_F(CallbackFiles, TensorBoardShowsAsManyPredictionsAsAsked) {
  auto loaders = data_of();
  loaders.vocab = {"ant", "bee", "cat"};
  const auto tables_of = [&](const std::string& board, bool log_preds) {
    {
      const Learner learn(loaders, net(), quiet(folder_));
      learn.add(TensorBoard({.log_dir = path(board), .trace_model = false, .log_preds = log_preds, .n_preds = 4}));
      learn.no_logging([&] { learn.fit(2, 0.02); });
    }
    return records(path(board), "table");
  };
  const auto wanted = rows(20, 2).target;

  const auto tables = tables_of("shown", true);

  ASSERT_EQ(tables.size(), 2U) << "one an epoch";
  const auto& rows_of = tables[1].at("data");
  ASSERT_EQ(rows_of.size(), 4U);
  for (int64_t i = 0; i < 4; ++i)
    EXPECT_EQ(rows_of[static_cast<size_t>(i)][0], loaders.vocab[static_cast<size_t>(wanted[i].item<int64_t>())]);
  EXPECT_TRUE(tables_of("hidden", false).empty());
  const Learner learn(loaders, net(), quiet(folder_));
  learn.add(TensorBoard({.projector = true}));
  EXPECT_NE(words_of<UsageError>([&] {
              learn.no_logging([&] { learn.fit(1, 0.02); });
            }).find("set TensorBoardOptions::log_dir"),
            std::string::npos);
}

TEST_F(CallbackFiles, WhatWatchesOrSavesATrainingTakesNoPartInOtherPasses) {
  const Learner learn(data_of(), net(), quiet(folder_));
  learn.add(EarlyStopping({.monitor = "valid_loss", .patience = 1}), SaveModel({.fname = "best"}),
            ReduceLROnPlateau({.patience = 1}), CSVLogger());

  const auto found = learn.lr_find({.num_it = 60, .stop_div = false, .suggest = {}});
  const auto preds = learn.get_preds();
  const auto values = learn.validate();
  const auto one = learn.predict({rows(1, 3).data[0]});

  EXPECT_GE(found.lrs.size(), 60U) << "every point, though no epoch was better";
  EXPECT_EQ(preds.preds.size(0), 20);
  EXPECT_EQ(values.size(), 2U);
  EXPECT_EQ(one.probabilities.size(0), 3);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "history.csv"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "models"));
  learn.fit(1, 0.02);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "history.csv"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "models"));
}

TEST(Callbacks, APassReachesTheCallbacksThatDeclareIt) {
  struct Counting : Callback {
    explicit Counting(PassKind one) : kind(one) {}
    std::string_view name() const override {
      return kind == PassKind::kFit        ? "of_fit"
             : kind == PassKind::kLrFind   ? "of_lr_find"
             : kind == PassKind::kValidate ? "of_validate"
                                           : "of_predictions";
    }
    PassSet passes() const override { return passes_of(kind); }
    void before_validate(Learner&) override { ++count; }
    void after_loss(Learner&) override { ++count; }
    PassKind kind;
    int64_t count = 0;
  };
  const Learner learn(data_of(), net(), quiet());
  std::vector<std::shared_ptr<Counting>> all;
  for (const auto kind : {PassKind::kFit, PassKind::kLrFind, PassKind::kValidate, PassKind::kPredictions}) {
    all.push_back(std::make_shared<Counting>(kind));
    learn.add(all.back());
  }
  const auto counted = [&](const std::function<void()>& pass) {
    for (const auto& each : all) each->count = 0;
    learn.no_logging(pass);
    std::vector<bool> reached;
    for (const auto& each : all) reached.push_back(each->count > 0);
    return reached;
  };

  EXPECT_EQ(counted([&] { learn.fit(1, 0.02); }), (std::vector<bool>{true, false, false, false}));
  EXPECT_EQ(counted([&] { learn.lr_find({.num_it = 8, .suggest = {}}); }),
            (std::vector<bool>{false, true, false, false}));
  EXPECT_EQ(counted([&] { learn.validate(); }), (std::vector<bool>{false, false, true, false}));
  EXPECT_EQ(counted([&] { learn.get_preds(); }), (std::vector<bool>{false, false, false, true}));
}

// Standard output and error each a terminal of its own, as a launcher gives them to its workers.
class TwoTerminals {
 public:
  TwoTerminals() {
    std::cout.flush();
    for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
      const int reading = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
      if (grantpt(reading) != 0 || unlockpt(reading) != 0) throw std::runtime_error("no pty");
      const int terminal = open(ptsname(reading), O_RDWR | O_NOCTTY);
      const winsize size = {.ws_row = 40, .ws_col = 100, .ws_xpixel = 0, .ws_ypixel = 0};
      ioctl(terminal, TIOCSWINSZ, &size);
      before_.push_back(dup(stream));
      dup2(terminal, stream);
      close(terminal);
      reading_.push_back(reading);
    }
  }
  ~TwoTerminals() {
    for (const int one : before_) close(one);
    for (const int one : reading_) close(one);
  }
  TwoTerminals(const TwoTerminals&) = delete;
  TwoTerminals& operator=(const TwoTerminals&) = delete;

  /// Puts the streams back, and returns what was written to each.
  std::pair<std::string, std::string> take() {
    std::cout.flush();
    std::fflush(stdout);
    std::string said[2];
    for (size_t i = 0; i < 2; ++i) {
      char part[4096];
      ssize_t count = 0;
      while ((count = read(reading_[i], part, sizeof part)) > 0) said[i].append(part, static_cast<size_t>(count));
      dup2(before_[i], i == 0 ? STDOUT_FILENO : STDERR_FILENO);
    }
    return {said[0], said[1]};
  }

 private:
  std::vector<int> before_, reading_;
};

TEST(Callbacks, InATerminalTheBarIsOnTheStreamOfTheTableWithItsTotalAndGoes) {
  const Learner learn(data_of(), net(), quiet());
  TwoTerminals terminals;

  learn.fit(1, 0.02);

  const auto [out, err] = terminals.take();
  const size_t bar = out.rfind("epoch 0 valid: ");
  EXPECT_NE(out.find("epoch 0 train: "), std::string::npos) << out;
  EXPECT_NE(out.find("/7 ["), std::string::npos) << "the bar knows its batches: " << out;
  ASSERT_NE(bar, std::string::npos);
  EXPECT_NE(out.find("\r" + std::string(99, ' ') + "\r", bar), std::string::npos) << "the bar's line is wiped: " << out;
  EXPECT_EQ(err.find("epoch 0"), std::string::npos) << err;
}

TEST(Learner, ALastBatchOfOneSampleBehindABatchNormIsLeftOutAsInFastai) {
  const auto learner_of = [](int64_t train, int64_t batch_size) {
    return Learner(tensor_loaders(rows(train, 1), rows(9, 2), {.batch_size = batch_size}), net(), quiet());
  };

  const auto odd = learner_of(17, 16);
  odd.no_logging([&] { EXPECT_NO_THROW(odd.fit(2, 0.02)); });
  EXPECT_NO_THROW(learner_of(17, 16).lr_find({.num_it = 8, .suggest = {}}));
  const auto small = learner_of(10, 16);
  small.no_logging([&] { EXPECT_NO_THROW(small.fit(1, 0.02)) << "a single batch stays, whatever its size"; });
}

TEST(Learner, WithoutValidationDataTheTableHasNoSignedNan) {
  const Learner learn({.train = data_of().train}, net(), quiet());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();

  learn.fit(1, 0.02);

  const auto said = ::testing::internal::GetCapturedStdout() + ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(said.find("-nan"), std::string::npos) << said;
  EXPECT_NE(said.find("epoch"), std::string::npos) << said;
}

}  // namespace
}  // namespace hasten::learner
