// See memory_source.h.
#include "offload/load/memory_source.h"

#include <unordered_map>

#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/files/folders/offload_folder.h"
#include "hasten/offload/units/set_tensor.h"

namespace hasten::offload {
namespace {

class MemorySource : public files::TensorSource {
 public:
  MemorySource(NamedTensors tensors, std::string path) : path_(std::move(path)) {
    for (auto& [name, tensor] : tensors) {
      if (!tensor.defined() || tensor.is_meta())
        throw UsageError(Origin{"offload"}, path_, ": '", name, "' has no values.");
      infos_.emplace(name, files::TensorInfo{name, file_dtype_of(tensor.scalar_type()), tensor.sizes().vec()});
      names_.push_back(name);
      tensors_.emplace(name, tensor.detach().contiguous());
    }
  }

  const std::vector<std::string>& names() const override { return names_; }
  bool contains(std::string_view name) const override { return infos_.count(std::string(name)) > 0; }
  const files::TensorInfo& info(std::string_view name) const override {
    const auto found = infos_.find(std::string(name));
    if (found != infos_.end()) return found->second;
    throw UsageError(Origin{"offload"}, path_, " has no tensor '", name, "'", guess_end(name, names_));
  }
  void read(std::string_view name, const files::Box& box, void* target) const override {
    const auto& shape = info(name).shape;
    if (!files::fits(box, shape))
      throw UsageError(Origin{"offload"}, "the box ", files::describe(box), " is not inside '", name, "'.");
    if (files::numel_of(box) == 0) return;
    const at::Tensor& tensor = tensors_.at(std::string(name));
    files::copy_common(tensor.const_data_ptr(), files::whole_box(shape), target, box, tensor.element_size());
  }
  std::optional<files::TensorLocation> location(std::string_view) const override { return std::nullopt; }
  const std::string& path() const override { return path_; }
  std::string_view form() const override { return "memory"; }

 private:
  std::string path_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, files::TensorInfo> infos_;
  std::unordered_map<std::string, at::Tensor> tensors_;
};

}  // namespace

files::TensorSourcePtr memory_source(NamedTensors tensors, const std::string& name) {
  return std::make_shared<MemorySource>(std::move(tensors), name);
}

files::Catalog offloaded_weights_loader(const OffloadedWeights& weights) {
  if (weights.state_dict.empty() && weights.save_folder.empty() && !weights.index) {
    throw UsageError(Origin{"offload"}, "offloaded weights need a state_dict, a save_folder or an index, at least.");
  }
  files::Catalog catalog;
  if (!weights.state_dict.empty()) catalog = files::Catalog(memory_source(weights.state_dict));
  if (weights.index)
    return catalog.merged_with(files::Catalog(files::open_offload_index(*weights.index, weights.save_folder)));
  if (!weights.save_folder.empty())
    return catalog.merged_with(files::Catalog(files::open_offload_folder(weights.save_folder)));
  return catalog;
}

}  // namespace hasten::offload
