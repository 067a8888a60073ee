#include "hasten/parallel/join/join.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/core/error.h"
#include "hasten/parallel/ddp/backward.h"
#include "hasten/parallel/join/tensor_call.h"
#include "parallel/join/joined_models.h"
#include "support/ranks.h"

namespace hasten::parallel {
namespace {

using process::Process;
using testing::run_ranks;

TEST(Join, OfOneRankNotifiesItselfAndEndsAtOnce) {
  Join join{comm::Group()};

  EXPECT_EQ(join.notify({"operations", "barrier"}).ranks, std::vector<int>{0});
  EXPECT_FALSE(join.shadow());
}

TEST(Join, NothingIsOfferedInTheShapeThatTheCallNeeds) {
  const std::vector<at::Tensor> tensors = {torch::ones({3, 4}), torch::ones({}, at::kLong)};
  const auto offered = [&](const TensorCall& call) {
    return neutral_tensors(TensorCall::decode(call.with(tensors).encode("operations")), c10::Device(c10::kCPU));
  };

  const auto rows = offered({});
  EXPECT_EQ(rows[0].sizes(), at::IntArrayRef({0, 4}));
  EXPECT_EQ(rows[1].sizes(), at::IntArrayRef({0}));
  EXPECT_EQ(rows[1].scalar_type(), at::kLong);
  const auto padded = offered({.kind = TensorCall::Kind::kPad, .pad = {.dim = -1}});
  EXPECT_EQ(padded[0].sizes(), at::IntArrayRef({3, 0}));
  EXPECT_EQ(padded[1].dim(), 0);
  const auto least = offered({.kind = TensorCall::Kind::kReduce, .reduce = {.op = comm::ReduceOp::kMax}});
  EXPECT_EQ(least[0].sizes(), at::IntArrayRef({3, 4}));
  EXPECT_EQ(least[0].max().item<double>(), -INFINITY);
  EXPECT_EQ(least[1].item<int64_t>(), std::numeric_limits<int64_t>::lowest());
}

TEST(Join, ACallComesBackFromItsEncodingAsItWas) {
  const TensorCall call{.kind = TensorCall::Kind::kPad,
                        .reduce = {.op = comm::ReduceOp::kMin, .scale = 0.5},
                        .pad = {.dim = -2, .pad_index = 3.5, .pad_first = true},
                        .tensors = {{at::kHalf, {2, 0, 5}}, {at::kLong, {}}}};
  const auto again = TensorCall::decode(call.encode("operations"));
  EXPECT_EQ(again.tensors, call.tensors);
  EXPECT_EQ(again.reduce.op, call.reduce.op);
  EXPECT_EQ(again.reduce.scale, 0.5);
  EXPECT_EQ(again.pad.dim, -2);
  EXPECT_EQ(again.pad.pad_index.toDouble(), 3.5);
  EXPECT_TRUE(again.pad.pad_first);

  const BackwardCall backward{.ends_window = false, .held = {true, false, true}, .local_sgd = {false, true, true}};
  const auto decoded = BackwardCall::decode(backward.encode());
  EXPECT_FALSE(decoded.ends_window);
  EXPECT_EQ(decoded.held, backward.held);
  EXPECT_EQ(decoded.local_sgd, backward.local_sgd);
}

/// Counts what it shadows.
struct Counting : training::Joinable {
  std::string name() const override { return "counting"; }
  void shadow(const JoinCall& call, const ActiveRanks& active) override {
    shadowed += call.integers.at(0);
    least_active = std::min(least_active, active.ranks.size());
  }
  void finish(int root) override { finished_from = root; }
  std::optional<JoinCall> merge(const JoinCall& one, const JoinCall& other) const override {
    if (one.operation != "mergeable") return std::nullopt;
    return one.integers < other.integers ? one : other;
  }
  int64_t shadowed = 0;
  size_t least_active = 99;
  int finished_from = -1;
};

TEST(Join, ARankWithoutDataShadowsEachCallOfTheOthersUntilNoneHasAny) {
  run_ranks(3, [](Process& process) {
    Join join(process.group());
    Counting component;
    join.add(component);
    for (int64_t step = 0; step < 2 * process.rank(); ++step) join.notify({"counting", "step", {10 + step}});
    const auto last = join.shadow();
    ASSERT_TRUE(last);
    join.finish(last->first());

    EXPECT_EQ(last->ranks, std::vector<int>{2});
    EXPECT_EQ(component.finished_from, 2);
    EXPECT_EQ(component.shadowed, process.rank() == 0 ? 10 + 11 + 12 + 13 : process.rank() == 1 ? 12 + 13 : 0);
  });
}

TEST(Join, CallsThatGoTogetherAreMergedAndOthersAreAnErrorOnAllRanks) {
  run_ranks(3, [](Process& process) {
    Join join(process.group());
    Counting component;
    join.add(component);

    EXPECT_EQ(join.notify({"counting", "mergeable", {5 - process.rank()}}).call.integers, std::vector<int64_t>{3});
    EXPECT_THROW(join.notify({"counting", "own", {process.rank()}}), UsageError);
  });
}

TEST(Join, AnErrorOfOneRankIsTheNextCallOfTheOthers) {
  run_ranks(3, [](Process& process) {
    Join join(process.group());
    Counting component;
    join.add(component);
    join.notify({"counting", "step", {1}});
    if (process.rank() == 1) return join.fail("the file is gone");

    try {
      process.rank() == 0 ? (void)join.notify({"counting", "step", {2}}) : (void)join.shadow();
      ADD_FAILURE() << "went on";
    } catch (const CommError& error) {
      EXPECT_NE(std::string(error.what()).find("rank 1 has left join_uneven_inputs with an error: the file is gone"),
                std::string::npos);
    }
  });
}

}  // namespace
}  // namespace hasten::parallel
