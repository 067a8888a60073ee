// cpu_offload_with_hook: models that take turns on an accelerator.
//
// Each model stays on its device until another one of the chain, or of the group, needs the room. A pipeline that calls
// its models again and again moves each one once a call, and not once a layer.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <utility>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/offload/units/argument_transfer.h"

namespace hasten::offload {

/// Models that share a device: those that were not used for longest leave it first.
class OffloadGroup {
 public:
  /// `capacity_bytes`: the bytes that the models may take there together.
  explicit OffloadGroup(int64_t capacity_bytes);
  /// Returns which of the models on the device have to leave it so that one of `bytes` fits: pairs {index, bytes},
  /// least recently used first. Pure. Throws: UsageError if the model is larger than the capacity.
  static std::vector<size_t> to_evict(const std::vector<std::pair<size_t, int64_t>>& on_device, int64_t bytes,
                                      int64_t capacity_bytes);

 private:
  friend class UserCpuOffloadHook;
  struct State;
  std::shared_ptr<State> state_;
};

/// Handle of a model that is moved when it is called.
class UserCpuOffloadHook {
 public:
  struct State;
  UserCpuOffloadHook() = default;
  UserCpuOffloadHook(std::shared_ptr<torch::nn::Module> module, at::Device execution_device,
                     const UserCpuOffloadHook* previous, const OffloadGroup* group);
  /// Moves the model to the CPU now.
  void offload() const;
  /// The model stays where it is from now on.
  void remove() const;
  bool is_on_device() const;
  /// Offloads the model before in the chain, makes room in the group, and moves this one to its device.
  void before_forward() const;
  at::Device execution_device() const;

 private:
  std::shared_ptr<State> state_;
};

/// A model that moves to its device when it is called.
template <class M>
class CpuOffloaded {
 public:
  CpuOffloaded(M model, UserCpuOffloadHook hook) : model_(std::move(model)), hook_(std::move(hook)) {}
  /// Moves tensors of the arguments to the device, those in vectors, tuples and maps as well, and calls forward.
  template <class... Args>
  auto operator()(Args&&... args) {
    return call(std::index_sequence_for<Args...>(), std::forward<Args>(args)...);
  }
  auto* operator->() const { return &*model_; }

 private:
  template <size_t... index, class... Args>
  auto call(std::index_sequence<index...>, Args&&... args) {
    hook_.before_forward();
    const detail::ArgumentTransfer transfer(hook_.execution_device(), {}, /*back=*/false);
    return model_->forward(transfer.moved(index, std::forward<Args>(args))...);
  }
  M model_;
  UserCpuOffloadHook hook_;
};

/// Returns the model and its hook. The model is moved to the CPU now, and to `execution_device` when it is called. That
/// call first offloads the model of `previous`.
/// Blocks: for copies.
template <class M>
std::pair<CpuOffloaded<M>, UserCpuOffloadHook> cpu_offload_with_hook(M model, at::Device execution_device,
                                                                     const UserCpuOffloadHook* previous = nullptr,
                                                                     const OffloadGroup* group = nullptr) {
  std::shared_ptr<torch::nn::Module> module;
  if constexpr (requires { model.ptr(); }) {
    module = model.ptr();
  } else {
    module = model;
  }
  UserCpuOffloadHook hook(std::move(module), execution_device, previous, group);
  hook.offload();
  return {CpuOffloaded<M>(std::move(model), hook), hook};
}
template <class M>
auto cpu_offload_with_hook(M model, at::Device execution_device, const UserCpuOffloadHook& previous) {
  return cpu_offload_with_hook(std::move(model), execution_device, &previous);
}

}  // namespace hasten::offload
