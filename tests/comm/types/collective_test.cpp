#include "hasten/comm/types/collective.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <set>
#include <string>

namespace hasten::comm {
namespace {

TEST(Collective, EachRowDescribesItsOwnTypeUnderANameOfItsOwn) {
  std::set<std::string> names;
  for (auto i = 0; i <= static_cast<int>(OpType::kSend); ++i) {
    const auto type = static_cast<OpType>(i);
    EXPECT_EQ(describe_collective(type).type, type);
    EXPECT_TRUE(names.insert(name_of(type)).second) << name_of(type);
  }
}

TEST(Collective, OnlyReductionsHaveANeutralElement) {
  EXPECT_EQ(describe_collective(OpType::kReduceScatter).without_data, Contribution::kNeutral);
  EXPECT_EQ(describe_collective(OpType::kGather).without_data, Contribution::kNoRows);
  EXPECT_EQ(describe_collective(OpType::kBroadcast).without_data, Contribution::kRefused);
}

at::Tensor reduced(ReduceOp op, const at::Tensor& a, const at::Tensor& b) {
  switch (op) {
    case ReduceOp::kMin:
      return torch::minimum(a, b);
    case ReduceOp::kMax:
      return torch::maximum(a, b);
    case ReduceOp::kProduct:
      return a * b;
    default:
      return a + b;
  }
}

TEST(Collective, TheNeutralTensorLeavesEveryValueAsItIs) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kLong, at::kInt, at::kShort, at::kChar, at::kByte}) {
    const auto values = torch::tensor({0, 1, 7, 100}).to(dtype);
    for (const auto op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      const auto neutral = neutral_tensor({4}, values.options(), op);

      EXPECT_TRUE(reduced(op, values, neutral).equal(values)) << name_of(op) << ' ' << dtype;
    }
  }
}

TEST(Collective, ExtremesOfWholeNumbersAreExact) {
  const auto least = torch::full({1}, std::numeric_limits<int64_t>::max() - 1, at::kLong);

  EXPECT_TRUE(torch::minimum(least, neutral_tensor({1}, least.options(), ReduceOp::kMin)).equal(least));
}

}  // namespace
}  // namespace hasten::comm
