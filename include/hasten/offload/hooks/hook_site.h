// Adding hooks to modules by name, where a call is sure to reach them.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>

#include "hasten/offload/hooks/model_hook.h"

namespace hasten::offload {

struct AddHookOptions {
  /// Behind the hooks that are there; false: in their place, and they are detached.
  bool append = false;
};

struct RemoveHookOptions {
  bool recurse = false;  ///< from the modules below as well
};

/// Adds a hook to the module of that dotted name below `root`. It runs if the module is a Hooked<…>, a slot of a
/// Sequential, or part of a TorchScript module (parallel::JitModule); the root's own hook runs by the handle of a
/// dispatched model (Dispatched::add_hook). While a slot has hooks, `ptr(i)` works, and `at<T>(i)` throws. A part of a
/// script is called by the script, and takes hooks while no forward of it runs; files with code that are saved
/// meanwhile cannot be loaded.
/// Throws: UsageError for a name that is not there, with the nearest one; UsageError for a
/// module whose forward nothing reaches, with the ways that do.
void add_hook(torch::nn::Module& root, const std::string& name, ModelHookPtr hook, const AddHookOptions& options = {});

/// Detaches the module's hooks. Without effect if it has none. Throws: UsageError for a name that is not there.
void remove_hook(torch::nn::Module& root, const std::string& name, const RemoveHookOptions& options = {});
/// Detaches the hooks of all modules below `root`, and its own.
void remove_hooks(torch::nn::Module& root);

/// Calls `enter` at the first operator that uses the module's own tensors. Calls `leave` at the first one that uses
/// those of another module with such callbacks, or when finish() ends the pass. It works for every module that has
/// tensors, and gets no arguments.
class OnUse {
 public:
  OnUse(torch::nn::Module& module, std::function<void()> enter, std::function<void()> leave = {});
  ~OnUse();
  OnUse(OnUse&&) noexcept;
  OnUse& operator=(OnUse&&) noexcept;
  /// Ends the pass of this thread: `leave` of the module that was used last runs.
  static void finish();

 private:
  class Watcher;
  void stop();
  std::shared_ptr<Watcher> watcher_;
};

inline OnUse on_use(torch::nn::Module& module, std::function<void()> enter, std::function<void()> leave = {}) {
  return OnUse(module, std::move(enter), std::move(leave));
}

}  // namespace hasten::offload
