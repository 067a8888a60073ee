#include "hasten/comm/nested/nested_operations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "hasten/core/error.h"

namespace hasten::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Named = std::map<std::string, torch::Tensor>;

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no UsageError";
}

TEST(StructureOf, WritesNamesSequencesTuplesAndGaps) {
  const std::tuple value{Named{{"x", torch::zeros({2, 3})}, {"y", torch::zeros({2}, torch::kInt64)}},
                         std::vector{torch::tensor(1.0F)}, std::optional<torch::Tensor>(), 7, std::string("s")};

  EXPECT_EQ(structure_of(value), "({x: Float[2, 3], y: Long[2]}, [Float[]], none, -, -)");
  EXPECT_EQ(structure_of(value, StructureDetail::kRows), "({x: Float[*, 3], y: Long[*]}, [Float[*]], none, -, -)");
  EXPECT_EQ(structure_of(value, StructureDetail::kNames), "({x: tensor, y: tensor}, [tensor], none, -, -)");
}

TEST(StructureOf, ToldApartWhatHoldsEquallyManyTensors) {
  const auto tensor = torch::zeros({1});
  const std::vector<std::vector<torch::Tensor>> two_and_none = {{tensor, tensor}, {}};
  const std::vector<std::vector<torch::Tensor>> one_each = {{tensor}, {tensor}};

  EXPECT_NE(structure_of(two_and_none), structure_of(one_each));
}

TEST(GatherInAWorldOfOne, GivesNewTensorsAndRowsForScalars) {
  auto value = std::pair{torch::arange(4), torch::tensor(5)};

  const auto gathered = gather(Group(), value);
  value.first.zero_();

  EXPECT_TRUE(gathered.first.equal(torch::arange(4)));
  EXPECT_TRUE(gathered.second.equal(torch::tensor({5})));
}

TEST(GatherInAWorldOfOne, DropsAutogradHistory) {
  const auto gathered = gather(Group(), torch::ones({2}, torch::requires_grad()) * 2);

  EXPECT_FALSE(gathered.requires_grad());
}

TEST(ReduceInAWorldOfOne, ScalesAndLeavesTheInputAlone) {
  const auto value = torch::full({2}, 3.0);

  const auto reduced = reduce(Group(), value, {.op = ReduceOp::kMean, .scale = 0.5});

  EXPECT_TRUE(reduced.equal(torch::full({2}, 1.5)));
  EXPECT_TRUE(value.equal(torch::full({2}, 3.0)));
}

TEST(Reduce, RefusesToScaleIntegersByName) {
  EXPECT_THAT(message_of([] { reduce(Group(), torch::arange(3), {.scale = 0.5}); }),
              HasSubstr("reduce with scale 0.5 of a Long tensor"));
}

TEST(Broadcast, RefusesARankOutsideTheGroup) {
  EXPECT_THAT(message_of([] { broadcast(Group(), torch::arange(3), 1); }),
              HasSubstr("broadcast from rank 1: the group 'world' has 1 rank(s)"));
}

TEST(Concatenate, JoinsTensorByTensorAlongTheDimension) {
  const std::vector<Named> values = {{{"a", torch::zeros({2, 1})}, {"b", torch::zeros({1, 1})}},
                                     {{"a", torch::ones({2, 2})}, {"b", torch::ones({1, 3})}}};

  const Named joined = concatenate(values, 1);

  EXPECT_TRUE(joined.at("a").equal(torch::tensor({{0.0F, 1.0F, 1.0F}, {0.0F, 1.0F, 1.0F}})));
  EXPECT_TRUE(joined.at("b").equal(torch::tensor({{0.0F, 1.0F, 1.0F, 1.0F}})));
}

TEST(Concatenate, RefusesDifferentStructuresNoValuesAndScalars) {
  const std::vector<Named> different = {{{"a", torch::zeros({1})}}, {{"b", torch::zeros({1})}}};
  const std::vector<torch::Tensor> scalars = {torch::tensor(1), torch::tensor(2)};

  EXPECT_THAT(message_of([&] { concatenate(different); }), HasSubstr("value 0 is {a: tensor}, value 1 is {b: tensor}"));
  EXPECT_THAT(message_of([&] { concatenate(scalars); }), HasSubstr("concatenate of scalars"));
  EXPECT_THAT(message_of([] { concatenate(std::vector<torch::Tensor>{}); }), HasSubstr("no values"));
}

TEST(FindBatchSize, IsTheFirstSizeOfTheFirstTensor) {
  EXPECT_EQ(find_batch_size(std::tuple{7, std::vector{torch::zeros({5, 2}), torch::zeros({6})}}), 5);
}

TEST(FindBatchSize, RefusesWhatHasNone) {
  EXPECT_THAT(message_of([] { find_batch_size(std::vector<torch::Tensor>{}); }),
              HasSubstr("no batch size in []: it holds no tensor"));
  EXPECT_THAT(message_of([] { find_batch_size(torch::tensor(1)); }), HasSubstr("its first tensor is a scalar"));
}

TEST(Slice, TakesRowsOfEveryTensorWithPythonsBounds) {
  const std::pair value{torch::arange(5), torch::arange(10).view({5, 2})};

  EXPECT_TRUE(slice(value, 1, 3).first.equal(torch::tensor({1, 2})));
  EXPECT_TRUE(slice(value, 1, 3).second.equal(torch::tensor({{2, 3}, {4, 5}})));
  EXPECT_EQ(slice(value, 3, 100).first.size(0), 2);
  EXPECT_EQ(slice(value, 4, 2).first.size(0), 0);
  EXPECT_TRUE(slice(value, 0, -2).first.equal(torch::arange(3)));
  EXPECT_THAT(message_of([] { slice(torch::tensor(1), 0, 1); }), HasSubstr("scalar"));
}

TEST(SendToDevice, MovesTensorsAndKeepsTheRest) {
  const std::pair value{torch::zeros({2, 3}), std::string("name")};

  const auto moved = send_to_device(value, torch::kMeta);

  EXPECT_EQ(moved.first.device().type(), torch::kMeta);
  EXPECT_THAT(moved.first.sizes().vec(), ElementsAre(2, 3));
  EXPECT_EQ(moved.second, "name");
}

TEST(PadAcrossProcesses, ChangesNothingInAWorldOfOne) {
  const auto value = torch::arange(3);

  EXPECT_TRUE(pad_across_processes(Group(), value).equal(value));
}

}  // namespace
}  // namespace hasten::comm
