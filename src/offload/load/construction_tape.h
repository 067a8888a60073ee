// ConstructionTape: the operators of a constructor, and the replay of those that lead to given tensors.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "hasten/interception/interceptor.h"

namespace hasten::offload::detail {

class ConstructionTape : public interception::Interceptor {
 public:
  using Values = std::unordered_map<const c10::TensorImpl*, at::Tensor>;

  interception::Level level() const override { return interception::Level::kEveryOperator; }
  bool intercept(const c10::OperatorHandle& op, interception::Stack& stack) override;

  /// Tensors of the tape that something besides the tape holds.
  std::vector<at::Tensor> living() const;
  /// Keeps no references to these tensors, whose interceptors hold the tape. Recording has ended.
  void release(const std::unordered_set<const c10::TensorImpl*>& tensors);
  bool has(const at::Tensor& tensor) const { return known_.count(tensor.unsafeGetTensorImpl()) > 0; }
  /// Computes the values of the tensors by running, in order, the operators that lead to them.
  Values replay(const std::vector<at::Tensor>& requested) const;

 private:
  struct Entry {
    c10::OperatorHandle op;
    /// Tensors of the tape are tokens here. A strong reference would make libtorch copy the tensor, since make_variable
    /// takes over only tensors with one owner. The copy is not on the tape.
    std::vector<c10::IValue> inputs;
    /// Addresses identify tensors. The weak references prevent their reuse.
    std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> alive;
    std::vector<const c10::TensorImpl*> outputs;
  };
  struct Needed;

  /// Returns the tensor of a token, or the tensor itself.
  const c10::TensorImpl* identity_of(const at::Tensor& tensor) const;
  at::Tensor token_for(const at::Tensor& tensor);
  bool touches(const c10::IValue& value) const;
  void make_real(interception::Stack& stack, size_t base) const;
  void record(const c10::OperatorHandle& op, std::vector<c10::IValue> inputs, const interception::Stack& stack);
  bool writes_to(const Entry& entry, const Needed& needed) const;

  std::vector<Entry> entries_;
  std::unordered_set<const c10::TensorImpl*> known_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> tokens_;
  std::unordered_map<const c10::TensorImpl*, const c10::TensorImpl*> originals_;
};

}  // namespace hasten::offload::detail
