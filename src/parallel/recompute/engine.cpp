// See engine.h.
//
// libtorch asks its engine for hooks whenever autograd keeps a tensor. The engine cannot be changed after the process's
// first backward, so a static initialiser puts it in. It changes nothing outside of regions. Python's autograd has an
// engine of its own, which carries saved_tensors_hooks and checkpoint. Where that is in the process already, it stays.
#include "parallel/recompute/engine.h"

#include <dlfcn.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>
#include <utility>

#include "hasten/core/error.h"
#include "parallel/recompute/recorder.h"

namespace hasten::parallel {
namespace {

class SavedTensorHooks : public torch::autograd::SavedVariableHooks {
 public:
  void call_pack_hook(const at::Tensor& tensor) override {
    if (auto* recorder = RecomputeRecorder::current()) {
      slot_ = recorder->save(tensor);
    } else {
      slot_ = std::make_shared<SavedSlot>();
      slot_->kept.emplace(tensor);
    }
  }
  at::Tensor call_unpack_hook() override {
    return slot_->ticket ? slot_->ticket->tensor().detach() : slot_->kept->tensor();
  }

 private:
  std::shared_ptr<SavedSlot> slot_;
};

class RecomputeEngine : public torch::autograd::Engine {
 public:
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    const auto* recorder = RecomputeRecorder::current();
    if (recorder == nullptr || !recorder->in_region()) return nullptr;
    return std::make_unique<SavedTensorHooks>();
  }
};

torch::autograd::Engine& engine() {
  static auto* const instance = new RecomputeEngine;  // its threads may outlive static objects
  return *instance;
}

// Returns true if the library that holds Python's autograd is loaded.
bool python_is_here() {
  void* const library = dlopen("libtorch_python.so", RTLD_LAZY | RTLD_NOLOAD);
  if (library != nullptr) dlclose(library);
  return library != nullptr;
}

[[maybe_unused]] const bool is_installed = [] {
  if (python_is_here()) return false;
  torch::autograd::set_default_engine_stub(&engine);
  return true;
}();

}  // namespace

void require_recompute_engine() {
  if (&torch::autograd::Engine::get_default_engine() == &engine()) return;
  throw UsageError(
      Origin{"recompute"},
      "Python's autograd engine serves this process, so activations cannot be dropped here. Use "
      "torch.utils.checkpoint in a Python program; a C++ program leaves libtorch_python or recompute out.");
}

}  // namespace hasten::parallel
