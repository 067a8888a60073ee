// The Learner on one process: equal to the plain loop bit for bit, resumed at every batch, and what it refuses.
#include "hasten/learner/learner.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

#include "hasten/learner/callbacks.h"
#include "hasten/learner/files.h"
#include "hasten/learner/metrics.h"
#include "hasten/learner/recorder.h"
#include "hasten/parallel/model/channels_last.h"
#include "learner/small_tasks.h"
#include "support/folder.h"
#include "support/sources.h"

namespace hasten::learner {
namespace {

namespace nn = torch::nn;
using hasten::testing::words_of;

using LearnerFiles = hasten::testing::InFolder;

TEST(Learner, EqualsThePlainLoopBitForBit) {
  auto mine = net(), plain = net();
  auto options = quiet();
  options.splitter = one_group();
  options.wd_bn_bias = true;
  const Learner learn(data_of(48, false), mine, options);
  const auto examples = rows(48, 1);
  torch::optim::AdamW adam(plain->parameters(),
                           torch::optim::AdamWOptions(0.01).betas({0.9, 0.99}).eps(1e-5).weight_decay(0.01));
  std::vector<double> wanted, given;

  learn.add(std::make_shared<CollectData>());
  learn.no_logging([&] { learn.fit(2, 0.01); });
  for (const auto& one : learn.find<CollectData>()->data) {
    if (one.training) given.push_back(one.loss.item<double>());
  }
  const auto prepared = Accelerator(process::Process(process::RankInfo{}, comm::Group()));
  auto optimizer = prepared.prepare(adam);
  plain->train();
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (int64_t i = 0; i < 48; i += 8) {
      const auto loss = nn::functional::cross_entropy(plain->forward(examples.data.slice(0, i, i + 8)),
                                                      examples.target.slice(0, i, i + 8));
      wanted.push_back(loss.item<double>());
      loss.backward();
      optimizer.step();
      optimizer.zero_grad();
    }
  }

