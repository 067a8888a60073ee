// The loader in a world of one: torch's own loader is the reference, batch for batch and draw for draw.
#include "hasten/data/loader/loader.h"

#include <gtest/gtest.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/tensor.h>
#include <torch/data/transforms/stack.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <memory>
#include <string>
#include <vector>

#include "hasten/core/error.h"
#include "support/samples.h"

namespace hasten::data {
namespace {

using testing::Broken;
using testing::LazySampler;
using testing::Range;
using torch::data::DataLoaderOptions;
using torch::data::samplers::RandomSampler;
using torch::data::samplers::SequentialSampler;
using torch::data::transforms::Stack;

template <class Loader>
std::vector<std::vector<size_t>> epoch(Loader&& loader) {
  std::vector<std::vector<size_t>> batches;
  for (auto& batch : loader) batches.push_back(batch);
  return batches;
}

process::Process world_of_one() {
  return {process::RankInfo{}, comm::Group(), c10::Device(c10::kCPU)};
}

DataLoaderOptions options(size_t batch_size, size_t workers = 0, bool drop_last = false) {
  return DataLoaderOptions(batch_size).workers(workers).drop_last(drop_last);
}

template <class Sampler>
void expect_torchs_batches(const DataLoaderOptions& options) {
  torch::manual_seed(7);
  auto plain = torch::data::make_data_loader<Sampler>(Range(23), options);
  std::vector<std::vector<std::vector<size_t>>> expected;
  for (int e = 0; e < 3; ++e) expected.push_back(epoch(*plain));
  const double drawn_after = torch::rand({}).item<double>();

  torch::manual_seed(7);
  auto ours = loader<Sampler>(Range(23), options).prepare(world_of_one(), std::make_shared<training::GradientState>());
  std::vector<std::vector<std::vector<size_t>>> given;
  for (int e = 0; e < 3; ++e) given.push_back(epoch(ours));

  EXPECT_EQ(given, expected);
  EXPECT_EQ(torch::rand({}).item<double>(), drawn_after) << "the default generator stands elsewhere";
  EXPECT_EQ(ours.size(), expected[0].size());
}

TEST(Loader, GivesTorchsBatchesAndLeavesItsGeneratorState) {
  for (const size_t workers : {0, 1, 2, 3}) {
    for (const bool drop_last : {false, true}) {
      SCOPED_TRACE(text("workers ", workers, ", drop_last ", drop_last));
      expect_torchs_batches<RandomSampler>(options(5, workers, drop_last));
      expect_torchs_batches<SequentialSampler>(options(5, workers, drop_last));
      expect_torchs_batches<LazySampler>(options(5, workers, drop_last));
    }
  }
}

TEST(Loader, StacksExamplesAsTorchDoes) {
  const auto data = torch::rand({10, 3});
  auto dataset = torch::data::datasets::TensorDataset(data).map(Stack<torch::data::TensorExample>());
  auto plain = torch::data::make_data_loader<SequentialSampler>(dataset, 4);
  auto ours = loader<SequentialSampler>(dataset, 4);

  auto expected = plain->begin();
  for (auto& batch : ours) {
    EXPECT_TRUE(torch::equal(batch.data, expected->data));
    ++expected;
  }
  EXPECT_TRUE(expected == plain->end());
}

TEST(Loader, SaysWhereItsLoopIs) {
  const auto state = std::make_shared<training::GradientState>();
  auto ours = loader<SequentialSampler>(Range(7), 3).prepare(world_of_one(), state);
  std::vector<bool> ends;
  std::vector<int64_t> remainders;

  EXPECT_FALSE(state->in_dataloader());
  for ([[maybe_unused]] auto& batch : ours) {
    ends.push_back(state->end_of_dataloader());
    remainders.push_back(state->remainder());
  }

  EXPECT_EQ(ends, (std::vector<bool>{false, false, true}));
  EXPECT_EQ(remainders, (std::vector<int64_t>{1, 1, 1}));
  EXPECT_FALSE(state->in_dataloader());
}

TEST(Loader, NestedLoopsAndBreaksLeaveThePositionOfTheOuterLoop) {
  const auto state = std::make_shared<training::GradientState>();
  auto outer = loader<SequentialSampler>(Range(4), options(2, 1)).prepare(world_of_one(), state);
  auto inner = loader<SequentialSampler>(Range(9), options(1, 2)).prepare(world_of_one(), state);
  std::vector<bool> ends;

  for ([[maybe_unused]] auto& batch : outer) {
    for (auto& other : inner) {
      if (other[0] == 3) break;
      EXPECT_FALSE(state->end_of_dataloader());
    }
    ends.push_back(state->end_of_dataloader());
  }

  EXPECT_EQ(ends, (std::vector<bool>{false, true}));
  EXPECT_FALSE(state->in_dataloader());
}

TEST(Loader, ReadsNoSampleAheadWithoutWorkers) {
  Range dataset(9);
  const auto reads = dataset.reads();
  auto ours = loader<SequentialSampler>(dataset, 3);

  auto it = ours.begin();

  EXPECT_EQ(*reads, 3u);
}

TEST(Loader, BeginsAgainAfterABreak) {
  for (const size_t workers : {0, 2}) {
    auto ours = loader<SequentialSampler>(Range(12), options(2, workers));
    for (auto& batch : ours) {
      if (batch[0] == 4) break;
    }

    EXPECT_EQ(epoch(ours).size(), 6u);
    EXPECT_EQ(ours.epochs_begun(), 2u);
  }
}

TEST(Loader, IsDestroyedInMidEpochAtOnce) {
  for (int round = 0; round < 200; ++round) {
    auto ours = std::make_optional(loader<RandomSampler>(Range(1000), options(2, 2)));
    auto it = std::make_optional(ours->begin());
    ++*it;

    if (round % 2 == 0) ours.reset();
    it.reset();
  }
}

TEST(Loader, ANewPassEndsTheOlderOne) {
  auto ours = loader<SequentialSampler>(Range(6), 2);
  auto older = ours.begin();

  EXPECT_EQ(epoch(ours).size(), 3u);
  EXPECT_THROW(++older, UsageError);
}

TEST(Loader, WithoutOrderingGivesEachBatchOnceAndTheLastOneLast) {
  const auto state = std::make_shared<training::GradientState>();
  auto ours = loader<SequentialSampler>(Range(41), options(4, 3).enforce_ordering(false));
  ours.prepare(world_of_one(), state);
  std::vector<size_t> seen;
  for (auto& batch : ours) {
    seen.insert(seen.end(), batch.begin(), batch.end());
    EXPECT_EQ(state->end_of_dataloader(), batch[0] == 40);
  }

  std::sort(seen.begin(), seen.end());
  ASSERT_EQ(seen.size(), 41u);
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], i);
}

