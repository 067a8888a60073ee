#include "hasten/data/dataset/subset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/data/transforms/stack.h>
#include <torch/types.h>

#include "hasten/data/dataset/tensor_dataset.h"
#include "hasten/data/loader/loader.h"
#include "support/folder.h"
#include "support/samples.h"

namespace hasten::data {
namespace {

using ::testing::ElementsAre;
using testing::Range;
using testing::words_of;
using Parts = std::vector<std::vector<size_t>>;

template <class Dataset>
Parts indices_of(const std::vector<Subset<Dataset>>& subsets) {
  Parts parts;
  for (const auto& subset : subsets) parts.push_back(subset.indices());
  return parts;
}

TEST(Subset, GivesTheSamplesAtItsIndices) {
  Subset subset(Range(10), {7, 3, 7});
  const std::vector<size_t> positions{2, 1};

  EXPECT_EQ(subset.size(), 3u);
  EXPECT_THAT(subset.get_batch(positions), ElementsAre(7, 3));
  static_assert(!is_thread_safe<Subset<Range>>::value && is_thread_safe<Subset<TensorDataset<1>>>::value);
}

TEST(Subset, OfWholeBatchesGivesWholeBatchesThroughALoader) {
  auto batches = loader<torch::data::samplers::SequentialSampler>(Subset(TensorDataset(torch::arange(10)), {9, 8, 1}),
                                                                  torch::data::DataLoaderOptions(2).workers(2));
  std::vector<at::Tensor> seen;

  for (auto& batch : batches) seen.push_back(batch);

  EXPECT_TRUE(torch::equal(torch::cat(seen), torch::tensor({9, 8, 1})));
}

TEST(Subset, RefusesAnIndexThatTheDatasetDoesNotHave) {
  EXPECT_EQ(words_of<UsageError>([] {
              Subset(Range(3), {0, 3});
            }),
            "[data] position 1 of the subset asks for sample 3, but the dataset has 3 samples. Make the "
            "indices for "
            "this dataset.");
}

TEST(Subset, APositionOutOfRangeIsNamed) {
  Subset subset(Range(10), {7});
  const std::vector<size_t> positions{1};

  EXPECT_NE(words_of<DataError>([&] { subset.get_batch(positions); }).find("sample 1 of a subset of 1"),
            std::string::npos);
}

// The expected parts are those of torch.utils.data.random_split (PyTorch 2.13) with
// generator=torch.Generator().manual_seed(seed).
TEST(RandomSplit, EqualsPyTorchsByFractions) {
  EXPECT_EQ(indices_of(random_split(Range(10), {0.3, 0.3, 0.4}, 42)), (Parts{{2, 6, 1}, {8, 4, 5}, {0, 9, 3, 7}}));
  EXPECT_EQ(indices_of(random_split(Range(11), {0.5, 0.25, 0.25}, 7)), (Parts{{3, 0, 9, 2, 5, 8}, {4, 10, 1}, {7, 6}}));
  EXPECT_EQ(indices_of(random_split(Range(10), {1.0 / 3, 1.0 / 3, 1.0 / 3}, 3)),
            (Parts{{6, 0, 3, 7}, {8, 5, 1}, {9, 2, 4}}));
}

TEST(RandomSplit, EqualsPyTorchsByLengths) {
  EXPECT_EQ(indices_of(random_split(Range(7), {4, 2, 1}, 0)), (Parts{{4, 0, 5, 3}, {2, 6}, {1}}));
  EXPECT_EQ(indices_of(random_split(Range(7), std::vector<size_t>{4, 2, 1}, 0)), (Parts{{4, 0, 5, 3}, {2, 6}, {1}}));
}

TEST(RandomSplit, EqualsPyTorchsOfManySamples) {
  const auto parts = indices_of(random_split(Range(60000), {0.9, 0.1}, 2147483647));

  ASSERT_EQ(parts[0].size(), 54000u);
  ASSERT_EQ(parts[1].size(), 6000u);
  EXPECT_THAT(std::vector(parts[0].begin(), parts[0].begin() + 5), ElementsAre(2031, 32248, 15165, 3819, 20865));
  EXPECT_THAT(std::vector(parts[1].end() - 3, parts[1].end()), ElementsAre(39370, 54825, 3104));
}

TEST(RandomSplit, RefusesWhatDoesNotSum) {
  EXPECT_NE(words_of<UsageError>([] {
              random_split(Range(10), {0.5, 0.4}, 0);
            }).find("0.5, 0.4 sum to 0.9"),
            std::string::npos);
  EXPECT_NE(words_of<UsageError>([] { random_split(Range(10), {-0.5, 1.5}, 0); }).find("-0.5, 1.5"), std::string::npos);
  EXPECT_NE(words_of<UsageError>([] {
              random_split(Range(10), {5, 4}, 0);
            }).find("5, 4, but the dataset has 10"),
            std::string::npos);
  EXPECT_NE(words_of<UsageError>([] {
              random_split(Range(10), {11, -1}, 0);
            }).find("the length -1"),
            std::string::npos);
  EXPECT_THROW(split_indices(10, {static_cast<size_t>(-1), 11}, 0), UsageError) << "a sum that wraps round";
  EXPECT_THROW(split_lengths(10, {}), UsageError);
}

}  // namespace
}  // namespace hasten::data
