// See clip.h and clip_async.h.
#include "hasten/parallel/clip/clip.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "hasten/comm/types/purpose.h"
#include "hasten/core/error.h"
#include "hasten/optim/steps/rules.h"
#include "hasten/parallel/clip/clip_async.h"

namespace hasten::parallel {
namespace {

namespace steps = optim::steps;

at::Tensor values_of(const at::Tensor& gradient) {
  // Coalesces first, or squares of an element that comes twice would be added up wrongly.
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

void add_norm(Sums& sums, double own, bool is_part, bool maximum) {
  if (!std::isfinite(own)) ++sums.overflows;
  double& sum = is_part ? sums.owned : sums.whole;
  sum = maximum ? (std::isnan(own) || own > sum ? own : sum) : sum + own;
}

// Half the range of float16 would be too small for a norm.
std::optional<at::ScalarType> norm_dtype(const at::Tensor& values) {
  const bool is_half = values.scalar_type() == at::kHalf || values.scalar_type() == at::kBFloat16;
  return is_half ? std::optional(at::kFloat) : std::nullopt;
}

// Tensors by device and dtype, as the foreach kernels take them.
using Batches = std::map<std::tuple<c10::DeviceType, int, at::ScalarType>, std::vector<at::Tensor>>;
void add_to(Batches& batches, const at::Tensor& values) {
  batches[{values.device().type(), values.device().index(), values.scalar_type()}].push_back(values);
}

// Norms of devices' gradients: a kernel and a wait of the host for all of a device.
void add_device_norms(Sums& sums, const Batches& batches, bool is_part, double type) {
  const bool maximum = std::isinf(type);
  for (const auto& [key, values] : batches) {
    const at::Tensor norms =
        at::stack(at::_foreach_norm(values, type, norm_dtype(values.front()))).cpu().to(at::kDouble);
    for (int64_t i = 0; i < norms.numel(); ++i) {
      const double norm = norms.const_data_ptr<double>()[i];
      add_norm(sums, maximum ? norm : std::pow(norm, type), is_part, maximum);
    }
  }
}

Sums local_sums(const std::vector<at::Tensor>& parameters, const GradientNormOptions& options) {
  const bool maximum = std::isinf(options.norm_type);
  Sums sums;
  Batches owned, whole;
  for (const auto& parameter : parameters) {
    const auto part = options.owned ? options.owned(parameter) : std::nullopt;
    const at::Tensor gradient = part ? *part : parameter.grad();
    if (!gradient.defined()) continue;
    const auto values = values_of(gradient);
    if (!values.is_cpu()) {
      if (values.numel() > 0) add_to(part ? owned : whole, values);
      continue;
    }
    add_norm(sums, maximum ? largest_of(values) : powers_of(values, options.norm_type), part.has_value(), maximum);
  }
  add_device_norms(sums, owned, true, options.norm_type);
  add_device_norms(sums, whole, false, options.norm_type);
  return sums;
}

// The norm of whole gradients as a scalar on the device of the first.
at::Tensor norm_of_all(const std::vector<at::Tensor>& parameters, double type) {
  const at::NoGradGuard no_grad;
  Batches batches;
  for (const auto& parameter : parameters) {
    const auto& gradient = parameter.grad();
    if (gradient.defined() && gradient.numel() > 0) add_to(batches, values_of(gradient));
  }
  at::Tensor all;
  for (const auto& [key, values] : batches) {
    // They have one dtype, which stacking asks for.
    const auto norms = at::stack(at::_foreach_norm(values, type, norm_dtype(values.front()))).to(at::kFloat);
    all = all.defined() ? at::cat({all, norms.to(all.device(), /*non_blocking=*/true)}) : norms;
  }
  if (!all.defined()) return at::zeros({});
  const auto first = std::find_if(parameters.begin(), parameters.end(),
                                  [](const auto& parameter) { return parameter.grad().defined(); });
  return at::linalg_vector_norm(all, type).to(first->grad().device(), /*non_blocking=*/true);
}

// A kernel a device and dtype.
void multiply_gradients_(const std::vector<at::Tensor>& parameters, const at::Tensor& factor) {
  Batches batches;
  for (const auto& parameter : parameters) {
    const auto& gradient = parameter.grad();
    if (gradient.defined()) add_to(batches, gradient.is_sparse() ? gradient._values() : gradient);
  }
  for (const auto& [key, values] : batches) {
    const auto& any = values.front();
    at::_foreach_mul_(values, factor.to(any.device(), any.scalar_type(), /*non_blocking=*/true));
  }
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
  return norm_of_all(parameters, 2);
}

double clip_factor(double norm, double max_norm) noexcept {
  return std::min(max_norm / (norm + 1e-6), 1.0);
}

void scale_gradients_(const std::vector<at::Tensor>& parameters, double factor, const OwnedGradient& owned) {
  if (factor == 1.0) return;
  const at::NoGradGuard no_grad;
  Batches batches;
  for (const auto& parameter : parameters) {
    const auto part = owned ? owned(parameter) : std::nullopt;
    const at::Tensor gradient = part ? *part : parameter.grad();
    if (!gradient.defined()) continue;
    const auto values = gradient.is_sparse() ? gradient._values() : gradient;
    add_to(batches, values);
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
  if (!(limit >= 0)) throw UsageError(Origin{"clip"}, "clip_value = ", limit, "; expected at least 0.");
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
  multiply_gradients_(parameters, factor);
  return norm;
}

double clip_device_gradients_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type) {
  const at::NoGradGuard no_grad;
  const auto norm = norm_of_all(parameters, norm_type);
  multiply_gradients_(parameters, (max_norm / (norm + 1e-6)).clamp_max(1.0));
  return norm.item<double>();
}

bool are_on_devices(const std::vector<at::Tensor>& parameters) {
  bool found = false;
  for (const auto& parameter : parameters) {
    if (!parameter.grad().defined()) continue;
    if (parameter.grad().is_cpu()) return false;
    found = true;
  }
  return found;
}

}  // namespace hasten::parallel
