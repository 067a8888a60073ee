// The table of collectives; see collective.h.
#include "hasten/comm/types/collective.h"

#include <ATen/Dispatch.h>
#include <torch/types.h>

#include <array>
#include <limits>

namespace hasten::comm {
namespace {

using enum SizeRule;

// In the order of OpType.
constexpr std::array kCollectives = {
    Collective{OpType::kAllReduce, "all_reduce", kEqual, Contribution::kNeutral},
    Collective{OpType::kReduce, "reduce", kEqual, Contribution::kNeutral},
    Collective{OpType::kBroadcast, "broadcast", kEqual, Contribution::kRefused},
    Collective{OpType::kAllGather, "all_gather", kFirstMayDiffer, Contribution::kNoRows},
    Collective{OpType::kAllGatherInto, "all_gather_into", kEqual, Contribution::kRefused},
    Collective{OpType::kGather, "gather", kFirstMayDiffer, Contribution::kNoRows},
    Collective{OpType::kScatter, "scatter", kNone, Contribution::kRefused},
    Collective{OpType::kReduceScatter, "reduce_scatter", kEqual, Contribution::kNeutral},
    Collective{OpType::kAllToAll, "all_to_all", kFirstMayDiffer, Contribution::kNoRows},
    Collective{OpType::kAllToAllInto, "all_to_all_into", kFirstMayDiffer, Contribution::kNoRows},
    Collective{OpType::kBarrier, "barrier", kNone, Contribution::kCall},
    Collective{OpType::kSubgroup, "subgroup", kEqual, Contribution::kRefused},
    Collective{OpType::kSend, "send", kEqual, Contribution::kRefused},
};

constexpr bool is_in_order() {
  for (size_t i = 0; i < kCollectives.size(); ++i) {
    if (kCollectives[i].type != static_cast<OpType>(i)) return false;
  }
  return kCollectives.size() == static_cast<size_t>(OpType::kSend) + 1;
}
static_assert(is_in_order(), "the table has one row for each OpType, in its order");

double neutral_value(ReduceOp op, bool is_float) {
  constexpr double kMost = std::numeric_limits<double>::infinity();
  switch (op) {
    case ReduceOp::kProduct:
      return 1.0;
    case ReduceOp::kMin:
      return is_float ? kMost : 1.0;
    case ReduceOp::kMax:
      return is_float ? -kMost : 0.0;
    default:
      return 0.0;
  }
}

}  // namespace

const Collective& describe_collective(OpType type) noexcept {
  return kCollectives[static_cast<size_t>(type)];
}

const char* name_of(ReduceOp op) noexcept {
  constexpr std::array kNames = {"sum", "mean", "min", "max", "product", "bitwise and", "bitwise or", "bitwise xor"};
  const auto index = static_cast<size_t>(op);
  return index < kNames.size() ? kNames[index] : "?";
}

at::Tensor neutral_tensor(at::IntArrayRef sizes, const at::TensorOptions& options, ReduceOp op) {
  const auto dtype = options.dtype().toScalarType();
  if (op == ReduceOp::kBitAnd) return at::zeros(sizes, options).bitwise_not_();
  const at::Tensor tensor = at::full(sizes, neutral_value(op, c10::isFloatingType(dtype)), options);
  const bool is_min = op == ReduceOp::kMin, is_max = op == ReduceOp::kMax;
  // The largest and the smallest integer have no exact double.
  if ((is_min || is_max) && c10::isIntegralType(dtype, false)) {
    AT_DISPATCH_INTEGRAL_TYPES(dtype, "neutral_tensor", [&] {
      using Limits = std::numeric_limits<scalar_t>;
      tensor.fill_(static_cast<int64_t>(is_min ? Limits::max() : Limits::lowest()));
    });
  }
  return tensor;
}

}  // namespace hasten::comm
