// See low_weights.h.
#include "hasten/optim/prepared/low_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim.h>

#include <typeinfo>

#include "compat/versions.h"
#include "hasten/core/error.h"
#include "hasten/optim/apex_adam.h"
#include "hasten/optim/apex_sgd.h"
#include "hasten/optim/steps/rules.h"
#include "hasten/precision/convert.h"
#include "optim/moment_optimizer.h"

namespace hasten::optim {
namespace {

using precision::Weights;

at::Tensor moment(const at::Tensor& parameter, at::ScalarType dtype) {
  return at::zeros_like(parameter, parameter.options().dtype(dtype), at::MemoryFormat::Preserve);
}

template <class State>
State& state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  auto& place = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (!place) place = std::make_unique<State>();
  return static_cast<State&>(*place);
}

// A state's tensor in the dtype that the loops write, from any source.
at::Tensor& in_dtype(at::Tensor& tensor, const at::Tensor& parameter, at::ScalarType dtype) {
  if (!tensor.defined()) {
    tensor = moment(parameter, dtype);
  } else if (tensor.scalar_type() != dtype) {
    tensor = tensor.to(dtype);
  }
  return tensor;
}

struct Job {
  torch::optim::Optimizer& optimizer;
  const at::Tensor& parameter;
  steps::Slice slice;
  at::ScalarType states;

