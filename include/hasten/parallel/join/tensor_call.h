// TensorCall: a collective on tensors in a loop of uneven length, and what a rank without data offers to it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/comm/nested/nested_operations.h"
#include "hasten/training/joinable.h"

namespace hasten::parallel {

/// A tensor of a call, for a rank without data.
struct TensorShape {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes = {};
  bool operator==(const TensorShape&) const = default;
};

struct TensorCall {
  enum class Kind : int64_t { kGather, kReduce, kPad } kind = Kind::kGather;
  comm::ReduceOptions reduce = {};
  comm::PadOptions pad = {};
  std::vector<TensorShape> tensors = {};

  /// Notes the dtypes and the sizes that a rank without data offers: no rows for gather and pad, those of the tensor
  /// for reduce.
  TensorCall with(const std::vector<at::Tensor>& given) const;

  /// As a call of `component`, and back.
  training::JoinCall encode(const std::string& component) const;
  static TensorCall decode(const training::JoinCall& call);
};

/// Tensors without rows, or the neutral element of the reduction.
/// Throws: the exceptions of the allocator.
std::vector<at::Tensor> neutral_tensors(const TensorCall& call, c10::Device device);

/// Collective: yes. Blocks: yes. Throws: as the collectives. The mean is over the active ranks.
std::vector<at::Tensor> carry_out(const TensorCall& call, const std::vector<at::Tensor>& tensors,
                                  const training::ActiveRanks& active, const comm::Group& group);

}  // namespace hasten::parallel
