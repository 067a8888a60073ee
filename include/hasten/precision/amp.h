// Amp: Apex's mixed precision (apex.amp) with its levels O0 to O3, several losses, and functions registered by hand.
//
// Apex patches torch's functions and the optimizer's methods, once a process. Here initialize gives handles, as prepare
// does: a model that casts, an optimizer whose step handles overflows. Several may exist side by side, and
// Accelerator::prepare takes the handles. For the meaning of a level see amp_levels.h.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <concepts>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "hasten/precision/amp_levels.h"
#include "hasten/precision/autocast.h"
#include "hasten/precision/op_policies.h"
#include "hasten/precision/outputs.h"
#include "hasten/training/stateful.h"

namespace hasten::precision {

struct AmpOptions {
  /// False: handles that change nothing.
  bool enabled = true;
  AmpLevel opt_level = AmpLevel::kO1;
  AmpOverrides overrides = {};
  /// kBFloat16: levels in bfloat16, with loss scale 1.
  at::ScalarType dtype = at::kHalf;
  /// The dtype of O2's and O3's outputs; unset: float32.
  std::optional<at::ScalarType> cast_model_outputs = {};
  /// Losses with a scale each.
  int64_t num_losses = 1;
  /// 0: nothing is logged. 1: a line at the start and at each overflow. 2: as 1, and which operators are cast.
  int verbosity = 1;
  std::optional<double> min_loss_scale = {};
  double max_loss_scale = 16777216.0;
  /// O1: Apex's operator lists where they differ from libtorch's (OpPolicies::set_apex_lists), for this Amp's life.
  bool apex_lists = false;
  /// With a static loss scale as well, steps whose gradients are not finite are skipped. Apex takes them.
  bool skip_nonfinite = true;
};

struct ScaleLossOptions {
  int64_t loss_id = 0;
  /// Gradients stay scaled: a further backward of the same loss_id follows before the step.
  bool delay_unscale = false;
  /// Overflows neither skip a step nor move the scale.
  bool delay_overflow_check = false;
};

/// A loss's part of the state: Apex's "loss_scaler0" and so on.
struct AmpScalerState {
  double loss_scale = 65536.0;
  int64_t unskipped = 0;
};
using AmpState = std::map<std::string, AmpScalerState>;

/// The interface of an optimizer for scale_loss; AmpOptimizer<O> has it.
class AmpOptimizerHandle {
 public:
  AmpOptimizerHandle(torch::optim::Optimizer& optimizer, bool with_masters, bool enabled);
  /// Makes the step; does nothing once after an overflow. With masters, the model gets them rounded.
  /// Throws: UsageError if the gradients are still scaled (delay_unscale).
  at::Tensor step(const torch::optim::Optimizer::LossClosure& closure = nullptr) const;
  void zero_grad(bool set_to_none = true) const;
  /// Returns true if the last step was a no-op.
  bool step_was_skipped() const noexcept;
  /// Returns true if the next step will be a no-op.
  bool will_skip() const noexcept;
  /// Returns all parameters that the optimizer steps: masters and float32 parameters (apex.amp.master_params).
  std::vector<at::Tensor> master_params() const;
  torch::optim::Optimizer& optimizer() const noexcept;

  struct Impl;
  const std::shared_ptr<Impl>& impl() const noexcept { return impl_; }

 private:
  std::shared_ptr<Impl> impl_;
};

template <class O>
class AmpOptimizer : public AmpOptimizerHandle {
 public:
  AmpOptimizer(O& optimizer, bool with_masters, bool enabled)
      : AmpOptimizerHandle(optimizer, with_masters, enabled), optimizer_(&optimizer) {}
  O* operator->() const noexcept { return optimizer_; }
  O& unwrap() const noexcept { return *optimizer_; }

