// See amp.h.
#include "hasten/precision/amp.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "hasten/core/error.h"
#include "hasten/core/log.h"
#include "hasten/core/number.h"
#include "hasten/precision/convert.h"
#include "hasten/precision/grad_scaler.h"
#include "hasten/precision/loss_scale_rule.h"
#include "hasten/precision/master_weights.h"

namespace hasten::precision {
namespace {

LossScaleRule rule_of(const AmpOptions& options, const AmpProperties& properties) {
  LossScaleRule rule = LossScaleRule::of(LossScaleKind::kApex);
  rule.dynamic = properties.dynamic_loss_scale;
  rule.min_scale = options.min_loss_scale;
  rule.max_scale = options.max_loss_scale;
  if (!rule.dynamic) rule.init_scale = properties.loss_scale;
  return rule;
}

}  // namespace

struct AmpOptimizerHandle::Impl {
  explicit Impl(torch::optim::Optimizer& given, bool on) : optimizer(&given), enabled(on) {}

  /// Parameters that backward gives gradients to.
  std::vector<at::Tensor> model_side() const {
    if (masters) return masters->model_side();
    std::vector<at::Tensor> result;
    for (const auto& group : optimizer->param_groups()) {
      result.insert(result.end(), group.params().begin(), group.params().end());
    }
    return result;
  }

  torch::optim::Optimizer* optimizer;
  bool enabled;
  std::optional<MasterWeights> masters = {};
  /// Unscaled gradients of earlier losses, while a backward runs; in the order of model_side.
  std::vector<at::Tensor> stash = {};
  bool has_scaled_gradients = false;
  bool skips_next = false;
  bool skipped = false;
};

AmpOptimizerHandle::AmpOptimizerHandle(torch::optim::Optimizer& optimizer, bool with_masters, bool enabled)
    : impl_(std::make_shared<Impl>(optimizer, enabled)) {
  if (with_masters) impl_->masters.emplace(optimizer);
}

at::Tensor AmpOptimizerHandle::step(const torch::optim::Optimizer::LossClosure& closure) const {
  if (impl_->has_scaled_gradients) {
    throw UsageError(Origin{"precision"},
                     "step of an optimizer whose gradients are still scaled (delay_unscale). Call "
                     "scale_loss without delay_unscale for the last backward before a step.");
  }
  impl_->skipped = std::exchange(impl_->skips_next, false);
  if (impl_->skipped) return {};
  const auto scope = Autocast::off();
  auto loss = impl_->optimizer->step(closure);
  if (impl_->masters) impl_->masters->to_model();
  return loss;
}

void AmpOptimizerHandle::zero_grad(bool set_to_none) const {
  if (impl_->masters) return impl_->masters->zero_grad(set_to_none);
  impl_->optimizer->zero_grad(set_to_none);
}

bool AmpOptimizerHandle::step_was_skipped() const noexcept {
  return impl_->skipped;
}

bool AmpOptimizerHandle::will_skip() const noexcept {
  return impl_->skips_next;
}

std::vector<at::Tensor> AmpOptimizerHandle::master_params() const {
  if (impl_->masters) return impl_->masters->all();
  return impl_->model_side();
}

torch::optim::Optimizer& AmpOptimizerHandle::optimizer() const noexcept {
  return *impl_->optimizer;
}

namespace {

using State = AmpOptimizerHandle::Impl;

// Sets gradients of earlier losses aside, so that backward gives those of this loss alone. Masters keep theirs.
void set_aside(State& state) {
  if (state.has_scaled_gradients) return;
  const auto parameters = state.model_side();
  const size_t halves = state.masters ? state.masters->model_parameters().size() : 0;
  state.stash.assign(parameters.size(), {});
  for (size_t i = 0; i < parameters.size(); ++i) {
    auto& gradient = parameters[i].mutable_grad();
    if (i < halves) {
      gradient = at::Tensor();  // its value is in the master's
    } else {
      state.stash[i] = std::exchange(gradient, {});
    }
  }
}

// New / scale, plus what was set aside. Returns whether all new gradients are finite.
bool unscale(State& state, double scale) {
  const at::NoGradGuard no_grad;
  const auto parameters = state.model_side();
  const size_t halves = state.masters ? state.masters->model_parameters().size() : 0;
  state.stash.resize(parameters.size());
  bool finite = true;
  for (size_t i = 0; i < parameters.size(); ++i) {
    auto& gradient = parameters[i].mutable_grad();
    const bool is_half = i < halves;
    auto& target = is_half ? state.masters->masters()[i].mutable_grad() : gradient;
    const auto before = is_half ? target : state.stash[i];
    if (!gradient.defined()) {
      target = before;
      continue;
    }
    auto own = is_half ? gradient.to(at::kFloat) : gradient;
    const auto on = at::TensorOptions().device(own.device()).dtype(at::kFloat);
    const auto found = at::zeros({}, on);
    unscale_gradients_({own}, at::full({}, 1 / scale, on), found, /*allow_fp16=*/true);
    finite = finite && found.item<float>() == 0;
    if (before.defined()) own.add_(before);
    target = own;
  }
  state.stash.clear();
  return finite;
}

void put_back(State& state) noexcept {
  if (state.stash.empty()) return;
  const auto parameters = state.model_side();
  for (size_t i = 0; i < parameters.size() && i < state.stash.size(); ++i) {
    if (state.stash[i].defined()) parameters[i].mutable_grad() = state.stash[i];
  }
  state.stash.clear();
}

}  // namespace

struct Amp::Impl {
  LossScaleRule rule;
  std::vector<LossScaleState> scalers;
  std::map<c10::DeviceType, OpPolicies> policies = {};
  Logger log{"amp"};

