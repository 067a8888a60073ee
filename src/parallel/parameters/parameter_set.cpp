// See parameter_set.h.
#include "parallel/parameters/parameter_set.h"

#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <map>
#include <set>

#include "hasten/plan/module_tree.h"

namespace hasten::parallel {
namespace {

// Names a protected member of Module, which is read without a copy.
struct Registered : torch::nn::Module {
  static const auto& parameters(const torch::nn::Module& module) { return module.*(&Registered::parameters_); }
};

std::set<const c10::TensorImpl*> with_sparse_gradients(const torch::nn::Module& module) {
  std::set<const c10::TensorImpl*> sparse;
  // Not modules(), which needs the module to be held by a shared_ptr.
  module.apply([&](const torch::nn::Module& part) {
    if (const auto* table = part.as<torch::nn::EmbeddingImpl>(); table && table->options.sparse()) {
      sparse.insert(table->weight.unsafeGetTensorImpl());
    } else if (const auto* bag = part.as<torch::nn::EmbeddingBagImpl>(); bag && bag->options.sparse()) {
      sparse.insert(bag->weight.unsafeGetTensorImpl());
    }
  });
  return sparse;
}

std::map<const c10::TensorImpl*, std::string> classes_of_owners(const torch::nn::Module& module) {
  std::map<const c10::TensorImpl*, std::string> classes;
  module.apply([&](const torch::nn::Module& part) {
    for (const auto& parameter : part.parameters(/*recurse=*/false))
      classes.emplace(parameter.unsafeGetTensorImpl(), plan::short_class_name(part.name()));
  });
  return classes;
}

}  // namespace

ParameterSet ParameterSet::of(const torch::nn::Module& module,
                              const std::function<bool(const at::Tensor&)>& leave_out) {
  const auto sparse = with_sparse_gradients(module);
  const auto classes = classes_of_owners(module);
  std::set<const c10::TensorImpl*> seen;
  ParameterSet parameter_set;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& parameter = item.value();
    const auto* identity = parameter.unsafeGetTensorImpl();
    if (!parameter.requires_grad() || leave_out(parameter) || !seen.insert(identity).second) continue;
    parameter_set.names.push_back(item.key());
    parameter_set.tensors.push_back(parameter);
    parameter_set.sparse.push_back(sparse.contains(identity));
    parameter_set.classes.push_back(classes.at(identity));
  }
  return parameter_set;
}

std::vector<at::Tensor> ParameterSet::dense() const {
  std::vector<at::Tensor> dense = tensors;
  for (size_t i = 0; i < dense.size(); ++i) {
    if (sparse[i]) dense[i] = at::Tensor();
  }
  return dense;
}

ModuleWatch::Change ModuleWatch::look() {
  Change change = Change::kNone;
  size_t next = 0;
  visit(module_, next, change);
  if (next < seen_.size()) change = Change::kParameters;
  seen_.resize(next);
  return change;
}

void ModuleWatch::visit(const torch::nn::Module& module, size_t& next, Change& change) {
  for (const auto& item : Registered::parameters(module)) {
    const at::Tensor& tensor = item.value();
    if (!tensor.defined()) continue;
    const bool has_memory = tensor.has_storage();
    // Off the CPU memory comes and goes behind a storage that stays.
    const void* memory = !has_memory       ? nullptr
                         : tensor.is_cpu() ? tensor.storage().data()
                                           : static_cast<const void*>(tensor.storage().unsafeGetStorageImpl());
    const Seen now{tensor.unsafeGetTensorImpl(), memory, has_memory ? static_cast<int64_t>(tensor.nbytes()) : 0,
                   tensor.scalar_type(), tensor.requires_grad()};
    if (next == seen_.size()) seen_.push_back({});
    Seen& before = seen_[next++];
    if (now.tensor != before.tensor || now.trainable != before.trainable || now.num_bytes != before.num_bytes ||
        now.dtype != before.dtype) {
      change = Change::kParameters;
    } else if (now.memory != before.memory) {
      change = std::max(change, Change::kValues);
    }
    before = now;
  }
  for (const auto& child : module.children()) visit(*child, next, change);
}

}  // namespace hasten::parallel
