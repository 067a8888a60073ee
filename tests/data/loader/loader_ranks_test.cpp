// Loaders on several ranks: one order for any world, nothing twice but stated padding, and no rank hangs.
#include <gtest/gtest.h>
#include <torch/data/dataloader_options.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <mutex>

#include "hasten/core/error.h"
#include "hasten/data/loader/loader.h"
#include "hasten/data/metrics/metrics.h"
#include "hasten/data/sampler/batch_sampler.h"
#include "support/ranks.h"
#include "support/samples.h"

namespace hasten::data {
namespace {

using process::Process;
using testing::LazySampler;
using testing::Range;
using testing::run_ranks;
using torch::data::DataLoaderOptions;
using torch::data::samplers::RandomSampler;
using torch::data::samplers::SequentialSampler;

using Batches = std::vector<Indices>;

/// What the ranks saw, by rank.
class Seen {
 public:
  explicit Seen(int world_size) : ranks_(static_cast<size_t>(world_size)) {}
  void add(const Process& process, const Indices& batch) {
    const std::lock_guard lock(mutex_);
    ranks_.at(static_cast<size_t>(process.rank())).push_back(batch);
  }
  const std::vector<Batches>& ranks() const { return ranks_; }
  /// Rank after rank within a step.
  Indices in_order() const {
    Indices all;
    for (size_t step = 0; step < ranks_[0].size(); ++step) {
      for (const auto& rank : ranks_) {
        if (step < rank.size()) all.insert(all.end(), rank[step].begin(), rank[step].end());
      }
    }
    return all;
  }

