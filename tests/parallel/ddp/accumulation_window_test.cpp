#include "hasten/parallel/ddp/accumulation_window.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hasten::parallel {
namespace {

using State = AccumulationWindow::State;
using Values = AccumulationWindow::Values;
using Warning = AccumulationWindow::Warning;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// A window in which one backward was held back and has left gradients.
AccumulationWindow held_once(int64_t optimizer_calls = 0) {
  AccumulationWindow window;
  window.set_sync(false);
  window.begin_backward({.optimizer_calls = optimizer_calls, .ends_window = false});
  window.end_held_backward(optimizer_calls, true);
  window.set_sync(true);
  return window;
}

TEST(AccumulationWindow, GoesFromHeldBackwardsToItsEnd) {
  AccumulationWindow window;
  EXPECT_EQ(window.state(), State::kEmpty);
  window.set_sync(false);
  EXPECT_TRUE(window.holds_back());
  window.begin_backward({.ends_window = false});
  EXPECT_EQ(window.state(), State::kOpen);
  window.end_held_backward(0, false);
  EXPECT_EQ(window.state(), State::kHeld);
  window.begin_backward({.ends_window = false});
  window.end_held_backward(0, true);
  EXPECT_EQ(window.state(), State::kHeldWithGradients);
  EXPECT_EQ(window.num_held(), 2);
  window.set_sync(true);
  window.begin_backward({.ends_window = true, .has_gradients = true});

  EXPECT_EQ(window.state(), State::kEndingWithGradients);
  EXPECT_FALSE(window.holds_back());
  EXPECT_TRUE(window.ends());
}

TEST(AccumulationWindow, EndsWithoutHeldBackwardsInEachStepOfAPlainLoop) {
  AccumulationWindow window;
  for (int step = 0; step < 3; ++step) {
    EXPECT_THAT(window.begin_backward({.optimizer_calls = step}), IsEmpty());
    EXPECT_EQ(window.state(), State::kEnding);
  }
}

TEST(AccumulationWindow, AModelThatIsHeldTwiceIsNotNoted) {
  AccumulationWindow window;
  window.set_sync(false);
  window.set_sync(false);
  window.begin_backward({.ends_window = false});

  EXPECT_FALSE(window.end_held_backward(0, true));
  EXPECT_FALSE(window.is_held());
}

TEST(AccumulationWindow, AnExchangeWithEveryBatchIsNotedButNotHeldBack) {
  AccumulationWindow window;
  window.set_deferred(true);
  window.begin_backward({.ends_window = false});

  EXPECT_FALSE(window.holds_back());
  EXPECT_TRUE(window.end_held_backward(0, true));
}

TEST(AccumulationWindow, GradientsThatAreGoneInsideItAreWarnedOfOnce) {
  auto window = held_once();

  EXPECT_THAT(window.begin_backward({.ends_window = false}), ElementsAre(Warning::kGradientsLost));
  EXPECT_THAT(window.begin_backward({.ends_window = true}), IsEmpty());
}

TEST(AccumulationWindow, APreparedOptimizerMayDropThemBeforeTheLastBatch) {
  auto inside = held_once(), at_end = held_once();

  EXPECT_THAT(inside.begin_backward({.optimizer_calls = 1, .ends_window = false}), IsEmpty());
  EXPECT_THAT(at_end.begin_backward({.optimizer_calls = 1, .ends_window = true}),
              ElementsAre(Warning::kGradientsLostAtEnd));
}

TEST(AccumulationWindow, ValuesThatChangedWithoutAPreparedOptimizerAreWarnedOfOnce) {
  auto window = held_once();

  EXPECT_THAT(window.begin_backward({.ends_window = false, .has_gradients = true, .values_changed = true}),
              ElementsAre(Warning::kSteppedInside));
  EXPECT_EQ(window.values(), Values::kChangedInside);
  EXPECT_THAT(window.begin_backward({.ends_window = false, .has_gradients = true, .values_changed = true}), IsEmpty());
}

TEST(AccumulationWindow, APreparedOptimizersStepMakesTheRanksCompareWithoutAWarning) {
  auto window = held_once();

  EXPECT_THAT(window.begin_backward({.optimizer_calls = 2, .has_gradients = true, .values_changed = true}), IsEmpty());
  EXPECT_EQ(window.values(), Values::kChanged);
}

TEST(AccumulationWindow, WhatWasForgottenIsNotMissed) {
  auto window = held_once();
  window.forget();

  EXPECT_THAT(window.begin_backward({.ends_window = true, .values_changed = true}), IsEmpty());
  EXPECT_EQ(window.values(), Values::kAgreed);
}

TEST(AccumulationWindow, TheFirstWeightMultipliesWhatStoodBefore) {
  AccumulationWindow window;
  window.begin_backward({.ends_window = true});

  EXPECT_EQ(window.add_weight(3), 3.0);
  EXPECT_EQ(window.add_weight(2), std::nullopt);
  EXPECT_EQ(window.weight(), 5.0);
}

TEST(AccumulationWindow, WeightsAreDividedOutAtTheEndAndNotBefore) {
  AccumulationWindow window;
  window.begin_backward({.ends_window = false});
  window.add_weight(2);
  EXPECT_EQ(window.settle(4), std::nullopt);
  EXPECT_EQ(window.weight(), 4.0);
  window.begin_backward({.ends_window = true, .has_gradients = true});
  window.add_weight(1);

  EXPECT_EQ(window.settle(5), 5.0);
  EXPECT_EQ(window.weight(), std::nullopt);
}

TEST(AccumulationWindow, ABackwardThatPassedTheModelByLetsALaterOneOfTheBatchCount) {
  AccumulationWindow window;
  window.begin_backward({.ends_window = true});
  window.add_weight(2);
  window.settle(2);
  window.reopen();
  window.begin_backward({.ends_window = true, .has_gradients = true});

  EXPECT_EQ(window.add_weight(3), 2.0) << "the mean so far is a sum again";
  EXPECT_EQ(window.weight(), 5.0);
}

}  // namespace
}  // namespace hasten::parallel
