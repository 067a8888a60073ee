// Batches on a GPU: by way of pinned memory and a stream of their own they hold what the dataset gave, also
// while the loop's kernels run.
#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <torch/data/transforms/stack.h>
#include <torch/types.h>

#include <atomic>
#include <numeric>

#include "data/loader/detail/staging.h"
#include "hasten/data/dataset/map.h"
#include "hasten/data/dataset/subset.h"
#include "hasten/data/dataset/tensor_dataset.h"
#include "hasten/data/loader/loader.h"
#include "support/device.h"

namespace hasten::data {
namespace {

using torch::data::DataLoaderOptions;
using torch::data::samplers::SequentialSampler;

const c10::Device kGpu(c10::kCUDA, 0);

TEST(StagingGpu, PinnedTensorsArriveUnchanged) {
  ASSERT_TRUE(at::hasCUDA()) << "tests labelled gpu need a CUDA libtorch and a GPU";
  ASSERT_TRUE(detail::Staging::serves(kGpu));
  detail::Staging staging(kGpu);
  const at::Tensor values = torch::randn({1000, 1000});

  const at::Tensor pinned = staging.pin(values);
  const at::Tensor there = staging.send(pinned);
  staging.receive(there);

  EXPECT_TRUE(pinned.is_pinned());
  EXPECT_EQ(there.device(), kGpu);
  EXPECT_TRUE(torch::equal(there.cpu(), values));
}

TEST(StagingGpu, EveryBatchOfALoopIsTheDatasets) {
  const at::Tensor rows = torch::randn({64 * 40, 4096}), labels = torch::arange(64 * 40);
  for (const bool pin_memory : {true, false}) {
    for (const size_t workers : {0, 1, 3}) {
      auto ours = loader<SequentialSampler>(TensorDataset(rows, labels), DataLoaderOptions(64).workers(workers));
      ours.prepare({process::RankInfo{}, comm::Group(), kGpu}, std::make_shared<training::GradientState>(),
                   {.pin_memory = pin_memory});
      std::vector<at::Tensor> sums, seen;
      for (auto& batch : ours) {
        ASSERT_EQ(batch.data.device(), kGpu);
        // Work that takes longer than the next copy: memory given back too early would show.
        at::Tensor product = batch.data;
        for (int i = 0; i < 8; ++i) product = torch::tanh(product) + batch.data;
        sums.push_back(batch.data.sum(1));
        seen.push_back(batch.target);
      }

      EXPECT_TRUE(torch::equal(torch::cat(seen).cpu(), labels));
      EXPECT_TRUE(torch::allclose(torch::cat(sums).cpu(), rows.sum(1), 1e-3, 1e-2));
    }
  }
}

// Counts the batches that were made in pinned memory, and the others.
class Watched : public torch::data::datasets::BatchDataset<Watched, torch::data::Example<>> {
 public:
  struct Seen {
    std::atomic<int> pinned = 0, plain = 0;
  };
  static constexpr bool kThreadSafe = true;

  Watched(const at::Tensor& rows, const at::Tensor& labels) : rows_(rows, labels) {}
  torch::data::Example<> get_batch(c10::ArrayRef<size_t> indices) override {
    auto batch = rows_.get_batch(indices);
    ++(batch.data.is_pinned() && batch.target.is_pinned() ? seen->pinned : seen->plain);
    return batch;
  }
  std::optional<size_t> size() const override { return rows_.size(); }

  std::shared_ptr<Seen> seen = std::make_shared<Seen>();

 private:
  TensorDataset<2> rows_;
};

// Gathered in plain memory, each batch would be copied once more on the host.
TEST(StagingGpu, RowsAreGatheredIntoTheMemoryThatTheDeviceCopiesFrom) {
  const at::Tensor rows = torch::randn({64 * 10, 16}), labels = torch::arange(64 * 10);
  const auto seen_on = [&](c10::Device device, bool pin_memory, size_t workers) {
    const Watched dataset(rows, labels);
    auto ours = loader<SequentialSampler>(dataset, DataLoaderOptions(64).workers(workers));
    ours.prepare(testing::alone_on(device), std::make_shared<training::GradientState>(), {.pin_memory = pin_memory});
    std::vector<at::Tensor> got;
    for (auto& batch : ours) got.push_back(batch.data.cpu());
    EXPECT_TRUE(torch::cat(got).equal(rows));
    return std::pair<int, int>(dataset.seen->pinned, dataset.seen->plain);
  };
  const std::pair all(10, 0), none(0, 10);

  for (const size_t workers : {0, 3}) {
    EXPECT_EQ(seen_on(kGpu, true, workers), all);
    EXPECT_EQ(seen_on(kGpu, false, workers), none);
    EXPECT_EQ(seen_on(c10::kCPU, true, workers), none);
  }
  EXPECT_FALSE(gather_rows(rows, std::vector<size_t>{1}).is_pinned()) << "of a program's own";
}

class Samples : public torch::data::datasets::Dataset<Samples> {
 public:
  explicit Samples(at::Tensor rows) : rows_(std::move(rows)) {}
  torch::data::Example<> get(size_t index) override {
    const auto row = static_cast<int64_t>(index);
    return {rows_[row], torch::tensor(row)};
  }
  std::optional<size_t> size() const override { return rows_.size(0); }

