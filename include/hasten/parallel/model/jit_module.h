// JitModule: a TorchScript module (torch::jit::load, compiled or traced) as a torch::nn::Module, so that it
// is prepared, exchanged, moved and saved like any other.
//
// A torch::jit::Module is no torch::nn::Module, but holds tensors like one. Here the same tensors, not
// copies, are registered under the same names, so whatever happens to one happens to the other.
#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "hasten/offload/hooks/script_site.h"

namespace hasten::parallel {

class JitModuleImpl : public torch::nn::Module, public offload::ScriptSite {
 public:
  /// `module` is a handle, as jit modules are: both share parameters, buffers and mode from now on.
  /// Parameters and buffers that are replaced in the script (self.buffer = …) are not followed; in-place
  /// changes are. Throws: what libtorch throws for names it does not take.
  explicit JitModuleImpl(torch::jit::Module module);

  /// Runs the script's forward. Call `.toTensor()` if it gives a tensor, as with jit modules.
  /// Throws: the exceptions of the script.
  template <class... Arguments>
  c10::IValue forward(Arguments&&... arguments) {
    return module_.forward({c10::IValue(std::forward<Arguments>(arguments))...});
  }

  void train(bool on = true) override;
  /// Returns a script of its own with copies of all tensors.
  std::shared_ptr<torch::nn::Module> clone(const std::optional<torch::Device>& device = std::nullopt) const override;

  /// For everything else a script can do: other methods, saving with code.
  torch::jit::Module& jit() noexcept override { return module_; }

 private:
  torch::jit::Module module_;
};
TORCH_MODULE(JitModule);

}  // namespace hasten::parallel
