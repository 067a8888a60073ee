// See clip.h and clip_async.h.
#include "hasten/parallel/clip/clip.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "hasten/comm/types/purpose.h"
#include "hasten/core/error.h"
#include "hasten/optim/steps/rules.h"
#include "hasten/parallel/clip/clip_async.h"

namespace hasten::parallel {
namespace {

namespace steps = optim::steps;

at::Tensor values_of(const at::Tensor& gradient) {
  // Of a coalesced tensor, or squares of an element that comes twice would be added up wrongly.
  return gradient.is_sparse() ? gradient.coalesce()._values() : gradient;
}

std::optional<steps::Storage> storage_of(const at::Tensor& values) {
  if (!values.is_cpu() || !values.is_non_overlapping_and_dense()) return {};
  if (values.scalar_type() == at::kFloat) return steps::Storage::kFloat32;
  if (values.scalar_type() == at::kBFloat16) return steps::Storage::kBFloat16;
  if (values.scalar_type() == at::kHalf) return steps::Storage::kFloat16;
  return {};
}

double largest_of(const at::Tensor& values) {
  if (values.numel() == 0) return 0;
  if (const auto storage = storage_of(values)) {
    return steps::largest_magnitude(values.const_data_ptr(), *storage, values.numel());
  }
  return values.abs().max().item<double>();
}

double powers_of(const at::Tensor& values, double type) {
  if (values.numel() == 0) return 0;
  if (type == 2.0) {
    if (const auto storage = storage_of(values)) {
      return steps::sum_of_squares(values.const_data_ptr(), *storage, values.numel());
    }
  }
  return values.abs().to(at::kDouble).pow(type).sum().item<double>();
}

// A rank's part of the norm: its own parts, and gradients that all have alike.
struct Sums {
  double owned = 0, whole = 0;
  int64_t overflows = 0;
};

Sums local_sums(const std::vector<at::Tensor>& parameters, const GradientNormOptions& options) {
  const bool maximum = std::isinf(options.norm_type);
  Sums sums;
  for (const auto& parameter : parameters) {
    const auto part = options.owned ? options.owned(parameter) : std::nullopt;
    const at::Tensor gradient = part ? *part : parameter.grad();
    if (!gradient.defined()) continue;
    const auto values = values_of(gradient);
    const double own = maximum ? largest_of(values) : powers_of(values, options.norm_type);
    if (!std::isfinite(own)) ++sums.overflows;
    double& sum = part ? sums.owned : sums.whole;
    sum = maximum ? (std::isnan(own) || own > sum ? own : sum) : sum + own;
  }
  return sums;
}

void require_limit(double max_norm) {
  if (!(max_norm >= 0)) throw UsageError(Origin{"clip"}, "max_norm = ", max_norm, "; expected at least 0.");
}

}  // namespace

GradientNorm gradient_norm(const std::vector<at::Tensor>& parameters, const GradientNormOptions& options) {
  if (!(options.norm_type > 0)) {
    throw UsageError(Origin{"clip"}, "norm_type = ", options.norm_type, "; expected above 0, or infinity.");
  }
  if (options.owned && !options.group) {
    throw UsageError(Origin{"clip"},
                     "owned parts of gradients without the group of their owners. Set "
                     "GradientNormOptions::group.");
  }
  const at::NoGradGuard no_grad;
  const bool maximum = std::isinf(options.norm_type);
  Sums sums = local_sums(parameters, options);
  if (options.owned) {
    // Infinities are counted, not sent: a sum of them and a maximum could lose one.
    const double safe = std::isfinite(sums.owned) ? sums.owned : 0;
    const auto message = at::tensor({safe, static_cast<double>(sums.overflows)}, at::kDouble);
    const comm::Purpose purpose("clipping of gradients");
    if (maximum) {
      auto largest = at::tensor({safe}, at::kDouble),
           count = at::tensor({static_cast<double>(sums.overflows)}, at::kDouble);
      options.group->all_reduce_(largest, comm::ReduceOp::kMax);
      options.group->all_reduce_(count);
      sums.owned = largest.item<double>();
      sums.overflows = static_cast<int64_t>(count.item<double>());
    } else {
      options.group->all_reduce_(message);
      sums.owned = message[0].item<double>();
      sums.overflows = static_cast<int64_t>(message[1].item<double>());
    }
  }
  const double total = maximum ? std::max(sums.owned, sums.whole) : sums.owned + sums.whole;
  const double norm = maximum                    ? total
                      : options.norm_type == 2.0 ? std::sqrt(total)
                                                 : std::pow(total, 1 / options.norm_type);
  const bool finite = sums.overflows == 0 && std::isfinite(norm);
  return {.norm = sums.overflows == 0 || !std::isfinite(norm) ? norm : INFINITY, .finite = finite};
}

at::Tensor gradient_norm_async(const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters) {
    if (parameter.grad().defined()) gradients.push_back(values_of(parameter.grad()));
  }
  if (gradients.empty()) return at::zeros({});
  auto norms = at::_foreach_norm(gradients, 2);
  const auto device = norms.front().device();
  for (auto& norm : norms) norm = norm.to(device, at::kFloat, /*non_blocking=*/true);
  return at::stack(norms).norm();
}