 private:
  at::Tensor rows_;
};

// A transform that counts the batches it sees.
auto counting(std::shared_ptr<Watched::Seen> seen) {
  return [seen = std::move(seen)](torch::data::Example<> batch) {
    ++(batch.data.is_pinned() && batch.target.is_pinned() ? seen->pinned : seen->plain);
    return batch;
  };
}

// torch's Stack makes plain memory.
TEST(StagingGpu, SamplesAreStackedInTheMemoryThatTheDeviceCopiesFrom) {
  using Stack = torch::data::transforms::Stack<>;
  const at::Tensor rows = torch::randn({64, 16});
  const auto check = [&](auto make) {
    for (const size_t workers : {0, 2}) {
      const auto seen = std::make_shared<Watched::Seen>();
      auto ours = loader<SequentialSampler>(make(counting(seen)), DataLoaderOptions(16).workers(workers));
      ours.prepare(testing::alone_on(kGpu), std::make_shared<training::GradientState>(), {});
      std::vector<at::Tensor> got;
      for (auto& batch : ours) got.push_back(batch.data.cpu());
      EXPECT_TRUE(torch::cat(got).equal(rows));
      EXPECT_EQ(seen->pinned, 4);
      EXPECT_EQ(seen->plain, 0);
    }
  };
  std::vector<size_t> all(64);
  std::iota(all.begin(), all.end(), 0);

  check([&](auto counter) { return data::map(Samples(rows).map(Stack()), counter); });
  check([&](auto counter) { return data::map(Samples(rows), Stack(), counter); });
  check([&](auto counter) { return data::map(Subset(Samples(rows).map(Stack()), all), counter); });
}

TEST(StagingGpu, ABatchIsHeldUnchangedWhileTheLoopGoesOn) {
  const at::Tensor rows = torch::randn({64 * 20, 512});
  for (const size_t workers : {0, 3}) {
    auto ours =
        loader<SequentialSampler>(TensorDataset(rows, torch::arange(64 * 20)), DataLoaderOptions(64).workers(workers));
    ours.prepare(testing::alone_on(kGpu), std::make_shared<training::GradientState>(), {});
    std::vector<at::Tensor> kept;
    for (int epoch = 0; epoch < 2; ++epoch) {
      kept.clear();
      for (auto& batch : ours) kept.push_back(batch.data);
    }
    EXPECT_TRUE(torch::cat(kept).cpu().equal(rows));
  }
}

// Tensors have an index. A device without one would equal none of theirs, and their copies were not waited for.
TEST(StagingGpu, ADeviceWithoutAnIndexIsTheThreadsDevice) {
  const at::Tensor rows = torch::randn({64 * 20, 512});
  auto ours = loader<SequentialSampler>(TensorDataset(rows, torch::arange(64 * 20)), DataLoaderOptions(64).workers(2));
  ours.prepare(testing::alone_on({c10::kCUDA}), std::make_shared<training::GradientState>(), {});
  std::vector<at::Tensor> kept;
  for (auto& batch : ours) kept.push_back(batch.data.clone());

  EXPECT_TRUE(torch::cat(kept).cpu().equal(rows));
  EXPECT_EQ(testing::alone_on({c10::kCUDA}).device(), kGpu);
}

TEST(StagingGpu, EpochsShareOneStream) {
  auto* counts = testing::pretend::counts();
  if (counts == nullptr) GTEST_SKIP() << "a GPU does not count its streams";
  const auto before = counts->streams[0];
  for (int i = 0; i < 2; ++i) {
    auto ours = loader<SequentialSampler>(TensorDataset(torch::randn({8, 4}), torch::arange(8)), DataLoaderOptions(4));
    ours.prepare(testing::alone_on(kGpu), std::make_shared<training::GradientState>(), {});
    for (int epoch = 0; epoch < 5; ++epoch) {
      for (auto& batch : ours) (void)batch;
    }
  }
  EXPECT_LE(counts->streams[0] - before, 1);
}

}  // namespace
}  // namespace hasten::data
