// See distributed_models.h.
#include "hasten/parallel/ddp/distributed_models.h"

#include <algorithm>

#include "hasten/comm/types/purpose.h"
#include "hasten/core/error.h"

namespace hasten::parallel {

std::shared_ptr<const Ddp> DistributedModels::distribute(torch::nn::Module& module, const comm::Group& group,
                                                         const DdpOptions& options) {
  std::erase_if(models_, [](const auto& known) { return known.second.expired(); });
  for (const auto& [known, model] : models_) {
    if (known == &module) return model.lock();
  }
  comm::Group own = group;
  const comm::Purpose purpose("prepare of a model");
  if (!models_.empty()) own = *group.split(0, group.rank());
  auto model = std::make_shared<const Ddp>(module, std::move(own), options, all());
  models_.emplace_back(&module, model);
  return model;
}

bool DistributedModels::contains(const torch::nn::Module& module) const noexcept {
  return std::any_of(models_.begin(), models_.end(),
                     [&](const auto& known) { return known.first == &module && !known.second.expired(); });
}

DistributedModels::Models DistributedModels::all() const {
  Models models;
  for (const auto& [module, known] : models_) {
    if (auto model = known.lock()) models.push_back(std::move(model));
  }
  return models;
}

std::vector<torch::nn::Module*> DistributedModels::modules() const {
  std::vector<torch::nn::Module*> modules;
  for (const auto& [module, known] : models_) {
    if (!known.expired()) modules.push_back(module);
  }
  return modules;
}

void DistributedModels::require(const std::shared_ptr<const Ddp>& model) const {
  const Models models = all();
  if (std::find(models.begin(), models.end(), model) != models.end()) return;
  throw UsageError(Origin{"accelerator"}, "the model was prepared by another Accelerator. Prepare it with this one.");
}

}  // namespace hasten::parallel
