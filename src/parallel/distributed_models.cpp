// See distributed_models.h.
#include "hasten/parallel/distributed_models.h"

#include <algorithm>

#include "hasten/core/error.h"

namespace hasten::parallel {

std::shared_ptr<const Ddp> DistributedModels::distribute(torch::nn::Module& module, const comm::Group& group,
                                                         const DdpOptions& options) {
  auto& known = models_[&module];
  if (auto model = known.lock()) return model;
  auto model = std::make_shared<const Ddp>(module, group, options);
  known = model;
  return model;
}

DistributedModels::Models DistributedModels::all() const {
  Models models;
  for (const auto& [module, known] : models_) {
    if (auto model = known.lock()) models.push_back(std::move(model));
  }
  return models;
}

void DistributedModels::require(const std::shared_ptr<const Ddp>& model) const {
  const Models models = all();
  if (std::find(models.begin(), models.end(), model) != models.end()) return;
  throw UsageError(Origin{"accelerator"},
                   "the model was prepared by another Accelerator. Prepare it with this one.");
}

}  // namespace hasten::parallel
