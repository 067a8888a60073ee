// ModelHook: code that runs before and after a module's forward.
//
// libtorch's modules have no hooks, so a hook is accepted only where something is sure to call it: the handle of a
// dispatched model, a member declared Hooked<…>, a slot of a Sequential, a part of a script (hook_site.h). After
// Accelerate's ModelHook.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>

#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <variant>
#include <vector>

#include "hasten/core/error.h"

namespace hasten::offload {

namespace detail {
/// A value of a call, by its type.
class HookValue {
 public:
  template <class T>
  static HookValue of(T& value) {
    HookValue made;
    made.place_ = Typed{&typeid(T), const_cast<std::remove_const_t<T>*>(&value)};
    return made;
  }
  static HookValue of(torch::nn::AnyValue& value) {
    HookValue made;
    made.place_ = &value;
    return made;
  }
  /// Returns a script's value: itself, or the tensor in it.
  static HookValue of(c10::IValue& value) {
    HookValue made;
    made.place_ = &value;
    return made;
  }
  template <class T>
  T* find() const {
    if (const auto* script = std::get_if<c10::IValue*>(&place_)) {
      if constexpr (std::is_same_v<T, c10::IValue>) return *script;
      if constexpr (std::is_same_v<T, at::Tensor>) return (*script)->isTensor() ? &(*script)->toTensor() : nullptr;
      return nullptr;
    }
    if (const auto* any = std::get_if<torch::nn::AnyValue*>(&place_)) return (*any)->try_get<T>();
    const auto& typed = std::get<Typed>(place_);
    return *typed.type == typeid(T) ? static_cast<T*>(typed.value) : nullptr;
  }
  template <class T>
  T& get(const char* what, size_t index) const {
    if (T* found = find<T>()) return *found;
    throw UsageError(Origin{"offload"}, "a hook asks for ", what, " ", index, " as ", c10::demangle(typeid(T).name()),
                     ", but it is a ", c10::demangle(type().name()), ".");
  }
  const std::type_info& type() const {
    if (std::holds_alternative<c10::IValue*>(place_)) return typeid(c10::IValue);
    if (const auto* any = std::get_if<torch::nn::AnyValue*>(&place_)) return (*any)->type_info();
    return *std::get<Typed>(place_).type;
  }

 private:
  struct Typed {
    const std::type_info* type;
    void* value;
  };
  std::variant<Typed, torch::nn::AnyValue*, c10::IValue*> place_ = Typed{};
};
}  // namespace detail

/// The arguments of a forward. A hook may change them.
class Arguments {
 public:
  explicit Arguments(std::vector<detail::HookValue> values) : values_(std::move(values)) {}
  size_t size() const noexcept { return values_.size(); }
  /// Throws: UsageError, with both types, if argument `index` is not a T; also beyond the last one.
  template <class T>
  T& get(size_t index) {
    if (index >= values_.size()) {
      throw UsageError(Origin{"offload"}, "a hook asks for argument ", index, " of a forward with ", values_.size(),
                       ".");
    }
    return values_[index].get<T>("argument", index);
  }
  /// Returns null for another type.
  template <class T>
  T* find(size_t index) {
    return index < values_.size() ? values_[index].find<T>() : nullptr;
  }

 private:
  std::vector<detail::HookValue> values_;
};

/// The result of a forward. A hook may change it.
class Output {
 public:
  explicit Output(detail::HookValue value) : value_(value) {}
  template <class T>
  T& get() {
    return value_.get<T>("output", 0);
  }
  template <class T>
  T* find() {
    return value_.find<T>();
  }

 private:
  detail::HookValue value_;
};

class ModelHook {
 public:
  virtual ~ModelHook() = default;
  /// Called when the hook is added to the module, and when it is taken off.
  virtual void attached(torch::nn::Module&) {}
  virtual void detached(torch::nn::Module&) {}
  virtual void before_forward(torch::nn::Module&, Arguments&) {}
  virtual void after_forward(torch::nn::Module&, Output&) {}

