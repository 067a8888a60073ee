// DistributedModels: which modules an Accelerator has made distributed, so that preparing one twice is the
// same as once and a model of somebody else is recognised.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <vector>

#include "hasten/parallel/ddp.h"

namespace hasten::parallel {

class DistributedModels {
 public:
  using Models = std::vector<std::shared_ptr<const Ddp>>;

  /// The module's Ddp; made at the first call, and again once all its owners are gone.
  /// Collective: yes, where it is made. Blocks: then. Throws: as Ddp's constructor.
  std::shared_ptr<const Ddp> distribute(torch::nn::Module& module, const comm::Group& group,
                                        const DdpOptions& options);
  /// Those that somebody still owns.
  Models all() const;
  /// Throws: UsageError if it is none of these.
  void require(const std::shared_ptr<const Ddp>& model) const;

 private:
  std::map<torch::nn::Module*, std::weak_ptr<const Ddp>> models_;
};

}  // namespace hasten::parallel
