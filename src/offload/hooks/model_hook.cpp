// See model_hook.h.
#include "hasten/offload/hooks/model_hook.h"

#include <algorithm>

namespace hasten::offload {

SequentialHook::SequentialHook(std::vector<ModelHookPtr> hooks) : hooks_(std::move(hooks)) {
  no_grad = std::any_of(hooks_.begin(), hooks_.end(), [](const ModelHookPtr& hook) { return hook->no_grad; });
}

void SequentialHook::attached(torch::nn::Module& module) {
  for (const auto& hook : hooks_) hook->attached(module);
}

void SequentialHook::detached(torch::nn::Module& module) {
  for (const auto& hook : hooks_) hook->detached(module);
}

void SequentialHook::before_forward(torch::nn::Module& module, Arguments& arguments) {
  for (const auto& hook : hooks_) hook->before_forward(module, arguments);
}

void SequentialHook::after_forward(torch::nn::Module& module, Output& output) {
  for (const auto& hook : hooks_) hook->after_forward(module, output);
}

void HookList::add(torch::nn::Module& module, ModelHookPtr hook, bool append) {
  if (!append) clear(module);
  hook->attached(module);
  hooks_.push_back(std::move(hook));
}

void HookList::clear(torch::nn::Module& module) {
  const auto hooks = std::exchange(hooks_, {});
  for (const auto& hook : hooks) hook->detached(module);
}

void HookList::remove(torch::nn::Module& module, const ModelHook* hook) {
  const auto found =
      std::find_if(hooks_.begin(), hooks_.end(), [&](const ModelHookPtr& other) { return other.get() == hook; });
  if (found == hooks_.end()) return;
  const ModelHookPtr taken = *found;
  hooks_.erase(found);
  taken->detached(module);
}

void HookList::before(torch::nn::Module& module, Arguments& arguments) const {
  for (const auto& hook : hooks_) hook->before_forward(module, arguments);
}

void HookList::after(torch::nn::Module& module, Output& output) const {
  for (const auto& hook : hooks_) hook->after_forward(module, output);
}

bool HookList::no_grad() const noexcept {
  return std::any_of(hooks_.begin(), hooks_.end(), [](const ModelHookPtr& hook) { return hook->no_grad; });
}

}  // namespace hasten::offload