  /// The forward itself runs without recording gradients.
  bool no_grad = false;
};

using ModelHookPtr = std::shared_ptr<ModelHook>;

/// Several hooks as one. Both `before` and `after` run in the order given; no_grad if any member has it.
class SequentialHook : public ModelHook {
 public:
  explicit SequentialHook(std::vector<ModelHookPtr> hooks);
  void attached(torch::nn::Module& module) override;
  void detached(torch::nn::Module& module) override;
  void before_forward(torch::nn::Module& module, Arguments& arguments) override;
  void after_forward(torch::nn::Module& module, Output& output) override;

 private:
  std::vector<ModelHookPtr> hooks_;
};

/// The hooks of one place where a forward is called.
class HookList {
 public:
  /// Adds the hook, behind the others (append) or in their place: those are detached then.
  void add(torch::nn::Module& module, ModelHookPtr hook, bool append);
  /// Detaches all.
  void clear(torch::nn::Module& module);
  void remove(torch::nn::Module& module, const ModelHook* hook);
  bool empty() const noexcept { return hooks_.empty(); }
  void before(torch::nn::Module& module, Arguments& arguments) const;
  void after(torch::nn::Module& module, Output& output) const;
  bool no_grad() const noexcept;

 private:
  std::vector<ModelHookPtr> hooks_;
};

namespace detail {

// A forward's parameter in the form for hooks: a copy that they may change. A non-const reference stays one.
template <class A>
using HookArgument = std::conditional_t<std::is_lvalue_reference_v<A> && !std::is_const_v<std::remove_reference_t<A>>,
                                        A, std::decay_t<A>>;

/// Calls `forward` with hooks around it.
template <class... A, class F>
auto call_with_hooks(const HookList& hooks, torch::nn::Module& module, const F& forward, HookArgument<A>... arguments) {
  Arguments list({HookValue::of(arguments)...});
  hooks.before(module, list);
  const auto call = [&] {
    if (!hooks.no_grad()) return forward(static_cast<A>(arguments)...);
    const at::NoGradGuard guard;
    return forward(static_cast<A>(arguments)...);
  };
  auto result = call();
  Output output(HookValue::of(result));
  hooks.after(module, output);
  return result;
}

}  // namespace detail

/// A module that carries hooks by its type.
class HookSite {
 public:
  virtual ~HookSite() = default;
  HookList& hooks() noexcept { return hooks_; }

 protected:
  HookList hooks_;
};

namespace detail {
template <class M, class F>
struct HookedBase;
template <class M, class R, class... A>
struct HookedBase<M, R (M::*)(A...)> : M, HookSite {
  using M::M;
  R forward(A... arguments) {
    if (hooks_.empty()) return M::forward(static_cast<A>(arguments)...);
    const auto call = [this](A... values) -> R { return M::forward(static_cast<A>(values)...); };
    return call_with_hooks<A...>(hooks_, *this, call, static_cast<A>(arguments)...);
  }
};
template <class M, class R, class... A>
struct HookedBase<M, R (M::*)(A...) const> : HookedBase<M, R (M::*)(A...)> {
  using HookedBase<M, R (M::*)(A...)>::HookedBase;
};
}  // namespace detail

/// Returns the module class M with room for hooks; names, parameters and base classes are M's.
template <class M>
struct HookedImpl : detail::HookedBase<M, decltype(&M::forward)> {
  using detail::HookedBase<M, decltype(&M::forward)>::HookedBase;
};

/// A member that may have hooks: `Hooked<torch::nn::Linear> fc{nullptr};` in the place of `torch::nn::Linear`. Default
/// arguments of its forward are lost.
template <class Holder>
using Hooked = torch::nn::ModuleHolder<HookedImpl<typename Holder::ContainedType>>;

}  // namespace hasten::offload
