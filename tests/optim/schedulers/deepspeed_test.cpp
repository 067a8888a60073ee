// Scheduler sections of a DeepSpeed configuration: lists for groups, what is required, and values that are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>

#include <memory>

#include "hasten/core/error.h"
#include "hasten/optim/schedulers/deepspeed.h"

namespace hasten::optim::deepspeed {
namespace {

using core::Value;
using ::testing::DoubleNear;
using ::testing::ElementsAre;

std::unique_ptr<torch::optim::Adam> two_groups() {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const double lr : {0.1, 0.02}) {
    const std::vector<at::Tensor> parameters = {torch::zeros({1}, torch::requires_grad())};
    groups.emplace_back(parameters, std::make_unique<torch::optim::AdamOptions>(lr));
  }
  return std::make_unique<torch::optim::Adam>(groups, torch::optim::AdamOptions(0.1));
}

std::vector<double> rates(torch::optim::Optimizer& optimizer) {
  std::vector<double> all;
  for (auto& group : optimizer.param_groups()) all.push_back(group.options().get_lr());
  return all;
}

std::unique_ptr<Scheduler> made(torch::optim::Optimizer& optimizer, const char* type, const char* params) {
  return make_schedule(optimizer, type, Value::parse_json(params));
}

TEST(DeepSpeedSections, one_cycle_takes_a_value_for_each_group) {
  const auto optimizer = two_groups();
  const auto schedule = made(*optimizer, "OneCycle",
                             R"({"cycle_min_lr": [0.01, 0.02], "cycle_max_lr": [0.1, 0.2], "cycle_first_step_size": 2,
                                 "cycle_min_mom": [0.5, 0.6], "cycle_max_mom": 0.9})");
  EXPECT_THAT(rates(*optimizer), ElementsAre(0.01, 0.02));
  schedule->step();
  EXPECT_THAT(rates(*optimizer), ElementsAre(DoubleNear(0.055, 1e-12), DoubleNear(0.11, 1e-12)));
  const auto& options = static_cast<torch::optim::AdamOptions&>(optimizer->param_groups()[1].options());
  EXPECT_NEAR(std::get<0>(options.betas()), 0.75, 1e-12);
}

TEST(DeepSpeedSections, a_second_step_of_0_is_no_way_down) {
  const auto optimizer = two_groups();
  const auto schedule =
      made(*optimizer, "OneCycle",
           R"({"cycle_min_lr": 0.01, "cycle_max_lr": 0.1, "cycle_first_step_size": 2, "cycle_second_step_size": 0})");
  schedule->step();
  EXPECT_NEAR(rates(*optimizer)[0], 0.055, 1e-12);
  schedule->step();
  EXPECT_NEAR(rates(*optimizer)[0], 0.01, 1e-12);
}

TEST(DeepSpeedSections, null_is_the_groups_own_rates) {
  const auto optimizer = two_groups();
  const auto schedule =
      made(*optimizer, "WarmupDecayLR", R"({"total_num_steps": 9, "warmup_max_lr": null, "warmup_num_steps": 2})");
  for (int i = 0; i < 3; ++i) schedule->step();
  EXPECT_THAT(rates(*optimizer), ElementsAre(0.1, 0.02));
}

TEST(DeepSpeedSections, what_deepspeed_does_not_take_is_refused) {
  const auto optimizer = two_groups();
  for (const char* params :
       {"{}", R"({"cycle_min_lr": 0.1})", R"({"cycle_max_lr": 0.1})", R"({"cycle_min_lr": [0.1], "cycle_max_lr": 1})",
        R"({"cycle_min_lr": 0.1, "cycle_max_lr": 1, "cycle_second_step_size": -1})"}) {
    EXPECT_THROW(made(*optimizer, "OneCycle", params), UsageError) << params;
  }
  for (const char* params : {R"({"warmup_num_steps": 2.0})", R"({"warmup_min_lr": null})",
                             R"({"warmup_num_steps": 3, "last_batch_iteration": 4})"}) {
    EXPECT_THROW(made(*optimizer, "WarmupLR", params), UsageError) << params;
  }
  EXPECT_THROW(made(*optimizer, "LRRangeTest", R"({"lr_range_test_step_size": 3.0})"), UsageError);
  EXPECT_NO_THROW(made(*optimizer, "WarmupLR", R"({"warmup_num_steps": 3, "last_batch_iteration": -1})"));
}

}  // namespace
}  // namespace hasten::optim::deepspeed
