// See grad_scaler.h.
#include "hasten/precision/grad_scaler.h"

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "hasten/core/error.h"

namespace hasten::precision {
namespace {

LossScaleRule rule_of(const GradScalerOptions& options) {
  return {.kind = options.rule,
          .init_scale = options.init_scale,
          .growth_factor = options.growth_factor,
          .backoff_factor = options.backoff_factor,
          .growth_interval = options.growth_interval,
          .min_scale = options.min_scale,
          .max_scale = options.max_scale,
          .hysteresis = options.hysteresis,
          .consecutive_hysteresis = options.consecutive_hysteresis};
}

std::vector<at::Tensor> gradients_of(const torch::optim::Optimizer& optimizer, bool allow_fp16) {
  std::vector<at::Tensor> gradients;
  size_t index = 0;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto& gradient = parameter.grad();
      if (gradient.defined()) {
        if (gradient.scalar_type() == at::kHalf && !allow_fp16) {
          throw UsageError(Origin{"precision"}, "parameter ", index, " of the optimizer, of sizes ", parameter.sizes(),
                           ", has float16 gradients, which cannot be unscaled without losing them. Train float32 "
                           "parameters under autocast, convert the model with precision::convert(net, at::kFloat), or "
                           "use float32 masters (Weights::kMaster, Fp16Optimizer).");
        }
        gradients.push_back(gradient);
      }
      ++index;
    }
  }
  return gradients;
}

}  // namespace

void unscale_gradients_(const std::vector<at::Tensor>& gradients, const at::Tensor& inverse_scale,
                        const at::Tensor& found_inf, bool allow_fp16) {
  std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;
  for (const auto& gradient : gradients) {
    if (gradient.scalar_type() == at::kHalf && !allow_fp16) {
      throw UsageError(Origin{"precision"}, "a float16 gradient of sizes ", gradient.sizes(), " cannot be unscaled.");
    }
    if (gradient.is_sparse()) {
      // Float16 values of one element may overflow when they are added up.
      const at::Tensor whole = gradient.scalar_type() == at::kHalf ? gradient.coalesce() : gradient;
      by_dtype[whole.scalar_type()].push_back(whole._values());
    } else {
      by_dtype[gradient.scalar_type()].push_back(gradient);
    }
  }
  for (auto& [dtype, values] : by_dtype) {
    at::_amp_foreach_non_finite_check_and_unscale_(values, const_cast<at::Tensor&>(found_inf), inverse_scale);
  }
}

struct GradScaler::Impl {
  enum class Stage { kReady, kUnscaled, kStepped };

  struct PerOptimizer {
    Stage stage = Stage::kReady;
    std::map<c10::Device, at::Tensor, bool (*)(const c10::Device&, const c10::Device&)> found_inf{
        [](const c10::Device& a, const c10::Device& b) {
          return std::pair(a.type(), a.index()) < std::pair(b.type(), b.index());
        }};
  };

  explicit Impl(const GradScalerOptions& given) : options(given), known(initial_state(rule_of(given))) {}

  void place(c10::Device device) {
    if (scale.defined()) return;
    const auto on = at::TensorOptions().device(device);
    scale = at::full({}, known.scale, on.dtype(at::kFloat));
    tracker = at::full({}, steps_counted(), on.dtype(at::kInt));
  }
  void apply_limits(const at::Tensor& before) {
    // Underflow to 0 would make every later gradient infinite.
    scale.copy_(at::where(scale > 0, scale, before));
    if (options.min_scale) scale.clamp_min_(*options.min_scale);
    if (options.max_scale) scale.clamp_max_(*options.max_scale);
  }
  // Waits for the device only where it alone has moved the scale.
  void fetch() {
    if (!scale.defined()) return;
    if (!is_known) {
      known.scale = static_cast<double>(scale.item<float>());
      if (!counts_from_overflow()) known.tracker = tracker.item<int>();
    }
    is_known = true;
    known.scale = static_cast<double>(static_cast<float>(known.scale));
  }
  // For overflows that the host knows of, and rules that count more than good steps in a row. The tracker is then the
  // steps since the last overflow.
  void move_on_host(bool found_inf) {
    fetch();
    known = next(known, found_inf, rule_of(options));
    known.scale = static_cast<double>(static_cast<float>(known.scale));
    scale.fill_(known.scale);
    tracker.fill_(steps_counted());
  }
  bool counts_from_overflow() const {
    return options.rule == LossScaleKind::kDeepSpeed || options.rule == LossScaleKind::kFp16Optimizer;
  }
  int64_t steps_counted() const {
    return counts_from_overflow() ? known.iteration - known.last_overflow - 1 : known.tracker;
  }
  // The scale is placed by the first loss that it multiplies.
  void require_scaled(const char* call) const {
    if (scale.defined()) return;
    throw UsageError(Origin{"precision"}, call, " before scale(): no loss was multiplied by ", known.scale,
                     ", so that its gradients must not be divided by it. Call backward on scale(loss).");
  }
  PerOptimizer& of(const torch::optim::Optimizer& optimizer) { return optimizers[&optimizer]; }

