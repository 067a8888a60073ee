// Trainer: a front door over a group that Python made, with mirrors of Python's modules and twins of its optimizers.
//
// It is a hasten::Accelerator whose process is torch.distributed's. python/hasten/distributing.py is what users see of
// it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hasten/accelerator.h"
#include "hasten/checkpoint/optimizer_state.h"
#include "hasten/comm/c10d/group_backend.h"
#include "python/mirror.h"

namespace hasten::python {

/// Reads the options of distribute by name; trainer_options.cpp has the list.
/// With the GIL. Throws: UsageError for a name that is not known, with the nearest, or a value of another kind.
AcceleratorOptions trainer_options(const py::dict& given);

/// Read the settings of FSDP's and DeepSpeed's plugins, as JSON, into options.
/// Throw: UsageError naming each setting that the engine lacks.
parallel::ShardOptions fsdp_options(const std::string& text, parallel::ShardOptions base);
parallel::ShardOptions deepspeed_options(const std::string& text, parallel::ShardOptions base);

/// A module of Python's whose gradients, or more, are the engine's matter. Its end takes the hooks off.
class DistributedModule {
 public:
  /// Collective: yes. Blocks: yes. Throws: as Mirror's constructor and Accelerator::prepare. With the GIL.
  DistributedModule(const Accelerator& accelerator, py::handle module);

  /// Before each forward: takes over what has changed in Python. With the GIL.
  /// Collective: where parameters have changed. Blocks: then. Throws: as Ddp::refresh_if_changed.
  void before_forward(py::handle module);
  const parallel::PreparedModel<std::shared_ptr<torch::nn::Module>>& prepared() const { return *prepared_; }

 private:
  Mirror mirror_;
  std::optional<parallel::PreparedModel<std::shared_ptr<torch::nn::Module>>> prepared_;
};

/// An optimizer of this library's with the parameters of one of Python's, in the same groups.
class Twin {
 public:
  /// `kind`: the class's name in PyTorch. `groups`: Python's param_groups. With the GIL.
  Twin(const Accelerator& accelerator, const std::string& kind, const py::list& groups);

  /// Takes over learning rates and the like, and groups that have been added. With the GIL.
  void set_options(const py::list& groups);
  /// Collective: where parameters are split. Blocks: then. Throws: as AnyPreparedOptimizer::step.
  void step() const { prepared_->step(); }
  void zero_grad(bool set_to_none) const { prepared_->zero_grad(set_to_none); }
  /// Returns the state in the form of PyTorch's state_dict()["state"], of whole parameters. With the GIL.
  /// Collective: where parameters are split. Blocks: then. Throws: CommError.
  py::object state() const;
  /// Takes the state of a state_dict() of PyTorch's. With the GIL. Throws: as checkpoint::load_optimizer_state.
  void load_state(py::handle state_dict) const;

 private:
  py::dict sharded_state() const;
  std::shared_ptr<parallel::Sharding> sharding_;
  std::optional<optim::AnyPreparedOptimizer> prepared_;
  const checkpoint::AnyOptimizerCodec* codec_ = nullptr;
};

}  // namespace hasten::python