  EXPECT_EQ(given, wanted);
  expect_equal(state_of(*mine), state_of(*plain));
}

TEST(Learner, FindsARateWithoutATrace) {
  auto with = net(0.3), without = net(0.3);
  const Learner a(data_of(), with, quiet()), b(data_of(), without, quiet());

  torch::manual_seed(9);
  a.no_logging([&] {
    a.lr_find({.num_it = 20, .suggest = {Suggestion::kMinimum}});
    a.fit_one_cycle(2, 0.01);
  });
  torch::manual_seed(9);
  b.no_logging([&] { b.fit_one_cycle(2, 0.01); });

  expect_equal(state_of(*with), state_of(*without));
  EXPECT_EQ(a.recorder().losses(), b.recorder().losses());
}

TEST_F(LearnerFiles, ResumesInMidEpochBitForBitAtEveryBatch) {
  auto whole = net(0.3);
  const Learner once(data_of(30), whole, quiet(folder_));
  torch::manual_seed(11);
  once.recorder().options().train_metrics = true;
  once.add(EarlyStopping({.patience = 9}), SaveAndStop(-1, path("unused")));
  once.no_logging([&] { once.fit_one_cycle(3, 0.02); });
  const int64_t batches = once.train_iter();
  ASSERT_EQ(batches, 12);

  for (int64_t cut = 1; cut < batches; ++cut) {
    auto first = net(0.3), second = net(0.3);
    const Learner before(data_of(30), first, quiet(folder_));
    before.recorder().options().train_metrics = true;
    before.add(EarlyStopping({.patience = 9}), SaveAndStop(cut, path("checkpoint")));
    torch::manual_seed(11);  // behind the data, which is drawn from seeds of its own
    before.no_logging([&] { before.fit_one_cycle(3, 0.02); });
    const Learner after(data_of(30), second, quiet(folder_));
    after.recorder().options().train_metrics = true;
    after.add(EarlyStopping({.patience = 9}), SaveAndStop(-1, path("unused")));
    torch::manual_seed(99);
    after.no_logging([&] { after.fit_one_cycle(3, 0.02, {.resume = path("checkpoint")}); });

    SCOPED_TRACE(text("cut at batch ", cut));
    expect_equal(state_of(*second), state_of(*whole));
    EXPECT_EQ(after.recorder().losses(), once.recorder().losses());
    EXPECT_EQ(after.recorder().values(), once.recorder().values());
  }
}

/// Sends a signal to this process at a training batch.
struct Signal : Callback {
  Signal(int64_t batch, int number) : at(batch), signal(number) {}
  std::string_view name() const override { return "signal"; }
  void after_batch(Learner& learn) override {
    if (learn.training() && learn.train_iter() == at) std::raise(signal);
  }
  int64_t at;
  int signal;
};

TEST_F(LearnerFiles, StopsAtASignalWithACheckpointAndGoesOn) {
  auto whole = net(0.3), parts = net(0.3);
  const Learner once(data_of(30), whole, quiet(folder_)), first(data_of(30), parts, quiet(folder_));
  torch::manual_seed(11);
  once.add(Signal(-1, SIGTERM), StopOnSignal(), checkpoint_every({.epochs = 1, .dir = path("each")}));
  once.no_logging([&] { once.fit(3, 0.02); });
  torch::manual_seed(11);
  first.add(Signal(7, SIGTERM), StopOnSignal({.checkpoint = path("stopped")}),
            checkpoint_every({.epochs = 1, .dir = path("each")}));
  first.no_logging([&] { first.fit(3, 0.02); });

  EXPECT_EQ(first.train_iter(), 7);
  EXPECT_TRUE(first.find<StopOnSignal>()->stopped);
  EXPECT_EQ(first.find<StopOnSignal>()->exit_code, 143);
  first.find<Signal>()->at = -1;
  first.no_logging([&] { first.fit(3, 0.02, {.resume = path("stopped")}); });
  expect_equal(state_of(*parts), state_of(*whole));

  first.no_logging([&] { first.fit(3, 0.02, {.resume = path("each")}); });
  EXPECT_EQ(first.recorder().values(), once.recorder().values());
  EXPECT_THROW(checkpoint_every({.steps = 3}), UsageError);
  EXPECT_NE(words_of<UsageError>([&] {
              const Learner empty(tensor_loaders(rows(3, 1), rows(3, 2), {.batch_size = 8, .drop_last = true}), net(),
                                  quiet(folder_));
              empty.no_logging([&] { empty.fit(1); });
            }).find("no batches"),
            std::string::npos);
}

TEST_F(LearnerFiles, RefusesToResumeAnotherFit) {
  const Learner before(data_of(30), net(), quiet(folder_));
  before.add(SaveAndStop(2, path("checkpoint")));
  before.no_logging([&] { before.fit(2, 0.02); });
  const Learner other(data_of(30), net(), quiet(folder_));

  const auto resumed = [&](const Learner& learn) {
    learn.add(SaveAndStop(-1, path("unused")));
    return words_of<UsageError>([&] { learn.no_logging([&] { learn.fit(2, 0.02, {.resume = path("checkpoint")}); }); });
  };
  auto options = quiet(folder_);
  options.splitter = one_group();
  auto weights = net();
  const auto start = state_of(*weights);

  const auto epochs = words_of<UsageError>([&] { other.fit(3, 0.02, {.resume = path("checkpoint")}); });
  const auto callbacks =
      words_of<UsageError>([&] { other.no_logging([&] { other.fit(2, 0.02, {.resume = path("checkpoint")}); }); });

  EXPECT_NE(epochs.find("is of a fit of 2 epochs, this one has 3"), std::string::npos) << epochs;
  EXPECT_NE(callbacks.find("also has the callbacks save_and_stop"), std::string::npos) << callbacks;
  const auto groups = resumed(Learner(data_of(30), weights, options));
  EXPECT_NE(groups.find("resume with the same model and splitter"), std::string::npos) << groups;
  const auto more_rows = resumed(Learner(data_of(31), weights, quiet(folder_)));
  EXPECT_NE(more_rows.find("num_samples = 30"), std::string::npos) << more_rows;
  EXPECT_NE(more_rows.find("this one has num_samples = 31"), std::string::npos) << more_rows;
  const auto other_valid =
      resumed(Learner(tensor_loaders(rows(30, 1), rows(12, 2), {.batch_size = 8, .seed = 5}), weights, quiet(folder_)));
  EXPECT_NE(other_valid.find("this one has num_samples = 12"), std::string::npos) << other_valid;
  expect_equal(state_of(*weights), start);
}

TEST_F(LearnerFiles, SavesAndLoadsWeightsAndOptimizer) {
  auto first = net(), second = net();
  const Learner a(data_of(), first, quiet(folder_)), b(data_of(), second, quiet(folder_));
  a.no_logging([&] { a.fit(1, 0.02); });
  a.save("one");
  b.create_opt();

  b.load("one");
  a.no_logging([&] { a.fit(1, 0.02); });
  b.no_logging([&] {
    // The second epoch of the order.
    b.fit(2, 0.02, {.start_epoch = 1});
  });

  EXPECT_EQ(state_of(*first).size(), state_of(*second).size());
  EXPECT_EQ(b.opt().state().size(), a.opt().state().size());
  EXPECT_NE(words_of<UsageError>([&] {
              const Learner wrong(data_of(), nn::Sequential(nn::Linear(6, 3)),
                                  {.loss = cross_entropy(), .path = folder_});
              wrong.load("one");
            }).find("0.bias"),
            std::string::npos);
}

at::Tensor numbers(const nlohmann::json& list) {
  if (!list[0].is_array()) return at::tensor(list.get<std::vector<float>>());
  std::vector<at::Tensor> rows_of;
  for (const auto& row : list) rows_of.push_back(numbers(row));
  return at::stack(rows_of);
}

// Written by tests/learner/peers/make_fastai_file.py.
TEST(Learner, GoesOnFromAFileOfFastai) {
  const std::filesystem::path folder = testing::tests_folder() / "learner" / "fastai";
  std::ifstream file(folder / "adam.json");
  const auto recorded = nlohmann::json::parse(file);
  const auto x = numbers(recorded.at("x")), y = numbers(recorded.at("y")).to(at::kLong);
  auto model = nn::Sequential(nn::Linear(6, 8), nn::ReLU(), nn::Linear(8, 3));
  const Learner learn(tensor_loaders({x, y}, {x, y}, {.batch_size = 8, .shuffle = false}), model,
                      {.loss = cross_entropy(), .splitter = child_groups({0, 2}), .path = folder, .model_dir = "."});

  learn.load("adam", {.with_opt = true});
  EXPECT_EQ(learn.opt().state().size(), 4U);
  EXPECT_EQ(learn.hypers().get("lr"), (std::vector<double>{0.02, 0.02}));
  learn.no_logging([&] { learn.fit(1, 0.02); });

  const auto state = state_of(*model);
  for (const auto& [name, value] : recorded.at("state").items())
    EXPECT_TRUE(at::allclose(state.at(name), numbers(value), 1e-5, 1e-6)) << name;
  const Learner other(data_of(), model, {.loss = cross_entropy(), .path = folder, .model_dir = "."});
  EXPECT_NE(words_of<UsageError>([&] {
              other.load("adam", {.with_opt = true});
            }).find("4 parameters in 2 groups, this Learner of 4 in 1"),
            std::string::npos);
}

TEST_F(LearnerFiles, LogsToTheTrackersOfItsAccelerator) {
  AcceleratorOptions settings{.cpu = true, .log_with = {"tensorboard"}, .project = {.project_dir = folder_}};
  const Accelerator accelerator(process::Process(process::RankInfo{}, comm::Group()), settings);
  auto options = quiet(folder_);
  options.accelerator = accelerator;
  auto loaders = data_of();
  loaders.vocab = {"ant", "bee", "cat"};
  const Learner learn(loaders, net(), options);
  learn.add(Tracking(), TensorBoard(), ShowGraph(2));

  EXPECT_NE(words_of<UsageError>([&] { learn.fit(1, 0.02); }).find("init_trackers"), std::string::npos);
  accelerator.init_trackers("learner");
  learn.no_logging([&] { learn.fit(2, 0.02); });
  accelerator.end_training();

  const auto journal = contents_of_journals(folder_);
  for (const char* word :
       {"train_loss", "lr_0", "lr_1", "mom_0", "valid_loss", "accuracy", "\"graph", "predictions", "bee", "Linear"}) {
    EXPECT_NE(journal.find(word), std::string::npos) << word;
  }
}

TEST_F(LearnerFiles, ABoardOfItsOwnHoldsEventsAndTheProjector) {
  {
    const Learner learn(data_of(), net(), quiet(folder_));
    learn.add(TensorBoard({.log_dir = path("board"), .projector = true}),
              Tracking([](const TrackedValues&, int64_t) {}));
    learn.no_logging([&] { learn.fit(1, 0.02); });
  }
  size_t events = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path("board")))
    events += entry.path().filename().string().find("tfevents") != std::string::npos ? 1 : 0;
  std::ifstream vectors(path("board/predictions.tsv"));
  const std::string lines(std::istreambuf_iterator<char>(vectors), {});

  EXPECT_EQ(events, 1U);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 20);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\t'), 40);
}

