// The collectives, described in one table: the name, whether sizes may differ, and what a rank without data offers.
//
// Agreement (collective_fingerprint.h), messages and joined loops (parallel/join) read the table, so that a further
// collective is one row.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace hasten::comm {

enum class ReduceOp { kSum, kMean, kMin, kMax, kProduct, kBitAnd, kBitOr, kBitXor };

/// Returns true for the three that combine the bits of whole numbers.
constexpr bool is_bitwise(ReduceOp op) noexcept {
  return op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr || op == ReduceOp::kBitXor;
}

enum class OpType : int32_t {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kAllGatherInto,
  kGather,
  kScatter,
  kReduceScatter,
  kAllToAll,
  kAllToAllInto,
  kBarrier,
  kSubgroup,
  kSend,
};

/// Which sizes the ranks' tensors must have.
enum class SizeRule {
  kEqual,           ///< equal on all ranks
  kFirstMayDiffer,  ///< equal but for the first
  kNone             ///< no tensor, or only the root's counts
};

/// The value with which a rank without data takes part.
enum class Contribution {
  kNeutral,  ///< the neutral element of the reduction
  kNoRows,   ///< a tensor whose first size is 0
  kCall,     ///< the call alone
  kRefused   ///< nothing will do: the call is refused in loops of uneven length
};

struct Collective {
  OpType type;
  /// As the caller writes it.
  const char* name;
  SizeRule sizes;
  Contribution without_data;
};

/// Returns the row of a collective.
const Collective& describe_collective(OpType type) noexcept;
inline const char* name_of(OpType type) noexcept {
  return describe_collective(type).name;
}
/// "sum" and so on.
const char* name_of(ReduceOp op) noexcept;

/// Returns a tensor that leaves the other ranks' result of `op` as it is. It holds zeros for sum and mean, ones for
/// product, the largest value for min, the smallest for max. For bitwise and all bits are set, for or and xor none.
/// Throws: the exceptions of the allocator.
at::Tensor neutral_tensor(at::IntArrayRef sizes, const at::TensorOptions& options, ReduceOp op);

}  // namespace hasten::comm
