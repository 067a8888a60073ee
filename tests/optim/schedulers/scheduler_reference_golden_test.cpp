// Every scheduler against PyTorch's over 200 steps, and once more from a state saved on the way. The values
// are in scheduler_reference.json, written by make_scheduler_reference.py.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iostream>

#include "optim/scheduler_spec.h"
#include "support/sources.h"

namespace hasten::optim {
namespace {

using nlohmann::json;

const json& reference() {
  static const json cases = [] {
    const auto path = hasten::testing::tests_folder() / "optim" / "schedulers" / "scheduler_reference.json";
    std::ifstream file(path);
    return json::parse(file).at("cases");
  }();
  return cases;
}

/// 1e-9 relative, as the golden learning rates; 0 must be 0 up to rounding.
bool near(const std::vector<double>& given, const std::vector<double>& wanted) {
  if (given.size() != wanted.size()) return false;
  for (size_t i = 0; i < given.size(); ++i) {
    if (std::abs(given[i] - wanted[i]) > 1e-9 * std::abs(wanted[i]) + 1e-18) return false;
  }
  return true;
}

void expect_row(const json& one, torch::optim::Optimizer& optimizer, size_t step) {
  const auto rates = testing::rates_of(optimizer);
  EXPECT_TRUE(near(rates, one.at("lr")[step]))
      << one.at("case") << ", step " << step << ": " << json(rates) << ", PyTorch " << one.at("lr")[step];
  if (!one.contains("momentum")) return;
  const auto momenta = testing::momenta_of(optimizer);
  EXPECT_TRUE(near(momenta, one.at("momentum")[step]))
      << one.at("case") << ", step " << step << ": " << json(momenta) << ", PyTorch " << one.at("momentum")[step];
}

std::unique_ptr<torch::optim::Optimizer> optimizer_of(const json& one) {
  return testing::optimizer_of(one.at("optimizer"), one.at("lrs"));
}

TEST(SchedulerReference, EverySchedulerGivesPyTorchsRatesOver200Steps) {
  size_t rows = 0;
  for (const auto& one : reference()) {
    if (one.contains("metrics")) continue;
    const auto optimizer = optimizer_of(one);
    const auto scheduler = testing::recipe_of(one.at("scheduler"))(*optimizer);

    for (size_t step = 0; step < one.at("lr").size() && !::testing::Test::HasFailure(); ++step, ++rows) {
      if (step > 0) scheduler->step();
      expect_row(one, *optimizer, step);
      EXPECT_EQ(scheduler->rates(), testing::rates_of(*optimizer)) << one.at("case");
      EXPECT_EQ(scheduler->last_epoch(), static_cast<int64_t>(step)) << one.at("case");
    }
  }
  std::cout << "scheduler reference: " << rows << " steps of " << reference().size() << " cases" << std::endl;
  EXPECT_GE(rows, 41u * 201u);
}

TEST(SchedulerReference, EverySchedulerGoesOnFromItsSavedState) {
  for (const auto& one : reference()) {
    if (one.contains("metrics")) continue;
    for (const size_t saved : {1u, 25u, 77u}) {
      const auto before = optimizer_of(one);
      const auto stopped = testing::recipe_of(one.at("scheduler"))(*before);
      for (size_t step = 0; step < saved; ++step) stopped->step();
      const auto state = core::Value::parse_json(stopped->state().to_json());
      // As after an optimizer was loaded: its rates are not those that the schedule began with.
      const auto optimizer = optimizer_of(one);
      for (auto& group : optimizer->param_groups()) group.options().set_lr(0.777);
      const auto scheduler = testing::recipe_of(one.at("scheduler"))(*optimizer);

      scheduler->load_state(state);

      for (size_t step = saved; step < one.at("lr").size() && !::testing::Test::HasFailure(); ++step) {
        if (step > saved) scheduler->step();
        expect_row(one, *optimizer, step);
      }
      EXPECT_EQ(scheduler->step_count(), static_cast<int64_t>(one.at("lr").size())) << one.at("case");
    }
  }
}

TEST(SchedulerReference, ThePlateauIsPyTorchsAlsoFromASavedState) {
  size_t cases = 0;
  for (const auto& one : reference()) {
    if (!one.contains("metrics")) continue;
    ++cases;
    auto optimizer = optimizer_of(one);
    auto scheduler = std::make_unique<ReduceLROnPlateau>(*optimizer, testing::plateau_of(one.at("scheduler")));

    for (size_t step = 1; step < one.at("lr").size() && !::testing::Test::HasFailure(); ++step) {
      scheduler->step(one.at("metrics")[step - 1]);
      expect_row(one, *optimizer, step);
      if (step % 50 == 3) {
        const auto state = core::Value::parse_json(scheduler->state().to_json());
        optimizer = optimizer_of(one);
        scheduler = std::make_unique<ReduceLROnPlateau>(*optimizer, testing::plateau_of(one.at("scheduler")));
        scheduler->load_state(state);
        expect_row(one, *optimizer, step);
      }
    }
  }
  EXPECT_EQ(cases, 6u);
}

}  // namespace
}  // namespace hasten::optim