TEST_F(LearnerFiles, ExportsAndLoadsALearner) {
  auto loaders = data_of();
  loaders.vocab = {"ant", "bee", "cat"};
  const Learner learn(loaders, net(), quiet(folder_));
  learn.no_logging([&] { learn.fit(1, 0.05); });
  learn.export_to(path("exported"));
  const auto sample = rows(1, 8).data[0];

  const auto loaded = load_learner(path("exported"), net(0.1), quiet(folder_));
  const auto wanted = learn.predict({sample}), given = loaded.predict({sample});

  EXPECT_TRUE(given.probabilities.equal(wanted.probabilities));
  EXPECT_EQ(given.decoded, wanted.decoded);
  EXPECT_NE(given.decoded.find_first_of("abc"), std::string::npos);
}

TEST(Learner, RefusesWhatDoesNotFit) {
  const auto loss = words_of<UsageError>([] { Learner(data_of(), net(), {}); });
  const Learner learn(data_of(), net(), quiet());

  EXPECT_NE(loss.find("without a loss"), std::string::npos);
  EXPECT_NE(words_of<UsageError>([&] {
              learn.fit(1, std::vector<double>{1, 2, 3});
            }).find("3 values for lr, but there are 2 layer groups"),
            std::string::npos);
  for (const HyperValue& rates : {HyperValue(slice(1e-3, -1)), HyperValue(-0.1)}) {
    EXPECT_NE(words_of<UsageError>([&] { learn.fit_one_cycle(1, rates); }).find("expected at least 0"),
              std::string::npos);
  }
  EXPECT_NE(words_of<UsageError>([&] { learn.freeze_to(3); }).find("freeze_to(3) with 2 layer groups"),
            std::string::npos);
  EXPECT_NE(words_of<UsageError>([&] { learn.add(Recorder()); }).find("two callbacks of the name 'recorder'"),
            std::string::npos);
  EXPECT_NE(words_of<UsageError>([&] { learn.remove_cb("recoder"); }).find("did you mean 'recorder'?"),
            std::string::npos);
  EXPECT_NE(words_of<UsageError>([&] { learn.hypers().get("mum"); }).find("did you mean 'mom'?"), std::string::npos);
  EXPECT_NE(words_of<UsageError>([&] {
              learn.fit(1, {}, {.cbs = callbacks(SaveModel({.monitor = "acuracy"}))});
            }).find("did you mean 'accuracy'?"),
            std::string::npos);
  EXPECT_THROW(SaveModel({.every_epoch = 1, .at_end = true}), UsageError);
  EXPECT_THROW(EarlyStopping({.patience = 0}), UsageError);
  EXPECT_EQ(learn.cbs().size(), 3U);
}

