// Transforms of whole batches: one call of the dataset and one of each transform for a batch.
#include "hasten/data/dataset/map.h"

#include <gtest/gtest.h>
#include <torch/data/datasets/tensor.h>
#include <torch/data/transforms/base.h>
#include <torch/data/transforms/stack.h>
#include <torch/data/transforms/tensor.h>
#include <torch/types.h>

#include <atomic>
#include <memory>
#include <numeric>

#include "hasten/data/dataset/concat.h"
#include "hasten/data/dataset/subset.h"
#include "hasten/data/dataset/tensor_dataset.h"
#include "hasten/data/loader/loader.h"
#include "support/samples.h"

namespace hasten::data {
namespace {

using testing::Counting;
using testing::Range;
using torch::data::DataLoaderOptions;
using torch::data::samplers::SequentialSampler;
using Example = torch::data::Example<>;

/// Rows 0 … size - 1 as one tensor a batch; counts calls and rows over all its copies.
class Whole : public torch::data::datasets::BatchDataset<Whole, at::Tensor> {
 public:
  explicit Whole(int64_t size) : rows_(torch::arange(size)) {}
  at::Tensor get_batch(c10::ArrayRef<size_t> indices) override {
    ++*calls_;
    return gather_rows(rows_, indices);
  }
  std::optional<size_t> size() const override { return static_cast<size_t>(rows_.size(0)); }
  std::shared_ptr<std::atomic<int>> calls() const { return calls_; }

