// StagedTensor: a value that one stage of a pipeline has, as every rank sees it.
//
// It has the sizes of the value and no memory. On the stage's rank the value stands behind it, on the others nothing.
// It says that it is contiguous, so that a program's contiguous() before a view costs nothing.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/TensorImpl.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "hasten/parallel/layout/cut.h"

namespace hasten::parallel::pipeline {

class StageAxis;

/// A value's facts that all ranks know.
struct ValueFacts {
  bool is_defined = false;
  /// Sizes and dtype of the whole value.
  std::vector<int64_t> sizes = {};
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool is_on_cpu = true;
  bool requires_grad = false;
  bool is_view = false;
  /// How it is cut over the ranks of a tensor parallel group.
  Cut cut = {};

  bool operator==(const ValueFacts&) const = default;
};

/// The result of a call of a forward: its name on all ranks.
struct ValueId {
  size_t call = 0;
  int result = 0;
  auto operator<=>(const ValueId&) const = default;
};

/// How a value is made of parameters alone, such as weight.t(): each stage that takes it makes its own.
struct Recipe {
  c10::OperatorHandle op;
  /// As the program gave them: parameters, values with a recipe, and what is no tensor.
  std::vector<c10::IValue> arguments;
};

/// A value and where it was made.
struct StagedValue {
  ValueFacts facts = {};
  int stage = 0;
  ValueId id = {};
  /// The highest stage whose operators the program had reached before.
  int front = -1;
  /// The value on a rank that has the stage; undefined elsewhere.
  at::Tensor local = {};
  /// Null for a value that depends on activations.
  std::shared_ptr<const Recipe> recipe = {};
};

class StagedTensor final : public c10::TensorImpl {
 public:
  /// `device`: of values that are not on the CPU.
  StagedTensor(std::shared_ptr<StageAxis> axis, c10::Device device, StagedValue value);

  /// Returns the implementation of a tensor that is one; else null.
  static StagedTensor* of(const at::Tensor& tensor) noexcept;

  StageAxis& axis() const noexcept { return *axis_; }
  const ValueFacts& facts() const noexcept { return value_.facts; }
  int stage() const noexcept { return value_.stage; }
  const ValueId& id() const noexcept { return value_.id; }
  int front() const noexcept { return value_.front; }
  const at::Tensor& local() const noexcept { return value_.local; }
  const Recipe* recipe() const noexcept { return value_.recipe.get(); }
  /// The value on later stages that have taken it; undefined where they are another rank's.
  std::map<int, at::Tensor>& copies() noexcept { return copies_; }

  /// A call has written to it, in place.
  void become(StagedValue value);

 private:
  std::shared_ptr<StageAxis> axis_;
  StagedValue value_;
  std::map<int, at::Tensor> copies_ = {};
};

}  // namespace hasten::parallel::pipeline
