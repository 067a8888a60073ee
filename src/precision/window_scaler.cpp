// See window_scaler.h.
#include "hasten/precision/window_scaler.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "hasten/core/error.h"

namespace hasten::precision {
namespace {

using torch::optim::Optimizer;

template <class Visit>
void for_gradients(const Optimizer& optimizer, const Visit& visit) {
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      if (parameter.grad().defined()) visit(parameter);
    }
  }
}

// Divides, device by device; whether any gradient is not finite.
bool divide(const Optimizer& optimizer, double scale) {
  const at::NoGradGuard no_grad;
  std::map<std::pair<int, int>, std::vector<at::Tensor>> by_device;
  for_gradients(optimizer, [&](const at::Tensor& parameter) {
    const auto device = parameter.grad().device();
    by_device[{static_cast<int>(device.type()), device.index()}].push_back(parameter.grad());
  });
  std::vector<at::Tensor> found;
  for (const auto& [key, gradients] : by_device) {
    const auto on = at::TensorOptions().device(gradients.front().device()).dtype(at::kFloat);
    found.push_back(at::zeros({}, on));
    unscale_gradients_(gradients, at::full({}, 1 / scale, on), found.back(), /*allow_fp16=*/true);
  }
  return std::any_of(found.begin(), found.end(), [](const at::Tensor& each) { return each.item<float>() > 0; });
}

bool has_half_gradients(const Optimizer& optimizer) {
  bool found = false;
  for_gradients(optimizer,
                [&](const at::Tensor& parameter) { found = found || parameter.grad().scalar_type() == at::kHalf; });
  return found;
}

constexpr int64_t kWarnAfter = 10;

}  // namespace

WindowScaler::WindowScaler(const GradScalerOptions& options, WindowScalerHooks hooks)
    : scaler_(options), hooks_(std::move(hooks)) {}

WindowScaler::Known& WindowScaler::known(const Optimizer& optimizer) {
  for (auto& each : optimizers_) {
    if (each.address == &optimizer) return each;
  }
  auto& added = optimizers_.emplace_back();
  added.address = &optimizer;
  return added;
}

void WindowScaler::add(const std::shared_ptr<Optimizer>& optimizer) {
  std::erase_if(optimizers_, [](const Known& each) { return each.optimizer.expired(); });
  known(*optimizer).optimizer = optimizer;
}

at::Tensor WindowScaler::begin_backward(const at::Tensor& loss) {
  begin_backward();
  if (!scaler_.is_enabled()) return loss;
  return scaler_.scale(loss.to(at::kFloat));
}

double WindowScaler::begin_backward() {
  settle();
  for (auto& each : optimizers_) {
    if (each.done) each.done = each.unscaled = each.found_inf = false;
  }
  return scaler_.is_enabled() ? scaler_.scale() : 1.0;
}

void WindowScaler::settle() {
  if (!std::exchange(update_is_due_, false)) return;
  const bool found = std::exchange(window_found_inf_, false);
  const double before = scaler_.scale();
  scaler_.update_by(at::full({}, found ? 1.0 : 0.0, at::TensorOptions().dtype(at::kFloat)));
  const double factor = scaler_.scale() / before;
  if (factor == 1) return;
  for (const auto& each : optimizers_) {
    const auto optimizer = each.optimizer.lock();
    if (!optimizer || each.unscaled || each.done) continue;
    const at::NoGradGuard no_grad;
    for_gradients(*optimizer, [factor](const at::Tensor& parameter) { parameter.mutable_grad().mul_(factor); });
  }
}

void WindowScaler::unscale_(Optimizer& optimizer) {
  auto& own = known(optimizer);
  if (!scaler_.is_enabled() || own.unscaled || !hooks_.ends_window()) return;
  const int64_t overflows = divide(optimizer, scaler_.scale()) ? 1 : 0;
  own.found_inf = hooks_.sum_overflows(optimizer, overflows) > 0;
  own.unscaled = true;
}

void WindowScaler::unscale_all() {
  for (size_t i = 0; i < optimizers_.size(); ++i) {
    if (const auto optimizer = optimizers_[i].optimizer.lock()) unscale_(*optimizer);
  }
}

