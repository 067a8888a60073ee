// States of PyTorch's GradScaler and ours: each goes on from the other's, with the same scales, counts and parameters.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "hasten/core/env.h"
#include "hasten/precision/grad_scaler.h"

namespace hasten::precision {
namespace {

using nlohmann::json;

constexpr const char* kScript = R"(
import json, sys, torch
task = json.load(open(sys.argv[1]))
scaler = torch.amp.GradScaler("cpu")
scaler.load_state_dict(task["state"])
p = torch.nn.Parameter(torch.ones(2))
sgd = torch.optim.SGD([p], 0.1)
for overflows in task["overflows"]:
    sgd.zero_grad()
    scaler.scale((p * 0.25).sum()).backward()
    if overflows:
        p.grad[0] = float("inf")
    scaler.step(sgd)
    scaler.update()
print(json.dumps({"state": scaler.state_dict(), "p": p.tolist()}))
)";

json state_of(const GradScaler& scaler) {
  const auto state = scaler.state();
  return {{"scale", state.scale}, {"growth_factor", state.growth_factor}, {"backoff_factor", state.backoff_factor},
          {"growth_interval", state.growth_interval}, {"_growth_tracker", state.growth_tracker}};
}

GradScalerState state_from(const json& state) {
  return {.scale = state.at("scale").get<double>(), .growth_factor = state.at("growth_factor").get<double>(),
          .backoff_factor = state.at("backoff_factor").get<double>(), .growth_interval = state.at("growth_interval").get<int64_t>(),
          .growth_tracker = state.at("_growth_tracker").get<int64_t>()};
}

struct Run {
  json state;
  std::vector<float> parameters;
};

Run run_ours(const json& state, const std::vector<int>& overflows) {
  GradScaler scaler;
  scaler.load_state(state_from(state));
  auto p = torch::ones({2}, torch::requires_grad());
  torch::optim::SGD sgd({p}, 0.1);
  for (const int overflow : overflows) {
    sgd.zero_grad();
    scaler.scale((p * 0.25).sum()).backward();
    if (overflow != 0) p.mutable_grad()[0] = INFINITY;
    scaler.step(sgd);
    scaler.update();
  }
  const auto values = p.detach().contiguous();
  return {state_of(scaler), {values.const_data_ptr<float>(), values.const_data_ptr<float>() + 2}};
}

class GradScalerPeers : public ::testing::Test {
 protected:
  void SetUp() override {
    python_ = Environment::current().text("HASTEN_PEERS_PYTHON").value_or("");
    if (python_.empty()) GTEST_SKIP() << "HASTEN_PEERS_PYTHON is not set. Let it name a Python with torch.";
  }
  Run run_python(const json& state, const std::vector<int>& overflows) const {
    const std::string task = ::testing::TempDir() + "hasten_grad_scaler_task.json";
    std::ofstream(task) << json{{"state", state}, {"overflows", overflows}};
    const auto result = test::run_command({python_, "-c", kScript, task});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const auto given = json::parse(result.out);
    return {given.at("state"), given.at("p").get<std::vector<float>>()};
  }

 private:
  std::string python_;
};

TEST_F(GradScalerPeers, each_goes_on_from_the_others_state) {
  const json start = {{"scale", 1024.0}, {"growth_factor", 4.0}, {"backoff_factor", 0.25}, {"growth_interval", 3}, {"_growth_tracker", 2}};
  const std::vector<int> before = {0, 1, 0, 0, 0}, after = {0, 0, 1, 1, 0, 0, 0, 0};
  for (const bool ours_first : {true, false}) {
    const auto first = ours_first ? run_ours(start, before) : run_python(start, before);
    const auto ours = run_ours(first.state, after), theirs = run_python(first.state, after);
    EXPECT_EQ(ours.state, theirs.state);
    EXPECT_EQ(ours.parameters, theirs.parameters);
    EXPECT_EQ(first.state, run_ours(start, before).state);
  }
}

}  // namespace
}  // namespace hasten::precision
