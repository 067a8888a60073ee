#include "hasten/data/dataset/tensor_dataset.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "hasten/data/loader/loader.h"
#include "support/folder.h"

namespace hasten::data {
namespace {

using testing::words_of;
using torch::data::samplers::SequentialSampler;

const std::vector<size_t> kIndices{3, 1};

TEST(TensorDataset, GivesTheRowsOfOneTensor) {
  TensorDataset dataset(torch::arange(4));

  EXPECT_TRUE(torch::equal(dataset.get_batch(kIndices), torch::tensor({3, 1})));
  EXPECT_EQ(dataset.size(), 4u);
}

TEST(TensorDataset, GivesTwoTensorsAsAnExample) {
  TensorDataset dataset(torch::arange(8.0).reshape({4, 2}), torch::arange(4));

  const auto [data, target] = dataset.get_batch(kIndices);

  EXPECT_TRUE(torch::equal(data, torch::tensor({{6.0f, 7.0f}, {2.0f, 3.0f}})));
  EXPECT_TRUE(torch::equal(target, torch::tensor({3, 1})));
}

TEST(TensorDataset, GivesMoreTensorsAsAnArray) {
  TensorDataset dataset(torch::arange(4), torch::arange(4) * 10, torch::arange(4) * 100);

  const auto [ones, tens, hundreds] = dataset.get_batch(kIndices);

  EXPECT_EQ(tens[0].item<int>(), 30);
  EXPECT_EQ(hundreds[1].item<int>(), 100);
}

TEST(TensorDataset, GoesThroughALoaderWithWorkersThatShareTheTensors) {
  const auto values = torch::arange(100);
  auto batches =
      loader<SequentialSampler>(TensorDataset(values, values * 2), torch::data::DataLoaderOptions(8).workers(3));
  std::vector<at::Tensor> seen;

  for (auto& [data, target] : batches) {
    EXPECT_TRUE(torch::equal(data * 2, target));
    seen.push_back(data);
  }

  EXPECT_TRUE(torch::equal(torch::cat(seen), values));
  static_assert(is_thread_safe<TensorDataset<2>>::value && is_thread_safe<NamedTensorDataset>::value);
}

TEST(TensorDataset, TensorsOfDifferentFirstSizeAreNamed) {
  EXPECT_EQ(words_of<UsageError>([] {
              TensorDataset(torch::ones({3, 2}), torch::ones({4}));
            }),
            "[data] the dataset's tensors differ in their first size: 0 [3, 2], 1 [4]; expected as many rows in "
            "each. Check that they belong together.");
}

TEST(TensorDataset, AnUndefinedTensorOrOneWithoutDimensionsIsRefused) {
  EXPECT_NE(words_of<UsageError>([] { TensorDataset(torch::ones({3}), at::Tensor()); }).find("tensor 1"),
            std::string::npos);
  EXPECT_NE(words_of<UsageError>([] { TensorDataset dataset(torch::tensor(1)); }).find("has no dimension"),
            std::string::npos);
}

TEST(NamedTensorDataset, GivesRowsUnderTheirNames) {
  NamedTensorDataset dataset({{"ids", torch::arange(4)}, {"mask", torch::ones({4, 2})}});

  const auto batch = dataset.get_batch(kIndices);

  EXPECT_TRUE(torch::equal(batch.at("ids"), torch::tensor({3, 1})));
  EXPECT_EQ(batch.at("mask").sizes(), (std::vector<int64_t>{2, 2}));
}

TEST(NamedTensorDataset, RefusesNoTensorsAndDifferentFirstSizesByName) {
  EXPECT_THROW(NamedTensorDataset({}), UsageError);
  EXPECT_NE(words_of<UsageError>([] {
              NamedTensorDataset({{"ids", torch::arange(4)}, {"mask", torch::ones({3, 2})}});
            }).find("'ids' [4], 'mask' [3, 2]"),
            std::string::npos);
}

}  // namespace
}  // namespace hasten::data
