// See cpu_offload_hook.h.
#include "hasten/offload/hooks/cpu_offload_hook.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <unordered_set>

#include "offload/map/unclaimed.h"
#include "offload/units/pinned_ring.h"

namespace hasten::offload {
namespace {

int64_t bytes_of(const torch::nn::Module& module) {
  int64_t sum = 0;
  for (const auto& tensor : module.parameters()) sum += static_cast<int64_t>(tensor.nbytes());
  for (const auto& tensor : module.buffers()) sum += static_cast<int64_t>(tensor.nbytes());
  return sum;
}

}  // namespace

struct UserCpuOffloadHook::State {
  std::shared_ptr<torch::nn::Module> module;
  at::Device device = at::kCPU;
  std::shared_ptr<State> previous;
  std::shared_ptr<OffloadGroup::State> group;
  int64_t bytes = 0;
  bool on_device = true, removed = false;

  // A tensor on the device and its contents from before, which it gets back unless it was written to meanwhile.
  struct Away {
    at::Tensor tensor, host;
    uint32_t version = 0;
  };
  std::vector<Away> away = {};

  void offload() {
    if (removed || !on_device) return;
    const at::NoGradGuard no_grad;
    for (Away& each : std::exchange(away, {})) {
      const auto& counter = each.tensor.unsafeGetTensorImpl()->version_counter();
      const bool is_same = counter.enabled() && counter.current_version() == each.version;
      if (is_same && each.tensor.device() == device) each.tensor.set_data(each.host);
    }
    module->to(at::kCPU);  // what was written to, and what was added
    on_device = false;
  }

  void bring() {
    on_device = true;
    if (device.is_cpu()) return;
    const at::NoGradGuard no_grad;
    std::unordered_set<const c10::TensorImpl*> seen;
    std::vector<at::Tensor> tensors, hosts;
    const auto add = [&](const at::Tensor& tensor) {
      if (!tensor.is_cpu() || !seen.insert(tensor.unsafeGetTensorImpl()).second) return;
      tensors.push_back(tensor);
      hosts.push_back(tensor.detach());
    };
    for (const auto& tensor : module->parameters()) add(tensor);
    for (const auto& tensor : module->buffers()) add(tensor);
    const auto values = to_device(hosts, device);
    for (size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].set_data(values[i]);
      const auto& counter = tensors[i].unsafeGetTensorImpl()->version_counter();
      away.push_back({tensors[i], hosts[i], counter.enabled() ? counter.current_version() : 0});
    }
    module->to(device);
  }
};

struct OffloadGroup::State {
  int64_t capacity_bytes = 0;
  /// Least recently used first.
  std::vector<std::weak_ptr<UserCpuOffloadHook::State>> models;
};

OffloadGroup::OffloadGroup(int64_t capacity_bytes) : state_(std::make_shared<State>()) {
  state_->capacity_bytes = capacity_bytes;
}

std::vector<size_t> OffloadGroup::to_evict(const std::vector<std::pair<size_t, int64_t>>& on_device, int64_t bytes,
                                           int64_t capacity_bytes) {
  if (bytes > capacity_bytes) {
    throw UsageError(Origin{"offload"}, "a model of ", bytes, " bytes does not fit the group's capacity of ",
                     capacity_bytes, " bytes. Raise the capacity.");
  }
  int64_t used = 0;
  for (const auto& [index, size] : on_device) used += size;
  std::vector<size_t> evicted;
  for (const auto& [index, size] : on_device) {
    if (used + bytes <= capacity_bytes) break;
    evicted.push_back(index);
    used -= size;
  }
  return evicted;
}

UserCpuOffloadHook::UserCpuOffloadHook(std::shared_ptr<torch::nn::Module> module, at::Device execution_device,
                                       const UserCpuOffloadHook* previous, const OffloadGroup* group)
    : state_(std::make_shared<State>()) {
  require_unclaimed(*module, "cpu_offload_with_hook");
  state_->bytes = bytes_of(*module);
  state_->module = std::move(module);
  state_->device = execution_device;
  if (previous != nullptr) state_->previous = previous->state_;
  if (group != nullptr) {
    state_->group = group->state_;
    state_->group->models.push_back(state_);
  }
}

void UserCpuOffloadHook::offload() const {
  state_->offload();
}

void UserCpuOffloadHook::remove() const {
  state_->removed = true;
}

bool UserCpuOffloadHook::is_on_device() const {
  return state_->on_device;
}

at::Device UserCpuOffloadHook::execution_device() const {
  return state_->device;
}

void UserCpuOffloadHook::before_forward() const {
  if (state_->removed) return;
  if (state_->previous) state_->previous->offload();
  if (state_->group) {
    auto& models = state_->group->models;
    std::vector<std::shared_ptr<State>> alive;
    for (const auto& weak : models) {
      if (auto model = weak.lock()) alive.push_back(std::move(model));
    }
    std::vector<std::pair<size_t, int64_t>> on_device;
    for (size_t i = 0; i < alive.size(); ++i) {
      if (alive[i]->on_device && alive[i] != state_) on_device.emplace_back(i, alive[i]->bytes);
    }
    for (const size_t index : OffloadGroup::to_evict(on_device, state_->bytes, state_->group->capacity_bytes))
      alive[index]->offload();
    std::erase_if(alive, [&](const auto& model) { return model == state_; });
    alive.push_back(state_);
    models.assign(alive.begin(), alive.end());
  }
  if (state_->on_device) return;
  state_->bring();
}

}  // namespace hasten::offload