 private:
  O* optimizer_;
};

/// Actions of a call of the model around forward.
struct AmpCasts {
  bool enabled = false;
  /// O1: forward runs under autocast to this dtype.
  std::optional<at::ScalarType> autocast = {};
  /// O2, O3: inputs are cast to this dtype, outputs to the other one.
  std::optional<at::ScalarType> inputs = {};
  std::optional<at::ScalarType> outputs = {};
};

/// A value handle for a module. `model(x)` runs forward at the level, `model->forward(x)` the module's own.
template <class M>
class AmpModel {
 public:
  AmpModel(M module, const AmpCasts& casts, c10::DeviceType device)
      : module_(std::move(module)), casts_(casts), device_(device) {}

  template <class... Inputs>
  auto operator()(const Inputs&... inputs) const {
    std::optional<Autocast> scope;
    if (casts_.autocast) scope.emplace(device_, AutocastOptions{.dtype = casts_.autocast});
    if constexpr (std::is_void_v<decltype(module_->forward(inputs...))>) {
      module_->forward(cast_in(inputs)...);
    } else {
      auto output = module_->forward(cast_in(inputs)...);
      if constexpr (Nested<decltype(output)>) {
        if (casts_.outputs) return cast_inputs(*casts_.outputs, output);
      }
      return output;
    }
  }
  auto* operator->() const { return &*module_; }
  /// Returns the holder or shared_ptr that initialize was given.
  M& unwrap() const noexcept { return module_; }
  const AmpCasts& casts() const noexcept { return casts_; }

 private:
  template <class T>
  T cast_in(const T& value) const {
    if (!casts_.inputs) return value;
    if constexpr (Nested<T>) {
      return cast_inputs(*casts_.inputs, value);
    } else if constexpr (requires {
                           { value.to(*casts_.inputs) } -> std::convertible_to<T>;
                         }) {
      return value.to(*casts_.inputs);
    } else {
      return value;
    }
  }

  mutable M module_;  // a holder hands its module out as const where it is const itself
  AmpCasts casts_;
  c10::DeviceType device_;
};

template <class T>
struct is_amp_model : std::false_type {};
template <class M>
struct is_amp_model<AmpModel<M>> : std::true_type {};
template <class T>
struct is_amp_optimizer : std::false_type {};
template <class O>
struct is_amp_optimizer<AmpOptimizer<O>> : std::true_type {};

class Amp {
 public:
  /// Throws: UsageError for overrides that the level does not take, limits out of range.
  explicit Amp(const AmpOptions& options = {});

  /// Handles for a module (a TORCH_MODULE holder or shared_ptr, which is shared) and its optimizer, which must outlive
  /// its handle. O2 and O3 convert the module in place. Any number of calls, before or after Accelerator::prepare.
  /// Throws: UsageError for a parameter that is not float32, by name.
  template <class M, std::derived_from<torch::optim::Optimizer> O>
  std::pair<AmpModel<M>, AmpOptimizer<O>> initialize(M module, O& optimizer) {
    auto model = initialize(module);
    return {std::move(model), initialize(optimizer)};
  }
  template <class M>
    requires(!std::derived_from<M, torch::optim::Optimizer>)
  AmpModel<M> initialize(M module) {
    const auto casts = prepare_module(*module);
    return AmpModel<M>(module, casts, device_of(*module));
  }
  template <std::derived_from<torch::optim::Optimizer> O>
  AmpOptimizer<O> initialize(O& optimizer) {
    return AmpOptimizer<O>(optimizer, options_.enabled && properties_.master_weights.value_or(false), options_.enabled);
  }
  /// Lists of one type each.
  template <class M, std::derived_from<torch::optim::Optimizer> O>
  std::pair<std::vector<AmpModel<M>>, std::vector<AmpOptimizer<O>>> initialize(const std::vector<M>& modules,
                                                                               const std::vector<O*>& optimizers) {
    std::pair<std::vector<AmpModel<M>>, std::vector<AmpOptimizer<O>>> result;
    for (const auto& module : modules) result.first.push_back(initialize(module));
    for (O* optimizer : optimizers) result.second.push_back(initialize(*optimizer));
    return result;
  }

