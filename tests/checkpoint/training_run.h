// A small training run with everything that a saved state holds, for the tests of saving and loading.
#pragma once

#include <torch/torch.h>

#include <optional>
#include <string>
#include <vector>

#include "hasten/accelerator.h"
#include "hasten/data/dataset/tensor_dataset.h"
#include "hasten/optim/schedulers/schedulers.h"
#include "support/models.h"

namespace hasten {

struct Ema {
  at::Tensor value = at::zeros({3});
  int64_t count = 0;
  training::State state() const { return training::State::of({{"value", value}, {"count", count}}); }
  void load_state(const training::State& state) {
    value = state.at("value").tensor();
    count = state.at("count").value().as_int();
  }
};

struct Setting {
  int world = 1;
  ShardStage stage = ShardStage::kNone;
  /// Optimizer state rests on the CPU, and is stepped there.
  bool state_on_host = false;
  std::string name() const { return text("w", world, "_stage", static_cast<int>(stage)); }
};

inline AcceleratorOptions options_of(const Setting& setting, const std::string& project = {}) {
  AcceleratorOptions options{.tune_allocator = false};
  options.loader.split_batches = true;
  options.loader.use_seedable_sampler = true;
  options.loader.data_seed = 11;
  options.shard = {.stage = setting.stage, .wrap = {.unit_bytes = 400}};
  if (setting.state_on_host) options.shard.optimizer_offload.device = parallel::OffloadDevice::kCpu;
  if (!project.empty()) options.project = {.project_dir = project, .automatic_checkpoint_naming = true};
  options.project.shared_folder_timeout = std::chrono::milliseconds(200);
  return options;
}

inline auto make_loader(const Accelerator& accelerator) {
  const auto problem = testing::problem_for("mlp", 3);
  return accelerator.prepare(data::loader<torch::data::samplers::RandomSampler>(
      data::TensorDataset(at::cat({problem.inputs, problem.inputs + 1}), at::cat({problem.targets, problem.targets})),
      12));
}

// A run: a small model, AdamW with two groups, a schedule, a shuffled loader and an object of the program's own.
struct TrainingRun {
  explicit TrainingRun(const process::Process& process, const Setting& setting, const std::string& project = {},
                       uint64_t seed = 5)
      : accelerator(process, options_of(setting, project)) {
    testing::initialise(*net, seed);
    model.emplace(accelerator.prepare(net));
    std::vector<torch::optim::OptimizerParamGroup> groups{{net->first->parameters()}, {net->second->parameters()}};
    adam.emplace(groups, torch::optim::AdamWOptions(0.01));
    optimizer.emplace(accelerator.prepare(*adam));
    step_lr.emplace(*adam, optim::StepLROptions{.step_size = 3, .gamma = 0.5});
    scheduler.emplace(accelerator.prepare(*step_lr));
    accelerator.register_for_checkpointing("ema", ema);
  }

  // Steps over the loader, from where it stands; `stop` ends it after so many.
  void train(int64_t steps) {
    loader.load_state(loader.state());  // a loop that was left goes on where it was left, as a loaded one does
    while (steps > 0) {
      for (auto& batch : loader) {
        optimizer->zero_grad();
        const auto loss = torch::cross_entropy_loss((*model)(batch.data), batch.target);
        accelerator.backward(loss);
        optimizer->step();
        scheduler->step();
        losses.push_back(accelerator.reduce(loss.detach(), {.op = comm::ReduceOp::kMean}).template item<double>());
        ++ema.count;
        ema.value = ema.value * 0.5 + losses.back();  // of all ranks: one rank's object is saved for all
        if (--steps == 0) return;
      }
    }
  }

  // On the CPU. Collective where ranks have parts of the parameters on a device.
  std::vector<at::Tensor> values() const {
    std::vector<at::Tensor> all;
    for (const auto& parameter : net->parameters()) all.push_back(parameter.detach().clone().cpu());
    return all;
  }

  Accelerator accelerator;
  testing::Mlp net;
  std::optional<parallel::PreparedModel<testing::Mlp>> model;
  std::optional<torch::optim::AdamW> adam;
  std::optional<optim::PreparedOptimizer<torch::optim::AdamW>> optimizer;
  std::optional<optim::StepLR> step_lr;
  std::optional<optim::PreparedScheduler<optim::StepLR>> scheduler;
  Ema ema;
  std::vector<double> losses;
  decltype(make_loader(std::declval<const Accelerator&>())) loader = make_loader(accelerator);
};

}  // namespace hasten