TEST(Learner, SaysWhatIsMissingBeforeTheFirstStep) {
  auto weights = net();
  const auto before = state_of(*weights);
  const Learner without_data({}, weights, quiet());
  const Learner without_inputs({.train = std::vector<Batch>{Batch{{}, {at::ones({2}, at::kLong)}}}}, weights, quiet());
  const auto words = [](const Learner& learn) {
    return words_of<UsageError>([&] { learn.no_logging([&] { learn.fit(1, 0.1); }); });
  };

  EXPECT_NE(words(without_data).find("fit without training data; set Loaders::train."), std::string::npos);
  EXPECT_NE(words(without_inputs).find("batch 0 of epoch 0 has no inputs"), std::string::npos) << words(without_inputs);
  expect_equal(state_of(*weights), before);
}

TEST(Learner, GoesOnBehindALossThatIsNotFiniteUnlessToldToStop) {
  auto data = rows(48, 1);
  data.data[8].fill_(NAN);  // in the second batch
  const auto batches_with = [&](const Callbacks& more) {
    const Learner learn(tensor_loaders(data, rows(20, 2), {.batch_size = 8, .shuffle = false}), net(), quiet());
    learn.no_logging([&] { learn.fit(1, 0.02, {.cbs = more}); });
    return learn.recorder().losses();
  };
  ::testing::internal::CaptureStderr();
  const auto whole = batches_with({});
  const auto warning = ::testing::internal::GetCapturedStderr();
  const auto cut = batches_with(callbacks(TerminateOnNaN()));

  EXPECT_NE(
      warning.find("the loss is nan since batch 1 of epoch 0; training goes on. Add TerminateOnNaN to stop there."),
      std::string::npos)
      << warning;
  EXPECT_EQ(whole.size(), 6U);
  EXPECT_TRUE(std::isnan(whole[1]));
  EXPECT_EQ(cut.size(), 1U) << "the second batch ends the fit before it is recorded";
}