  GradScalerOptions options;
  /// The host's copy of what `scale` and `tracker` hold, unless the device has moved them since.
  LossScaleState known;
  bool is_known = true;
  at::Tensor scale, tracker;
  std::map<const torch::optim::Optimizer*, PerOptimizer> optimizers;
};

GradScaler::GradScaler(const GradScalerOptions& options) : impl_(std::make_shared<Impl>(options)) {}

at::Tensor GradScaler::scale_tensor(c10::Device device) const {
  impl_->place(device);
  return impl_->scale.device() == device ? impl_->scale : impl_->scale.to(device, /*non_blocking=*/true);
}

at::Tensor GradScaler::scale(const at::Tensor& outputs) const {
  if (!impl_->options.enabled) return outputs;
  return outputs * scale_tensor(outputs.device());
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) const {
  if (!impl_->options.enabled) return;
  impl_->require_scaled("unscale_");
  auto& own = impl_->of(optimizer);
  if (own.stage != Impl::Stage::kReady) {
    throw UsageError(Origin{"precision"}, "unscale_ was called ",
                     own.stage == Impl::Stage::kUnscaled ? "twice for this optimizer since the last update."
                                                         : "after step for this optimizer.",
                     " Call unscale_ once, before step, and update after all steps.");
  }
  const auto gradients = gradients_of(optimizer, impl_->options.allow_fp16_gradients);
  std::map<std::pair<int, int>, std::vector<at::Tensor>> by_device;
  for (const auto& gradient : gradients) {
    by_device[{static_cast<int>(gradient.device().type()), gradient.device().index()}].push_back(gradient);
  }
  for (const auto& [key, tensors] : by_device) {
    const auto device = tensors.front().device();
    const auto found = at::zeros({}, at::TensorOptions().device(device).dtype(at::kFloat));
    // In float64 the inverse of a denormal scale is finite.
    const auto inverse = scale_tensor(device).to(at::kDouble).reciprocal().to(at::kFloat);
    unscale_gradients_(tensors, inverse, found, impl_->options.allow_fp16_gradients);
    own.found_inf.emplace(device, found);
  }
  own.stage = Impl::Stage::kUnscaled;
}

bool GradScaler::found_inf(torch::optim::Optimizer& optimizer) const {
  const auto& own = impl_->of(optimizer);
  if (own.stage == Impl::Stage::kReady) {
    throw UsageError(Origin{"precision"}, "found_inf was asked before unscale_. Call unscale_ or step first.");
  }
  for (const auto& [device, found] : own.found_inf) {
    if (found.item<float>() > 0) return true;
  }
  return false;
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) const {
  if (!impl_->options.enabled) {
    optimizer.step();
    return true;
  }
  impl_->require_scaled("step");
  auto& own = impl_->of(optimizer);
  if (own.stage == Impl::Stage::kStepped) {
    throw UsageError(Origin{"precision"},
                     "step was called twice for this optimizer since the last update. Call update after "
                     "the steps of all optimizers.");
  }
  if (own.stage == Impl::Stage::kReady) unscale_(optimizer);
  if (own.found_inf.empty()) {
    own.stage = Impl::Stage::kReady;
    throw UsageError(Origin{"precision"},
                     "step of an optimizer none of whose parameters has a gradient. Call backward first.");
  }
  const bool steps = !found_inf(optimizer);
  if (steps) optimizer.step();
  own.stage = Impl::Stage::kStepped;
  return steps;
}

void GradScaler::update_by(const at::Tensor& found_inf) const {
  impl_->place(found_inf.device());
  if (impl_->options.rule != LossScaleKind::kTorch || found_inf.is_cpu()) {
    return impl_->move_on_host(found_inf.item<float>() > 0);
  }
  impl_->is_known = false;
  const at::Tensor before = impl_->scale.clone();
  at::_amp_update_scale_(impl_->scale, impl_->tracker, found_inf.to(impl_->scale.device(), /*non_blocking=*/true),
                         impl_->options.growth_factor, impl_->options.backoff_factor, impl_->options.growth_interval);
  impl_->apply_limits(before);
}

