// Empty construction: modules whose parameters have names, shapes and dtypes, but no memory.
//
// empty_weights runs an unmodified constructor. Every operator in it is redirected to the meta device and recorded.
// Buffers, plain tensor members and values that the constructor reads are computed by replaying the part of the record
// that leads to them. A parameter is replayed later, if no checkpoint fills it (materialize). So nothing in a module is
// ever uninitialised. After Accelerate's init_empty_weights and torchdistX's deferred initialisation.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/core/env.h"

namespace hasten::offload {

struct EmptyOptions {
  /// Buffers stay empty, too. Default: ACCELERATE_INIT_INCLUDE_BUFFERS of the environment argument, else false.
  bool include_buffers = false;
  static EmptyOptions from(const Environment& environment);
};

namespace detail {

/// Reaches the module in what a constructor function returns.
inline torch::nn::Module& module_in(torch::nn::Module& module) {
  return module;
}
template <class M>
torch::nn::Module& module_in(const std::shared_ptr<M>& module) {
  return *module;
}
template <class M>
torch::nn::Module& module_in(const torch::nn::ModuleHolder<M>& holder) {
  return *holder.ptr();
}

class ConstructionTape;

/// Records while it exists.
class RecordingScope {
 public:
  explicit RecordingScope(at::Device device);
  ~RecordingScope();
  /// Ends the recording, and computes what is no parameter of the module.
  void finish(torch::nn::Module& module, const EmptyOptions& options);
  /// Explains the need of a pointer access in a constructor; other errors pass as they are.
  [[noreturn]] static void explain(const std::exception& error);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

void run_real(const std::function<void()>& fn);

}  // namespace detail

/// Returns what `fn` returns (a module holder or a shared pointer to a module), constructed on `device`. On meta this
/// is empty_weights; on any other device the constructor's tensors are made there. Throws:
/// UsageError if the constructor reads a tensor's memory by pointer, with the remedy.
template <class F>
auto init_on_device(at::Device device, F&& fn, const EmptyOptions& options = {}) {
  detail::RecordingScope scope(device);
  try {
    auto made = std::forward<F>(fn)();
    scope.finish(detail::module_in(made), options);
    return made;
  } catch (const c10::Error& error) {
    detail::RecordingScope::explain(error);
  }
}

/// Returns what `fn` returns, with parameters that have no memory. Ties, names, requires_grad and the module's plain
/// members are as after plain construction. Buffers and unregistered tensors have their values.
/// Throws: as init_on_device.
template <class F>
auto empty_weights(F&& fn, const EmptyOptions& options = {}) {
  return init_on_device(at::Device(at::kMeta), std::forward<F>(fn), options);
}

/// Runs `fn` as outside of empty_weights and returns its value: for the part of a constructor that reads a tensor's
/// memory.
template <class F>
auto real(F&& fn) {
  if constexpr (std::is_void_v<decltype(fn())>) {
    detail::run_real([&] { fn(); });
  } else {
    std::optional<decltype(fn())> result;
    detail::run_real([&] { result.emplace(fn()); });
    return std::move(*result);
  }
}

struct MaterializeOptions {
  /// Full names or module prefixes; empty: all.
  std::vector<std::string> only = {};
};

/// Gives the module's empty tensors the values that its constructor gives them, by replaying what was recorded. With
/// the default generator in the same state, parameters are those of plain construction. Returns the names that were
/// filled. Throws: UsageError for an empty tensor that empty_weights has not made.
std::vector<std::string> materialize(torch::nn::Module& module, const MaterializeOptions& options = {});

/// Returns the names of tensors without memory.
std::vector<std::string> empty_tensors(const torch::nn::Module& module);

/// Returns the names of tensors without memory whose initial values are not known, since empty_weights has not made
/// them.
std::vector<std::string> unknown_tensors(const torch::nn::Module& module);

/// Gives an empty tensor its contents and ends the watch over it. For functions that load weights.
void fill_empty(const at::Tensor& tensor, const at::Tensor& value);

}  // namespace hasten::offload
