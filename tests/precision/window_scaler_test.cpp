// The window's scaler against a reference in float64, over random orders of calls.
#include "hasten/precision/window_scaler.h"

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <random>

#include "hasten/core/env.h"
#include "hasten/precision/options.h"

namespace hasten::precision {
namespace {

// A parameter with its optimizer, and what it must be.
struct Followed {
  Followed()
      : parameter(at::zeros({1}).requires_grad_()),
        sgd(std::make_shared<torch::optim::SGD>(std::vector<at::Tensor>{parameter}, torch::optim::SGDOptions(0.5))) {}
  at::Tensor parameter;
  std::shared_ptr<torch::optim::SGD> sgd;
  double value = 0, gradient = 0;
  bool has_gradient = false, infinite = false, stepped = false;
};

TEST(WindowScaler, RandomOrdersOfCallsFollowTheReference) {
  const auto scale_of_tests = Environment::current().integer("HASTEN_TEST_SCALE", 1).value_or(1);
  for (int64_t seed = 0; seed < 100 * scale_of_tests; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(static_cast<uint32_t>(seed));
    const auto pick = [&random](int count) { return static_cast<int>(random() % static_cast<uint32_t>(count)); };
    WindowScaler scaler({.init_scale = 16, .growth_interval = 1 + pick(3)}, {});
    std::vector<Followed> all(static_cast<size_t>(1 + pick(3)));
    for (auto& each : all) scaler.add(each.sgd);
    LossScaleRule rule{.init_scale = 16, .growth_interval = scaler.scaler().options().growth_interval};
    auto state = initial_state(rule);
    bool due = false, found = false;
    for (int call = 0; call < 60; ++call) {
      auto& one = all[static_cast<size_t>(pick(static_cast<int>(all.size())))];
      const int kind = pick(5);
      if (kind <= 1) {      // backward, of a window's first or a further batch
        if (one.stepped) {  // as a loop does: zero_grad after a step
          one.sgd->zero_grad();
          one.gradient = 0;
          one.has_gradient = one.infinite = one.stepped = false;
        }
        const bool bad = pick(6) == 0;
        const double slope = 0.25 * (1 + pick(4));
        if (due) state = next(state, found, rule);
        due = found = false;
        scaler.begin_backward((one.parameter * slope).sum()).backward();
        if (bad) one.parameter.mutable_grad().fill_(INFINITY);
        one.gradient += slope;
        one.infinite = one.infinite || bad;
        one.has_gradient = true;
      } else if (kind == 2 && one.has_gradient && !one.stepped) {
        scaler.unscale_(*one.sgd);
        scaler.unscale_(*one.sgd);  // a second call does nothing
        // What follows must be this optimizer's step: gradients of later backwards would be scaled.
        const std::function<at::Tensor()> none;
        training::StepContext context{.optimizer = *one.sgd, .closure = none};
        scaler.before_step(context);
        ASSERT_EQ(context.skip, one.infinite);
        if (!context.skip) one.sgd->step();
        scaler.after_step(context);
        if (!one.infinite) one.value -= 0.5 * one.gradient;
        due = true;
        found = found || one.infinite;
        one.stepped = true;
      } else if (kind == 3 && one.has_gradient && !one.stepped) {
        const std::function<at::Tensor()> none;
        training::StepContext context{.optimizer = *one.sgd, .closure = none};
        scaler.before_step(context);
        ASSERT_EQ(context.skip, one.infinite);
        if (!context.skip) one.sgd->step();
        scaler.after_step(context);
        if (!one.infinite) one.value -= 0.5 * one.gradient;
        due = true;
        found = found || one.infinite;
        one.stepped = true;
      } else if (kind == 4) {
        const auto seen = scaler.state();
        const auto wanted = due ? next(state, found, rule) : state;
        ASSERT_EQ(seen.scale, wanted.scale);
        ASSERT_EQ(seen.growth_tracker, wanted.tracker);
      }
      for (const auto& each : all) ASSERT_EQ(static_cast<double>(each.parameter.item<float>()), each.value);
    }
  }
}

TEST(WindowScaler, ADisabledScalerPassesEverything) {
  WindowScaler scaler({.enabled = false}, {});
  Followed one;
  scaler.begin_backward(one.parameter.sum()).backward();
  const std::function<at::Tensor()> none;
  training::StepContext context{.optimizer = *one.sgd, .closure = none};
  scaler.before_step(context);
  EXPECT_FALSE(context.skip);
  EXPECT_EQ(one.parameter.grad().item<float>(), 1.0F);
  EXPECT_FALSE(scaler.state().enabled);
  EXPECT_EQ(PrecisionOptions{}.weights, Weights::kParameter);
}

}  // namespace
}  // namespace hasten::precision