  void set_state(size_t index, at::Tensor& tensor) {
    slice.states[index] = in_dtype(tensor, parameter, states).mutable_data_ptr();
  }
};

void step_one(Job job, const torch::optim::SGDOptions& options) {
  auto& state = state_of<torch::optim::SGDParamState>(job.optimizer, job.parameter);
  const bool first = !state.momentum_buffer().defined();
  if (options.momentum() != 0) job.set_state(0, state.momentum_buffer());
  steps::step(job.slice, steps::Sgd{.lr = options.lr(),
                                    .momentum = options.momentum(),
                                    .dampening = options.dampening(),
                                    .weight_decay = options.weight_decay(),
                                    .nesterov = options.nesterov(),
                                    .is_first_step = first});
}

template <class State, class Options>
void step_adam(Job job, const Options& options, bool decoupled) {
  auto& state = state_of<State>(job.optimizer, job.parameter);
  state.step(state.step() + 1);
  job.set_state(0, state.exp_avg());
  job.set_state(1, state.exp_avg_sq());
  if (options.amsgrad()) job.set_state(2, state.max_exp_avg_sq());
  const auto [beta1, beta2] = options.betas();
  steps::step(job.slice, steps::Adam{.lr = options.lr(),
                                     .beta1 = beta1,
                                     .beta2 = beta2,
                                     .eps = options.eps(),
                                     .weight_decay = options.weight_decay(),
                                     .step = state.step(),
                                     .amsgrad = options.amsgrad(),
                                     .decoupled_decay = decoupled});
}

void step_one(Job job, const torch::optim::AdamOptions& options) {
  step_adam<torch::optim::AdamParamState>(job, options, false);
}

void step_one(Job job, const torch::optim::AdamWOptions& options) {
  step_adam<torch::optim::AdamWParamState>(job, options, true);
}

void step_one(Job job, const torch::optim::AdagradOptions& options) {
  auto& state = state_of<torch::optim::AdagradParamState>(job.optimizer, job.parameter);
  state.step(state.step() + 1);
  job.set_state(0, state.sum());
  steps::step(job.slice, steps::Adagrad{.lr = options.lr(),
                                        .lr_decay = options.lr_decay(),
                                        .weight_decay = options.weight_decay(),
                                        .eps = options.eps(),
                                        .step = state.step()});
}

void step_one(Job job, const torch::optim::RMSpropOptions& options) {
  auto& state = state_of<torch::optim::RMSpropParamState>(job.optimizer, job.parameter);
  state.step(state.step() + 1);
  job.set_state(0, state.square_avg());
  if (options.momentum() > 0) job.set_state(1, state.momentum_buffer());
  if (options.centered()) job.set_state(2, state.grad_avg());
  steps::step(job.slice, steps::RmsProp{.lr = options.lr(),
                                        .alpha = options.alpha(),
                                        .eps = options.eps(),
                                        .weight_decay = options.weight_decay(),
                                        .momentum = options.momentum(),
                                        .centered = options.centered()});
}

void step_one(Job job, const ApexAdamOptions& options) {
  auto& state = state_of<detail::MomentState>(job.optimizer, job.parameter);
  state.step(state.step() + 1);
  job.set_state(0, state.first());
  job.set_state(1, state.second());
  const auto [beta1, beta2] = options.betas();
  steps::step(job.slice, steps::Adam{.lr = options.lr(),
                                     .beta1 = beta1,
                                     .beta2 = beta2,
                                     .eps = options.eps(),
                                     .weight_decay = options.weight_decay(),
                                     .step = state.step(),
                                     .decoupled_decay = options.adam_w_mode(),
                                     .bias_correction = options.bias_correction()});
}

void step_one(Job job, const ApexSgdOptions& options) {
  auto& state = state_of<detail::MomentState>(job.optimizer, job.parameter);
  state.step(state.step() + 1);
  if (options.momentum() != 0) job.set_state(0, state.first());
  steps::step(job.slice, steps::Sgd{.lr = options.lr(),
                                    .momentum = options.momentum(),
                                    .dampening = options.dampening(),
                                    .weight_decay = options.weight_decay(),
                                    .nesterov = options.nesterov(),
                                    .is_first_step = state.step() == 1,
                                    .decay_after_momentum = options.wd_after_momentum()});
}

using StepOne = void (*)(Job, const torch::optim::OptimizerOptions&);

template <class Options>
void step_as(Job job, const torch::optim::OptimizerOptions& options) {
  step_one(job, static_cast<const Options&>(options));
}

StepOne loop_for(const torch::optim::Optimizer& optimizer) {
  const auto& type = typeid(optimizer);
  if (type == typeid(torch::optim::SGD)) return step_as<torch::optim::SGDOptions>;
  if (type == typeid(torch::optim::Adam)) return step_as<torch::optim::AdamOptions>;
  if (type == typeid(torch::optim::AdamW)) return step_as<torch::optim::AdamWOptions>;
  if (type == typeid(torch::optim::Adagrad)) return step_as<torch::optim::AdagradOptions>;
  if (type == typeid(torch::optim::RMSprop)) return step_as<torch::optim::RMSpropOptions>;
  if (type == typeid(ApexAdam)) return step_as<ApexAdamOptions>;
  if (type == typeid(ApexSgd)) return step_as<ApexSgdOptions>;
  return nullptr;
}

void split(const at::Tensor& value, const at::Tensor& high, const at::Tensor& low) {
  const auto* from = static_cast<const uint32_t*>(value.const_data_ptr());
  auto* h = static_cast<uint16_t*>(high.mutable_data_ptr());
  auto* l = static_cast<uint16_t*>(low.mutable_data_ptr());
  for (int64_t i = 0; i < value.numel(); ++i) {
    const uint32_t upper = (from[i] + 0x8000) >> 16;
    h[i] = static_cast<uint16_t>(upper);
    l[i] = static_cast<uint16_t>(from[i] - (upper << 16));
  }
}

at::Tensor joined(const at::Tensor& high, const at::Tensor& low) {
  auto value = at::empty_like(high, high.options().dtype(at::kFloat), at::MemoryFormat::Preserve);
  const auto* h = static_cast<const uint16_t*>(high.const_data_ptr());
  const auto* l = static_cast<const int16_t*>(low.const_data_ptr());
  auto* to = static_cast<uint32_t*>(value.mutable_data_ptr());
  for (int64_t i = 0; i < value.numel(); ++i) {
    to[i] = (static_cast<uint32_t>(h[i]) << 16) + static_cast<uint32_t>(static_cast<int32_t>(l[i]));
  }
  return value;
}

}  // namespace

LowWeights::LowWeights(const LowWeightsOptions& options) : options_(options) {
  const bool half = options.dtype == at::kBFloat16 || (options.dtype == at::kHalf && options.form == Weights::kMaster);
  const bool moments = options.states == at::kFloat || options.states == at::kBFloat16 || options.states == at::kHalf;
  if (options.form != Weights::kParameter && half && moments) return;
  throw UsageError(Origin{"optim"}, "weights below float32 in ", options.dtype, " with moments in ", options.states,
                   "; expected BFloat16 (Half with kMaster too), and moments in Float, BFloat16 or Half.");
}

void LowWeights::convert(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  std::map<const void*, at::Tensor> values;
  for (const auto& item : module.named_parameters()) {
    const auto& parameter = item.value();
    if (parameter.scalar_type() != at::kFloat) continue;
    if (!parameter.is_cpu() || !parameter.is_non_overlapping_and_dense()) {
      throw UsageError(Origin{"optim"}, "weights below float32 step on the CPU in this version; '", item.key(),
                       "' is on ", parameter.device(), ". Use mixed_precision with float32 weights there.");
    }
    values[parameter.unsafeGetTensorImpl()] = parameter.detach().clone();
  }
  precision::convert(module, options_.dtype, {.keep_batchnorm = true});
  for (const auto& parameter : module.parameters()) {
    const auto found = values.find(parameter.unsafeGetTensorImpl());
    if (found == values.end() || parameter.scalar_type() != options_.dtype) continue;
    auto& own = kept_[parameter.unsafeGetTensorImpl()];
    own.parameter = parameter;
    if (options_.form == Weights::kMaster) own.rest = found->second;
    if (options_.form == Weights::kSplit) own.rest = moment(parameter, at::kShort);
    if (options_.form == Weights::kKahan) own.rest = moment(parameter, at::kBFloat16);
    if (options_.form == Weights::kSplit) split(found->second, parameter, own.rest);
  }
}

