// What sharding promises for any size, world and option; the peer's own values are in
// batch_shard_golden_test.cpp.
#include "hasten/data/sampler/batch_shard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "hasten/core/error.h"

namespace hasten::data {
namespace {

using Batches = std::vector<Indices>;

BatchShard::Source source_of(Batches batches) {
  return [batches = std::move(batches), at = size_t{0}]() mutable -> std::optional<Indices> {
    if (at == batches.size()) return std::nullopt;
    return batches[at++];
  };
}

Batches sequential(size_t n, size_t batch_size) {
  Batches batches;
  for (size_t i = 0; i < n; ++i) {
    if (i % batch_size == 0) batches.emplace_back();
    batches.back().push_back(i);
  }
  return batches;
}

std::vector<ShardedBatch> one_rank(const Batches& batches, const BatchShardOptions& options) {
  BatchShard shard(options, source_of(batches));
  std::vector<ShardedBatch> given;
  while (auto batch = shard.next()) given.push_back(*batch);
  return given;
}

struct World {
  size_t n;
  BatchShardOptions options;
  std::vector<std::vector<ShardedBatch>> ranks;
};

World random_world(std::mt19937& random) {
  const auto upto = [&](size_t most) { return random() % (most + 1); };
  World world{.n = upto(70), .options = {}, .ranks = {}};
  world.options.world_size = 1 + static_cast<int>(upto(6));
  world.options.split_batches = upto(1);
  world.options.even_batches = upto(1);
  world.options.batch_size = (1 + upto(6)) * (world.options.split_batches ? world.options.world_size : 1);
  const Batches batches = sequential(world.n, *world.options.batch_size);
  for (int rank = 0; rank < world.options.world_size; ++rank) {
    world.options.rank = rank;
    world.ranks.push_back(one_rank(batches, world.options));
    const size_t last = batches.empty() ? 0 : batches.back().size();
    EXPECT_EQ(shard_length(batches.size(), last, world.options), world.ranks.back().size());
  }
  return world;
}

std::string describe(const World& world) {
  return text("n ", world.n, ", batch_size ", *world.options.batch_size, ", world_size ", world.options.world_size,
              ", split_batches ", world.options.split_batches, ", even_batches ", world.options.even_batches);
}

/// Rank after rank within a step, step after step: the order in which gathered values lie.
Indices gathered(const World& world) {
  Indices all;
  for (size_t step = 0; !world.ranks.empty() && step < world.ranks[0].size(); ++step) {
    for (const auto& rank : world.ranks) {
      if (step < rank.size()) all.insert(all.end(), rank[step].indices.begin(), rank[step].indices.end());
    }
  }
  return all;
}

TEST(BatchShard, GivesEverySampleOnceInOrderThenThePaddingFromTheStart) {
  std::mt19937 random(20240611);
  for (int round = 0; round < 2000; ++round) {
    const World world = random_world(random);
    SCOPED_TRACE(describe(world));

    const Indices all = gathered(world);
    const size_t step = *world.options.batch_size * (world.options.split_batches ? 1 : world.options.world_size);
    const size_t padded = (world.n + step - 1) / step * step;

    ASSERT_EQ(all.size(), world.options.even_batches ? padded : world.n);
    const size_t head = std::min(world.n, step);
    for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], i < world.n ? i : (i - world.n) % head);
  }
}

TEST(BatchShard, EvenBatchesAreAsManyAndAsLargeOnEveryRank) {
  std::mt19937 random(11);
  for (int round = 0; round < 500; ++round) {
    const World world = random_world(random);
    if (!world.options.even_batches) continue;
    SCOPED_TRACE(describe(world));

    const size_t size = *world.options.batch_size / (world.options.split_batches ? world.options.world_size : 1);
    for (const auto& rank : world.ranks) {
      ASSERT_EQ(rank.size(), world.ranks[0].size());
      for (const auto& batch : rank) ASSERT_EQ(batch.indices.size(), size);
    }
  }
}

