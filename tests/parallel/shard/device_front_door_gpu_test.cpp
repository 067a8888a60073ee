// The front door on a device: processes that share one, each with memory of its own, over the CPU's backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <iostream>

#include "hasten/accelerator.h"
#include "hasten/parallel/shard/in_parts.h"
#include "support/folder.h"
#include "support/models.h"
#include "support/processes.h"

namespace hasten {
namespace {

using testing::run_processes;

at::Tensor loss_of(testing::Mlp& net, const Accelerator& accelerator, int step) {
  const auto problem = testing::problem_for("mlp", 100 + step);
  const auto rows = [&](const at::Tensor& all) {
    return all.chunk(accelerator.num_processes())[accelerator.process_index()].to(accelerator.device());
  };
  return torch::cross_entropy_loss(net->forward(rows(problem.inputs)), rows(problem.targets));
}

AcceleratorOptions sharded(ShardStage stage) {
  AcceleratorOptions options;
  options.shard = {.stage = stage, .wrap = {.unit_bytes = 400}};
  return options;
}

template <class Optimizer>
void train(testing::Mlp& net, const Accelerator& accelerator, Optimizer& optimizer, int first, int last) {
  for (int step = first; step < last; ++step) {
    optimizer.zero_grad();
    accelerator.backward(loss_of(net, accelerator, step));
    accelerator.clip_grad_norm_(net->parameters(), 0.5);
    optimizer.step();
  }
}

// What one process computes on the whole batch.
std::vector<at::Tensor> wanted_values(int num_steps) {
  testing::Mlp net;
  testing::initialise(*net, 5);
  torch::optim::AdamW adam(net->parameters(), 0.01);
  for (int step = 0; step < num_steps; ++step) {
    const auto problem = testing::problem_for("mlp", 100 + step);
    adam.zero_grad();
    torch::cross_entropy_loss(net->forward(problem.inputs), problem.targets).backward();
    torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5);
    adam.step();
  }
  return net->parameters();
}

void require_close(const checkpoint::StateDict& state, const std::vector<at::Tensor>& wanted, const char* what) {
  size_t i = 0;
  for (const auto& [name, value] : state) {
    const at::Tensor own = value.detach().cpu(), other = wanted.at(i++).detach();
    if (!at::allclose(own, other, 1e-4, 1e-5))
      throw std::runtime_error(std::string(what) + ": " + name + " differs by " +
                               std::to_string((own - other).abs().max().item<double>()));
  }
  if (i != wanted.size()) throw std::runtime_error(std::string(what) + ": a tensor is missing");
}

HASTEN_PROCESS_CASE(device_stages) {
  for (const auto stage : {ShardStage::kOptimizer, ShardStage::kGradients, ShardStage::kParameters}) {
    const Accelerator accelerator(sharded(stage));
    testing::Mlp net;
    testing::initialise(*net, 5);
    torch::optim::AdamW adam(net->parameters(), 0.01);
    auto [model, optimizer] = accelerator.prepare(net, adam);
    train(net, accelerator, optimizer, 0, 3);
    if (!net->parameters()[0].is_cuda()) throw std::runtime_error("parameters are not on the device");
    if (parallel::is_in_parts(net->parameters()[0]) != (stage == ShardStage::kParameters))
      throw std::runtime_error("parameters are split where they should not be, or whole");
    require_close(accelerator.get_state_dict(model), wanted_values(3), "state_dict");
    const auto main_only = accelerator.get_state_dict(model, {.rank0_only = true});
    if (main_only.empty() != (accelerator.process_index() != 0)) throw std::runtime_error("rank0_only");
    accelerator.wait_for_everyone();
  }
  return 0;
}

HASTEN_PROCESS_CASE(device_checkpoint) {
  const std::string folder = std::getenv("HASTEN_TEST_FOLDER");
  const auto values_after = [&](ShardStage stage, bool load) {
    const Accelerator accelerator(sharded(stage));
    testing::Mlp net;
    testing::initialise(*net, load ? 9 : 5);
    torch::optim::AdamW adam(net->parameters(), 0.01);
    auto [model, optimizer] = accelerator.prepare(net, adam);
    if (load) {
      accelerator.load_state(folder + "/state");
    } else {
      train(net, accelerator, optimizer, 0, 2);
      accelerator.save_state(folder + "/state").wait();
      accelerator.save_model(model, folder + "/model");
    }
    train(net, accelerator, optimizer, 2, 4);
    require_close(accelerator.get_state_dict(model), wanted_values(4), load ? "after load" : "after save");
    accelerator.wait_for_everyone();
  };
  values_after(ShardStage::kParameters, false);
  values_after(ShardStage::kParameters, true);
  values_after(ShardStage::kOptimizer, true);
  return 0;
}

HASTEN_PROCESS_CASE(device_build) {
  auto options = sharded(ShardStage::kParameters);
  options.shard.init = [](torch::nn::Module& net) { testing::initialise(net, 5); };
  const Accelerator accelerator(options);
  auto net = accelerator.build([] { return testing::Mlp(); });
  if (!net->parameters()[0].is_meta()) throw std::runtime_error("build gave memory");
  torch::optim::AdamW adam(net->parameters(), 0.01);
  auto [model, optimizer] = accelerator.prepare(net, adam);
  train(net, accelerator, optimizer, 0, 3);
  require_close(accelerator.get_state_dict(model), wanted_values(3), "built");
  accelerator.wait_for_everyone();
  return 0;
}

HASTEN_PROCESS_CASE(device_offload) {
  const std::string folder = std::getenv("HASTEN_TEST_FOLDER");
  for (const auto stage : {ShardStage::kOptimizer, ShardStage::kGradients, ShardStage::kParameters}) {
    for (const auto where : {parallel::OffloadDevice::kCpu, parallel::OffloadDevice::kFile}) {
      for (const bool parameters : {false, true}) {
        if (parameters && (stage != ShardStage::kParameters || where == parallel::OffloadDevice::kFile)) continue;
        auto options = sharded(stage);
        options.shard.optimizer_offload = {.device = where, .path = folder, .tile_numel = 64};
        if (parameters) options.shard.parameter_offload = {.device = parallel::OffloadDevice::kCpu};
        const Accelerator accelerator(options);
        testing::Mlp net;
        testing::initialise(*net, 5);
        torch::optim::AdamW adam(net->parameters(), 0.01);
        auto [model, optimizer] = accelerator.prepare(net, adam);
        train(net, accelerator, optimizer, 0, 4);
        require_close(accelerator.get_state_dict(model), wanted_values(4), "offloaded");
        accelerator.wait_for_everyone();
      }
    }
  }
  return 0;
}

class DeviceFrontDoor : public testing::InFolder {
 protected:
  void run(const std::string& name, int world) {
    // Each takes itself for the only one of its host, so that all use the first device.
    const auto results = run_processes(world, name,
                                       {{"LOCAL_RANK", "0"},
                                        {"LOCAL_WORLD_SIZE", "1"},
                                        {"HASTEN_BACKEND", "gloo"},
                                        {"HASTEN_TEST_FOLDER", path(name)}});
    for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.output;
  }
};

TEST_F(DeviceFrontDoor, StagesGiveTheNumbersOfOneProcessOnTheCpu) {
  run("device_stages", 2);
  run("device_stages", 3);
}

TEST_F(DeviceFrontDoor, CheckpointsHoldPartsAndLoadIntoOtherStages) {
  run("device_checkpoint", 2);
}

TEST_F(DeviceFrontDoor, ABuiltModelGoesToTheDeviceInParts) {
  run("device_build", 2);
}

TEST_F(DeviceFrontDoor, StatesSteppedOnTheCpuGiveTheSameNumbers) {
  run("device_offload", 2);
}

}  // namespace
}  // namespace hasten
