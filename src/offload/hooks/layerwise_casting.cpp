// See layerwise_casting.h.
#include "hasten/offload/hooks/layerwise_casting.h"

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <regex>
#include <unordered_set>

#include "hasten/core/error.h"
#include "hasten/offload/units/set_tensor.h"
#include "hasten/plan/module_tree.h"

namespace hasten::offload {
namespace {

template <class... Classes>
bool is_one_of(const torch::nn::Module& module) {
  return ((dynamic_cast<const Classes*>(&module) != nullptr) || ...);
}

bool is_cast_class(const torch::nn::Module& module) {
  using namespace torch::nn;
  return is_one_of<LinearImpl, Conv1dImpl, Conv2dImpl, Conv3dImpl, ConvTranspose1dImpl, ConvTranspose2dImpl,
                   ConvTranspose3dImpl>(module);
}

// The class by its name, or one derived from it.
bool is_of_class(const torch::nn::Module& module, const std::string& name) {
  using namespace torch::nn;
  if (plan::short_class_name(module.name()) == name) return true;
  return (name == "Linear" && is_one_of<LinearImpl>(module)) || (name == "Conv1d" && is_one_of<Conv1dImpl>(module)) ||
         (name == "Conv2d" && is_one_of<Conv2dImpl>(module)) || (name == "Conv3d" && is_one_of<Conv3dImpl>(module)) ||
         (name == "ConvTranspose1d" && is_one_of<ConvTranspose1dImpl>(module)) ||
         (name == "ConvTranspose2d" && is_one_of<ConvTranspose2dImpl>(module)) ||
         (name == "ConvTranspose3d" && is_one_of<ConvTranspose3dImpl>(module));
}

class Casting {
 public:
  Casting(at::ScalarType storage_type, const CastingOptions& options) : storage_type_(storage_type) {
    for (const auto& name : options.skip_modules_classes) classes_.push_back(plan::short_class_name(name));
    for (const auto& pattern : options.skip_modules_pattern) {
      try {
        patterns_.emplace_back(pattern);
      } catch (const std::regex_error& error) {
        throw UsageError(Origin{"offload"}, "'", pattern, "' is no regular expression: ", error.what(), ".");
      }
    }
  }

  void visit(const torch::nn::Module& module, const std::string& name) {
    if (is_skipped(module, name)) return;
    if (is_cast_class(module)) {
      for (const auto& item : module.named_parameters(false)) store(name + "." + item.key(), item.value());
      for (const auto& item : module.named_buffers(false)) store(name + "." + item.key(), item.value());
      return;
    }
    for (const auto& item : module.named_children())
      visit(*item.value(), name.empty() ? item.key() : name + "." + item.key());
  }

  std::vector<at::Tensor> take() { return std::move(weights_); }

 private:
  bool is_skipped(const torch::nn::Module& module, const std::string& name) const {
    return std::any_of(classes_.begin(), classes_.end(),
                       [&](const std::string& c) { return is_of_class(module, c); }) ||
           std::any_of(patterns_.begin(), patterns_.end(),
                       [&](const std::regex& p) { return std::regex_search(name, p); });
  }

  void store(const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_floating_point() || !seen_.insert(tensor.unsafeGetTensorImpl()).second) return;
    if (tensor.is_meta()) {
      throw UsageError(Origin{"offload"}, "layerwise_casting: '", name, "' is empty. Load a checkpoint first.");
    }
    set_tensor(tensor, tensor.detach().to(storage_type_));
    weights_.push_back(tensor);
  }

  at::ScalarType storage_type_;
  std::vector<std::string> classes_;
  std::vector<std::regex> patterns_;
  std::unordered_set<const c10::TensorImpl*> seen_;
  std::vector<at::Tensor> weights_;
};

}  // namespace

CastWeights layerwise_casting(torch::nn::Module& module, at::ScalarType storage_type, at::ScalarType compute_type,
                              const CastingOptions& options) {
  Casting casting(storage_type, options);
  casting.visit(module, "");
  return CastWeights(casting.take(), compute_type);
}

}  // namespace hasten::offload