TEST(BatchShard, EveryRankKnowsHowManySamplesOfAStepAreNew) {
  std::mt19937 random(12);
  for (int round = 0; round < 500; ++round) {
    const World world = random_world(random);
    SCOPED_TRACE(describe(world));

    size_t total = 0;
    for (size_t step = 0; step < world.ranks[0].size(); ++step) {
      total += world.ranks[0][step].num_samples;
      for (const auto& rank : world.ranks) {
        if (step >= rank.size()) continue;
        ASSERT_EQ(rank[step].num_samples, world.ranks[0][step].num_samples);
      }
    }
    EXPECT_EQ(total, world.n);
  }
}

TEST(BatchShard, DropLastLeavesOutWhatDoesNotFillAStep) {
  BatchShardOptions options{.rank = 1, .world_size = 3, .batch_size = 2, .drop_last = true};

  const auto given = one_rank(sequential(16, 2), options);

  ASSERT_EQ(given.size(), 2u);
  EXPECT_EQ(given[1].indices, (Indices{8, 9}));
  EXPECT_EQ(shard_length(8, 2, options), 2u);
}

TEST(BatchShard, AShortBatchInTheMiddleIsNotLost) {
  const Batches batches{{0, 1}, {2}, {3, 4}, {5}};
  std::map<int, Batches> given;
  for (int rank = 0; rank < 2; ++rank) {
    for (const auto& batch : one_rank(batches, {.rank = rank, .world_size = 2, .batch_size = 2})) {
      given[rank].push_back(batch.indices);
    }
  }

  EXPECT_EQ(given[0], (Batches{{0, 1}, {3, 4}}));
  EXPECT_EQ(given[1], (Batches{{2}, {5, 0}}));
}

TEST(BatchShard, AWorldLargerThanTheDatasetRepeatsIt) {
  for (int rank = 0; rank < 7; ++rank) {
    const auto given = one_rank(sequential(2, 1), {.rank = rank, .world_size = 7, .batch_size = 1});

    ASSERT_EQ(given.size(), 1u);
    EXPECT_EQ(given[0].indices, Indices{static_cast<size_t>(rank % 2)});
    EXPECT_EQ(given[0].num_samples, 2u);
  }
}

TEST(BatchShard, DrawsOnlyWhatOneStepTakes) {
  size_t drawn = 0;
  BatchShard shard({.rank = 0, .world_size = 3, .batch_size = 2}, [&]() -> std::optional<Indices> {
    ++drawn;
    return Indices{0, 1};
  });

  shard.next();

  EXPECT_EQ(drawn, 3u);
}

TEST(BatchShard, AnEndedSourceIsNotAskedAgain) {
  size_t asked = 0;
  BatchShard shard({.batch_size = 2}, [&]() -> std::optional<Indices> {
    ++asked;
    return std::nullopt;
  });

  shard.next();
  shard.next();

  EXPECT_EQ(asked, 1u);
}

template <class Fn>
std::string words_of_usage_error(Fn&& fn) {
  try {
    fn();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(BatchShard, ErrorsNameTheOptionsWithTheirValues) {
  const auto make = [](BatchShardOptions options) {
    return words_of_usage_error([&] { BatchShard(options, nullptr); });
  };

  EXPECT_EQ(make({.rank = 1, .world_size = 4, .batch_size = 6, .split_batches = true}),
            "[data] rank 1/4: split_batches = true cuts each batch into equal parts, but batch_size = 6 is no "
            "multiple of world_size = 4. Choose a multiple, or use split_batches = false.");
  EXPECT_EQ(make({.rank = 0, .world_size = 2, .split_batches = true}),
            "[data] rank 0/2: split_batches = true cuts each batch into world_size = 2 equal parts, but the batch "
            "size is not known. Give it, or use split_batches = false.");
  EXPECT_EQ(make({.batch_size = 0}), "[data] batch_size = 0, expected at least 1.");
  EXPECT_EQ(make({.rank = 2, .world_size = 2}), "[data] rank 2 of a world of 2: ranks go from 0 to world_size - 1.");
}

TEST(BatchShard, RefusesBatchesThatCannotBeDivided) {
  EXPECT_THROW(one_rank({{0, 1}, {}}, {.batch_size = 2}), UsageError);
  EXPECT_THROW(one_rank({{0, 1, 2, 3, 4}}, {.world_size = 2, .batch_size = 4, .split_batches = true}), UsageError);
}

}  // namespace
}  // namespace hasten::data
