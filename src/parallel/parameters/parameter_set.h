// Which parameters of a module are exchanged, and whether that has changed.
//
// libtorch's to(), load(), requires_grad_() and register_parameter() send no notice. So the module is checked again at
// every forward and backward: its parameters' identities, sizes, memory and whether they are trainable. The check does
// not build the lists of names that parameters() builds (a microsecond for 50 parameters).
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <string>
#include <vector>

namespace hasten::parallel {

/// Parameters that require gradients, each once however often it is registered, in the module's order.
struct ParameterSet {
  std::vector<std::string> names = {};
  std::vector<at::Tensor> tensors = {};
  /// Whether its module makes sparse gradients (Embedding and EmbeddingBag with sparse(true)).
  std::vector<bool> sparse = {};
  /// The class of the first module that has it, without namespace and "Impl".
  std::vector<std::string> classes = {};

  /// Returns the tensors, undefined where gradients are sparse.
  std::vector<at::Tensor> dense() const;

  static ParameterSet of(const torch::nn::Module& module, const std::function<bool(const at::Tensor&)>& leave_out);
};

class ModuleWatch {
 public:
  /// The difference since the last check. It is nothing; the memory of the values (load() does that); or the
  /// parameters, their sizes and dtypes, or which are trainable.
  enum class Change { kNone, kValues, kParameters };

  explicit ModuleWatch(const torch::nn::Module& module) : module_(module) { look(); }
  Change look();

 private:
  struct Seen {
    const c10::TensorImpl* tensor;
    const void* memory;
    int64_t num_bytes;
    c10::ScalarType dtype;
    bool trainable;
  };
  void visit(const torch::nn::Module& module, size_t& next, Change& change);

  const torch::nn::Module& module_;
  std::vector<Seen> seen_;
};

}  // namespace hasten::parallel
