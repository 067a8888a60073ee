#include "hasten/comm/nested/nested.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

namespace hasten::comm {
namespace {

using testing::ElementsAre;

struct Batch {
  torch::Tensor pixels;
  std::vector<torch::Tensor> masks;
  std::string file;
  int untouched = 0;

  friend auto hasten_fields(Batch& batch) { return std::tie(batch.pixels, batch.masks, batch.file); }
};

torch::Tensor plus_one(const torch::Tensor& tensor) {
  return tensor + 1;
}

/// The scalars of a structure, in the order of the walk.
template <class T>
std::vector<int> values_of(const T& value) {
  std::vector<int> values;
  for (const auto& tensor : tensors_of(value)) values.push_back(tensor.template item<int>());
  return values;
}

torch::Tensor scalar(int value) {
  return torch::tensor(value);
}

TEST(Nested, MapsATensorItself) {
  EXPECT_EQ(values_of(map_tensors(scalar(1), plus_one)), std::vector{2});
}

TEST(Nested, MapsEveryStandardContainer) {
  EXPECT_THAT(values_of(map_tensors(std::vector{scalar(1), scalar(2)}, plus_one)), ElementsAre(2, 3));
  EXPECT_THAT(values_of(map_tensors(std::array{scalar(1), scalar(2)}, plus_one)), ElementsAre(2, 3));
  EXPECT_THAT(values_of(map_tensors(std::pair{scalar(1), scalar(2)}, plus_one)), ElementsAre(2, 3));
  EXPECT_THAT(values_of(map_tensors(std::tuple{scalar(1), 7, scalar(2)}, plus_one)), ElementsAre(2, 3));
  EXPECT_THAT(values_of(map_tensors(std::optional{scalar(1)}, plus_one)), ElementsAre(2));
  EXPECT_THAT(values_of(map_tensors(std::map<std::string, torch::Tensor>{{"a", scalar(1)}}, plus_one)), ElementsAre(2));
  EXPECT_THAT(values_of(map_tensors(std::unordered_map<std::string, torch::Tensor>{{"a", scalar(1)}}, plus_one)),
              ElementsAre(2));
}

TEST(Nested, MapsStructuresWithinStructures) {
  const std::map<std::string, std::vector<std::pair<torch::Tensor, std::optional<torch::Tensor>>>> value = {
      {"b", {{scalar(3), scalar(4)}, {scalar(5), std::nullopt}}}, {"a", {{scalar(1), scalar(2)}}}};

  const auto mapped = map_tensors(value, plus_one);

  EXPECT_THAT(values_of(mapped), ElementsAre(2, 3, 4, 5, 6));
  EXPECT_FALSE(mapped.at("b")[1].second.has_value());
}

TEST(Nested, VisitsAnUnorderedMapByKeyHoweverItWasFilled) {
  std::unordered_map<std::string, torch::Tensor> value;
  for (int i = 99; i >= 0; --i) value.emplace(std::string(1, static_cast<char>(i + 20)), scalar(i));

  const auto values = values_of(value);

  EXPECT_EQ(values.size(), 100u);
  EXPECT_TRUE(std::is_sorted(values.begin(), values.end()));
}

TEST(Nested, MapsExamplesWithAndWithoutTarget) {
  const torch::data::Example<> labelled(scalar(1), scalar(2));
  const torch::data::TensorExample alone(scalar(3));

  EXPECT_THAT(values_of(map_tensors(labelled, plus_one)), ElementsAre(2, 3));
  EXPECT_THAT(values_of(map_tensors(alone, plus_one)), ElementsAre(4));
}

TEST(Nested, MapsTheNamedMembersOfAnOwnStructAndKeepsTheOthers) {
  const Batch batch{scalar(1), {scalar(2), scalar(3)}, "train.bin", 42};

  const Batch mapped = map_tensors(batch, plus_one);

  EXPECT_THAT(values_of(mapped), ElementsAre(2, 3, 4));
  EXPECT_EQ(mapped.file, "train.bin");
  EXPECT_EQ(mapped.untouched, 42);
}

TEST(Nested, LeavesTheOriginalAlone) {
  const std::vector value = {scalar(1)};

  (void)map_tensors(value, plus_one);

  EXPECT_THAT(values_of(value), ElementsAre(1));
}

TEST(Nested, PassesNumbersStringsAndUndefinedTensorsThrough) {
  const std::tuple value{std::string("text"), 3, 0.5, std::vector<bool>{true, false}, torch::Tensor()};

  const auto mapped = map_tensors(value, plus_one);

  EXPECT_EQ(std::get<0>(mapped), "text");
  EXPECT_EQ(std::get<1>(mapped), 3);
  EXPECT_EQ(std::get<3>(mapped), (std::vector<bool>{true, false}));
  EXPECT_FALSE(std::get<4>(mapped).defined());
}

}  // namespace
}  // namespace hasten::comm
