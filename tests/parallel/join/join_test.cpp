#include "hasten/parallel/join/join.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace hasten::parallel {
namespace {

TEST(Join, OfOneRankAnnouncesToItselfAndEndsAtOnce) {
  Join join{comm::Group()};

  EXPECT_EQ(join.announce("something").ranks, std::vector<int>{0});
  EXPECT_FALSE(join.answer([](const nlohmann::json&, const ActiveRanks&) { FAIL(); }));
}

TEST(Join, NothingIsOfferedInTheShapeThatTheCallNeeds) {
  const std::vector<at::Tensor> tensors = {torch::ones({3, 4}), torch::ones({}, at::kLong)};
  const auto offered = [&](const JointCall& call) {
    return neutral_tensors(describe(call, tensors), c10::Device(c10::kCPU));
  };

  const auto rows = offered({});
  EXPECT_EQ(rows[0].sizes(), at::IntArrayRef({0, 4}));
  EXPECT_EQ(rows[1].sizes(), at::IntArrayRef({0}));
  EXPECT_EQ(rows[1].scalar_type(), at::kLong);
  const auto padded = offered({.kind = JointCall::Kind::kPad, .pad = {.dim = -1}});
  EXPECT_EQ(padded[0].sizes(), at::IntArrayRef({3, 0}));
  EXPECT_EQ(padded[1].dim(), 0);
  const auto least = offered({.kind = JointCall::Kind::kReduce, .reduce = {.op = comm::ReduceOp::kMax}});
  EXPECT_EQ(least[0].sizes(), at::IntArrayRef({3, 4}));
  EXPECT_EQ(least[0].max().item<double>(), -INFINITY);
  EXPECT_EQ(least[1].item<int64_t>(), std::numeric_limits<int64_t>::lowest());
}

}  // namespace
}  // namespace hasten::parallel
