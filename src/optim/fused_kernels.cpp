// One kernel call for all parameters alike; see fused_kernels.h.
#include "optim/fused_kernels.h"

#include <ATen/Parallel.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <typeinfo>

#include "optim/one_thread.h"

namespace hasten::optim::detail {
namespace {

using torch::optim::Optimizer;

// Parameters of a group that one call may take: of one device and dtype, at the same step.
struct Batch {
  c10::Device device;
  at::ScalarType dtype;
  int64_t step;
  bool small;  // too small for several threads
  std::vector<at::Tensor> params = {}, grads = {};
  std::array<std::vector<at::Tensor>, 3> states = {};

  // The step for each parameter: CUDA's kernels read floats, the CPU's convert.
  std::vector<at::Tensor> steps() const {
    const auto dtype_of_steps = device.is_cpu() ? at::kDouble : at::kFloat;
    return {params.size(), at::full({}, step, at::TensorOptions().device(device).dtype(dtype_of_steps))};
  }
};

bool lies_as(const at::Tensor& tensor, const at::Tensor& param) {
  if (!tensor.defined() || tensor.sizes() != param.sizes()) return false;
  if (tensor.scalar_type() != param.scalar_type() || tensor.device() != param.device()) return false;
  return tensor.strides() == param.strides() || (tensor.is_contiguous() && param.is_contiguous());
}

// In half precision the kernels round once, torch::optim after each operation: not the same to 1e-6.
bool is_fusible(const at::Tensor& param, const at::Tensor& grad) {
  const bool known = (param.is_cpu() || param.is_cuda()) &&
                     (param.scalar_type() == at::kFloat || param.scalar_type() == at::kDouble);
  return known && param.layout() == at::kStrided && param.is_non_overlapping_and_dense() &&
         grad.layout() == at::kStrided && grad.scalar_type() == param.scalar_type() &&
         grad.device() == param.device();
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

// What a kernel needs of a parameter: its state's tensors, and the step it is at.
struct Slot {
  int64_t step = 0;
  std::array<at::Tensor, 3> states = {};
};

// Each kernel has `slot`, which finds or makes a parameter's state and counts its step, or gives nothing
// where the state does not fit; and `call`.

struct SgdKernel {
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;

  // As step: whether the momentum is yet to be set.
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

  static void call(Batch& batch, const Options& options, bool maximize) {
    at::_fused_sgd_(batch.params, batch.grads, batch.states[0], options.weight_decay(), options.momentum(),
                    options.lr(), options.dampening(), options.nesterov(), maximize,
                    /*is_first_step=*/batch.step == 0);
  }
};

template <class OptionsOf, class StateOf, bool kDecoupled>
struct AdamKernel {
  using Options = OptionsOf;
  using State = StateOf;

  static std::optional<Slot> slot(Optimizer& optimizer, const at::Tensor& param, const Options& options) {
    auto* state = find_state<State>(optimizer, param);
    if (state == nullptr) {
      const auto zeros = [&] { return at::zeros_like(param, at::MemoryFormat::Preserve); };
      state = &make_state<State>(optimizer, param);
      state->exp_avg(zeros());
      state->exp_avg_sq(zeros());
      if (options.amsgrad()) state->max_exp_avg_sq(zeros());
    }
    if (!lies_as(state->exp_avg(), param) || !lies_as(state->exp_avg_sq(), param)) return {};
    if (options.amsgrad() && !lies_as(state->max_exp_avg_sq(), param)) return {};
    state->step(state->step() + 1);
    return Slot{state->step(), {state->exp_avg(), state->exp_avg_sq(), state->max_exp_avg_sq()}};
  }

  static void call(Batch& batch, const Options& options, bool maximize) {
    const auto [beta1, beta2] = options.betas();
    if (!options.amsgrad()) batch.states[2].clear();
    const auto run = [&](const auto& kernel) {
      kernel(batch.params, batch.grads, batch.states[0], batch.states[1], batch.states[2], batch.steps(),
             options.lr(), beta1, beta2, options.weight_decay(), options.eps(), options.amsgrad(), maximize);
    };
    if constexpr (kDecoupled) {
      run([](const auto&... arguments) { at::_fused_adamw_(arguments...); });
    } else {
      run([](const auto&... arguments) { at::_fused_adam_(arguments...); });
    }
  }
};

struct AdagradKernel {
  using Options = torch::optim::AdagradOptions;
  using State = torch::optim::AdagradParamState;

  static std::optional<Slot> slot(Optimizer& optimizer, const at::Tensor& param, const Options&) {
    auto* state = find_state<State>(optimizer, param);
    if (state == nullptr || !lies_as(state->sum(), param)) return {};  // its constructor makes all states
    state->step(state->step() + 1);
    return Slot{state->step(), {state->sum()}};
  }

  static void call(Batch& batch, const Options& options, bool maximize) {
    at::_fused_adagrad_(batch.params, batch.grads, batch.states[0], batch.steps(), options.lr(),
                        options.lr_decay(), options.weight_decay(), options.eps(), maximize);
  }
};

void add(std::vector<Batch>& batches, const at::Tensor& param, Slot slot) {
  const bool small = param.is_cpu() && param.numel() < at::internal::GRAIN_SIZE;
  const auto takes_it = [&](const Batch& batch) {
    return batch.step == slot.step && batch.small == small && batch.dtype == param.scalar_type() &&
           batch.device == param.device();
  };
  auto batch = std::find_if(batches.begin(), batches.end(), takes_it);
  if (batch == batches.end()) {
    batch = batches.insert(batch, Batch{param.device(), param.scalar_type(), slot.step, small});
  }
  const at::Tensor& grad = param.grad();
  batch->params.push_back(param);
  batch->grads.push_back(lies_as(grad, param) ? grad : at::empty_like(param).copy_(grad));
  for (size_t i = 0; i < slot.states.size(); ++i) {
    if (slot.states[i].defined()) batch->states[i].push_back(std::move(slot.states[i]));
  }
}

template <class Kernel>
FusedStep step_with(Optimizer& optimizer, bool maximize) {
  FusedStep result;
  for (auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const typename Kernel::Options&>(group.options());
    std::vector<Batch> batches;
    for (const auto& param : group.params()) {
      if (!param.grad().defined()) continue;
      auto slot = is_fusible(param, param.grad()) ? Kernel::slot(optimizer, param, options) : std::nullopt;
      if (!slot) {
        ++result.num_left;
        continue;
      }
      add(batches, param, std::move(*slot));
      result.stepped.push_back(param);
    }
    for (auto& batch : batches) {
      const OneThread one_thread(batch.small);
      Kernel::call(batch, options, maximize);
    }
  }
  return result;
}

using Adam = AdamKernel<torch::optim::AdamOptions, torch::optim::AdamParamState, false>;
using AdamW = AdamKernel<torch::optim::AdamWOptions, torch::optim::AdamWParamState, true>;

using Step = FusedStep (*)(Optimizer&, bool);

Step step_for(const Optimizer& optimizer) {
  const auto& type = typeid(optimizer);
  if (type == typeid(torch::optim::SGD)) return step_with<SgdKernel>;
  if (type == typeid(torch::optim::Adam)) return step_with<Adam>;
  if (type == typeid(torch::optim::AdamW)) return step_with<AdamW>;
  if (type == typeid(torch::optim::Adagrad)) return step_with<AdagradKernel>;
  return nullptr;
}

}  // namespace

bool has_fused_kernel(const Optimizer& optimizer) {
  return step_for(optimizer) != nullptr;
}

FusedStep fused_step(Optimizer& optimizer, bool maximize) {
  const at::NoGradGuard no_grad;
  return step_for(optimizer)(optimizer, maximize);
}

}  // namespace hasten::optim::detail
