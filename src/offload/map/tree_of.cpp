// See tree_of.h.
#include "hasten/offload/map/tree_of.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <unordered_map>

#include "hasten/core/error.h"
#include "hasten/core/log.h"
#include "hasten/core/sentence.h"
#include "hasten/offload/units/set_tensor.h"
#include "hasten/process/device.h"

namespace hasten::offload {
namespace {

class TreeBuilder {
 public:
  plan::ModuleNodePtr read(const torch::nn::Module& module) {
    const auto known = modules_.find(&module);
    if (known != modules_.end()) return known->second;
    auto node = std::make_shared<plan::ModuleNode>();
    node->class_name = plan::short_class_name(module.name());
    for (const auto& item : module.named_parameters(/*recurse=*/false)) add(item.key(), item.value(), node->parameters);
    for (const auto& item : module.named_buffers(/*recurse=*/false)) add(item.key(), item.value(), node->buffers);
    for (const auto& item : module.named_children()) node->children.emplace_back(item.key(), read(*item.value()));
    modules_[&module] = node;
    return node;
  }

 private:
  void add(const std::string& name, const at::Tensor& tensor, std::vector<plan::TensorNode>& out) {
    if (!tensor.defined()) return;
    const auto [place, is_new] = tensors_.try_emplace(tensor.unsafeGetTensorImpl(), tensors_.size());
    out.push_back({name, tensor.sizes().vec(), std::string(dtype_name(tensor.scalar_type())),
                   static_cast<int64_t>(place->second), true});
  }

  std::unordered_map<const torch::nn::Module*, plan::ModuleNodePtr> modules_;
  std::unordered_map<const c10::TensorImpl*, size_t> tensors_;
};

plan::SizeOptions size_options(const MapOptions& options) {
  plan::SizeOptions sizes;
  if (options.dtype) sizes.dtype = std::string(dtype_name(*options.dtype));
  for (const auto& [name, dtype] : options.special_dtypes) sizes.special_dtypes[name] = std::string(dtype_name(dtype));
  return sizes;
}

DeviceMap infer_within(const ModuleTree& tree, const plan::MemoryLimits& limits, const MapOptions& options) {
  plan::InferOptions infer{options.no_split_module_classes, size_options(options),       options.clean_result,
                           options.offload_buffers,         options.fallback_allocation, options.verbose};
  auto inferred = plan::infer_auto_device_map(tree, limits, infer);
  if (inferred.warns_buffers) {
    Logger("offload").warning(
        "buffers of modules on cpu or disk stay in memory and fit no accelerator beside the weights; set "
        "offload_buffers.");
  }
  return std::move(inferred.device_map);
}

void visit_names(const torch::nn::Module& module, const std::string& prefix, bool buffers,
                 std::vector<NamedTensorRef>& out) {
  for (const auto& item : buffers ? module.named_buffers(false) : module.named_parameters(false)) {
    if (item.value().defined()) out.push_back({prefix + item.key(), item.value(), buffers});
  }
  for (const auto& item : module.named_children()) visit_names(*item.value(), prefix + item.key() + ".", buffers, out);
}

}  // namespace

ModuleTree tree_of(const torch::nn::Module& module) {
  return {TreeBuilder().read(module)};
}

ModuleTree tree_of(const files::TensorSource& source) {
  std::vector<plan::TensorNode> tensors;
  for (const std::string& name : source.names()) {
    const auto& info = source.info(name);
    tensors.push_back({name, info.shape, std::string(files::torch_name(info.dtype)), -1, true});
  }
  return ModuleTree::from_names(tensors);
}

plan::MemoryLimits max_memory(const std::vector<std::pair<Device, Bytes>>& limits) {
  if (!limits.empty()) return plan::memory_limits(limits);
  plan::MaxMemory found;
  for (int index = 0; index < process::num_cuda_devices(); ++index) {
    const auto [free, total] = c10::getDeviceAllocator(c10::kCUDA)->getMemoryInfo(static_cast<c10::DeviceIndex>(index));
    found.emplace_back(Device(index), Bytes(static_cast<int64_t>(free)));
  }
  found.emplace_back(Device("cpu"), Bytes(plan::available_memory_bytes()));
  return plan::memory_limits(found);
}

DeviceMap infer_auto_device_map(const ModuleTree& tree, const MapOptions& options) {
  return infer_within(tree, max_memory(options.max_memory), options);
}

DeviceMap infer_auto_device_map(const torch::nn::Module& module, const MapOptions& options) {
  return infer_auto_device_map(tree_of(module), options);
}

plan::MemoryLimits get_balanced_memory(const ModuleTree& tree, const MapOptions& options, bool low_zero) {
  return plan::balanced_memory(
      tree, max_memory(options.max_memory),
      {options.no_split_module_classes, size_options(options), low_zero, options.max_memory.empty()});
}

DeviceMap device_map_by_name(const ModuleTree& tree, const std::string& name, const MapOptions& options) {
  if (name == "sequential") return infer_auto_device_map(tree, options);
  if (name == "auto" || name == "balanced" || name == "balanced_low_0") {
    return infer_within(tree, get_balanced_memory(tree, options, name == "balanced_low_0"), options);
  }
  throw UsageError(Origin{"offload"}, "'", name, "' is no device map",
                   guess_end(name, {"auto", "balanced", "balanced_low_0", "sequential"}),
                   " Expected a map, or 'auto', 'balanced', 'balanced_low_0' or 'sequential'.");
}

std::vector<std::vector<std::string>> find_tied_parameters(const torch::nn::Module& module) {
  return plan::find_tied_parameters(tree_of(module));
}

std::vector<NamedTensorRef> named_tensors(const torch::nn::Module& module) {
  std::vector<NamedTensorRef> found;
  visit_names(module, "", false, found);
  visit_names(module, "", true, found);
  return found;
}

void retie_parameters(torch::nn::Module& module, const std::vector<std::vector<std::string>>& groups) {
  std::unordered_map<std::string, at::Tensor> by_name;
  std::vector<std::string> names;
  for (const auto& item : named_tensors(module)) {
    by_name.emplace(item.name, item.tensor);
    names.push_back(item.name);
  }
  for (const auto& group : groups) {
    at::Tensor source;
    for (const auto& name : group) {
      const auto found = by_name.find(name);
      if (found == by_name.end()) {
        throw UsageError(Origin{"offload"}, "the module has no tensor '", name, "' to tie", guess_end(name, names));
      }
      if (!source.defined() && !found->second.is_meta()) source = found->second;
    }
    if (!source.defined()) continue;  // all are empty
    for (const auto& name : group) {
      const at::Tensor& tensor = by_name.at(name);
      if (!tensor.is_same(source)) set_tensor(tensor, source.detach());
    }
  }
}

void tie(torch::nn::Module& module, const std::vector<std::string>& names) {
  retie_parameters(module, {names});
}

}  // namespace hasten::offload