 private:
  at::Tensor rows_;
  std::shared_ptr<std::atomic<int>> calls_ = std::make_shared<std::atomic<int>>(0);
};

at::Tensor doubled(at::Tensor batch) {
  return batch * 2;
}

/// One of torch's transforms of batches; counts its calls.
struct PlusOne : torch::data::transforms::BatchTransform<at::Tensor, at::Tensor> {
  explicit PlusOne(std::shared_ptr<std::atomic<int>> calls) : calls(std::move(calls)) {}
  at::Tensor apply_batch(at::Tensor batch) override {
    ++*calls;
    return batch + 1;
  }
  std::shared_ptr<std::atomic<int>> calls;
};

template <class Dataset>
at::Tensor all_of(Dataset dataset, size_t batch_size, size_t workers) {
  std::vector<at::Tensor> seen;
  auto batches = loader<SequentialSampler>(std::move(dataset), DataLoaderOptions(batch_size).workers(workers));
  for (auto& batch : batches) seen.push_back(batch);
  return torch::cat(seen);
}

TEST(Map, AWholeBatchIsFetchedByOneCallAndTransformedByOneCall) {
  for (const size_t workers : {0, 2}) {
    const auto transformed = std::make_shared<std::atomic<int>>(0);
    const Whole dataset(10);

    const at::Tensor given = all_of(data::map(dataset, doubled, PlusOne(transformed)), 4, workers);

    EXPECT_TRUE(torch::equal(given, torch::arange(10) * 2 + 1));
    EXPECT_EQ(*dataset.calls(), 3);
    EXPECT_EQ(*transformed, 3);
  }
}

TEST(Map, SubsetsAndConcatenationsAskTheDatasetOnceABatchToo) {
  const Whole first(10), second(10);
  std::vector<size_t> reversed(10);
  std::iota(reversed.rbegin(), reversed.rend(), size_t{0});

  const at::Tensor given = all_of(Subset(data::map(first, doubled), reversed), 5, 0);
  EXPECT_TRUE(torch::equal(given, torch::arange(9, -1, -1) * 2));
  EXPECT_EQ(*first.calls(), 2);

  const auto both = data::map(concat(Subset(first, reversed), data::map(second, doubled)), doubled);
  EXPECT_TRUE(torch::equal(all_of(both, 8, 2), torch::cat({torch::arange(9, -1, -1) * 2, torch::arange(10) * 4})));
  EXPECT_EQ(*first.calls(), 2 + 2) << "of three batches the first two hold samples of it";
  EXPECT_EQ(*second.calls(), 2);
}

TEST(Map, OneOfTorchsTransformsOfSamplesIsGivenTheWholeBatch) {
  const at::Tensor images = torch::rand({6, 3, 4, 4}), labels = torch::arange(6);
  auto normalised =
      data::map(TensorDataset(images, labels), torch::data::transforms::Normalize<>({0.5, 0.4, 0.3}, {2.0, 3.0, 4.0}));
  const std::vector<size_t> indices{4, 1};

  const Example batch = normalised.get_batch(indices);

  const auto of_three = [](std::vector<float> values) { return torch::tensor(values).view({3, 1, 1}); };
  const at::Tensor expected = (images - of_three({0.5, 0.4, 0.3})) / of_three({2, 3, 4});
  EXPECT_TRUE(torch::allclose(batch.data[0], expected[4]));
  EXPECT_TRUE(torch::allclose(batch.data[1], expected[1]));
  EXPECT_TRUE(torch::equal(batch.target, torch::tensor({4, 1})));
}

TEST(Map, TakesStackAndOwnCollationOfSamples) {
  auto sums = data::map(Range(10), [](std::vector<size_t> samples) {
    return std::accumulate(samples.begin(), samples.end(), size_t{0});
  });
  std::vector<size_t> seen;
  for (const size_t sum : loader<SequentialSampler>(sums, DataLoaderOptions(4).workers(2))) seen.push_back(sum);
  EXPECT_EQ(seen, (std::vector<size_t>{0 + 1 + 2 + 3, 4 + 5 + 6 + 7, 8 + 9}));

  using Single = torch::data::TensorExample;
  auto stacked =
      data::map(torch::data::datasets::TensorDataset(torch::arange(4)), torch::data::transforms::Stack<Single>(),
                [](Single batch) { return Single(batch.data * 2); });
  EXPECT_TRUE(torch::equal((*loader<SequentialSampler>(stacked, 4).begin()).data, torch::arange(4) * 2));
}

TEST(Map, GoesBehindAStreamToo) {
  auto squared = data::map(Counting(5), [](std::vector<size_t> samples) {
    for (size_t& sample : samples) sample *= sample;
    return samples;
  });
  std::vector<std::vector<size_t>> seen;

  for (const auto& batch : loader(squared, 3)) seen.push_back(batch);

  EXPECT_EQ(seen, (std::vector<std::vector<size_t>>{{0, 1, 4}, {9, 16}}));
}

const auto kNothing = [](at::Tensor batch) { return batch; };
using Rows = TensorDataset<1>;
static_assert(is_thread_safe<decltype(data::map(std::declval<Rows>(), kNothing))>::value);
static_assert(is_thread_safe<decltype(data::map(std::declval<Rows>(), doubled))>::value);
static_assert(!is_thread_safe<decltype(data::map(std::declval<Whole>(), kNothing))>::value);
static_assert(!is_thread_safe<decltype(data::map(std::declval<Rows>(), std::declval<PlusOne>()))>::value);

/// Adds the epoch.
struct AddEpoch {
  uint64_t epoch = 0;
  void set_epoch(uint64_t now) { epoch = now; }
  at::Tensor operator()(at::Tensor batch) const { return batch + static_cast<int64_t>(epoch); }
};

TEST(Map, TransformsAreToldTheEpochOnEveryWorker) {
  for (const size_t workers : {0, 3}) {
    auto ours =
        loader<SequentialSampler>(data::map(Whole(6), AddEpoch(), kNothing), DataLoaderOptions(1).workers(workers));
    ours.set_epoch(40);

    int64_t expected = 40;
    for (auto& batch : ours) EXPECT_EQ(batch.item<int64_t>(), expected++);
    EXPECT_EQ(expected, 46);
  }
}

}  // namespace
}  // namespace hasten::data