double clip_factor(double norm, double max_norm) noexcept {
  return std::min(max_norm / (norm + 1e-6), 1.0);
}

void scale_gradients_(const std::vector<at::Tensor>& parameters, double factor, const OwnedGradient& owned) {
  if (factor == 1.0) return;
  const at::NoGradGuard no_grad;
  std::map<std::pair<int, at::ScalarType>, std::vector<at::Tensor>> batches;
  for (const auto& parameter : parameters) {
    const auto part = owned ? owned(parameter) : std::nullopt;
    const at::Tensor gradient = part ? *part : parameter.grad();
    if (!gradient.defined()) continue;
    const auto values = gradient.is_sparse() ? gradient._values() : gradient;
    batches[{values.is_cuda() ? values.device().index() : -1, values.scalar_type()}].push_back(values);
  }
  for (const auto& [key, gradients] : batches) at::_foreach_mul_(gradients, factor);
}

GradientNorm clip_gradients_(const std::vector<at::Tensor>& parameters, double max_norm,
                             const GradientNormOptions& options) {
  require_limit(max_norm);
  const auto norm = gradient_norm(parameters, options);
  if (norm.finite) scale_gradients_(parameters, clip_factor(norm.norm, max_norm), options.owned);
  return norm;
}

void clip_values_(const std::vector<at::Tensor>& parameters, double limit, const OwnedGradient& owned) {
  const at::NoGradGuard no_grad;
  for (const auto& parameter : parameters) {
    const auto part = owned ? owned(parameter) : std::nullopt;
    at::Tensor gradient = part ? *part : parameter.grad();
    if (!gradient.defined()) continue;
    if (gradient.is_sparse()) {
      if (!gradient.is_coalesced()) gradient = parameter.mutable_grad() = gradient.coalesce();
      gradient = gradient._values();
    }
    gradient.clamp_(-limit, limit);
  }
}

at::Tensor clip_gradients_async_(const std::vector<at::Tensor>& parameters, double max_norm) {
  require_limit(max_norm);
  const at::NoGradGuard no_grad;
  const auto norm = gradient_norm_async(parameters);
  const auto factor = at::where(at::isfinite(norm), (max_norm / (norm + 1e-6)).clamp_max(1.0), at::ones_like(norm));
  for (const auto& parameter : parameters) {
    const auto& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    auto values = gradient.is_sparse() ? gradient._values() : gradient;
    values.mul_(factor.to(values.device(), values.scalar_type(), /*non_blocking=*/true));
  }
  return norm;
}

}  // namespace hasten::parallel