TEST(Loader, AFailingSampleReachesTheLoopByNameWithItsOwnException) {
  for (const size_t workers : {0, 2}) {
    auto ours = loader<SequentialSampler>(Broken(13, 20), options(5, workers));
    size_t num_batches = 0;
    try {
      for ([[maybe_unused]] auto& batch : ours) ++num_batches;
      FAIL() << "the dataset's exception was lost";
    } catch (const DataError& error) {
      EXPECT_STREQ(error.what(), "[data] the dataset failed on sample 13 of 20: a hole in the disk");
      EXPECT_THROW(std::rethrow_if_nested(error), std::runtime_error);
    }

    EXPECT_EQ(num_batches, 2u);
    EXPECT_THROW(epoch(ours), DataError) << "the loader can be used again";
  }
}

/// Sample i has i values.
class Ragged : public torch::data::datasets::Dataset<Ragged, torch::data::TensorExample> {
 public:
  torch::data::TensorExample get(size_t index) override { return torch::ones({static_cast<int64_t>(index)}); }
  std::optional<size_t> size() const override { return 8; }
};

TEST(Loader, ARaggedBatchIsRefusedWithItsSamplesAndShapes) {
  auto ours = loader<SequentialSampler>(Ragged().map(Stack<torch::data::TensorExample>()), 3);
  try {
    ours.begin();
    ADD_FAILURE() << "no error";
  } catch (const DataError& error) {
    const std::string words = error.what();
    EXPECT_NE(words.find("[data] the dataset failed on samples 0, 1, 2 of 8: "), std::string::npos) << words;
    EXPECT_NE(words.find("equal size"), std::string::npos) << words;
    EXPECT_EQ(words.find("frame #"), std::string::npos) << words;
  }
}

