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

/// The module itself.
template <class M>
auto& module_of(M& model) {
  if constexpr (detail::is_module_pointer<std::remove_const_t<M>>::value) {
    return *model;
  } else {
    return model;
  }
}

/// A value handle; copies share the model. Hooks come off when the last copy and the Accelerator are gone.
template <class M>
class PreparedModel {
 public:
  PreparedModel(std::shared_ptr<M> model, std::shared_ptr<const Ddp> ddp)
      : model_(std::move(model)), ddp_(std::move(ddp)) {}

  /// Runs the module's forward.
  /// Collective: no (the backward through it is), unless the module was changed (Ddp::refresh_if_changed). Blocks:
  /// no. Throws: what forward throws.
  template <class... Arguments>
  decltype(auto) operator()(Arguments&&... arguments) const {
    if (ddp_) ddp_->before_forward();
    return module_of(*model_).forward(std::forward<Arguments>(arguments)...);
  }
  auto* operator->() const { return &module_of(*model_); }

  /// What was handed to prepare.
  M& unwrap() const noexcept { return *model_; }
  /// What exchanges its gradients.
  const std::shared_ptr<const Ddp>& ddp() const noexcept { return ddp_; }

 private:
  std::shared_ptr<M> model_;
  std::shared_ptr<const Ddp> ddp_;
};

template <class T>
struct is_prepared_model : std::false_type {};
template <class M>
struct is_prepared_model<PreparedModel<M>> : std::true_type {};
template <class T>
inline constexpr bool is_prepared_model_v = is_prepared_model<std::remove_cvref_t<T>>::value;

}  // namespace hasten::parallel