void GradScaler::update(std::optional<double> new_scale) const {
  if (!impl_->options.enabled) return;
  impl_->require_scaled("update");
  if (new_scale) {
    if (!std::isfinite(*new_scale) || !(*new_scale > 0)) {
      throw UsageError(Origin{"precision"}, "update to a scale of ", *new_scale, "; expected a finite number above 0.");
    }
    if (impl_->is_known) impl_->known.scale = *new_scale;
    if (impl_->scale.defined()) impl_->scale.fill_(*new_scale);
  } else {
    at::Tensor found;
    for (const auto& [optimizer, own] : impl_->optimizers) {
      for (const auto& [device, each] : own.found_inf) found = found.defined() ? found + each.to(found.device()) : each;
    }
    if (!found.defined()) {
      throw UsageError(Origin{"precision"}, "update before any optimizer was unscaled or stepped. Call step first.");
    }
    update_by(found);
  }
  impl_->optimizers.clear();
}

double GradScaler::scale() const {
  if (!impl_->options.enabled) return 1.0;
  impl_->fetch();
  return impl_->known.scale;
}

int64_t GradScaler::growth_tracker() const {
  impl_->fetch();
  return impl_->steps_counted();
}

bool GradScaler::is_enabled() const noexcept {
  return impl_->options.enabled;
}

const GradScalerOptions& GradScaler::options() const noexcept {
  return impl_->options;
}

GradScalerState GradScaler::state() const {
  if (!impl_->options.enabled) return {.enabled = false};
  return {.scale = scale(),
          .growth_factor = impl_->options.growth_factor,
          .backoff_factor = impl_->options.backoff_factor,
          .growth_interval = impl_->options.growth_interval,
          .growth_tracker = growth_tracker()};
}

GradScalerState GradScaler::state_after(bool found_inf) const {
  auto after = state();
  if (!after.enabled) return after;
  auto counts = impl_->known;
  counts.scale = after.scale;
  if (!impl_->counts_from_overflow()) counts.tracker = after.growth_tracker;
  counts = next(counts, found_inf, rule_of(impl_->options));
  after.scale = counts.scale;
  after.growth_tracker = impl_->counts_from_overflow() ? counts.iteration - counts.last_overflow - 1 : counts.tracker;
  return after;
}

void GradScaler::load_state(const GradScalerState& state) const {
  if (!impl_->options.enabled) return;
  if (!state.enabled) {
    throw UsageError(Origin{"precision"},
                     "the state of a gradient scaler is empty: it was saved by a disabled one. Leave it "
                     "out, or save it with the scaler enabled.");
  }
  GradScalerOptions options = impl_->options;
  options.init_scale = state.scale;
  options.growth_factor = state.growth_factor;
  options.backoff_factor = state.backoff_factor;
  options.growth_interval = state.growth_interval;
  auto start = initial_state(rule_of(options));
  if (state.growth_tracker < 0) {
    throw UsageError(Origin{"precision"}, "the state of a gradient scaler has _growth_tracker = ", state.growth_tracker,
                     "; expected at least 0.");
  }
  start.tracker = start.iteration = state.growth_tracker;
  impl_->options = options;
  impl_->known = start;
  impl_->is_known = true;
  if (impl_->scale.defined()) {
    impl_->scale.fill_(start.scale);
    impl_->tracker.fill_(impl_->steps_counted());
  }
}

}  // namespace hasten::precision

namespace hasten::training {

State StateCodec<precision::GradScalerState>::encode(const precision::GradScalerState& state) {
  if (!state.enabled) return State(core::Value::map());
  return State(core::Value::map({{"scale", state.scale},
                                 {"growth_factor", state.growth_factor},
                                 {"backoff_factor", state.backoff_factor},
                                 {"growth_interval", state.growth_interval},
                                 {"_growth_tracker", state.growth_tracker}}));
}

precision::GradScalerState StateCodec<precision::GradScalerState>::decode(const State& state) {
  precision::GradScalerState out;
  const core::Value value = state.value();
  out.enabled = !value.empty();
  if (!out.enabled) return out;
  out.scale = value.at("scale").as_double();
  out.growth_factor = value.at("growth_factor").as_double();
  out.backoff_factor = value.at("backoff_factor").as_double();
  out.growth_interval = value.at("growth_interval").as_int();
  out.growth_tracker = value.at("_growth_tracker").as_int();
  return out;
}

}  // namespace hasten::training