TEST(Learner, NamesCallbackAndEventOfAnException) {
  struct Failing : Callback {
    std::string_view name() const override { return "failing"; }
    void after_loss(Learner&) override { throw std::runtime_error("no more paper"); }
  };
  const Learner learn(data_of(), net(), quiet());

  const auto words =
      words_of<Error>([&] { learn.no_logging([&] { learn.fit(1, 0.1, {.cbs = callbacks(Failing())}); }); });

  EXPECT_NE(words.find("callback 'failing' in after_loss: no more paper"), std::string::npos) << words;
  EXPECT_EQ(learn.find<Failing>(), nullptr);
}

TEST(Learner, KnowsAtCompileTimeWhichEventsACallbackHas) {
  EXPECT_EQ(overridden_events<ShortEpoch>(), 1U << static_cast<unsigned>(Event::kAfterBatch));
  EXPECT_NE(overridden_events<EarlyStopping>() & (1U << static_cast<unsigned>(Event::kBeforeFit)), 0U);
  const Learner learn(data_of(), net(), quiet());

  EXPECT_NE(learn.show_training_loop().find("before_fit: train_eval, recorder\n"), std::string::npos)
      << learn.show_training_loop();
}

TEST(Learner, AccumulatesTheMeanOverTheSamplesSeen) {
  auto mine = net(), plain = net();
  const Learner learn(data_of(20, false), mine,
                      {.loss = cross_entropy(), .opt_func = optim::fastai::sgd(), .splitter = one_group()});
  const auto examples = rows(20, 1);

  // Batches of 8, 8 and 4 rows: one step of 16, one of the tail's 4.
  learn.no_logging([&] { learn.fit(1, 0.5, {.cbs = callbacks(GradientAccumulation(16))}); });
  plain->train();
  for (const auto& [begin, end] : {std::pair{0, 16}, {16, 20}}) {
    for (int64_t i = begin; i < end; i += 8) {
      const auto last = std::min<int64_t>(i + 8, end);
      const auto loss = nn::functional::cross_entropy(plain->forward(examples.data.slice(0, i, last)),
                                                      examples.target.slice(0, i, last));
      (loss * static_cast<double>(last - i)).backward();
    }
    const at::NoGradGuard no_grad;
    for (auto& parameter : plain->parameters()) {
      parameter.sub_(parameter.grad() / static_cast<double>(end - begin), 0.5);
      parameter.mutable_grad().zero_();
    }
  }

  for (const auto& [name, tensor] : state_of(*plain))
    EXPECT_TRUE(at::allclose(state_of(*mine).at(name), tensor, 1e-5, 1e-6)) << name;
}

TEST(Learner, TrainsInBFloat16AndScaledFloat16) {
  for (const auto mode : {AmpMode::kBf16, AmpMode::kFp16}) {
    const Learner learn(data_of(), net(), quiet());
    learn.add(MixedPrecision(mode));

    learn.no_logging([&] { learn.fit(6, 0.02); });

    EXPECT_GT(learn.recorder().value_of("accuracy"), 0.7);
    EXPECT_EQ(learn.validate().size(), 2U);
  }
}

