// A model with its optimizer on one rank, sharded or plain Ddp, and the comparison of the two.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hasten/optim/steps/optimizer_step.h"
#include "hasten/parallel/ddp/backward.h"
#include "hasten/parallel/ddp/ddp.h"
#include "hasten/parallel/shard/options.h"
#include "hasten/parallel/shard/sharding.h"
#include "support/models.h"
#include "support/ranks.h"
#include "support/test_device.h"

namespace hasten::parallel::shard_testing {

using testing::run_ranks;
using testing::run_ranks_collecting;
using torch::optim::Optimizer;

// Many units in small models.
inline ShardOptions small_units(ShardStage stage) {
  return {.stage = stage, .wrap = {.unit_bytes = 400}};
}

// A model with its optimizer on one rank: sharded on the rank's device (test_device.h), or plain Ddp on the CPU.
template <class Net>
struct Trained {
  using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(const std::vector<at::Tensor>&)>;

  Trained(const comm::Group& of, std::optional<ShardOptions> shard, const MakeOptimizer& make,
          std::optional<c10::Device> on = {})
      : group(of),
        device(on      ? *on
               : shard ? testing::test_device(of.rank())
                       : c10::Device(at::kCPU)) {
    testing::initialise(*net, 5);
    net->to(device);
    DdpOptions options;
    if (shard) {
      sharding = std::make_unique<Sharding>(group, *shard);
      options.exchange = sharding->make_exchange(group);
    }
    optimizer = make(net->parameters());
    ddp = std::make_shared<const Ddp>(*net, group, options);
  }

  void backward(const at::Tensor& loss, const BackwardOptions& options = {}) const {
    parallel::backward(loss, options, {.models = {ddp}, .group = group});
  }
  void step() {
    const auto own = [this] { return optim::optimizer_step(*optimizer); };
    if (sharding) {
      sharding->step(*optimizer, own);
    } else {
      own();
    }
  }
  // This rank's rows of the batch.
  at::Tensor loss(const std::string& problem_name, int step_number) {
    const auto problem = testing::problem_for(problem_name, 100 + step_number);
    const auto rows = [&](const at::Tensor& all) { return all.chunk(group.world_size())[group.rank()].to(device); };
    return torch::cross_entropy_loss(net->forward(rows(problem.inputs)), rows(problem.targets));
  }
  // The whole gradient, on the CPU. Collective on devices, where ranks have parts.
  at::Tensor gradient(const at::Tensor& parameter) const {
    return sharding && !device.is_cpu() ? sharding->full_gradient(parameter).cpu() : parameter.grad();
  }
  std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> values;
    for (const auto& parameter : net->parameters()) values.push_back(parameter.detach().clone().cpu());
    return values;
  }

  comm::Group group;
  c10::Device device;
  Net net;
  std::unique_ptr<Sharding> sharding;
  std::unique_ptr<Optimizer> optimizer;
  std::shared_ptr<const Ddp> ddp;
};

inline std::unique_ptr<Optimizer> adamw(const std::vector<at::Tensor>& parameters) {
  return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.01));
}

// Some gradients are zero but for rounding: a bias of keys, one before a batch norm. Adam makes those large.
inline std::unique_ptr<Optimizer> adamw_or_sgd(const std::vector<at::Tensor>& parameters) {
  if (!testing::on_device()) return adamw(parameters);
  return std::make_unique<torch::optim::SGD>(parameters, 0.1);
}

inline void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(testing::same_values(a[i], b[i])) << what << ", parameter " << i;
}

inline const std::vector<ShardStage> kStages = {ShardStage::kOptimizer, ShardStage::kGradients,
                                                ShardStage::kParameters};

// Trains by `run` with Ddp and with each stage, and compares the parameters: bit for bit on the CPU.
template <class Net>
void expect_numbers_of_ddp(int world_size, const std::function<void(Trained<Net>&)>& run,
                           const typename Trained<Net>::MakeOptimizer& make = adamw,
                           const ShardOptions& base = {.wrap = {.unit_bytes = 400}},
                           const std::vector<ShardStage>& stages = kStages) {
  run_ranks(world_size, [&](auto& process) {
    Trained<Net> plain(process.group(), {}, make);
    run(plain);
    for (const ShardStage stage : stages) {
      ShardOptions options = base;
      options.stage = stage;
      Trained<Net> sharded(process.group(), options, make);
      run(sharded);
      expect_equal(plain.parameters(), sharded.parameters(), "stage " + std::to_string(static_cast<int>(stage)));
      process.group().barrier();
    }
  });
}

template <class Net>
void train(Trained<Net>& trained, const std::string& problem, int num_steps = 5) {
  for (int step = 0; step < num_steps; ++step) {
    trained.optimizer->zero_grad();
    trained.backward(trained.loss(problem, step));
    trained.step();
  }
}

}  // namespace hasten::parallel::shard_testing
