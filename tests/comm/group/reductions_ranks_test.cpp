// Values at the edges of what can be reduced. Run on shared memory and on Gloo.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <limits>

#include "hasten/comm/group/group.h"
#include "hasten/core/error.h"
#include "support/ranks.h"

namespace hasten::comm {
namespace {

using process::Process;
using testing::run_ranks;

TEST(ReductionsRanks, MinimumAndMaximumAreNaNWhereAnyRankHasOne) {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const std::vector<std::vector<double>> of_ranks = {{nan, 1, -infinity, -2, -0.5, 7},
                                                     {1, nan, 3, -infinity, -1.5, infinity}};
  const auto least = torch::tensor({nan, nan, -infinity, -infinity, -1.5, 7.0}, at::kDouble);
  const auto most = torch::tensor({nan, nan, 3.0, -2.0, -0.5, infinity}, at::kDouble);
  run_ranks(2, [&](Process& process) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
      for (const int64_t repeats : {1, 50'000}) {  // messages of each to each, and Gloo's own ring
        for (const auto op : {ReduceOp::kMin, ReduceOp::kMax}) {
          at::Tensor tensor = torch::tensor(of_ranks[process.rank()], at::kDouble).to(dtype).repeat(repeats);

          process.group().all_reduce_(tensor, op);

          const at::Tensor expected = (op == ReduceOp::kMin ? least : most).to(dtype).repeat(repeats);
          ASSERT_TRUE(torch::allclose(tensor.to(at::kDouble), expected.to(at::kDouble), 0, 0, /*equal_nan=*/true))
              << dtype << ' ' << repeats;
        }
      }
    }
  });
}

TEST(ReductionsRanks, AWorldOfOneRefusesWhatOthersRefuse) {
  const Group group;

  EXPECT_THROW(group.all_reduce_(torch::ones({2}, at::kLong), ReduceOp::kMean), UsageError);
  EXPECT_THROW(group.reduce_(torch::ones({2}, at::kLong), 0, ReduceOp::kMean), UsageError);
  EXPECT_THROW(group.all_reduce_(torch::ones({2}, at::kUInt64), ReduceOp::kMax), UsageError);
  EXPECT_THROW(group.all_reduce_(torch::ones({1}).expand({3})), UsageError);
}

TEST(ReductionsRanks, AWorldOfOneGivesNewTensors) {
  const Group group;
  const at::Tensor tensor = torch::ones({2}, torch::requires_grad());

  for (const at::Tensor& given : {group.all_gather(tensor)[0], group.gather(tensor, 0)[0], group.scatter({tensor}, 0),
                                  group.all_to_all({tensor})[0]}) {
    given.add_(1);
    EXPECT_FALSE(given.requires_grad());
  }
  EXPECT_TRUE(torch::equal(tensor, torch::ones({2})));
}

TEST(ReductionsRanks, PartsOfOneTensorAreInputAndOutputInAWorldOfOne) {
  const Group group;
  const auto halves = [](const auto& call) {
    const at::Tensor both = torch::arange(6);
    call(both.narrow(0, 0, 3), both.narrow(0, 3, 3));
    EXPECT_TRUE(torch::equal(both, torch::tensor({3, 4, 5, 3, 4, 5})));
  };

  halves([&](const at::Tensor& output, const at::Tensor& input) { group.all_gather_into_(output, input); });
  halves([&](const at::Tensor& output, const at::Tensor& input) { group.reduce_scatter_into_(output, input); });
  halves([&](const at::Tensor& output, const at::Tensor& input) { group.all_to_all_into_(output, input); });
}

TEST(ReductionsRanks, BitwiseOnesCombineTheBitsOfWholeNumbersAndBooleans) {
  run_ranks(3, [](Process& process) {
    for (const auto dtype : {at::kLong, at::kInt, at::kShort, at::kChar, at::kByte, at::kBool}) {
      for (const int64_t size : {7, 40'000}) {
        std::vector<at::Tensor> inputs;
        for (int rank = 0; rank < 3; ++rank) {
          const at::Tensor numbers = (torch::arange(size) + 1) * (2 * rank + 3) % 113;
          inputs.push_back(dtype == at::kBool ? numbers.bitwise_and(1).to(dtype) : numbers.to(dtype));
        }
        at::Tensor all = inputs[process.rank()].clone(), any = all.clone(), odd = all.clone();

        process.group().all_reduce_(all, ReduceOp::kBitAnd);
        process.group().all_reduce_(any, ReduceOp::kBitOr);
        process.group().all_reduce_(odd, ReduceOp::kBitXor);

        ASSERT_TRUE(torch::equal(all, inputs[0].bitwise_and(inputs[1]).bitwise_and(inputs[2]))) << dtype;
        ASSERT_TRUE(torch::equal(any, inputs[0].bitwise_or(inputs[1]).bitwise_or(inputs[2]))) << dtype;
        ASSERT_TRUE(torch::equal(odd, inputs[0].bitwise_xor(inputs[1]).bitwise_xor(inputs[2]))) << dtype;
      }
    }
    EXPECT_THROW(process.group().all_reduce_(torch::ones({2}), ReduceOp::kBitAnd), UsageError);
  });
}

TEST(ReductionsRanks, ANeutralTensorLeavesBitwiseResultsAsTheyAre) {
  for (const auto dtype : {at::kLong, at::kByte, at::kBool}) {
    const at::Tensor tensor = torch::arange(2).to(dtype);
    const auto neutral = [&](ReduceOp op) { return neutral_tensor({2}, tensor.options(), op); };
    EXPECT_TRUE(torch::equal(tensor.bitwise_and(neutral(ReduceOp::kBitAnd)), tensor)) << dtype;
    EXPECT_TRUE(torch::equal(tensor.bitwise_or(neutral(ReduceOp::kBitOr)), tensor)) << dtype;
    EXPECT_TRUE(torch::equal(tensor.bitwise_xor(neutral(ReduceOp::kBitXor)), tensor)) << dtype;
  }
}

}  // namespace
}  // namespace hasten::comm
