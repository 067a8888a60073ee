// See unit_copy.h.
#include "parallel/survive/unit_copy.h"

#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>

#include <map>
#include <sstream>

#include "hasten/parallel/ddp/ddp.h"

namespace hasten::parallel {
namespace {

using training::StateKind;

std::vector<at::Tensor> buffers_of(const DistributedModels& models) {
  std::vector<at::Tensor> all;
  for (auto* module : models.modules()) {
    for (const at::Tensor& buffer : module->buffers()) all.push_back(buffer);
  }
  return all;
}

std::vector<at::Tensor> parameters_of(const DistributedModels& models) {
  std::vector<at::Tensor> all;
  for (auto* module : models.modules()) {
    for (const at::Tensor& parameter : module->parameters()) all.push_back(parameter);
  }
  return all;
}

// `copies` keep their memory from unit to unit.
void copy_tensors(const std::vector<at::Tensor>& tensors, std::vector<at::Tensor>& copies) {
  copies.resize(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const bool fits = copies[i].defined() && copies[i].sizes() == tensors[i].sizes() &&
                      copies[i].dtype() == tensors[i].dtype() && copies[i].device() == tensors[i].device();
    if (fits) {
      copies[i].copy_(tensors[i]);
    } else {
      copies[i] = tensors[i].detach().clone();
    }
  }
}

void put_back(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& copies) {
  for (size_t i = 0; i < tensors.size() && i < copies.size(); ++i) tensors[i].copy_(copies[i]);
}

// A state's tensors may be the object's own memory.
training::State deep_copy(const training::State& state) {
  const auto split = training::split_tensors(state);
  if (split.tensors.empty()) return state;
  std::map<std::string, at::Tensor> copies;
  for (const auto& [path, tensor] : split.tensors) copies.emplace(path, tensor.detach().clone());
  return training::join_tensors(split.value, [&](const std::string& path) { return copies.at(path); });
}

}  // namespace

void UnitCopy::copy_objects(StateKind kind) {
  for (auto& one : parts_.registry.of(kind)) {
    training::State state = deep_copy(one.state());
    objects_.emplace_back(std::move(one), std::move(state));
  }
}

void UnitCopy::begin(bool with_loaders) {
  const at::NoGradGuard no_grad;
  copy_tensors(buffers_of(parts_.models), buffers_);
  objects_.clear();
  for (const auto kind : {StateKind::kScheduler, StateKind::kScaler, StateKind::kCustom}) copy_objects(kind);
  if (with_loaders) copy_objects(StateKind::kLoader);
  has_parameters_ = false;
}

void UnitCopy::add_parameters() {
  if (has_parameters_) return;
  const at::NoGradGuard no_grad;
  copy_tensors(parameters_of(parts_.models), parameters_);
  optimizers_.clear();
  for (const auto& [name, optimizer] : parts_.registry.optimizers()) {
    torch::serialize::OutputArchive archive;
    optimizer->save(archive);
    std::ostringstream bytes;
    archive.save_to(bytes);
    optimizers_.emplace_back(optimizer, std::move(bytes).str());
  }
  has_parameters_ = true;
}

void UnitCopy::restore() {
  const at::NoGradGuard no_grad;
  put_back(buffers_of(parts_.models), buffers_);
  for (const auto& [object, state] : objects_) object.load_state(state);
  if (!has_parameters_) return;
  put_back(parameters_of(parts_.models), parameters_);
  for (const auto& [optimizer, bytes] : optimizers_) {
    std::istringstream stream(bytes);
    torch::serialize::InputArchive archive;
    archive.load_from(stream);
    optimizer->state().clear();  // load() keeps what the archive lacks, as it does of the first step
    optimizer->load(archive);
  }
}

}  // namespace hasten::parallel
