// DistributedModels: the modules that an Accelerator has made distributed. Preparing a module twice is the same as
// once, and a model of another Accelerator is recognised.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <utility>
#include <vector>

#include "hasten/parallel/ddp/ddp.h"

namespace hasten::parallel {

class DistributedModels {
 public:
  using Models = Ddp::Models;

  /// Returns the module's Ddp; made at the first call, and again once all its owners are gone. A parameter of two
  /// modules is exchanged by the first. From the second on, a model has a group of its own, since the ranks may come to
  /// their models in different orders.
  /// Collective: yes, where it is made. Blocks: then. Throws: as Ddp's constructor.
  std::shared_ptr<const Ddp> distribute(torch::nn::Module& module, const comm::Group& group, const DdpOptions& options);
  /// Returns true if its Ddp exists, so that distribute makes none.
  bool contains(const torch::nn::Module& module) const noexcept;
  /// Returns those that are still owned, in the order in which they were made.
  Models all() const;
  /// Their modules.
  std::vector<torch::nn::Module*> modules() const;
  /// Throws: UsageError if it is none of these.
  void require(const std::shared_ptr<const Ddp>& model) const;

 private:
  std::vector<std::pair<torch::nn::Module*, std::weak_ptr<const Ddp>>> models_;
};

}  // namespace hasten::parallel
