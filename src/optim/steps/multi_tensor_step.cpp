// Which parameters are stepped at once, and with which state; see multi_tensor_step.h.
#include "optim/steps/multi_tensor_step.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <optional>
#include <typeinfo>

#include "optim/steps/foreach_steps.h"
#include "optim/steps/fused_kernels.h"

namespace hasten::optim::detail {
namespace {

using torch::optim::Optimizer;

bool lies_as(const at::Tensor& tensor, const at::Tensor& param) {
  if (!tensor.defined() || tensor.sizes() != param.sizes()) return false;
  if (tensor.scalar_type() != param.scalar_type() || tensor.device() != param.device()) return false;
  return tensor.strides() == param.strides() || (tensor.is_contiguous() && param.is_contiguous());
}

bool is_half(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16;
}

enum class Kind { kFused, kForeach, kOwn };

// In half precision the kernels round once, torch::optim after each operation: not the same to 1e-6.
Kind kind_of(const at::Tensor& param, const at::Tensor& grad, bool has_kernel, const StepChoice& choice) {
  const auto dtype = param.scalar_type();
  const bool full = dtype == at::kFloat || dtype == at::kDouble;
  const bool fusible = choice.fused && has_kernel && full && (param.is_cpu() || param.is_cuda());
  const bool foreach =
      !fusible && choice.foreach_on != nullptr && (full || is_half(dtype)) && choice.foreach_on(param.device());
  if (!fusible && !foreach) return Kind::kOwn;
  const bool fits = param.layout() == at::kStrided && param.is_non_overlapping_and_dense() &&
                    grad.layout() == at::kStrided && grad.scalar_type() == dtype && grad.device() == param.device();
  if (!fits) return Kind::kOwn;
  return fusible ? Kind::kFused : Kind::kForeach;
}

template <class State>
State* find_state(Optimizer& optimizer, const at::Tensor& param) {
  const auto found = optimizer.state().find(param.unsafeGetTensorImpl());
  return found == optimizer.state().end() ? nullptr : static_cast<State*>(found->second.get());
}

template <class State>
State& make_state(Optimizer& optimizer, const at::Tensor& param) {
  auto& place = optimizer.state()[param.unsafeGetTensorImpl()];
  place = std::make_unique<State>();
  return static_cast<State&>(*place);
}

at::Tensor zeros_beside(const at::Tensor& param) {
  return at::zeros_like(param, at::MemoryFormat::Preserve);
}

// Data of a parameter for a batch: its state's tensors, in ParameterBatch's order, and the step it is at.
struct Slot {
  int64_t step = 0;
  std::array<at::Tensor, 3> states = {};
};

// Each rule has `slot`, which finds or makes a parameter's state and counts its step, or gives nothing where
// the state does not fit.

struct SgdRule {
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;

  static std::optional<Slot> slot(Optimizer& optimizer, const at::Tensor& param, const Options& options) {
    if (options.momentum() == 0) return Slot{};
    if (auto* state = find_state<State>(optimizer, param)) {
      if (!lies_as(state->momentum_buffer(), param)) return {};
      return Slot{.step = 1, .states = {state->momentum_buffer()}};
    }
    const at::Tensor buffer = at::empty_like(param, at::MemoryFormat::Preserve);
    make_state<State>(optimizer, param).momentum_buffer(buffer);
    return Slot{.step = 0, .states = {buffer}};
  }
};

template <class OptionsOf, class StateOf>
struct AdamRule {
  using Options = OptionsOf;
  using State = StateOf;

  static std::optional<Slot> slot(Optimizer& optimizer, const at::Tensor& param, const Options& options) {
    auto* state = find_state<State>(optimizer, param);
    if (state == nullptr) {
      state = &make_state<State>(optimizer, param);
      state->exp_avg(zeros_beside(param));
      state->exp_avg_sq(zeros_beside(param));
      if (options.amsgrad()) state->max_exp_avg_sq(zeros_beside(param));
    }
    if (!lies_as(state->exp_avg(), param) || !lies_as(state->exp_avg_sq(), param)) return {};
    if (options.amsgrad() && !lies_as(state->max_exp_avg_sq(), param)) return {};
    state->step(state->step() + 1);
    return Slot{state->step(),
                {state->exp_avg(), state->exp_avg_sq(), options.amsgrad() ? state->max_exp_avg_sq() : at::Tensor()}};
  }
};

struct AdagradRule {
  using Options = torch::optim::AdagradOptions;
  using State = torch::optim::AdagradParamState;

  static std::optional<Slot> slot(Optimizer& optimizer, const at::Tensor& param, const Options&) {
    auto* state = find_state<State>(optimizer, param);
    if (state == nullptr || !lies_as(state->sum(), param)) return {};
    state->step(state->step() + 1);
    return Slot{state->step(), {state->sum()}};
  }
};

struct RmspropRule {
  using Options = torch::optim::RMSpropOptions;
  using State = torch::optim::RMSpropParamState;

