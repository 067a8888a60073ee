// See clip_parts.h.
#include "hasten/parallel/tensor/clip_parts.h"

#include "hasten/core/error.h"
#include "hasten/parallel/clip/clip.h"
#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/layout/stages.h"
#include "hasten/parallel/shard/prepare_sharding.h"

namespace hasten::parallel {
namespace {

// The part of a gradient that this rank counts. Of a split one it is the slice, and others count on the first rank of
// data() beside those. One of a whole parameter counts on the first rank of the model.
OwnedGradient counted_here(const ClipParts& parts) {
  return [&parts](const at::Tensor& parameter) -> std::optional<at::Tensor> {
    if (!counts_on_this_stage(parameter)) return at::Tensor();
    if (placed_by(parameter) == nullptr && parts.layout.tensor().rank() != 0) return at::Tensor();
    if (parts.layout.context().rank() != 0) return at::Tensor();
    if (!parts.sharding) return parameter.grad();
    const auto slice = parts.sharding->owned_gradient(parameter);
    if (slice) return parts.sharding->is_copy() ? at::Tensor() : *slice;
    return parts.layout.data().rank() == 0 ? parameter.grad() : at::Tensor();
  };
}

// Without sharding each model has all of its gradients: those that all models have alike behind an exchange, or its own
// (local SGD, no_sync).
GradientNorm norm_of(const ClipParts& parts, const std::vector<at::Tensor>& parameters, double norm_type) {
  return gradient_norm(parameters, {.norm_type = norm_type,
                                    .owned = counted_here(parts),
                                    .group = parts.sharding ? parts.everyone : parts.layout.model()});
}

}  // namespace

double clip_grad_norm_(const ClipParts& parts, const std::vector<at::Tensor>& parameters, double max_norm,
                       double norm_type) {
  if (!parts.layout.divides_model()) return clip_grad_norm_(parts.sharding, parameters, max_norm, norm_type);
  if (!(max_norm >= 0)) throw UsageError(Origin{"clip"}, "max_norm = ", max_norm, "; expected at least 0.");
  const auto norm = norm_of(parts, parameters, norm_type);
  if (!norm.finite) return norm.norm;
  const double factor = clip_factor(norm.norm, max_norm);
  if (factor == 1.0) return norm.norm;
  if (parts.sharding) {
    parts.sharding->scale_gradients_(parameters, factor);
  } else {
    scale_gradients_(parameters, factor);
  }
  return norm.norm;
}

bool has_finite_gradients(const ClipParts& parts, const std::vector<at::Tensor>& parameters) {
  if (!parts.layout.divides_model()) return has_finite_gradients(parts.sharding, parameters);
  return norm_of(parts, parameters, 2.0).finite;
}

}  // namespace hasten::parallel
