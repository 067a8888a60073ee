// See hasten/parallel/model/jit_module.h.
#include "hasten/parallel/model/jit_module.h"

#include <torch/types.h>

namespace hasten::parallel {
namespace {

// A submodule of the script, of its class's name: it only holds names, since the script runs itself.
struct Names : torch::nn::Module {
  using torch::nn::Module::Module;
};

void register_tensors(torch::nn::Module& names, const torch::jit::Module& module) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    names.register_parameter(item.name, item.value, item.value.requires_grad());
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    names.register_buffer(item.name, item.value);
  }
  for (const auto& item : module.named_children()) {
    const auto child = names.register_module(item.name, std::make_shared<Names>(item.value.type()->name()->name()));
    register_tensors(*child, item.value);
  }
}

}  // namespace

JitModuleImpl::JitModuleImpl(torch::jit::Module module) : torch::nn::Module("JitModule"), module_(std::move(module)) {
  register_tensors(*this, module_);
  torch::nn::Module::train(module_.is_training());
}

void JitModuleImpl::train(bool on) {
  torch::nn::Module::train(on);
  module_.train(on);
}

std::shared_ptr<torch::nn::Module> JitModuleImpl::clone(const std::optional<torch::Device>& device) const {
  torch::jit::Module copy = [&] {
    const torch::NoGradGuard no_grad;
    return module_.deepcopy(device);
  }();
  const auto originals = parameters();
  auto module = std::make_shared<JitModuleImpl>(std::move(copy));
  const auto copies = module->parameters();
  for (size_t i = 0; i < copies.size(); ++i) copies[i].set_requires_grad(originals[i].requires_grad());
  return module;
}

}  // namespace hasten::parallel