TEST(Learner, StepsMastersOfAHalfPrecisionModelAndEndsWithTheirValues) {
  const Learner learn(data_of(), net(), quiet());
  learn.to_non_native_fp16();

  learn.no_logging([&] { learn.fit(6, 0.02); });

  EXPECT_GT(learn.recorder().value_of("accuracy"), 0.7);
  EXPECT_GT(learn.find<NonNativeMixedPrecision>()->skipped, 0) << "a scale of 2^24 overflows at first";
  bool is_exact = false;
  for (const auto& parameter : learn.model().module()->parameters()) {
    EXPECT_EQ(parameter.scalar_type(), at::kFloat);
    is_exact = is_exact || !parameter.equal(parameter.to(at::kHalf).to(at::kFloat));
  }
  EXPECT_TRUE(is_exact) << "the masters' values, not their halves";
  EXPECT_EQ(learn.to_non_native_fp32().find<NonNativeMixedPrecision>(), nullptr);
  learn.no_logging([&] { learn.fit(1, 0.02); });
}

TEST(Learner, FastaisNamesForPrecisionPutTheCallbackInAndTakeItOut) {
  const Learner learn(data_of(), net(), quiet());
  const auto dtype_seen = [&] {
    struct Watch : Callback {
      explicit Watch(at::ScalarType* where) : seen(where) {}
      std::string_view name() const override { return "watch"; }
      int order() const override { return 5; }  // before the scope is closed
      void after_pred(Learner&) override {
        *seen = at::autocast::is_autocast_enabled(at::kCPU) ? at::autocast::get_autocast_dtype(at::kCPU) : at::kFloat;
      }
      at::ScalarType* seen;
    };
    at::ScalarType seen = at::kByte;
    learn.no_logging([&] { learn.fit(1, 0.02, {.cbs = callbacks(Watch(&seen))}); });
    return seen;
  };

  EXPECT_EQ(dtype_seen(), at::kFloat);
  learn.to_fp16();
  EXPECT_EQ(dtype_seen(), at::kHalf);
  learn.to_fp32().to_bf16();
  EXPECT_EQ(dtype_seen(), at::kBFloat16);
  learn.to_fp32();
  EXPECT_EQ(dtype_seen(), at::kFloat);
}

TEST(Learner, ToChannelslastBringsMixedPrecisionUnlessToldNotToAndToContiguousTakesItOut) {
  const Learner plain(data_of(), net(), quiet()), bf16(data_of(), net(), quiet());
  plain.to_channelslast(false);
  EXPECT_EQ(plain.find<MixedPrecision>(), nullptr);
  EXPECT_NE(plain.to_channelslast().find<MixedPrecision>(), nullptr);
  EXPECT_EQ(plain.find<MixedPrecision>()->mode, AmpMode::kFp16);

  bf16.to_bf16().to_channelslast(true, AmpMode::kFp16);

  EXPECT_EQ(bf16.find<MixedPrecision>()->mode, AmpMode::kBf16) << "a callback that is there stays";
  EXPECT_NE(bf16.to_contiguous().find<MixedPrecision>(), nullptr);
  EXPECT_EQ(bf16.find<ChannelsLast>(), nullptr);
  EXPECT_EQ(bf16.to_contiguous(/*to_fp32=*/true).find<MixedPrecision>(), nullptr);
}

TEST(Learner, ToContiguousGivesConvolutionsAndBuffersTheDefaultOrder) {
  torch::nn::Sequential images(torch::nn::Conv2d(3, 4, 3), torch::nn::Conv2d(4, 4, 3), torch::nn::Linear(4, 2));
  images->register_buffer("extra", at::rand({1, 3, 4, 4}));
  const Learner learn(data_of(), images, quiet());
  parallel::channels_last(images);
  ASSERT_FALSE(images->parameters()[0].is_contiguous());
  ASSERT_FALSE(images->buffers()[0].is_contiguous());

  learn.to_contiguous();

  EXPECT_TRUE(images->parameters()[0].is_contiguous());
  EXPECT_TRUE(images->buffers()[0].is_contiguous());
}