  OpPolicies& policies_for(c10::DeviceType device) { return policies.try_emplace(device, device).first->second; }
};

Amp::Amp(const AmpOptions& options)
    : options_(options),
      properties_(resolve(options.opt_level, options.overrides, options.dtype)),
      impl_(std::make_shared<Impl>(Impl{rule_of(options, properties_), {}})) {
  if (options.num_losses < 1) {
    throw UsageError(Origin{"precision"}, "num_losses = ", options.num_losses, "; expected at least 1.");
  }
  impl_->scalers.assign(static_cast<size_t>(options.num_losses), initial_state(impl_->rule));
  if (!options.enabled) return;
  if (options.apex_lists && properties_.patch_torch_functions)
    impl_->policies_for(c10::DeviceType::CPU).set_apex_lists();
  if (options.verbosity < 1) return;
  impl_->log.info(text("opt_level ", name_of(options.opt_level), " in ", c10::toString(options.dtype), ", loss scale ",
                       properties_.dynamic_loss_scale ? std::string("dynamic") : text(properties_.loss_scale)));
}

c10::DeviceType Amp::device_of(const torch::nn::Module& module) {
  const auto parameters = module.parameters();
  return parameters.empty() ? c10::DeviceType::CPU : parameters.front().device().type();
}

AmpCasts Amp::prepare_module(torch::nn::Module& module) const {
  if (!options_.enabled) return {};
  const auto dtype = properties_.cast_model_type.value_or(at::kFloat);
  for (const auto& item : module.named_parameters()) {
    const auto own = item.value().scalar_type();
    if (!item.value().is_floating_point() || own == at::kFloat || own == dtype) continue;
    throw UsageError(Origin{"precision"}, "parameter '", item.key(), "' is ", own,
                     "; Amp expected Float. Make the model in float32 and let the opt_level convert it.");
  }
  AmpCasts casts{.enabled = true};
  if (properties_.patch_torch_functions) casts.autocast = options_.dtype;
  if (properties_.cast_model_type)
    convert(module, dtype, {.keep_batchnorm = properties_.keep_batchnorm_fp32.value_or(false)});
  if (properties_.cast_model_type && dtype != at::kFloat) {
    casts.inputs = dtype;
    casts.outputs = options_.cast_model_outputs.value_or(at::kFloat);
  } else if (options_.cast_model_outputs) {
    casts.outputs = options_.cast_model_outputs;
  }
  return casts;
}

void Amp::scale_loss(const at::Tensor& loss, const std::vector<AmpOptimizerHandle>& optimizers,
                     const Backward& backward, const ScaleLossOptions& options) const {
  if (!loss.defined()) throw UsageError(Origin{"precision"}, "scale_loss of an undefined loss.");
  const auto scope = Autocast::off();
  if (!options_.enabled) return backward(loss);
  if (options.loss_id < 0 || options.loss_id >= options_.num_losses) {
    throw UsageError(Origin{"precision"}, "loss_id = ", options.loss_id, "; expected 0 to ", options_.num_losses - 1,
                     ". Set AmpOptions::num_losses.");
  }
  auto& scaler = impl_->scalers[static_cast<size_t>(options.loss_id)];
  const bool passes = !properties_.dynamic_loss_scale && scaler.scale == 1 &&
                      !properties_.master_weights.value_or(false) && !options_.skip_nonfinite;
  if (passes) return backward(loss.to(at::kFloat));
  for (const auto& optimizer : optimizers) set_aside(*optimizer.impl());
  try {
    backward(loss.to(at::kFloat) * scaler.scale);
  } catch (...) {
    for (const auto& optimizer : optimizers) put_back(*optimizer.impl());
    throw;
  }
  if (options.delay_unscale) {
    for (const auto& optimizer : optimizers) optimizer.impl()->has_scaled_gradients = true;
    return;
  }
  bool finite = true;
  for (const auto& optimizer : optimizers) {
    finite = unscale(*optimizer.impl(), scaler.scale) && finite;
    optimizer.impl()->has_scaled_gradients = false;
  }
  if (options.delay_overflow_check) return;
  const double before = scaler.scale;
  scaler = next(scaler, !finite, impl_->rule);
  if (finite || (!properties_.dynamic_loss_scale && !options_.skip_nonfinite)) return;
  for (const auto& optimizer : optimizers) optimizer.impl()->skips_next = true;
  if (options_.verbosity > 0) {
    impl_->log.warning(text("gradients overflowed: the next step is skipped, loss scale ", before, " becomes ",
                            scaler.scale, " (loss ", options.loss_id, ')'));
  }
}

double Amp::loss_scale(int64_t loss_id) const {
  return impl_->scalers.at(static_cast<size_t>(loss_id)).scale;
}

void Amp::register_function(const std::string& op, CastPolicy policy) {
  for (const auto device : {c10::DeviceType::CPU, c10::DeviceType::CUDA}) impl_->policies_for(device).set(op, policy);
}

std::optional<at::ScalarType> Amp::argument_dtype(CastPolicy policy, const std::vector<at::Tensor>& arguments) {
  const auto state = Autocast::captured();
  const bool cuda = !arguments.empty() && arguments.front().is_cuda();
  const auto& device = state.devices[cuda ? 1 : 0];
  if (!device.enabled) return {};
  if (policy == CastPolicy::kFloat32) return at::kFloat;
  if (policy == CastPolicy::kLow) return device.dtype;
  for (const auto& tensor : arguments) {
    if (is_castable(tensor) && tensor.scalar_type() == at::kFloat) return at::kFloat;
  }
  return device.dtype;
}

AmpState Amp::state() const {
  AmpState state;
  for (size_t i = 0; i < impl_->scalers.size(); ++i) {
    state[text("loss_scaler", i)] = {impl_->scalers[i].scale, impl_->scalers[i].tracker};
  }
  return state;
}

void Amp::load_state(const AmpState& state) const {
  std::map<size_t, AmpScalerState> read;
  for (const auto& [key, value] : state) {
    const std::string prefix = "loss_scaler", digits = key.substr(std::min(key.size(), prefix.size()));
    const bool known = key.starts_with(prefix) && !digits.empty() && digits.size() < 9 &&
                       digits.find_first_not_of("0123456789") == std::string::npos;
    if (!known || !std::isfinite(value.loss_scale) || !(value.loss_scale > 0) || value.unskipped < 0) {
      throw UsageError(Origin{"precision"}, "the state of an Amp has '", key, "' with loss_scale = ", value.loss_scale,
                       " and unskipped = ", value.unskipped,
                       "; expected loss_scaler0, loss_scaler1 and so on, with finite "
                       "scales above 0.");
    }
    read[core::whole_number<size_t>(digits).value()] = value;
  }
  if (read.size() != impl_->scalers.size()) {
    impl_->log.warning(text("the state has ", read.size(), " loss scalers, this Amp has ", impl_->scalers.size(),
                            ": the first ones are loaded."));
  }
  size_t index = 0;
  for (const auto& [number, value] : read) {
    if (index == impl_->scalers.size()) break;
    impl_->scalers[index].scale = value.loss_scale;
    impl_->scalers[index].tracker = value.unskipped;
    ++index;
  }
}

}  // namespace hasten::precision