 private:
  std::mutex mutex_;
  std::vector<Batches> ranks_;
};

/// The samples of three epochs in the order in which gathered values lie, with the padding left out.
template <class Sampler>
Indices three_epochs(int world_size, bool split_batches) {
  constexpr size_t kSamples = 29, kStep = 12;
  torch::manual_seed(5);
  std::vector<std::unique_ptr<Seen>> epochs;
  for (int epoch = 0; epoch < 3; ++epoch) epochs.push_back(std::make_unique<Seen>(world_size));
  std::mutex constructing;  // a sampler's constructor draws too: in a process of its own, each rank would draw alone
  std::optional<Sampler> sampler;
  run_ranks(world_size, [&](Process& process) {
    std::unique_lock lock(constructing);
    if (!sampler) sampler.emplace(kSamples);
    auto ours = loader(Range(kSamples), *sampler, split_batches ? kStep : kStep / world_size);
    lock.unlock();
    ours.prepare(process, std::make_shared<training::GradientState>(), {.split_batches = split_batches});
    for (auto& seen : epochs) {
      for (auto& batch : ours) seen->add(process, batch);
    }
  });
  Indices all;
  for (const auto& seen : epochs) {
    const Indices epoch = seen->in_order();
    EXPECT_EQ(epoch.size(), world_size == 1 ? kSamples : kSamples + kStep - kSamples % kStep);
    all.insert(all.end(), epoch.begin(), epoch.begin() + kSamples);
  }
  return all;
}

TEST(LoaderRanks, TheOrderDependsOnTheSeedAloneNotOnTheWorld) {
  for (const bool split_batches : {false, true}) {
    const Indices random = three_epochs<RandomSampler>(1, split_batches);
    const Indices lazy = three_epochs<LazySampler>(1, split_batches);
    for (const int world_size : {2, 3, 4}) {
      SCOPED_TRACE(text("world_size ", world_size, ", split_batches ", split_batches));
      EXPECT_EQ(three_epochs<RandomSampler>(world_size, split_batches), random);
      EXPECT_EQ(three_epochs<LazySampler>(world_size, split_batches), lazy);
    }
  }
}

TEST(LoaderRanks, EachEpochHasAnOrderOfItsOwn) {
  const Indices random = three_epochs<RandomSampler>(2, false), lazy = three_epochs<LazySampler>(2, false);

  EXPECT_FALSE(std::equal(random.begin(), random.begin() + 29, random.begin() + 29));
  EXPECT_FALSE(std::equal(lazy.begin(), lazy.begin() + 29, lazy.begin() + 29));
}

TEST(LoaderRanks, WorkersDoNotChangeWhatARankGets) {
  for (const size_t workers : {0, 2}) {
    Seen seen(2);
    run_ranks(2, [&](Process& process) {
      auto ours = loader<SequentialSampler>(Range(10), DataLoaderOptions(3).workers(workers));
      ours.prepare(process, std::make_shared<training::GradientState>());
      for (auto& batch : ours) seen.add(process, batch);
      EXPECT_EQ(ours.size(), 2u);
      EXPECT_EQ(ours.total_batch_size(), 6u);
      EXPECT_EQ(ours.total_dataset_length(), 10u);
    });

    EXPECT_EQ(seen.ranks()[0], (Batches{{0, 1, 2}, {6, 7, 8}}));
    EXPECT_EQ(seen.ranks()[1], (Batches{{3, 4, 5}, {9, 0, 1}}));
  }
}

TEST(LoaderRanks, UnevenBatchesEndEarlierOnSomeRanksAndNothingHangs) {
  Seen seen(3);
  run_ranks(3, [&](Process& process) {
    const auto state = std::make_shared<training::GradientState>();
    auto ours = loader<RandomSampler>(Range(8), 2);
    ours.prepare(process, state, {.even_batches = false});
    for (int epoch = 0; epoch < 2; ++epoch) {
      size_t given = 0;
      for (auto& batch : ours) {
        seen.add(process, batch);
        EXPECT_EQ(state->end_of_dataloader(), ++given == ours.size());
        if (!state->end_of_dataloader()) continue;
        EXPECT_EQ(state->remainder(), process.rank() == 0 ? 2 : 0);
      }
    }
  });

  EXPECT_EQ(seen.ranks()[0].size(), 4u);
  EXPECT_EQ(seen.ranks()[1].size(), 2u);
  EXPECT_EQ(seen.ranks()[2].size(), 2u);
}

TEST(LoaderRanks, AWorldLargerThanTheDatasetRepeatsItAndCountsTheNewSamples) {
  run_ranks(4, [&](Process& process) {
    const auto state = std::make_shared<training::GradientState>();
    auto ours = loader<SequentialSampler>(Range(3), 1).prepare(process, state);

    for (auto& batch : ours) {
      EXPECT_EQ(batch, Indices{static_cast<size_t>(process.rank() % 3)});
      EXPECT_TRUE(state->end_of_dataloader());
      EXPECT_EQ(state->remainder(), 3);
    }
    EXPECT_EQ(ours.epochs_begun(), 1u);
  });
}

TEST(LoaderRanks, AnEmptyDatasetGivesNoRankABatch) {
  run_ranks(2, [&](Process& process) {
    auto ours = loader<RandomSampler>(Range(0), 4).prepare(process, std::make_shared<training::GradientState>());

    EXPECT_TRUE(ours.begin() == ours.end());
  });
}

TEST(LoaderRanks, NestedLoopsAndBreaksKeepTheRanksTogether) {
  torch::manual_seed(1);
  Seen outer_seen(2), inner_seen(2);
  run_ranks(2, [&](Process& process) {
    const auto state = std::make_shared<training::GradientState>();
    auto outer = loader<RandomSampler>(Range(12), DataLoaderOptions(2).workers(1)).prepare(process, state);
    auto inner = loader<RandomSampler>(Range(20), DataLoaderOptions(1).workers(2)).prepare(process, state);
    for (auto& batch : outer) {
      outer_seen.add(process, batch);
      size_t given = 0;
      for (auto& other : inner) {
        inner_seen.add(process, other);
        if (++given == 3) break;
      }
    }
    EXPECT_FALSE(state->in_dataloader());
  });

  Indices all = outer_seen.in_order();
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, (Indices{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(inner_seen.ranks()[0].size(), 9u);
  for (size_t i = 0; i < 9; ++i) EXPECT_NE(inner_seen.ranks()[0][i], inner_seen.ranks()[1][i]);
}

TEST(LoaderRanks, AFailingSampleEndsThePassOfItsRankAndNamesIt) {
  run_ranks(2, [&](Process& process) {
    auto ours = loader<SequentialSampler>(testing::Broken(7, 12), DataLoaderOptions(2).workers(2));
    ours.prepare(process, std::make_shared<training::GradientState>());
    std::string words;
    try {
      for ([[maybe_unused]] auto& batch : ours) {
      }
    } catch (const DataError& error) {
      words = error.what();
    }

    EXPECT_EQ(words,
              process.rank() == 0 ? "" : "[data] rank 1/2: the dataset failed on sample 7 of 12: a hole in the disk");
  });
}

TEST(LoaderRanks, AFailingSampleReachesTheLoopsOfAllRanksEvenIfItsOwnCatchesIt) {
  std::vector<std::string> words(3);
  run_ranks(3, [&](Process& process) {
    auto ours = loader<SequentialSampler>(testing::Broken(7, 60), 2);
    ours.prepare(process, std::make_shared<training::GradientState>());
    try {
      for ([[maybe_unused]] auto& batch : ours) process.group().all_reduce_(torch::ones({1}));
    } catch (const Error& error) {
      words.at(static_cast<size_t>(process.rank())) = error.what();
    }
  });

  for (const auto& said : words) {
    EXPECT_NE(said.find("[data] rank 0/3: the dataset failed on sample 7 of 60: a hole in the disk"), std::string::npos)
        << said;
  }
}

TEST(LoaderRanks, IsDestroyedInMidEpochOnEveryRank) {
  run_ranks(3, [&](Process& process) {
    for (int round = 0; round < 20; ++round) {
      auto ours = loader<RandomSampler>(Range(100), DataLoaderOptions(2).workers(2));
      ours.prepare(process, std::make_shared<training::GradientState>());
      auto it = ours.begin();
      ++it;
    }
  });
}

TEST(LoaderRanks, SplittingByAWorldThatDoesNotDivideIsRefusedAtPrepare) {
  run_ranks(2, [&](Process& process) {
    auto ours = loader<SequentialSampler>(Range(9), 3);

    EXPECT_THROW(ours.prepare(process, nullptr, {.split_batches = true}), UsageError);
  });
}

TEST(LoaderRanks, TorchsDistributedSamplersAreRefused) {
  run_ranks(2, [&](Process& process) {
    auto ours = loader(Range(9), torch::data::samplers::DistributedRandomSampler(9, 2, process.rank()), 3);

    EXPECT_THROW(ours.prepare(process, nullptr), UsageError);
  });
}

TEST(LoaderRanks, BatchesOfAnySizeAreFullStepsUnlessSomeAreGivenOnceMore) {
  run_ranks(2, [](Process& process) {
    const auto state = std::make_shared<training::GradientState>();
    auto ours = loader(Range(10), BatchSampler({{0, 1, 2}, {3, 4, 5, 6, 7, 8, 9}}), 1).prepare(process, state);
    auto odd = loader(Range(4), BatchSampler({{0}, {1}, {2, 3}}), 1).prepare(process, state);
    size_t counted = 0;
    for (auto& batch : ours) {
      EXPECT_TRUE(state->end_of_dataloader());
      EXPECT_EQ(state->remainder(), 0);
      counted +=
          without_padding(torch::ones({static_cast<int64_t>(batch.size())}), state->position(), process.rank()).numel();
    }
    std::vector<int64_t> remainders;
    size_t counted_odd = 0;
    for (auto& batch : odd) {
      remainders.push_back(state->remainder());
      counted_odd +=
          without_padding(torch::ones({static_cast<int64_t>(batch.size())}), state->position(), process.rank()).numel();
    }

    EXPECT_EQ(counted, process.rank() == 0 ? 3u : 7u);
    EXPECT_EQ(remainders, (std::vector<int64_t>{-1, 2}));
    EXPECT_EQ(counted_odd, process.rank() == 0 ? 3u : 1u);
  });
}

}  // namespace
}  // namespace hasten::data
