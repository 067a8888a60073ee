// DeepSpeed's schedules against DeepSpeed itself: rates, and betas where a schedule moves them.
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <memory>

#include "hasten/core/error.h"
#include "hasten/optim/schedulers/deepspeed.h"
#include "support/golden.h"

namespace hasten::testing {
namespace {

using nlohmann::json;

std::unique_ptr<torch::optim::Optimizer> scheduled_optimizer(const json& input) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  const bool sgd = input.value("optimizer", "SGD") == "SGD";
  for (const auto& lr : input.at("lrs")) {
    const std::vector<at::Tensor> parameters = {torch::zeros({1}, torch::requires_grad())};
    if (sgd) {
      groups.emplace_back(parameters, std::make_unique<torch::optim::SGDOptions>(lr.get<double>()));
    } else {
      groups.emplace_back(parameters, std::make_unique<torch::optim::AdamOptions>(lr.get<double>()));
    }
  }
  if (sgd) return std::make_unique<torch::optim::SGD>(groups, torch::optim::SGDOptions(0.1));
  return std::make_unique<torch::optim::Adam>(groups, torch::optim::AdamOptions(0.1));
}

json deepspeed_schedule_case(const json& input) {
  const auto optimizer = scheduled_optimizer(input);
  const auto schedule = optim::deepspeed::make_schedule(*optimizer, input.at("type").get<std::string>(),
                                                        core::Value::parse_json(input.at("params").dump()));
  json lrs = json::array(), betas = json::array();
  for (int64_t step = 0; step <= input.at("steps").get<int64_t>(); ++step) {
    if (step > 0) schedule->step();
    json rates = json::array(), pairs = json::array();
    for (auto& group : optimizer->param_groups()) {
      rates.push_back(group.options().get_lr());
      if (auto* adam = dynamic_cast<torch::optim::AdamOptions*>(&group.options())) {
        pairs.push_back({std::get<0>(adam->betas()), std::get<1>(adam->betas())});
      }
    }
    lrs.push_back(rates);
    betas.push_back(pairs);
  }
  return {{"lrs", lrs}, {"betas", betas}};
}

// A total that leaves no step, or half a one, is refused; DeepSpeed takes it, and every rate after the warm-up is 0.
json totals_are_whole_numbers_above_0(const GoldenCase& golden) {
  const auto params = golden.input.value("params", json::object());
  if (!params.contains("total_num_steps") || !params["total_num_steps"].is_number()) return {};
  const double total = params["total_num_steps"];
  if (total >= 1 && total == std::floor(total)) return {};
  return {{"error", "UsageError"}};
}

TEST(DeepSpeedScheduleGolden, rates_and_betas_are_those_of_deepspeed) {
  GoldenTopic topic("sharding_config", [](const GoldenCase& golden) { return golden.family == "ds_schedule"; });
  topic.tolerate({.relative = 1e-12, .absolute = 1e-15});
  topic.on_every_case(totals_are_whole_numbers_above_0);
  topic.for_each([&](const GoldenCase& golden) {
    json given;
    try {
      given = deepspeed_schedule_case(golden.input);
    } catch (const UsageError&) {
      given = {{"error", golden.expected.value("error", "UsageError")}};
    } catch (const std::exception& error) {
      given = {{"failed", error.what()}};
    }
    topic.judge(golden, given);
  });
  topic.finish();
}

}  // namespace
}  // namespace hasten::testing
