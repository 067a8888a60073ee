// Sharded steps under autocast over a double of NCCL: the numbers of data parallelism in the same precision.
//
// Ranks are processes, since autocast's cache has one mutex a process (support/nccl_double.h).
#include <c10/core/DeviceGuard.h>
#include <gtest/gtest.h>
#include <hasten/hasten.h>
#include <torch/torch.h>

#include <cstdio>
#include <stdexcept>

#include "support/device_models.h"
#include "support/nccl_double.h"
#include "support/processes.h"

namespace hasten {
namespace {

using parallel::ShardStage;

struct LowPrecisionNetImpl : torch::nn::Module {
  LowPrecisionNetImpl() {
    torch::manual_seed(4);
    first = register_module("first", torch::nn::Linear(16, 32));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({32})));
    second = register_module("second", torch::nn::Linear(32, 32));
    head = register_module("head", torch::nn::Linear(32, 10));
  }
  at::Tensor forward(const at::Tensor& x) { return head(torch::relu(second(norm(first(x))))); }
  torch::nn::Linear first{nullptr}, second{nullptr}, head{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(LowPrecisionNet);

std::vector<at::Tensor> trained_in(Precision precision, ShardStage stage) {
  AcceleratorOptions options = testing::quiet_options(precision);
  options.shard = {.stage = stage, .wrap = {.unit_bytes = 400}};
  Accelerator accelerator(options);
  const c10::DeviceGuard on_device(accelerator.device());
  LowPrecisionNet net;
  torch::optim::SGD sgd(net->parameters(), 0.05);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const testing::SmallData data(24);
  const auto mine = [&](const at::Tensor& rows) {
    return rows.chunk(accelerator.num_processes())[accelerator.process_index()].to(accelerator.device());
  };
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    accelerator.backward(torch::cross_entropy_loss(model(mine(data.x)), mine(data.y)));
    optimizer.step();
  }
  std::vector<at::Tensor> values;
  for (const auto& [name, value] : accelerator.get_state_dict(model)) values.push_back(value.detach().cpu());
  accelerator.wait_for_everyone();
  return values;
}

void require_near(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected,
                  const std::string& what) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (at::allclose(found.at(i), expected[i], 4e-3, 4e-3)) continue;
    throw std::runtime_error(
        text(what, ": parameter ", i, " differs by ", (found[i] - expected[i]).abs().max().item<double>()));
  }
}

void require_numbers_of_ddp(Precision precision) {
  const testing::UsesNcclDouble with_double;
  const auto expected = trained_in(precision, ShardStage::kNone);
  for (const ShardStage stage : {ShardStage::kOptimizer, ShardStage::kGradients, ShardStage::kParameters}) {
    require_near(trained_in(precision, stage), expected, text("stage ", static_cast<int>(stage)));
  }
  if (testing::UsesNcclDouble::wire_bytes(Environment::current().integer("RANK", 0, 1).value_or(0)) == 0)
    throw std::runtime_error("nothing went over the double");
}

HASTEN_PROCESS_CASE(sharded_bf16_on_gpus) {
  require_numbers_of_ddp(Precision::kBf16);
  return 0;
}

HASTEN_PROCESS_CASE(sharded_fp16_on_gpus) {
  require_numbers_of_ddp(Precision::kFp16);
  return 0;
}

void expect_end_well(const std::string& case_name) {
  testing::Processes processes(2, case_name, {{"HASTEN_WATCH", "0"}});
  for (const auto& result : processes.wait(std::chrono::seconds(100))) EXPECT_EQ(result.exit_code, 0) << result.output;
}

TEST(LowPrecisionOnGpus, ShardedStepsInBf16GiveTheNumbersOfDdp) {
  expect_end_well("sharded_bf16_on_gpus");
}

TEST(LowPrecisionOnGpus, ShardedStepsInFp16GiveTheNumbersOfDdp) {
  expect_end_well("sharded_fp16_on_gpus");
}

}  // namespace
}  // namespace hasten
