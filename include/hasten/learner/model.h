// AnyModel: a module and how it is called with the tensors of a batch, without its type.
//
// It is made from a TORCH_MODULE holder or a shared_ptr whose forward takes tensors. Forward returns a tensor, or a
// tuple, a pair or a vector of them; the first is the prediction. Any other forward: {module, lambda}.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/parallel/model/data_parallel.h"

namespace hasten::learner {

using Tensors = std::vector<at::Tensor>;

namespace detail {

template <class F>
struct arity_of;
template <class R, class C, class... A>
struct arity_of<R (C::*)(A...)> : std::integral_constant<size_t, sizeof...(A)> {};
template <class R, class C, class... A>
struct arity_of<R (C::*)(A...) const> : arity_of<R (C::*)(A...)> {};

inline Tensors outputs(at::Tensor tensor) {
  return {std::move(tensor)};
}
inline Tensors outputs(Tensors tensors) {
  return tensors;
}
template <class A, class B>
Tensors outputs(std::pair<A, B> pair) {
  auto first = outputs(std::move(pair.first)), second = outputs(std::move(pair.second));
  first.insert(first.end(), second.begin(), second.end());
  return first;
}
template <class... T>
Tensors outputs(std::tuple<T...> tuple) {
  Tensors all;
  std::apply(
      [&](auto&... each) {
        (..., [&] {
          for (auto& t : outputs(std::move(each))) all.push_back(std::move(t));
        }());
      },
      tuple);
  return all;
}

void require_inputs(size_t given, size_t expected);

/// `call` with one argument an input.
template <class Call, size_t... i>
Tensors spread(const Call& call, const Tensors& inputs, std::index_sequence<i...> /*indices*/) {
  require_inputs(inputs.size(), sizeof...(i));
  return outputs(call(inputs[i]...));
}

}  // namespace detail

class AnyModel {
 public:
  using Call = std::function<Tensors(const Tensors& inputs)>;

  AnyModel() = default;
  template <class Module>
    requires std::is_base_of_v<torch::nn::Module, Module>
  AnyModel(std::shared_ptr<Module> module) : module_(module) {  // NOLINT: implicit, so that a Learner takes any model
    if constexpr (std::is_same_v<Module, torch::nn::SequentialImpl>) {
      bind<1>(module);
    } else {
      bind<detail::arity_of<decltype(&Module::forward)>::value>(module);
    }
    reset_of(*module);
  }
  template <class Holder>
    requires std::is_base_of_v<torch::detail::ModuleHolderIndicator, Holder>
  AnyModel(const Holder& holder) : AnyModel(holder.ptr()) {}  // NOLINT: as above
  /// A module with a forward of any other form.
  template <class Module>
  AnyModel(std::shared_ptr<Module> module, Call call) : module_(module), call_(std::move(call)) {
    reset_of(*module);
  }
  template <class Holder>
    requires std::is_base_of_v<torch::detail::ModuleHolderIndicator, Holder>
  AnyModel(const Holder& holder, Call call) : AnyModel(holder.ptr(), std::move(call)) {}

  const std::shared_ptr<torch::nn::Module>& module() const noexcept { return module_; }
  /// Throws: UsageError for another number of inputs; what forward throws.
  Tensors operator()(const Tensors& inputs) const { return call_(inputs); }
  /// Calls the module's own reset_state() if it has one: the hidden state of a recurrent network. (libtorch's modules
  /// have a reset() that draws new weights, so the name differs from fastai's.)
  /// Throws: the exceptions of reset_state().
  void reset() const {
    if (reset_) reset_();
  }
  explicit operator bool() const noexcept { return module_ != nullptr; }
  /// Returns the model over several devices of this process (parallel::data_parallel).
  /// Throws: UsageError for a model with a lambda, and as data_parallel.
  AnyModel data_parallel(const std::vector<c10::Device>& devices) const {
    if (!parallel_) {
      throw UsageError(Origin{"learner"},
                       "to_parallel of an AnyModel with its own call; expected a model whose forward takes tensors.");
    }
    AnyModel result = *this;
    result.call_ = parallel_(devices);
    return result;
  }

 private:
  template <size_t num_inputs, class Module>
  void bind(const std::shared_ptr<Module>& module) {
    using Indices = std::make_index_sequence<num_inputs>;
    call_ = [module](const Tensors& inputs) {
      return detail::spread([&](const auto&... each) { return module->forward(each...); }, inputs, Indices());
    };
    parallel_ = [module](const std::vector<c10::Device>& devices) -> Call {
      auto replicas = parallel::data_parallel(module, devices);
      return [replicas](const Tensors& inputs) { return detail::spread(replicas, inputs, Indices()); };
    };
  }

  template <class Module>
  void reset_of(Module& module) {
    if constexpr (requires { module.reset_state(); }) reset_ = [pointer = &module] { pointer->reset_state(); };
  }

  std::shared_ptr<torch::nn::Module> module_;
  Call call_;
  std::function<Call(const std::vector<c10::Device>&)> parallel_;
  std::function<void()> reset_;
};

/// fastai's reset(): resets the hidden state of a model that has one.
/// Throws: what reset_state throws.
inline void reset(const AnyModel& model) {
  model.reset();
}

}  // namespace hasten::learner
