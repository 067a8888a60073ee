// ScriptSite: a torch::nn::Module that stands for a TorchScript module (parallel::JitModule), with its submodules'
// names.
#pragma once

namespace torch::jit {
struct Module;
}

namespace hasten::offload {

/// add_hook finds it by this base: hooks of the module and of all below it run around the script's own calls.
class ScriptSite {
 public:
  virtual ~ScriptSite() = default;
  virtual torch::jit::Module& jit() noexcept = 0;
};

}  // namespace hasten::offload
