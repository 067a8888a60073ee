// Callbacks one by one: what each changes in a fit, against the same by hand.
#include "hasten/learner/callbacks.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>

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

}  // namespace
}  // namespace hasten::learner
