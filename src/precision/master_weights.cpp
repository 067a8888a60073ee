// See master_weights.h.
#include "hasten/precision/master_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <utility>

namespace hasten::precision {
namespace {

using torch::optim::Optimizer;

bool is_half(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

// The optimizer's states are found by the parameter's address.
void replace(Optimizer& optimizer, at::Tensor& place, const at::Tensor& by) {
  auto state = optimizer.state().find(place.unsafeGetTensorImpl());
  if (state != optimizer.state().end()) {
    auto moved = std::move(state->second);
    optimizer.state().erase(state);
    optimizer.state()[by.unsafeGetTensorImpl()] = std::move(moved);
  }
  place = by;
}

}  // namespace

MasterWeights::MasterWeights(Optimizer& optimizer) : optimizer_(&optimizer) {
  const at::NoGradGuard no_grad;
  for (auto& group : optimizer.param_groups()) {
    for (auto& parameter : group.params()) {
      if (!is_half(parameter)) continue;
      const at::Tensor model = parameter;
      auto master = model.detach().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Preserve);
      master.requires_grad_(model.requires_grad());
      model_.push_back(model);
      masters_.push_back(master);
      replace(optimizer, parameter, master);
    }
  }
}

std::vector<at::Tensor> MasterWeights::all() const {
  std::vector<at::Tensor> result;
  for (const auto& group : optimizer_->param_groups()) {
    result.insert(result.end(), group.params().begin(), group.params().end());
  }
  return result;
}

std::vector<at::Tensor> MasterWeights::model_side() const {
  std::vector<at::Tensor> result = model_;
  for (const auto& parameter : all()) {
    bool is_master = false;
    for (const auto& master : masters_) is_master = is_master || master.is_same(parameter);
    if (!is_master) result.push_back(parameter);
  }
  return result;
}

void MasterWeights::gradients_to_masters() const {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < model_.size(); ++i) {
    auto& to = masters_[i].mutable_grad();
    const auto& from = model_[i].grad();
    if (!from.defined()) {
      to = at::Tensor();
    } else if (from.is_sparse()) {
      to = from.to(at::kFloat);
    } else {
      if (!to.defined() || to.is_sparse()) to = at::empty_like(masters_[i]);
      to.copy_(from);
    }
  }
}

void MasterWeights::to_model() const {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < model_.size(); ++i) model_[i].copy_(masters_[i]);
}

void MasterWeights::from_model() const {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < model_.size(); ++i) masters_[i].copy_(model_[i]);
}

void MasterWeights::zero_grad(bool set_to_none) const {
  optimizer_->zero_grad(set_to_none);
  for (const auto& parameter : model_) {
    auto& gradient = parameter.mutable_grad();
    if (!gradient.defined()) continue;
    if (set_to_none) {
      gradient = at::Tensor();
    } else {
      gradient.detach_().zero_();
    }
  }
}

void MasterWeights::restore() const {
  for (auto& group : optimizer_->param_groups()) {
    for (auto& parameter : group.params()) {
      for (size_t i = 0; i < masters_.size(); ++i) {
        if (parameter.is_same(masters_[i])) {
          const at::Tensor model = model_[i];
          replace(*optimizer_, parameter, model);
          break;
        }
      }
    }
  }
}

}  // namespace hasten::precision