std::vector<Optimizer*> WindowScaler::owners(const std::vector<at::Tensor>& parameters) const {
  std::vector<Optimizer*> result;
  for (const auto& each : optimizers_) {
    const auto optimizer = each.optimizer.lock();
    if (!optimizer) continue;
    bool owns = false;
    for (const auto& group : optimizer->param_groups()) {
      for (const auto& parameter : group.params()) {
        owns = owns || std::any_of(parameters.begin(), parameters.end(),
                                   [&](const at::Tensor& one) { return one.is_same(parameter); });
      }
    }
    if (owns) result.push_back(optimizer.get());
  }
  return result;
}

bool WindowScaler::holds_scaled(const Optimizer& optimizer) const {
  if (!scaler_.is_enabled()) return false;
  for (const auto& each : optimizers_) {
    if (each.address == &optimizer) return !each.unscaled && !each.done;
  }
  return true;
}

void WindowScaler::before_step(training::StepContext& context) {
  if (!scaler_.is_enabled()) return;
  if (context.closure) {
    throw UsageError(Origin{"precision"},
                     "a step with a closure, which computes gradients inside the step, cannot be "
                     "scaled. Use bf16, or an optimizer that takes no closure.");
  }
  auto& own = known(context.optimizer);
  if (!own.unscaled && has_half_gradients(context.optimizer)) {
    // Divided in float16 they would vanish: the step divides them as it reads them.
    own.found_inf = hooks_.sum_overflows(context.optimizer, divide(context.optimizer, 1.0) ? 1 : 0) > 0;
    own.unscaled = true;
    context.gradient_factor /= scaler_.scale();
  } else {
    unscale_(context.optimizer);
  }
  own.done = true;
  context.skip = context.skip || own.found_inf;
  window_found_inf_ = window_found_inf_ || own.found_inf;
  update_is_due_ = true;
}

void WindowScaler::after_step(training::StepContext& context) {
  if (!scaler_.is_enabled()) return;
  skipped_in_a_row_ = known(context.optimizer).found_inf ? skipped_in_a_row_ + 1 : 0;
  if (skipped_in_a_row_ > 0) report_skips(context.optimizer);
}

void WindowScaler::report_skips(Optimizer& optimizer) {
  const double scale = state().scale;
  const auto give_up_after = scaler_.options().give_up_after;
  const auto& options = scaler_.options();
  const bool at_end = options.rule == LossScaleKind::kDeepSpeed && options.min_scale &&
                      scaler_.scale() <= *options.min_scale && skipped_in_a_row_ >= options.hysteresis;
  const bool gives_up = at_end || (give_up_after > 0 && skipped_in_a_row_ >= give_up_after);
  if (!gives_up && (has_warned_ || (skipped_in_a_row_ < kWarnAfter && scale >= 1))) return;
  std::string names;
  int64_t bad = 0, index = 0;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto& gradient = parameter.grad();
      const int64_t own = index++;
      if (!gradient.defined() || std::isfinite(gradient.sum().to(at::kDouble).item<double>())) continue;
      if (++bad > 3) continue;
      const auto name = hooks_.name_of(parameter);
      names += (names.empty() ? "" : ", ") +
               (name.empty() ? text("parameter ", own, " of the optimizer") : "'" + name + "'");
    }
  }
  const std::string words =
      text(skipped_in_a_row_, " steps in a row had gradients that are not finite, in ", names,
           bad > 3 ? text(" and ", bad - 3, " more") : std::string(), "; the loss scale is ", scale, '.');
  if (gives_up) {
    throw UsageError(Origin{"precision"}, words,
                     " The loss does not fit float16, or is not finite itself. Try bf16, or look "
                     "at the loss. GradScalerOptions::give_up_after = 0 goes on for ever.");
  }
  has_warned_ = true;
  hooks_.warn(words + " Where the loss is not finite itself, no scale helps.");
}

GradScalerState WindowScaler::state() const {
  return update_is_due_ ? scaler_.state_after(window_found_inf_) : scaler_.state();
}

void WindowScaler::load_state(const GradScalerState& state) {
  scaler_.load_state(state);
  update_is_due_ = window_found_inf_ = false;
}

}  // namespace hasten::precision