  // As step: none, on which nothing depends.
  static std::optional<Slot> slot(Optimizer& optimizer, const at::Tensor& param, const Options& options) {
    const bool momentum = options.momentum() > 0, centered = options.centered();
    auto* state = find_state<State>(optimizer, param);
    if (state == nullptr) {
      state = &make_state<State>(optimizer, param);
      state->square_avg(zeros_beside(param));
      if (momentum) state->momentum_buffer(zeros_beside(param));
      if (centered) state->grad_avg(zeros_beside(param));
    }
    if (!lies_as(state->square_avg(), param)) return {};
    if (momentum && !lies_as(state->momentum_buffer(), param)) return {};
    if (centered && !lies_as(state->grad_avg(), param)) return {};
    state->step(state->step() + 1);
    return Slot{.states = {state->square_avg(), momentum ? state->momentum_buffer() : at::Tensor(),
                           centered ? state->grad_avg() : at::Tensor()}};
  }
};

void add(std::vector<ParameterBatch>& batches, const at::Tensor& param, bool fused, Slot slot) {
  const bool small = param.is_cpu() && param.numel() < at::internal::GRAIN_SIZE;
  // A batch has one device and dtype, which select `fused`, too.
  const auto takes_it = [&](const ParameterBatch& batch) {
    return batch.step == slot.step && batch.small == small && batch.dtype == param.scalar_type() &&
           batch.device == param.device();
  };
  auto batch = std::find_if(batches.begin(), batches.end(), takes_it);
  if (batch == batches.end()) {
    batch = batches.insert(
        batch,
        ParameterBatch{
            .device = param.device(), .dtype = param.scalar_type(), .fused = fused, .small = small, .step = slot.step});
  }
  const at::Tensor& grad = param.grad();
  batch->params.push_back(param);
  batch->grads.push_back(lies_as(grad, param) ? grad : at::empty_like(param).copy_(grad));
  for (size_t i = 0; i < slot.states.size(); ++i) {
    if (slot.states[i].defined()) batch->states[i].push_back(std::move(slot.states[i]));
  }
}

template <class Options>
constexpr bool kHasKernel =
    requires(ParameterBatch& batch, const Options& options) { fused_step(batch, options, false); };

template <class Options>
void step_batch(ParameterBatch& batch, const Options& options, bool maximize) {
  if constexpr (kHasKernel<Options>) {
    if (batch.fused) return fused_step(batch, options, maximize);
  }
  foreach_step(batch, options, maximize);
}

template <class Rule>
MultiTensorStep step_with(Optimizer& optimizer, const StepChoice& choice) {
  using Options = typename Rule::Options;
  MultiTensorStep result;
  for (auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const Options&>(group.options());
    std::vector<ParameterBatch> batches;
    for (const auto& param : group.params()) {
      if (!param.grad().defined()) continue;
      const Kind kind = kind_of(param, param.grad(), kHasKernel<Options>, choice);
      auto slot = kind == Kind::kOwn ? std::nullopt : Rule::slot(optimizer, param, options);
      if (!slot) {
        ++result.num_left;
        continue;
      }
      add(batches, param, kind == Kind::kFused, std::move(*slot));
      result.stepped.push_back(param);
    }
    for (auto& batch : batches) step_batch(batch, options, choice.maximize);
  }
  return result;
}

using Adam = AdamRule<torch::optim::AdamOptions, torch::optim::AdamParamState>;
using AdamW = AdamRule<torch::optim::AdamWOptions, torch::optim::AdamWParamState>;

using Step = MultiTensorStep (*)(Optimizer&, const StepChoice&);

Step step_for(const Optimizer& optimizer) {
  const auto& type = typeid(optimizer);
  if (type == typeid(torch::optim::SGD)) return step_with<SgdRule>;
  if (type == typeid(torch::optim::Adam)) return step_with<Adam>;
  if (type == typeid(torch::optim::AdamW)) return step_with<AdamW>;
  if (type == typeid(torch::optim::Adagrad)) return step_with<AdagradRule>;
  if (type == typeid(torch::optim::RMSprop)) return step_with<RmspropRule>;
  return nullptr;
}

}  // namespace

void make_late_states(Optimizer& optimizer) {
  if (typeid(optimizer) != typeid(torch::optim::Adagrad)) return;
  for (const auto& group : optimizer.param_groups()) {
    const auto& options =
        static_cast<const torch::optim::AdagradOptions&>(group.has_options() ? group.options() : optimizer.defaults());
    for (const auto& param : group.params()) {
      if (find_state<torch::optim::AdagradParamState>(optimizer, param) != nullptr) continue;
      auto& state = make_state<torch::optim::AdagradParamState>(optimizer, param);
      state.step(0);
      state.sum(at::full_like(param.detach(), options.initial_accumulator_value(), at::MemoryFormat::Preserve));
    }
  }
}

bool has_multi_tensor_step(const Optimizer& optimizer) {
  return step_for(optimizer) != nullptr;
}

MultiTensorStep multi_tensor_step(Optimizer& optimizer, const StepChoice& choice) {
  const at::NoGradGuard no_grad;
  return step_for(optimizer)(optimizer, choice);
}

}  // namespace hasten::optim::detail
