// Gradient norm, clipping and overflow check, over whole gradients or over the parts that ranks own.
//
// A pass over the gradients gives the norm, and whether any is not finite. Where gradients are sharded, each rank
// counts the parts that it owns, and one all-reduce of {sum of squares, overflow count} completes both. The owner is
// looked up for every parameter, so that sharded and replicated ones mix in one call.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

#include "hasten/comm/group/group.h"

namespace hasten::parallel {

/// Returns the part of a parameter's gradient that this rank counts; an undefined tensor for none. A gradient that is
/// whole and equal on all ranks is nullopt; it is counted without the others.
using OwnedGradient = std::function<std::optional<at::Tensor>(const at::Tensor& parameter)>;

struct GradientNormOptions {
  /// 2, infinity, or any number above 0.
  double norm_type = 2.0;
  /// Unset: every gradient is whole on this rank.
  OwnedGradient owned = {};
  /// The ranks among which owned parts are spread; needed with `owned`.
  std::optional<comm::Group> group = {};
};

struct GradientNorm {
  double norm = 0.0;
  /// Whether every gradient is finite, on all ranks of the group.
  bool finite = true;
};

/// Returns the norm of all gradients together. Parameters without a gradient count 0.
/// Collective: yes, with `owned`. Blocks: until gradients are there. Throws: UsageError for a norm_type of 0 or below,
/// or `owned` without a group; CommError.
GradientNorm gradient_norm(const std::vector<at::Tensor>& parameters, const GradientNormOptions& options = {});

/// Returns the 2-norm as a scalar tensor on the gradients' device, without waiting for it. For whole gradients only.
at::Tensor gradient_norm_async(const std::vector<at::Tensor>& parameters);

/// Returns the factor that scales gradients of `norm` to at most max_norm, as in torch: max_norm / (norm + 1e-6), at
/// most 1.
double clip_factor(double norm, double max_norm) noexcept;

/// Multiplies the gradients in place; with `owned`, the owned parts. Nothing for a factor of 1.
void scale_gradients_(const std::vector<at::Tensor>& parameters, double factor, const OwnedGradient& owned = {});

/// Scales gradients so that their norm is at most max_norm, and returns the norm before. Gradients that are not finite
/// stay as they are. Collective: as gradient_norm. Blocks: as that. Throws: as that; UsageError for a max_norm that is
/// NaN or below 0.
GradientNorm clip_gradients_(const std::vector<at::Tensor>& parameters, double max_norm,
                             const GradientNormOptions& options = {});

/// Limits every element of the gradients to [-limit, limit] in place; with `owned`, of the owned parts. Sparse
/// gradients are coalesced first.
void clip_values_(const std::vector<at::Tensor>& parameters, double limit, const OwnedGradient& owned = {});

}  // namespace hasten::parallel
