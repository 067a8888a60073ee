// See unit_partition.h.
#include "offload/load/unit_partition.h"

#include <algorithm>
#include <unordered_set>

#include "hasten/plan/module_tree.h"

namespace hasten::offload::detail {
namespace {

class Partition {
 public:
  Partition(const std::vector<std::string>& classes, const std::map<std::string, LoadedPlace>& places,
            const PartitionOptions& options)
      : places_(places), options_(options) {
    for (const auto& name : classes) classes_.push_back(plan::short_class_name(name));
  }

  void visit(const torch::nn::Module& module, const std::string& name, StreamUnit* block) {
    StreamUnit own;
    StreamUnit* unit = block;
    const bool is_block =
        std::find(classes_.begin(), classes_.end(), plan::short_class_name(module.name())) != classes_.end();
    if (unit == nullptr) {
      own.name = name;
      unit = &own;
    }
    add_tensors(module, name, *unit);
    if (block == nullptr && !is_block) close(own, true);
    for (const auto& item : module.named_children()) {
      visit(*item.value(), name.empty() ? item.key() : name + "." + item.key(),
            block != nullptr ? block
            : is_block       ? &own
                             : nullptr);
    }
    if (block == nullptr && is_block) close(own, false);
  }

  std::vector<StreamUnit> take() { return std::move(units_); }

 private:
  void add_tensors(const torch::nn::Module& module, const std::string& name, StreamUnit& unit) {
    const std::string prefix = name.empty() ? "" : name + ".";
    for (const auto& item : module.named_parameters(false)) add(prefix + item.key(), item.value(), unit);
    for (const auto& item : module.named_buffers(false)) add(prefix + item.key(), item.value(), unit);
  }

  void add(const std::string& name, const at::Tensor& tensor, StreamUnit& unit) {
    if (options_.takes && !options_.takes(name, tensor)) return;
    const auto place = places_.find(name);
    const bool in_file = place != places_.end() && place->second.region;
    if (!options_.from_memory && (!in_file || place->second.bytes < kSmallTensorBytes)) return;
    if (!seen_.insert(tensor.unsafeGetTensorImpl()).second) return;
    unit.tensor_names.push_back(name);
    unit.tensors.push_back(tensor);
    unit.pieces.push_back(in_file ? StreamPiece{place->second.region, place->second.offset, place->second.bytes}
                                  : StreamPiece{{}, 0, tensor.nbytes()});
  }

  // Small neighbours become one unit; blocks stay what they are.
  void close(StreamUnit& unit, bool may_merge) {
    if (unit.tensors.empty()) return;
    const bool merges = may_merge && last_may_merge_;
    last_may_merge_ = may_merge;
    if (merges && !units_.empty() && units_.back().bytes() + unit.bytes() <= options_.merge_bytes) {
      StreamUnit& last = units_.back();
      last.name += ", " + unit.name;
      last.tensor_names.insert(last.tensor_names.end(), unit.tensor_names.begin(), unit.tensor_names.end());
      last.tensors.insert(last.tensors.end(), unit.tensors.begin(), unit.tensors.end());
      last.pieces.insert(last.pieces.end(), unit.pieces.begin(), unit.pieces.end());
    } else {
      units_.push_back(std::move(unit));
    }
    unit = {};
  }

  std::vector<std::string> classes_;
  const std::map<std::string, LoadedPlace>& places_;
  const PartitionOptions& options_;
  std::unordered_set<const c10::TensorImpl*> seen_;
  std::vector<StreamUnit> units_;
  bool last_may_merge_ = false;
};

}  // namespace

std::vector<StreamUnit> partition_units(const torch::nn::Module& module,
                                        const std::vector<std::string>& no_split_module_classes,
                                        const std::map<std::string, LoadedPlace>& places,
                                        const PartitionOptions& options) {
  Partition partition(no_split_module_classes, places, options);
  partition.visit(module, "", nullptr);
  return partition.take();
}

}  // namespace hasten::offload::detail