/// Waits in get() until it is let go.
class Stuck : public torch::data::datasets::Dataset<Stuck, size_t> {
 public:
  explicit Stuck(std::shared_ptr<std::latch> release) : release_(std::move(release)) {}
  size_t get(size_t index) override {
    release_->wait();
    return index;
  }
  std::optional<size_t> size() const override { return 4; }

 private:
  std::shared_ptr<std::latch> release_;
};

TEST(Loader, ATimeoutNamesTheSampleItWaitedFor) {
  const auto release = std::make_shared<std::latch>(1);
  auto ours = loader<SequentialSampler>(Stuck(release), options(2, 1).timeout(std::chrono::milliseconds(5)));

  try {
    ours.begin();
    ADD_FAILURE() << "no timeout";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("sample 0"), std::string::npos) << error.what();
  }
  release->count_down();
}

/// May be shared, and can't be copied.
class Shared : public torch::data::datasets::Dataset<Shared, size_t> {
 public:
  static constexpr bool kThreadSafe = true;
  Shared() = default;
  Shared(Shared&&) = default;
  size_t get(size_t index) override { return index; }
  std::optional<size_t> size() const override { return 8; }
};

TEST(Loader, AThreadSafeDatasetIsSharedByTheWorkers) {
  auto ours = loader<SequentialSampler>(Shared(), options(2, 3));

  EXPECT_EQ(epoch(ours).size(), 4u);
}

TEST(Loader, AnEmptyDatasetGivesNoBatch) {
  const auto state = std::make_shared<training::GradientState>();
  for (const size_t workers : {0, 2}) {
    auto ours = loader<RandomSampler>(Range(0), options(3, workers)).prepare(world_of_one(), state);

    EXPECT_TRUE(epoch(ours).empty());
    EXPECT_EQ(ours.size(), 0u);
    EXPECT_FALSE(state->in_dataloader());
  }
}

TEST(Loader, SkippedBatchesAreNotReadAndTheOriginalIsUnchanged) {
  for (const size_t workers : {0, 2}) {
    Range dataset(11);
    const auto reads = dataset.reads();
    auto whole = loader<SequentialSampler>(dataset, options(3, workers));
    auto rest = skip_first_batches(whole, 2);

    const auto first = epoch(rest), second = epoch(rest);
    const std::vector<std::vector<size_t>> expected{{6, 7, 8}, {9, 10}};
    EXPECT_EQ(first, expected);
    EXPECT_EQ(second, expected);
    EXPECT_EQ(*reads, 10u);
    EXPECT_EQ(rest.size(), 2u);
    EXPECT_EQ(skip_first_batches(rest, 5).size(), 0u);
    EXPECT_EQ(epoch(whole).size(), 4u);
  }
}

TEST(Loader, SkippingDrawsTheSameOrderAsTheWholePass) {
  torch::manual_seed(3);
  auto whole = loader<RandomSampler>(Range(11), 2);
  const auto expected = epoch(whole);
  torch::manual_seed(3);
  auto again = loader<RandomSampler>(Range(11), 2);

  const auto rest = epoch(skip_first_batches(again, 2));

  EXPECT_EQ(rest, std::vector<std::vector<size_t>>(expected.begin() + 2, expected.end()));
}

