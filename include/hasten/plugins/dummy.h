// DummyOptim and DummyScheduler: placeholders for the optimizer and scheduler that a DeepSpeed configuration names.
//
// A program that is written for a configuration file gives parameters and lengths. prepare makes the real objects from
// the sections optimizer and scheduler (Accelerate's classes of these names). Knowledge of a call of prepare for "auto"
// values is noted here as well, object by object.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "hasten/core/value.h"
#include "hasten/data/loader/loader.h"
#include "hasten/optim/prepared/prepared_optimizer.h"
#include "hasten/optim/schedulers/scheduler.h"
#include "hasten/parallel/model/prepared_model.h"
#include "hasten/settings/deepspeed_plugin.h"

namespace hasten::parallel {

struct DummyOptimOptions {
  double lr = 1e-3;
  double weight_decay = 0.0;
};

/// Parameters with a rate of their own; unset: the optimizer's.
struct DummyGroup {
  std::vector<at::Tensor> params = {};
  std::optional<double> lr = {};
  std::optional<double> weight_decay = {};
};

/// A value handle; copies are the same one.
class DummyOptim {
 public:
  explicit DummyOptim(std::vector<at::Tensor> params, const DummyOptimOptions& options = {})
      : DummyOptim(std::vector<DummyGroup>{{.params = std::move(params)}}, options) {}
  explicit DummyOptim(std::vector<DummyGroup> groups, const DummyOptimOptions& options = {})
      : shared_(std::make_shared<Shared>(Shared{std::move(groups), options})) {}

  const std::vector<DummyGroup>& groups() const noexcept { return shared_->groups; }
  const DummyOptimOptions& options() const noexcept { return shared_->options; }
  /// Returns the real optimizer, once prepare has made it; null before.
  const std::shared_ptr<torch::optim::Optimizer>& real() const noexcept { return shared_->real; }
  void set_real(std::shared_ptr<torch::optim::Optimizer> real) const { shared_->real = std::move(real); }

 private:
  struct Shared {
    std::vector<DummyGroup> groups;
    DummyOptimOptions options;
    std::shared_ptr<torch::optim::Optimizer> real = {};
  };
  std::shared_ptr<Shared> shared_;
};

struct DummySchedulerOptions {
  /// In batches of one rank, as the peer takes them: both are divided by the number of ranks, unless batches are split.
  std::optional<int64_t> total_num_steps = {};
  int64_t warmup_num_steps = 0;
  /// Makes the scheduler instead of the configuration's section.
  optim::Recipe lr_scheduler_callable = {};
};

/// Over a DummyOptim, or over an optimizer of the program's own, which must outlive it.
class DummyScheduler {
 public:
  explicit DummyScheduler(DummyOptim optimizer, DummySchedulerOptions options = {})
      : dummy_(std::move(optimizer)), options_(std::move(options)) {}
  explicit DummyScheduler(torch::optim::Optimizer& optimizer, DummySchedulerOptions options = {})
      : optimizer_(&optimizer), options_(std::move(options)) {}

  const DummySchedulerOptions& options() const noexcept { return options_; }
  double lr() const { return dummy_ ? dummy_->options().lr : optimizer_->defaults().get_lr(); }
  /// Returns the optimizer that steps. Throws: UsageError before its DummyOptim was prepared.
  torch::optim::Optimizer& optimizer() const;

 private:
  std::optional<DummyOptim> dummy_ = {};
  torch::optim::Optimizer* optimizer_ = nullptr;
  DummySchedulerOptions options_;
};

/// Returns the optimizer of a configuration's section: Adam (AdamW, unless adam_w_mode is false), AdamW, Adagrad, SGD,
/// RMSprop.
/// Throws: UsageError with did-you-mean for another type or an unknown parameter, and for
/// classes that are refused, with the reason.
std::shared_ptr<torch::optim::Optimizer> make_deepspeed_optimizer(const std::string& type, const core::Value& params,
                                                                  const DummyOptim& dummy);

/// Returns the model's width for "auto" sizes: its member hidden_size(), else the smaller side of its widest matrix.
int64_t widest_side(const torch::nn::Module& module);

/// Records the values of an object of prepare's for "auto".
template <class T>
void note_for_auto(plan::AutoInputs& known, const T& object) {
  using Object = std::remove_cvref_t<T>;
  using Given = plan::AutoInputs::Given;
  if constexpr (std::is_same_v<Object, DummyOptim>) {
    known.optimizer = Given::kDummy;
    known.lr = object.options().lr;
    known.weight_decay = object.options().weight_decay;
  } else if constexpr (std::is_same_v<Object, DummyScheduler>) {
    known.scheduler = object.options().lr_scheduler_callable ? Given::kDummyWithCallable : Given::kDummy;
    known.lr = object.lr();
    known.total_num_steps = object.options().total_num_steps;
    known.warmup_num_steps = object.options().warmup_num_steps;
  } else if constexpr (requires { typename Object::element_type; object.get(); } && !is_module_v<Object>) {
    if (object) note_for_auto(known, *object);  // what a factory has made
  } else if constexpr (optim::is_optimizer_v<Object>) {
    known.optimizer = Given::kReal;
    known.lr = object.defaults().get_lr();
  } else if constexpr (optim::SchedulerLike<Object>) {
    known.scheduler = Given::kReal;
  } else if constexpr (data::is_loader_v<Object>) {
    known.batch_sizes.push_back(static_cast<int64_t>(object.options().batch_size()));
  } else if constexpr (is_module_v<Object> && !is_prepared_model_v<Object>) {
    known.has_model = true;
    auto& module = module_of(const_cast<Object&>(object));
    if constexpr (requires { static_cast<int64_t>(module.hidden_size()); }) {
      known.hidden_size = static_cast<int64_t>(module.hidden_size());
    } else if constexpr (requires { static_cast<int64_t>(object->hidden_size()); }) {
      known.hidden_size = static_cast<int64_t>(object->hidden_size());
    } else {
      known.hidden_size = widest_side(module);
    }
  }
}

}  // namespace hasten::parallel