TEST(Learner, Fp16TakesTheScalersOptions) {
  const Learner learn(data_of(), net(), quiet());

  learn.to_fp16({.init_scale = 8.0});

  EXPECT_EQ(learn.find<MixedPrecision>()->scaler_options.init_scale, 8.0);
}

TEST(Learner, MixesSamplesAndStillLearns) {
  const Learner learn(data_of(200), net(), quiet());

  learn.no_logging([&] { learn.fit_one_cycle(6, 0.02, {.cbs = callbacks(MixUp(0.2), BnFreeze(), ShortEpoch(0.9))}); });

  EXPECT_GT(learn.recorder().value_of("accuracy"), 0.7);
}

TEST_F(LearnerFiles, SavesPredictionsAndTargetsAsAFileABatch) {
  const Learner learn(data_of(), net(), quiet(folder_));
  const auto whole = learn.get_preds({.act = [](const at::Tensor& outputs) { return outputs; }});
  const auto joined = [&](const std::string& folder) {
    std::vector<at::Tensor> parts;
    for (int batch = 0; std::filesystem::exists(path(text(folder, "/", batch))); ++batch) {
      std::ifstream file(path(text(folder, "/", batch)), std::ios::binary);
      parts.push_back(
          torch::jit::pickle_load({std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()}).toTensor());
    }
    EXPECT_EQ(parts.size(), 3U) << folder;
    return at::cat(parts);
  };

  const auto given = learn.get_preds({.with_preds = false, .save_preds = path("preds"), .save_targs = path("targs")});

  EXPECT_FALSE(given.preds.defined());
  EXPECT_TRUE(given.targets.equal(whole.targets));
  EXPECT_TRUE(joined("preds").equal(whole.preds));
  EXPECT_TRUE(joined("targs").equal(whole.targets));
}

TEST_F(LearnerFiles, PredictionsGatheredInAFitAreThoseOfTheLastValidation) {
  const Learner learn(data_of(), net(), quiet(folder_));
  const auto gather = std::make_shared<GatherPreds>();

  learn.no_logging([&] { learn.fit(2, 0.02, {.cbs = callbacks(gather)}); });

  EXPECT_TRUE(gather->joined(gather->preds).equal(learn.get_preds().preds));
}

TEST(Learner, SetsTheSeedAndIfAskedDeterministicConvolutions) {
  const Learner learn(data_of(), net(), quiet());
  auto& context = at::globalContext();
  const bool deterministic = context.deterministicCuDNN(), benchmark = context.benchmarkCuDNN();
  context.setBenchmarkCuDNN(true);
  const auto drawn = [&](uint64_t seed, bool reproducible) {
    learn.set_seed(seed, reproducible);
    return at::rand({4});
  };

  const auto first = drawn(5, false);
  EXPECT_FALSE(context.deterministicCuDNN());
  EXPECT_TRUE(drawn(5, true).equal(first));
  EXPECT_FALSE(drawn(6, true).equal(first));
  EXPECT_TRUE(context.deterministicCuDNN());
  EXPECT_FALSE(context.benchmarkCuDNN());
  EXPECT_FALSE(context.deterministicAlgorithms()) << "would refuse operators that have no such form";

  context.setDeterministicCuDNN(deterministic);
  context.setBenchmarkCuDNN(benchmark);
}

TEST(Learner, AveragesAugmentedPasses) {
  auto loaders = data_of();
  loaders.augment = [](const Batch& batch) { return Batch{{batch.inputs.front() * 2}, batch.targets}; };
  const Learner learn(loaders, net(), quiet());
  const auto plain = learn.get_preds().preds;
  auto doubled = data_of();
  const auto valid = rows(20, 2);
  const auto twice =
      learn.get_preds({.loader = tensor_loader(valid.data * 2, valid.target, {.batch_size = 8, .shuffle = false})})
          .preds;

  const auto given = learn.tta({.n = 2});

  EXPECT_TRUE(at::allclose(given.preds, at::lerp(twice, plain, 0.25)));
  EXPECT_EQ(learn.show_results(3).substr(0, 6), "target");
  EXPECT_NE(learn.summary().find("trainable"), std::string::npos);
}

}  // namespace
}  // namespace hasten::learner