TEST(Loader, RefusesOptionsThatMeanNothing) {
  EXPECT_THROW(loader<SequentialSampler>(Range(4), 0), UsageError);
  EXPECT_THROW(loader<SequentialSampler>(Range(4), options(2, 1).max_jobs(0)), UsageError);
}

TEST(Loader, PreparingTwiceIsFineForOneAcceleratorOnly) {
  const auto state = std::make_shared<training::GradientState>();
  auto ours = loader<SequentialSampler>(Range(4), 2).prepare(world_of_one(), state);

  EXPECT_NO_THROW(ours.prepare(world_of_one(), state));
  EXPECT_THROW(ours.prepare(world_of_one(), std::make_shared<training::GradientState>()), UsageError);
}

using TorchLoader = decltype(torch::data::make_data_loader(Range(4), DataLoaderOptions(2)));
static_assert(is_torch_loader_v<TorchLoader> && is_torch_loader_v<TorchLoader&>);
static_assert(is_torch_loader_v<const TorchLoader::element_type&>);
static_assert(!is_torch_loader_v<int> && !is_torch_loader_v<Range> && !is_torch_loader_v<std::unique_ptr<int>>);
static_assert(is_loader_v<const Loader<Range>&> && !is_loader_v<TorchLoader> && !is_torch_loader_v<Loader<Range>>);
static_assert(!is_thread_safe<Range>::value && is_thread_safe<Shared>::value);

TEST(Loader, AnOldPassThatGoesLeavesTheJobsOfTheNewOne) {
  auto ours = loader<SequentialSampler>(Range(64), options(2, 1).max_jobs(8).timeout(std::chrono::milliseconds(20000)));
  auto it = ours.begin();
  std::vector<size_t> first_of_batches;
  for (int step = 0; step < 70; ++step) {
    if (it == ours.end()) it = ours.begin();
    first_of_batches.push_back((*it)[0]);
    ++it;
  }

  for (size_t step = 0; step < first_of_batches.size(); ++step) EXPECT_EQ(first_of_batches[step], 2 * (step % 32));
}

TEST(Loader, TorchsSamplersMayBeOfAnotherSizeThanTheDataset) {
  const auto prepared = [](auto sampler, bool seedable) {
    return loader(Range(10), sampler, 1)
        .prepare(world_of_one(), std::make_shared<training::GradientState>(),
                 {.use_seedable_sampler = seedable, .data_seed = 3});
  };
  for (const bool seedable : {false, true}) {
    auto random = prepared(RandomSampler(4), seedable);
    auto in_turn = prepared(SequentialSampler(4), seedable);
    auto batches = epoch(random);
    std::sort(batches.begin(), batches.end());

    EXPECT_EQ(random.size(), 4u);
    EXPECT_EQ(in_turn.size(), 4u);
    EXPECT_EQ(batches, (std::vector<std::vector<size_t>>{{0}, {1}, {2}, {3}}));
    EXPECT_EQ(epoch(in_turn), batches);
  }
}

/// Gives two batches, then fails.
class FailingSampler : public SeedableSequentialSampler {
 public:
  FailingSampler() : SeedableSequentialSampler(6) {}

 protected:
  size_t at(size_t position) const override {
    if (position == 4) throw std::runtime_error("the list is torn");
    return position;
  }
};

TEST(Loader, TheBatchesBeforeAnErrorOfTheSamplerAreGivenFirst) {
  for (const size_t workers : {0, 2}) {
    const auto state = std::make_shared<training::GradientState>();
    auto ours = loader(Range(6), FailingSampler(), options(2, workers)).prepare(world_of_one(), state);
    std::vector<std::vector<size_t>> given;
    const auto run = [&] {
      for (auto& batch : ours) {
        given.push_back(batch);
        EXPECT_FALSE(state->end_of_dataloader());
      }
    };

    EXPECT_THROW(run(), std::runtime_error);
    EXPECT_EQ(given, (std::vector<std::vector<size_t>>{{0, 1}, {2, 3}}));
  }
}

}  // namespace
}  // namespace hasten::data