namespace hasten::training {

State StateCodec<precision::AmpState>::encode(const precision::AmpState& state) {
  core::Value out = core::Value::map();
  // By number: the map's own order has loss_scaler10 before loss_scaler2.
  for (size_t i = 0; i < state.size(); ++i) {
    const auto found = state.find(text("loss_scaler", i));
    if (found == state.end()) continue;
    out[found->first] =
        core::Value::map({{"loss_scale", found->second.loss_scale}, {"unskipped", found->second.unskipped}});
  }
  return State(std::move(out));
}

precision::AmpState StateCodec<precision::AmpState>::decode(const State& state) {
  precision::AmpState out;
  const core::Value value = state.value();
  for (const auto& [key, entry] : value.as_map()) {
    const core::Value* scale = entry.is_map() ? entry.find("loss_scale") : nullptr;
    const core::Value* unskipped = entry.is_map() ? entry.find("unskipped") : nullptr;
    if (scale == nullptr || unskipped == nullptr || !scale->is_number() || !unskipped->is_int()) {
      throw UsageError(Origin{"precision"}, "the state of an Amp has '", key, "': ", entry.to_json(),
                       "; expected loss_scale and unskipped. Load one "
                       "that Amp::state or apex.amp.state_dict has given.");
    }
    out[key] = {scale->as_double(), unskipped->as_int()};
  }
  return out;
}

}  // namespace hasten::training