void LowWeights::require(const torch::optim::Optimizer& optimizer) {
  if (loop_for(optimizer) != nullptr) return;
  throw UsageError(
      Origin{"optim"},
      "weights below float32 need an optimizer that has a step loop; expected SGD, Adam, AdamW, "
      "Adagrad, RMSprop, ApexAdam or ApexSgd, not a class derived from one. Use Weights::kParameter with this one.");
}

const LowWeights::Beside* LowWeights::find(const at::Tensor& parameter) const {
  const auto found = kept_.find(parameter.unsafeGetTensorImpl());
  return found == kept_.end() ? nullptr : &found->second;
}

at::Tensor LowWeights::value_of(const at::Tensor& parameter) const {
  const at::NoGradGuard no_grad;
  const auto* own = find(parameter);
  if (own == nullptr) return parameter.detach();
  if (options_.form == Weights::kMaster) return own->rest;
  if (options_.form == Weights::kSplit) return joined(parameter, own->rest);
  return parameter.detach().to(at::kFloat);
}

void LowWeights::set_value(const at::Tensor& parameter, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  if (value.sizes() != parameter.sizes()) {
    throw UsageError(Origin{"optim"}, "a value of sizes ", value.sizes(), " for a parameter of sizes ",
                     parameter.sizes(), '.');
  }
  const auto* own = find(parameter);
  auto floats = at::empty_like(parameter, parameter.options().dtype(at::kFloat), at::MemoryFormat::Preserve);
  floats.copy_(value);
  if (own != nullptr && options_.form == Weights::kSplit) return split(floats, parameter, own->rest);
  parameter.copy_(floats);
  if (own == nullptr) return;
  if (options_.form == Weights::kMaster) own->rest.copy_(floats);
  if (options_.form == Weights::kKahan) own->rest.zero_();
}

int64_t LowWeights::extra_bytes() const {
  int64_t bytes = 0;
  for (const auto& [key, own] : kept_) bytes += own.rest.defined() ? static_cast<int64_t>(own.rest.nbytes()) : 0;
  return bytes;
}

bool LowWeights::step(training::StepContext& context) {
  const auto loop = loop_for(context.optimizer);
  if (loop == nullptr) {
    require(context.optimizer);
    return false;
  }
  if (context.closure) {
    const at::AutoGradMode with_gradients(true);
    context.loss = context.closure();
  }
  const at::NoGradGuard no_grad;
  ++steps_;
  uint32_t index = 0;
  for (auto& group : context.optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      const uint32_t own_index = index++;
      if (!parameter.grad().defined()) continue;
      detail::MomentState unused;
      const detail::Target target(parameter, unused, false);
      const auto* own = find(parameter);
      steps::Slice slice;
      slice.count = parameter.numel();
      slice.weight = parameter.mutable_data_ptr();
      slice.gradient = target.gradient.const_data_ptr();
      slice.gradient_storage = detail::storage_of(target.gradient.scalar_type());
      slice.state_storage = detail::storage_of(options_.states);
      slice.gradient_factor = options_.maximize ? -context.gradient_factor : context.gradient_factor;
      if (own != nullptr && options_.form == Weights::kMaster) {
        slice.weight = own->rest.mutable_data_ptr();
        slice.copy = parameter.mutable_data_ptr();
        slice.copy_storage = detail::storage_of(options_.dtype);
      } else if (own != nullptr) {
        slice.form = options_.form == Weights::kSplit   ? steps::WeightForm::kSplit
                     : options_.form == Weights::kKahan ? steps::WeightForm::kKahan
                                                        : steps::WeightForm::kStochastic;
        slice.rest = own->rest.defined() ? own->rest.mutable_data_ptr() : nullptr;
        slice.dither = {.seed = options_.seed, .step = steps_, .parameter = own_index};
      }
      loop(Job{context.optimizer, parameter, slice, options_.states}, group.options());
      compat::bump_version(parameter);
    }
  }
  return true;
}

}  // namespace hasten::optim
