#include "hasten/optim/prepared/prepared_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hasten/optim/prepared/prepared_optimizer.h"
#include "optim/refusal.h"
#include "optim/scheduler_spec.h"

namespace hasten::optim {
namespace {

using ::testing::HasSubstr;

// All of the peer's pace is in scheduler_golden_test.cpp.

struct ScheduledSgd {
  std::shared_ptr<training::GradientState> gradients = std::make_shared<training::GradientState>();
  std::shared_ptr<torch::optim::SGD> sgd =
      std::make_shared<torch::optim::SGD>(std::vector<at::Tensor>{torch::ones({1}, torch::requires_grad())}, 1.0);
  PreparedOptimizer<torch::optim::SGD> optimizer{sgd, gradients};

  PreparedScheduler<StepLR> step_lr(const PreparedSchedulerOptions& options) {
    return {std::make_shared<StepLR>(*sgd, StepLROptions{.step_size = 1, .gamma = 0.5}), gradients, options};
  }
  template <class S>
  void batch(const PreparedScheduler<S>& scheduler, bool sync) {
    gradients->set_sync_gradients(sync);
    optimizer.step();
    scheduler.step();
  }
};

TEST(PreparedScheduler, CountsOptimizerStepsForAnyNumberOfProcesses) {
  ScheduledSgd it;
  const auto scheduler = it.step_lr({.world_size = 4});

  for (const bool sync : {false, false, true, false, true}) it.batch(scheduler, sync);

  EXPECT_EQ(scheduler->last_epoch(), 2);
  EXPECT_EQ(scheduler.rates(), std::vector<double>{0.25});
}

TEST(PreparedScheduler, MovesOncePerProcessIfAskedTo) {
  ScheduledSgd it;
  const auto scheduler = it.step_lr({.once_per_process = true, .world_size = 3});

  it.batch(scheduler, true);

  EXPECT_EQ(scheduler->last_epoch(), 3);
}

TEST(PreparedScheduler, ASkippedStepDoesNotMoveIt) {
  ScheduledSgd it;
  const auto scheduler = it.step_lr({});

  it.optimizer.skip_step();
  scheduler.step();
  EXPECT_TRUE(it.optimizer.step_was_skipped());
  EXPECT_EQ(scheduler->last_epoch(), 0);

  it.optimizer.step();
  scheduler.step();
  EXPECT_FALSE(it.optimizer.step_was_skipped());
  EXPECT_EQ(scheduler->last_epoch(), 1);
}

TEST(PreparedScheduler, AnotherOptimizersSkippedStepIsNoneOfItsBusiness) {
  ScheduledSgd it;
  const auto scheduler = it.step_lr({});
  const auto other =
      std::make_shared<torch::optim::SGD>(std::vector<at::Tensor>{torch::ones({1}, torch::requires_grad())}, 1.0);
  const PreparedOptimizer<torch::optim::SGD> discriminator(other, it.gradients);

  discriminator.skip_step();
  it.optimizer.step();
  scheduler.step();

  EXPECT_EQ(scheduler->last_epoch(), 1);
  EXPECT_TRUE(it.gradients->optimizer_step_was_skipped());
}

TEST(PreparedScheduler, ApartFromTheOptimizerEveryCallIsAStep) {
  ScheduledSgd it;
  const auto scheduler = it.step_lr({.step_with_optimizer = false, .once_per_process = true, .world_size = 3});

  it.batch(scheduler, false);
  it.optimizer.skip_step();
  it.batch(scheduler, true);

  EXPECT_EQ(scheduler->last_epoch(), 2);
}

TEST(PreparedScheduler, AdjustedItCountsTheBatchesOfEachStep) {
  ScheduledSgd it;
  const auto scheduler = it.step_lr({.adjust_scheduler = true});

  for (const bool sync : {false, false, true}) it.batch(scheduler, sync);
  EXPECT_EQ(scheduler->last_epoch(), 3);

  it.batch(scheduler, true);  // a shorter last window
  EXPECT_EQ(scheduler->last_epoch(), 4);
}

TEST(PreparedScheduler, TheBatchesOfASkippedStepAreNotCountedLater) {
  ScheduledSgd it;
  const auto scheduler = it.step_lr({.adjust_scheduler = true});

  it.batch(scheduler, false);
  it.gradients->set_sync_gradients(true);
  it.optimizer.skip_step();
  scheduler.step();
  it.batch(scheduler, true);

  EXPECT_EQ(scheduler->last_epoch(), 1);
}

TEST(PreparedScheduler, PastItsEndAScheduleStaysWhereACallIsSeveralSteps) {
  ScheduledSgd it;
  const auto prepared = [&](const PreparedSchedulerOptions& options) {
    return PreparedScheduler<OneCycleLR>(
        std::make_shared<OneCycleLR>(*it.sgd, OneCycleLROptions{.max_lr = 1.0, .total_steps = 3}), it.gradients,
        options);
  };
  const auto by_process = prepared({.once_per_process = true, .world_size = 2});
  for (int step = 0; step < 4; ++step) it.batch(by_process, true);
  EXPECT_EQ(by_process->last_epoch(), 3);

  const auto by_step = prepared({});
  for (int step = 0; step < 3; ++step) it.batch(by_step, true);
  EXPECT_THAT(testing::refusal([&] { it.batch(by_step, true); }), HasSubstr("total_steps = 3"));
}

TEST(PreparedScheduler, AMetricCountsOnce) {
  ScheduledSgd it;
  const PreparedScheduler<ReduceLROnPlateau> scheduler(
      std::make_shared<ReduceLROnPlateau>(*it.sgd, ReduceLROnPlateauOptions{.patience = 1}), it.gradients,
      {.once_per_process = true, .world_size = 4});

  for (const double metric : {1.0, 1.0}) scheduler.step(metric);

  EXPECT_EQ(scheduler->num_bad_epochs(), 1);
  EXPECT_EQ(scheduler->last_epoch(), 2);
}

TEST(PreparedScheduler, CopiesAreTheSameScheduler) {
  ScheduledSgd it;
  const auto scheduler = it.step_lr({.adjust_scheduler = true});
  const auto copy = scheduler;

  it.batch(copy, false);
  it.batch(scheduler, true);

  EXPECT_EQ(copy->last_epoch(), 2);
  EXPECT_EQ(&copy.unwrap(), &scheduler.unwrap());
}

TEST(PreparedScheduler, ItsStateIsTheSchedulers) {
  ScheduledSgd it;
  const auto scheduler = it.step_lr({});
  it.batch(scheduler, true);
  const auto state = scheduler.state();
  it.batch(scheduler, true);

  scheduler.load_state(state);

  EXPECT_EQ(state, scheduler.unwrap().state());
  EXPECT_EQ(scheduler.rates(), std::vector<double>{0.5});
}

TEST(PreparedScheduler, AfterAWarmUpAScheduleStaysAtItsEndToo) {
  ScheduledSgd it;
  const PreparedScheduler<WarmupLR> scheduler(
      std::make_shared<WarmupLR>(
          *it.sgd,
          WarmupLROptions{.total_iters = 2,
                          .after = recipe<OneCycleLR>({.max_lr = 1.0, .total_steps = 3, .cycle_momentum = false})}),
      it.gradients, {.once_per_process = true, .world_size = 4});

  for (int step = 0; step < 3; ++step) it.batch(scheduler, true);

  EXPECT_EQ(scheduler->last_epoch(), 5);
  EXPECT_TRUE(scheduler->finished());
}

}  // namespace
}  // namespace hasten::optim