  /// Calls `backward` with loss.float() times the scale of loss_id. Afterwards these optimizers' gradients are
  /// unscaled, and added to those that earlier losses left. If any is not finite, their next step is a no-op, once, and
  /// the scale shrinks. Collective: as `backward`. Blocks: until gradients are there. Throws: UsageError for a loss_id
  /// out of range or an undefined loss; what `backward` throws, and then gradients are as it left them.
  using Backward = std::function<void(const at::Tensor& scaled)>;
  void scale_loss(const at::Tensor& loss, const AmpOptimizerHandle& optimizer, const Backward& backward,
                  const ScaleLossOptions& options = {}) const {
    scale_loss(loss, std::vector<AmpOptimizerHandle>{optimizer}, backward, options);
  }
  void scale_loss(const at::Tensor& loss, const std::vector<AmpOptimizerHandle>& optimizers, const Backward& backward,
                  const ScaleLossOptions& options = {}) const;

  /// Returns a scope without casts (apex.amp.disable_casts).
  static Autocast disable_casts() { return Autocast::off(); }

  /// A callable whose tensor arguments are cast inside autocast scopes: to the scope's dtype, to float32, or to the
  /// widest of their dtypes.
  template <class F>
  static auto half_function(F function) {
    return wrapped(std::move(function), CastPolicy::kLow);
  }
  template <class F>
  static auto float_function(F function) {
    return wrapped(std::move(function), CastPolicy::kFloat32);
  }
  template <class F>
  static auto promote_function(F function) {
    return wrapped(std::move(function), CastPolicy::kWidest);
  }
  /// The same for an operator ("aten::gelu"), for this Amp's life, on CPU and CUDA.
  /// Throws: UsageError with "did you mean" for an unknown operator.
  void register_half_function(const std::string& op) { register_function(op, CastPolicy::kLow); }
  void register_float_function(const std::string& op) { register_function(op, CastPolicy::kFloat32); }
  void register_promote_function(const std::string& op) { register_function(op, CastPolicy::kWidest); }

  const AmpProperties& properties() const noexcept { return properties_; }
  const AmpOptions& options() const noexcept { return options_; }
  double loss_scale(int64_t loss_id = 0) const;

  AmpState state() const;
  /// Another number of scalers is logged, and the first ones are loaded.
  /// Throws: UsageError for other keys than loss_scalerN, or scales that are not finite or
  /// not above 0; nothing has changed then.
  void load_state(const AmpState& state) const;

 private:
  AmpCasts prepare_module(torch::nn::Module& module) const;
  static c10::DeviceType device_of(const torch::nn::Module& module);
  void register_function(const std::string& op, CastPolicy policy);
  template <class F>
  static auto wrapped(F function, CastPolicy policy);
  /// Returns the dtype that arguments take under a policy now; nothing outside of autocast.
  static std::optional<at::ScalarType> argument_dtype(CastPolicy policy, const std::vector<at::Tensor>& arguments);
  static bool is_castable(const at::Tensor& tensor) {
    return tensor.defined() && tensor.is_floating_point() && tensor.scalar_type() != at::kDouble;
  }

  struct Impl;
  AmpOptions options_;
  AmpProperties properties_;
  std::shared_ptr<Impl> impl_;
};

template <class F>
auto Amp::wrapped(F function, CastPolicy policy) {
  return [function = std::move(function), policy](const auto&... arguments) {
    std::vector<at::Tensor> tensors;
    const auto collect = [&tensors](const auto& value) {
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, at::Tensor>) tensors.push_back(value);
    };
    (collect(arguments), ...);
    const auto dtype = argument_dtype(policy, tensors);
    const auto cast = [dtype](const auto& value) {
      using T = std::remove_cvref_t<decltype(value)>;
      if constexpr (std::is_same_v<T, at::Tensor>) {
        return dtype && is_castable(value) ? value.to(*dtype) : value;
      } else {
        return T(value);
      }
    };
    return function(cast(arguments)...);
  };
}

}  // namespace hasten::precision

/// Apex's amp.state_dict(), so that an Amp is Stateful: `accelerator.register_for_checkpointing("amp", amp)`.
template <>
struct hasten::training::StateCodec<hasten::precision::AmpState> {
  static State encode(const precision::AmpState& state);
  /// Throws: UsageError for an entry without loss_scale and unskipped.
  static precision::AmpState decode(const State& state);
};
