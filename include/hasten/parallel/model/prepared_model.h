// PreparedModel: the handle that Accelerator::prepare gives for a module.
//
// It is used as the module itself: `model(x)`, `model->forward(x)`, `model->my_method()`. The user's module
// is not wrapped: the handle keeps it, and what makes it distributed, alive. `net(x)` on the original works
// alike.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <type_traits>
#include <utility>

#include "hasten/parallel/ddp/ddp.h"
#include "hasten/parallel/parameters/forward_scope.h"
#include "hasten/precision/outputs.h"

namespace hasten::parallel {

namespace detail {

template <class T>
struct is_module_pointer : std::is_base_of<torch::detail::ModuleHolderIndicator, T> {};
template <class T>
struct is_module_pointer<std::shared_ptr<T>> : std::is_base_of<torch::nn::Module, T> {};

}  // namespace detail

/// Whether T (references and const left aside) is a module: a class derived from torch::nn::Module, a holder
/// of one (TORCH_MODULE), or a std::shared_ptr to one.
template <class T>
inline constexpr bool is_module_v = std::is_base_of_v<torch::nn::Module, std::remove_cvref_t<T>> ||
                                    detail::is_module_pointer<std::remove_cvref_t<T>>::value;

/// Returns the module itself.
template <class M>
auto& module_of(M& model) {
  if constexpr (detail::is_module_pointer<std::remove_const_t<M>>::value) {
    return *model;
  } else {
    return model;
  }
}

namespace detail {

/// An input of forward in `dtype`, where it holds tensors; anything else as it is.
template <class T>
decltype(auto) input_as(const std::optional<c10::ScalarType>& dtype, T&& value) {
  using Value = std::remove_cvref_t<T>;
  if constexpr (precision::Nested<Value>) {
    return dtype ? Value(precision::cast_inputs(*dtype, std::as_const(value))) : Value(std::forward<T>(value));
  } else {
    return std::forward<T>(value);
  }
}

/// The number of the first tensor among inputs of these types; their count if there is none.
template <class... T>
constexpr size_t first_tensor() {
  size_t at = 0, found = sizeof...(T);
  ((found = found == sizeof...(T) && std::is_same_v<std::remove_cvref_t<T>, at::Tensor> ? at : found, ++at), ...);
  return found;
}

/// An input of forward as the model's scopes give it: the first tensor passes ForwardScopes::input.
template <bool kIsFirst, class T>
decltype(auto) input_of(const ForwardScopes* scopes, T&& value) {
  if constexpr (kIsFirst) {
    return scopes != nullptr && scopes->input ? scopes->input(value) : at::Tensor(value);
  } else {
    return std::forward<T>(value);
  }
}

/// A pointer to a module whose scopes stay open until the end of the full expression.
template <class Module>
class ScopedPointer {
 public:
  ScopedPointer(ForwardScopes::Scope scope, Module* module) : scope_(std::move(scope)), module_(module) {}
  Module* operator->() const noexcept { return module_; }

 private:
  ForwardScopes::Scope scope_;
  Module* module_;
};

}  // namespace detail

/// A value handle; copies share the model. Hooks come off when the last copy and the Accelerator are gone.
template <class M>
class PreparedModel {
  using Module = std::remove_reference_t<decltype(module_of(std::declval<M&>()))>;

 public:
  PreparedModel(std::shared_ptr<M> model, std::shared_ptr<const Ddp> ddp, std::shared_ptr<ForwardScopes> scopes = {})
      : model_(std::move(model)), ddp_(std::move(ddp)), scopes_(std::move(scopes)) {}
  // Moves copy: a handle that was moved from is one still.
  PreparedModel(const PreparedModel&) = default;
  PreparedModel& operator=(const PreparedModel&) = default;

  /// Runs the module's forward inside the model's scopes (forward_scope.h): with mixed precision under autocast, its
  /// outputs in float32. Collective: no (the backward through it is), unless the module was changed
  /// (Ddp::refresh_if_changed) or a hook is. Throws: what forward and the hooks throw.
  template <class... Arguments>
  decltype(auto) operator()(Arguments&&... arguments) const {
    if (ddp_) before_forward(*ddp_);
    auto& module = module_of(*model_);
    if constexpr (requires { module.forward(std::forward<Arguments>(arguments)...); }) {
      return called(module, std::forward<Arguments>(arguments)...);
    } else {
      return module.forward(std::forward<Arguments>(arguments)...);
    }
  }
  /// Calls any other method of the module, inside the same scopes until the end of the full expression. Inputs and
  /// outputs stay as they are.
  detail::ScopedPointer<Module> operator->() const {
    auto& module = module_of(*model_);
    return {scopes_ ? scopes_->enter(module) : ForwardScopes::Scope(), &module};
  }

  /// Returns the module that prepare was called with. Functions that take a `Net&` take the handle as well.
  M& unwrap() const noexcept { return *model_; }
  operator M&() const noexcept { return *model_; }
  /// Returns a handle of the same module that casts as this one does, without exchanges with other ranks.
  PreparedModel without_ddp() const { return PreparedModel(model_, nullptr, scopes_); }
  /// Returns the exchange of its gradients.
  const std::shared_ptr<const Ddp>& ddp() const noexcept { return ddp_; }

  /// Scopes that are opened round its forward; null for none.
  const std::shared_ptr<ForwardScopes>& scopes() const noexcept { return scopes_; }

 private:
  template <class... Arguments>
  decltype(auto) called(Module& module, Arguments&&... arguments) const {
    using Output = decltype(module.forward(std::forward<Arguments>(arguments)...));
    const auto scope = scopes_ ? scopes_->enter(module) : ForwardScopes::Scope();
    const auto dtype = scopes_ ? scopes_->input_dtype : std::nullopt;
    constexpr size_t kFirst = detail::first_tensor<Arguments...>();
    if (kFirst == sizeof...(Arguments) && scopes_ && scopes_->input) scopes_->input(at::Tensor());
    const auto forward = [&]<size_t... kAt>(std::index_sequence<kAt...>) -> decltype(auto) {
      return module.forward(detail::input_as(
          dtype, detail::input_of<kAt == kFirst>(scopes_.get(), std::forward<Arguments>(arguments)))...);
    };
    constexpr auto kInputs = std::index_sequence_for<Arguments...>();
    if constexpr (!std::is_reference_v<Output> && precision::Nested<std::remove_cv_t<Output>>) {
      auto output = forward(kInputs);
      if (scopes_ && scopes_->output) output = comm::map_tensors(output, scopes_->output);
      if (scopes_ && scopes_->output_dtype) return precision::cast_inputs(*scopes_->output_dtype, output);
      if (scopes_ && scopes_->float32_outputs) return precision::to_float32(output);
      return output;
    } else {
      return forward(kInputs);
    }
  }

  std::shared_ptr<M> model_;
  std::shared_ptr<const Ddp> ddp_;
  std::shared_ptr<ForwardScopes> scopes_;
};

/// For Accelerator::unwrap_model: the handle's casts stay (Accelerate's keep_fp32_wrapper).
struct KeepFp32Wrapper {};

template <class T>
struct is_prepared_model : std::false_type {};
template <class M>
struct is_prepared_model<PreparedModel<M>> : std::true_type {};
template <class T>
inline constexpr bool is_prepared_model_v = is_prepared_model<std::remove_cvref_t<T>>::value;

}  // namespace hasten::parallel
