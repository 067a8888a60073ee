// Steps of several batches: by the Accelerator and by GradientAccumulation; checkpoints and signals that wait for them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>

#include "hasten/learner/callbacks.h"
#include "hasten/learner/distributed.h"
#include "hasten/learner/recorder.h"
#include "learner/small_tasks.h"
#include "support/folder.h"
#include "support/ranks.h"

namespace hasten::learner {
namespace {

using hasten::testing::run_ranks;
using hasten::testing::words_of;
using WindowFiles = hasten::testing::InFolder;

/// Without BatchNorm, whose statistics are of a batch.
torch::nn::Sequential plain_net() {
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Linear(6, 8), torch::nn::Tanh(), torch::nn::Linear(8, 3));
}

LearnerOptions sgd_options(std::filesystem::path path = ::testing::TempDir()) {
  return {.loss = cross_entropy(),
          .opt_func = optim::fastai::sgd({.mom = 0.9}),
          .metrics = {accuracy()},
          .path = std::move(path)};
}

Loaders in_order(int64_t count, int64_t batch_size) {
  return tensor_loaders(rows(count, 1), rows(20, 2), {.batch_size = batch_size, .shuffle = false});
}

/// The batches behind which a step was made.
struct Steps : Callback {
  std::string_view name() const override { return "steps"; }
  void after_step(Learner& learn) override { at.push_back(learn.train_iter() + 1); }
  std::vector<int64_t> at;
};

AcceleratorOptions windows_of(int64_t batches) {
  return {.cpu = true, .gradient_accumulation_steps = batches};
}

TEST(Windows, OfAnAcceleratorAreStepsOfLargerBatches) {
  const auto mine = plain_net(), wanted = plain_net();
  auto options = sgd_options();
  options.accelerator = Accelerator(process::Process(process::RankInfo{}, comm::Group()), windows_of(2));
  // 44 rows: 8 + 8, 8 + 8, and an epoch's end of 8 + 4.
  const Learner learn(in_order(44, 8), mine, options), larger(in_order(44, 16), wanted, sgd_options());
  const auto steps = std::make_shared<Steps>();
  learn.add(steps);

  learn.no_logging([&] { learn.fit(2, 0.3); });
  larger.no_logging([&] { larger.fit(2, 0.3); });

  EXPECT_EQ(steps->at, (std::vector<int64_t>{2, 4, 6, 8, 10, 12}));
  for (const auto& [name, tensor] : state_of(*wanted))
    EXPECT_TRUE(at::allclose(state_of(*mine).at(name), tensor, 1e-5, 1e-6)) << name;
}

TEST(Windows, EndWithThePassWhateverLoaderGivesIt) {
  const auto steps_of = [](Loader train, const DistributedOptions& distributed) {
    const Accelerator accelerator(process::Process(process::RankInfo{}, comm::Group()), windows_of(2));
    const Learner learn({.train = std::move(train)}, plain_net(), sgd_options());
    const auto steps = std::make_shared<Steps>();
    learn.add(steps);
    learn.distrib_ctx(accelerator, distributed, [&] { learn.no_logging([&] { learn.fit(2, 0.1); }); });
    return steps->at;
  };
  const auto data = rows(24, 1);
  std::vector<Batch> batches;
  for (int64_t i = 0; i < 24; i += 8)
    batches.push_back({{data.data.slice(0, i, i + 8)}, {data.target.slice(0, i, i + 8)}});
  const std::vector<int64_t> wanted{2, 3, 5, 6};

  EXPECT_EQ(steps_of(in_order(24, 8).train, {}), wanted);
  EXPECT_EQ(steps_of(batches, {}), wanted);
}

TEST(Windows, OfTwoRanksAreThoseOfOne) {
  const auto wanted = plain_net();
  const Learner larger(in_order(48, 16), wanted, sgd_options());
  larger.no_logging([&] { larger.fit(2, 0.3); });
  const auto data = rows(48, 1), valid = rows(20, 2);  // seeds are of the whole process

  for (const auto order : {LoaderOrder::kTurns, LoaderOrder::kBlocks}) {
    std::vector<std::shared_ptr<torch::nn::Module>> nets{plain_net().ptr(), plain_net().ptr()};
    run_ranks(2, [&](process::Process& process) {
      const Accelerator accelerator(process, windows_of(2));
      const auto net = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(nets[static_cast<size_t>(process.rank())]);
      const Learner learn(tensor_loaders(data, valid, {.batch_size = 4, .shuffle = false}), net, sgd_options());
      const auto steps = std::make_shared<Steps>();
      learn.add(steps);
      learn.distrib_ctx(accelerator, {.order = order}, [&] { learn.no_logging([&] { learn.fit(2, 0.3); }); });
      EXPECT_EQ(steps->at, (std::vector<int64_t>{2, 4, 6, 8, 10, 12}));
      if (order == LoaderOrder::kBlocks) return;  // other batches
      for (const auto& [name, tensor] : state_of(*wanted))
        EXPECT_TRUE(at::allclose(state_of(*net).at(name), tensor, 1e-4, 1e-5)) << name;
    });
  }
}

TEST(Windows, AreOfTheAcceleratorOrOfTheCallback) {
  auto options = sgd_options();
  options.accelerator = Accelerator(process::Process(process::RankInfo{}, comm::Group()), windows_of(4));
  const Learner learn(in_order(16, 8), plain_net(), options);

  const auto words = words_of<UsageError>(
      [&] { learn.no_logging([&] { learn.fit(1, 0.1, {.cbs = callbacks(GradientAccumulation(8))}); }); });

  EXPECT_NE(words.find("gradient_accumulation_steps = 4; expected one of them"), std::string::npos) << words;
}

/// Notes where checkpoints could be saved, and where they were.
struct Watching : Callback {
  explicit Watching(std::filesystem::path file) : checkpoint(std::move(file)) {}
  std::string_view name() const override { return "watching"; }
  int order() const override { return 99; }
  void after_batch(Learner& learn) override {
    if (!learn.training()) return;
    waits.push_back(learn.gradients_wait());
    if (!std::filesystem::exists(checkpoint)) return;
    saved_at.push_back(learn.train_iter());
    std::filesystem::remove_all(checkpoint);
  }
  std::filesystem::path checkpoint;
  std::vector<bool> waits;
  std::vector<int64_t> saved_at;
};

TEST_F(WindowFiles, CheckpointsWaitForTheStepThatGradientsWaitFor) {
  const Learner learn(in_order(56, 8), plain_net(), sgd_options(folder_));  // 7 batches
  const auto watching = std::make_shared<Watching>(path("fit"));
  learn.add(GradientAccumulation(24), checkpoint_every({.steps = 2, .dir = path("fit")}), watching);

  learn.no_logging([&] { learn.fit(1, 0.1); });

  EXPECT_EQ(watching->waits, (std::vector<bool>{true, true, false, true, true, false, false}));
  // Due at 2, 4 and 6.
  EXPECT_EQ(watching->saved_at, (std::vector<int64_t>{3, 6}));
  struct SaveTooEarly : Callback {
    explicit SaveTooEarly(std::string into) : folder(std::move(into)) {}
    std::string_view name() const override { return "save_too_early"; }
    void after_batch(Learner& own) override { own.save_checkpoint(folder); }
    std::string folder;
  };
  const auto words = words_of<UsageError>(
      [&] { learn.no_logging([&] { learn.fit(1, 0.1, {.cbs = callbacks(SaveTooEarly(path("early")))}); }); });
  EXPECT_NE(words.find("gradients of earlier batches wait for a step"), std::string::npos) << words;
}

/// Sends a signal to this process in a batch of training or of validation.
struct Raise : Callback {
  Raise(int64_t of_epoch, int64_t batch, bool in_training) : epoch(of_epoch), iter(batch), training(in_training) {}
  std::string_view name() const override { return "raise"; }
  void after_batch(Learner& learn) override {
    if (learn.epoch() == epoch && learn.iter() == iter && learn.training() == training) std::raise(SIGINT);
  }
  int64_t epoch, iter;
  bool training;
};

TEST_F(WindowFiles, AFitStoppedAtAnyBatchGoesOnBitForBit) {
  const auto data = in_order(40, 8);  // 5 batches and 3 of validation
  const auto made = [&](const torch::nn::Sequential& net, int64_t epoch, int64_t iter, bool training) {
    const Learner learn(data, net, sgd_options(folder_));
    learn.add(Raise(epoch, iter, training), StopOnSignal({.checkpoint = path("stopped")}), GradientAccumulation(16),
              EarlyStopping({.patience = 9}), MixUp(0.3), MixedPrecision(AmpMode::kFp16, {.init_scale = 64}));
    return learn;
  };
  const auto whole = plain_net();
  const auto once = made(whole, -1, 0, true);
  torch::manual_seed(11);
  once.no_logging([&] { once.fit_one_cycle(3, 0.2); });

  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    for (int64_t at = 0; at < 8; ++at) {
      const bool training = at < 5;
      SCOPED_TRACE(text("epoch ", epoch, training ? ", batch " : ", batch of validation ", training ? at : at - 5));
      const auto net = plain_net(), other = plain_net();
      const auto first = made(net, epoch, training ? at : at - 5, training);
      torch::manual_seed(11);
      first.no_logging([&] { first.fit_one_cycle(3, 0.2); });
      ASSERT_TRUE(first.find<StopOnSignal>()->stopped);
      EXPECT_EQ(first.find<StopOnSignal>()->exit_code, 130);
      // In validation, behind the epoch; else behind the step of two batches.
      const int64_t stops_at = training ? std::min<int64_t>(5, at + 1 + (at + 1) % 2) : 5;
      EXPECT_EQ(first.train_iter(), 5 * epoch + stops_at);

      const auto second = made(other, -1, 0, true);
      torch::manual_seed(99);
      second.no_logging([&] { second.fit_one_cycle(3, 0.2, {.resume = path("stopped")}); });

      expect_equal(state_of(*other), state_of(*whole));
      EXPECT_EQ(second.recorder().values(), once.recorder().values());
      EXPECT_EQ(second.recorder().losses(), once.recorder().losses());
    }
  }
}

TEST(StopOnSignal, ReachesAllRanksInPassesShorterThanItsInterval) {
  const auto data = rows(18, 1), valid = rows(8, 2);
  run_ranks(3, [&](process::Process& process) {
    const Accelerator accelerator(process);
    // Two batches a rank.
    const Learner learn(tensor_loaders(data, valid, {.batch_size = 3, .shuffle = false}), plain_net(), sgd_options());
    learn.add(Raise(process.rank() == 1 ? 0 : -1, 0, true), StopOnSignal(10));

    learn.distrib_ctx(accelerator, [&] { learn.no_logging([&] { learn.fit(4, 0.1); }); });

    EXPECT_TRUE(learn.find<StopOnSignal>()->stopped);
    EXPECT_EQ(learn.epoch(), 0);
  });
  EXPECT_THROW(StopOnSignal(0), UsageError);
  EXPECT_THROW(ShowGraph(0), UsageError);
}

}  // namespace
}  // namespace hasten::learner
