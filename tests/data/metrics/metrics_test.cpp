#include "hasten/data/metrics/metrics.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <map>
#include <string>

namespace hasten::data {
namespace {

using training::LoaderPosition;

constexpr LoaderPosition kMiddle{false, 3};
constexpr LoaderPosition kPaddedEnd{true, 3};
constexpr LoaderPosition kFullEnd{true, 0};
constexpr LoaderPosition kUnknownEnd{true, -1};

std::vector<int64_t> values(const at::Tensor& tensor) {
  return {tensor.data_ptr<int64_t>(), tensor.data_ptr<int64_t>() + tensor.numel()};
}

TEST(Metrics, EachRanksOwnPaddingIsAtTheEndOfTheLastRanks) {
  const auto rows = torch::arange(4);  // of 3 ranks with 4 rows each, 6 of the 12 count
  const LoaderPosition end{true, 6};

  EXPECT_EQ(values(without_padding(rows, end, 0)).size(), 4u);
  EXPECT_EQ(values(without_padding(rows, end, 1)), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(values(without_padding(rows, end, 2)).size(), 0u);
  EXPECT_EQ(values(without_padding(rows, kFullEnd, 2)).size(), 4u);
}

TEST(Metrics, OnlyThePaddedEndIsCut) {
  const auto gathered = torch::arange(4);

  EXPECT_EQ(truncate_to_remainder(gathered, kPaddedEnd).size(0), 3);
  for (const auto& position : {kMiddle, kFullEnd, kUnknownEnd}) {
    EXPECT_EQ(truncate_to_remainder(gathered, position).size(0), 4);
    EXPECT_EQ(truncate_objects(std::vector<int>(4), position).size(), 4u);
  }
}

TEST(Metrics, EveryTensorOfAStructureIsCut) {
  const std::map<std::string, at::Tensor> gathered{{"x", torch::zeros({4, 2})}, {"y", torch::arange(4)}};

  const auto cut = truncate_to_remainder(gathered, kPaddedEnd);

  EXPECT_EQ(cut.at("x").sizes(), (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(values(cut.at("y")), (std::vector<int64_t>{0, 1, 2}));
}

TEST(Metrics, AnObjectIsOneSample) {
  const std::vector<std::string> gathered{"a", "b", "c", "a"};

  EXPECT_EQ(truncate_objects(gathered, kPaddedEnd), (std::vector<std::string>{"a", "b", "c"}));
}

TEST(Metrics, AnObjectWithTensorsIsAsManySamplesAsItHasRows) {
  const std::vector<at::Tensor> gathered{torch::arange(2), torch::arange(2, 4), torch::arange(2)};

  const auto cut = truncate_objects(gathered, kPaddedEnd);

  ASSERT_EQ(cut.size(), 2u);
  EXPECT_EQ(values(cut[0]), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(values(cut[1]), (std::vector<int64_t>{2}));
}

TEST(Metrics, ScalarTensorsAreOneSampleEach) {
  const std::vector<at::Tensor> gathered(4, torch::scalar_tensor(1));

  EXPECT_EQ(truncate_objects(gathered, kPaddedEnd).size(), 3u);
}

TEST(Metrics, TextsOfABatchLoseTheirPaddingWithTheTensors) {
  const std::pair<at::Tensor, std::vector<std::string>> batch{torch::arange(2), {"a", "b"}};

  const auto [numbers, texts] = without_padding(batch, kPaddedEnd, 1);

  EXPECT_EQ(numbers.numel(), 1);
  EXPECT_EQ(texts, std::vector<std::string>{"a"});
}

}  // namespace
}  // namespace hasten::data
