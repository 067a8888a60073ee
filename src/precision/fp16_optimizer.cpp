// See fp16_optimizer.h.
#include "hasten/precision/fp16_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "hasten/core/error.h"
#include "hasten/core/log.h"
#include "hasten/precision/autocast.h"
#include "hasten/precision/grad_scaler.h"

namespace hasten::precision {
namespace {

LossScaleRule rule_of(const Fp16OptimizerOptions& options) {
  LossScaleRule rule = LossScaleRule::of(LossScaleKind::kFp16Optimizer);
  rule.dynamic = options.dynamic_loss_scale;
  if (!rule.dynamic) {
    rule.init_scale = options.static_loss_scale;
    return rule;
  }
  rule.init_scale = options.dynamic_loss_args.init_scale;
  rule.growth_factor = options.dynamic_loss_args.scale_factor;
  rule.backoff_factor = 1 / options.dynamic_loss_args.scale_factor;
  rule.growth_interval = options.dynamic_loss_args.scale_window;
  return rule;
}

// One kernel finds the norms of all values of a device and dtype, and the host waits once for each of these.
bool are_finite_on_devices(const std::vector<at::Tensor>& values) {
  std::map<std::pair<std::string, at::ScalarType>, std::vector<at::Tensor>> batches;
  for (const auto& each : values) batches[{each.device().str(), each.scalar_type()}].push_back(each);
  return std::all_of(batches.begin(), batches.end(), [](const auto& batch) {
    const auto norms = at::stack(at::_foreach_norm(batch.second, std::numeric_limits<double>::infinity(), at::kFloat));
    return norms.isfinite().all().template item<bool>();
  });
}

// Whether all gradients there are lie dense on one device that is not the CPU.
bool are_on_one_device(const std::vector<at::Tensor>& parameters) {
  std::optional<at::Device> device;
  for (const auto& parameter : parameters) {
    const auto& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    if (gradient.is_cpu() || gradient.is_sparse() || (device && *device != gradient.device())) return false;
    device = gradient.device();
  }
  return device.has_value();
}

// torch::nn::utils::clip_grad_norm_ for float32 gradients of one device, in some kernels and with one wait of the host.
double clip_on_device(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  const at::Tensor norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients, norm_type)), norm_type);
  at::_foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp_max(1.0));
  return norm.item<double>();
}

}  // namespace

Fp16Optimizer::Fp16Optimizer(torch::optim::Optimizer& optimizer, const Fp16OptimizerOptions& options)
    : optimizer_(&optimizer),
      options_(options),
      rule_(rule_of(options)),
      state_(initial_state(rule_)),
      masters_(optimizer) {}

void Fp16Optimizer::backward(const at::Tensor& loss, bool update_master_grads_now, bool retain_graph) {
  {
    const auto scope = Autocast::off();
    (loss.to(at::kFloat) * state_.scale).backward({}, retain_graph);
  }
  if (update_master_grads_now) update_master_grads();
}

bool Fp16Optimizer::gradients_are_finite() const {
  std::vector<at::Tensor> on_devices;
  for (const auto& parameter : masters_.model_side()) {
    const auto& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    const auto values = gradient.is_sparse() ? gradient._values() : gradient;
    if (!values.is_cpu()) {
      if (values.numel() > 0) on_devices.push_back(values);
      continue;
    }
    if (!std::isfinite(values.sum(at::kFloat).item<float>()) && !values.isfinite().all().item<bool>()) return false;
  }
  return are_finite_on_devices(on_devices);
}

void Fp16Optimizer::update_master_grads() {
  const at::NoGradGuard no_grad;
  if (options_.dynamic_loss_scale) {
    overflow_ = !gradients_are_finite();
    if (overflow_) return;
  }
  masters_.gradients_to_masters();
  if (state_.scale == 1) return;
  for (const auto& parameter : masters_.all()) {
    if (parameter.grad().defined()) parameter.mutable_grad().mul_(1 / state_.scale);
  }
}

double Fp16Optimizer::clip_master_grads(double max_norm, double norm_type) {
  if (overflow_) return -1;
  // Nothing has no largest element.
  auto masters = masters_.all();
  std::erase_if(masters, [](const at::Tensor& master) { return master.numel() == 0; });
  if (are_on_one_device(masters)) return clip_on_device(masters, max_norm, norm_type);
  return torch::nn::utils::clip_grad_norm_(masters, max_norm, norm_type);
}

std::vector<std::vector<at::Tensor>> Fp16Optimizer::inspect_master_grad_data() const {
  std::vector<std::vector<at::Tensor>> result;
  if (overflow_) return result;
  for (const auto& group : optimizer_->param_groups()) {
    auto& list = result.emplace_back();
    for (const auto& parameter : group.params()) list.push_back(parameter.grad());
  }
  return result;
}

void Fp16Optimizer::update_scale() {
  const double before = state_.scale;
  state_ = next(state_, overflow_, rule_);
  if (overflow_ && options_.verbose) {
    Logger("precision").warning(text("overflow: skipped the step; loss scale ", before, " becomes ", state_.scale));
  }
}

at::Tensor Fp16Optimizer::step(const std::function<at::Tensor()>& closure) {
  update_scale();
  if (overflow_ && !closure) return {};
  at::Tensor loss;
  if (closure) {
    bool first = true;
    loss = optimizer_->step([&] {
      // The optimizer has moved the masters since the last call.
      if (!first) masters_.to_model();
      first = false;
      auto evaluated = closure();
      while (overflow_) {
        update_scale();
        evaluated = closure();
      }
      return evaluated;
    });
  } else {
    optimizer_->step();
  }
  masters_.to_model();
  return loss;
}

Fp16OptimizerState Fp16Optimizer::state() const {
  return {.loss_scaler = state_,
          .dynamic_loss_scale = options_.dynamic_loss_scale,
          .overflow = overflow_,
          .fp32_from_fp16 = masters_.masters()};
}

void Fp16Optimizer::load_state(const Fp16OptimizerState& state) {
  const auto& own = masters_.masters();
  bool fits = own.size() == state.fp32_from_fp16.size();
  for (size_t i = 0; fits && i < own.size(); ++i) fits = own[i].sizes() == state.fp32_from_fp16[i].sizes();
  if (!fits) {
    throw UsageError(Origin{"precision"}, "the state of a Fp16Optimizer has ", state.fp32_from_fp16.size(),
                     " masters; expected ", own.size(), " of the model's sizes. Load the state of this model.");
  }
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < own.size(); ++i) own[i].copy_(state.fp32_from_fp16[i]);
  state_ = state.loss_scaler;
  options_.dynamic_loss_scale = rule_.dynamic = state.dynamic_loss_scale;
  overflow_ = state.overflow;
  masters_.to_model();
}

}  // namespace hasten::precision
