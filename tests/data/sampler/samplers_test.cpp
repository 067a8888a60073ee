// Samplers with a seed: which indices, in which order, again and from any position on.
#include "hasten/data/sampler/samplers.h"

#include <gtest/gtest.h>
#include <torch/data/dataloader.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <sstream>

#include "hasten/core/error.h"
#include "hasten/data/loader/distributed_dl.h"
#include "hasten/data/sampler/batch_sampler.h"
#include "hasten/data/sampler/distributed_sampler.h"
#include "support/samples.h"

namespace hasten::data {
namespace {

using Batches = std::vector<Indices>;

Batches rest_of(SeedableSampler& sampler, size_t batch_size) {
  Batches batches;
  while (auto batch = sampler.next(batch_size)) batches.push_back(*batch);
  return batches;
}

Batches epoch_of(SeedableSampler& sampler, size_t batch_size) {
  sampler.reset();
  return rest_of(sampler, batch_size);
}

Indices flat(const Batches& batches) {
  Indices all;
  for (const auto& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

Indices sorted(Indices indices) {
  std::sort(indices.begin(), indices.end());
  return indices;
}

Indices numbers(size_t count) {
  Indices result(count);
  std::iota(result.begin(), result.end(), size_t{0});
  return result;
}

/// One of each kind, in both orders where it has two.
std::vector<std::unique_ptr<SeedableSampler>> one_of_each() {
  std::vector<std::unique_ptr<SeedableSampler>> all;
  all.push_back(std::make_unique<SeedableSequentialSampler>(23));
  all.push_back(std::make_unique<LengthGroupedSampler>(std::vector<size_t>{5, 1, 4, 4, 9, 2, 7, 7, 3, 6, 8, 1},
                                                       LengthGroupedOptions{.seed = 4, .batch_size = 2}));
  for (const Order order : {Order::kTorch, Order::kKeyed}) {
    all.push_back(std::make_unique<SeedableRandomSampler>(23, RandomSamplerOptions{.seed = 4, .order = order}));
    all.push_back(std::make_unique<SeedableRandomSampler>(
        23, RandomSamplerOptions{.seed = 4, .order = order, .replacement = true, .num_samples = 40}));
    all.push_back(
        std::make_unique<SeedableRandomSampler>(7, RandomSamplerOptions{.seed = 4, .order = order, .num_samples = 19}));
    all.push_back(std::make_unique<SeedableWeightedSampler>(
        std::vector<double>{1, 2, 0, 4}, WeightedSamplerOptions{.seed = 4, .order = order, .num_samples = 30}));
    all.push_back(std::make_unique<SeedableSubsetSampler>(Indices{40, 30, 20, 10, 5},
                                                          SubsetSamplerOptions{.seed = 4, .order = order}));
    all.push_back(std::make_unique<DistributedSampler>(
        23, DistributedSamplerOptions{.num_replicas = 4, .rank = 3, .seed = 4, .order = order}));
    all.push_back(std::make_unique<BatchSampler>(Batches{{0, 1, 2}, {3}, {4, 5}, {6, 7, 8, 9}},
                                                 BatchSamplerOptions{.seed = 4, .shuffle = true, .order = order}));
  }
  return all;
}

TEST(Samplers, GiveAsManyIndicesAsTheySay) {
  for (const auto& sampler : one_of_each()) EXPECT_EQ(flat(epoch_of(*sampler, 4)).size(), sampler->size());
}

TEST(Samplers, GoOnFromAnyPositionAsIfTheyHadNeverStopped) {
  for (const auto& sampler : one_of_each()) {
    sampler->set_epoch(3);
    const Indices whole = flat(epoch_of(*sampler, 4));
    for (size_t position = 0; position <= whole.size(); ++position) {
      sampler->set_epoch(3);
      sampler->reset();
      sampler->seek(position);

      const Indices rest = flat(rest_of(*sampler, 3));
      ASSERT_EQ(rest, Indices(whole.begin() + static_cast<std::ptrdiff_t>(position), whole.end()));
    }
  }
}

TEST(Samplers, CountTheirEpochsAndRepeatOneThatIsSet) {
  for (const auto& sampler : one_of_each()) {
    Batches epochs;
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      epochs.push_back(flat(epoch_of(*sampler, 5)));
      EXPECT_EQ(sampler->epoch(), epoch);
    }
    sampler->set_epoch(1);

    EXPECT_EQ(flat(epoch_of(*sampler, 5)), epochs[1]);
    EXPECT_EQ(flat(epoch_of(*sampler, 5)), epochs[2]);
  }
}

TEST(Samplers, AreSavedAndLoadedInMidEpoch) {
  auto before = one_of_each(), after = one_of_each();
  for (size_t i = 0; i < before.size(); ++i) {
    before[i]->set_epoch(2);
    before[i]->reset();
    before[i]->next(3);
    torch::serialize::OutputArchive out;
    before[i]->save(out);
    std::stringstream file;
    out.save_to(file);
    torch::serialize::InputArchive in;
    in.load_from(file);
    after[i]->load(in);

    EXPECT_EQ(flat(rest_of(*after[i], 4)), flat(rest_of(*before[i], 4)));
  }
}

TEST(Samplers, RefuseWhatTheyCannotDo) {
  SeedableRandomSampler sampler(5);

  EXPECT_THROW(sampler.seek(6), UsageError);
  EXPECT_THROW(sampler.reset(7), UsageError);
  EXPECT_THROW(SeedableRandomSampler(0, {.num_samples = 3}), UsageError);
  EXPECT_THROW(SeedableWeightedSampler({1, -1}), UsageError);
  EXPECT_THROW(SeedableWeightedSampler({0, 0}), UsageError);
  EXPECT_THROW(SeedableWeightedSampler({0, 1, 1}, {.replacement = false}), UsageError);
  EXPECT_THROW(SeedableWeightedSampler({1, 1}, {.order = Order::kKeyed, .replacement = false}), UsageError);
  EXPECT_THROW(LengthGroupedSampler({1, 2}, {.batch_size = 0}), UsageError);
  EXPECT_THROW(BatchSampler(Batches{{1}, {}}), UsageError);
  EXPECT_THROW(BatchSampler(Batches{{1, 2, 3}}, {.batch_size = 2}), UsageError);
  EXPECT_THROW(DistributedSampler(5, {.num_replicas = 2, .rank = 2}), UsageError);
}

TEST(DistributedSampler, HasNoNumberOfRanksByDefault) {
  EXPECT_THROW(DistributedSampler(5, DistributedSamplerOptions{}), UsageError);
  EXPECT_THROW(DistributedSampler(5, {.num_replicas = 2}), UsageError);
  EXPECT_THROW(DistributedSampler(5, {.rank = 0}), UsageError);
}

TEST(SeedableRandomSampler, WithoutReplacementGivesEachIndexOncePerTimeThrough) {
  for (const Order order : {Order::kTorch, Order::kKeyed}) {
    SeedableRandomSampler once(31, {.seed = 1, .order = order});
    SeedableRandomSampler twice(31, {.seed = 1, .order = order, .num_samples = 62});
    const Indices all = flat(epoch_of(twice, 8));

    EXPECT_EQ(sorted(flat(epoch_of(once, 8))), numbers(31));
    EXPECT_EQ(sorted({all.begin(), all.begin() + 31}), numbers(31));
    EXPECT_EQ(sorted({all.begin() + 31, all.end()}), numbers(31));
    EXPECT_FALSE(std::equal(all.begin(), all.begin() + 31, all.begin() + 31));
  }
}

TEST(SeedableWeightedSampler, DrawsAsOftenAsTheWeightsSayAndNeverAWeightOfNothing) {
  for (const Order order : {Order::kTorch, Order::kKeyed}) {
    SeedableWeightedSampler sampler({0, 1, 0, 3, 0}, {.seed = 2, .order = order, .num_samples = 8000});
    std::vector<int> counts(5);
    for (const size_t index : flat(epoch_of(sampler, 100))) ++counts.at(index);

    EXPECT_EQ(counts[0] + counts[2] + counts[4], 0);
    EXPECT_NEAR(counts[1], 2000, 200);
  }
}

TEST(SeedableSubsetSampler, GivesItsIndicesShuffledOrAsTheyAre) {
  const Indices wanted{9, 7, 5, 3};
  SeedableSubsetSampler as_they_are(wanted, {.shuffle = false}), shuffled(wanted, {.seed = 1});

  EXPECT_EQ(flat(epoch_of(as_they_are, 3)), wanted);
  EXPECT_EQ(sorted(flat(epoch_of(shuffled, 3))), (Indices{3, 5, 7, 9}));
}

TEST(LengthGroupedSampler, SortsEachGroupAndBeginsWithTheLongest) {
  std::vector<size_t> lengths;
  for (size_t i = 0; i < 64; ++i) lengths.push_back((i * 37) % 64);
  LengthGroupedSampler sampler(lengths, {.seed = 3, .batch_size = 4, .group_batches = 4});
  const Indices order = flat(epoch_of(sampler, 4));

  EXPECT_EQ(sorted(order), numbers(64));
  EXPECT_EQ(lengths[order[0]], 63u);
  for (size_t group = 0; group < 4; ++group) {
    // The first of a group may have been exchanged for the longest of all.
    const auto begin = order.begin() + static_cast<std::ptrdiff_t>(16 * group);
    EXPECT_TRUE(std::is_sorted(begin + 1, begin + 16, [&](size_t a, size_t b) { return lengths[a] > lengths[b]; }));
  }
}

TEST(BatchSampler, GivesItsBatchesWholeInAnyOrder) {
  const Batches batches{{0, 1, 2}, {3}, {4, 5}, {6, 7, 8, 9}};
  BatchSampler plain(batches), shuffled(batches, {.seed = 5, .shuffle = true});

  EXPECT_EQ(epoch_of(plain, 100), batches);
  Batches once = epoch_of(shuffled, 1);
  EXPECT_NE(once, epoch_of(shuffled, 1));
  std::sort(once.begin(), once.end());
  EXPECT_EQ(once, batches);
}

TEST(BatchSampler, WorksInALoaderWhateverItsBatchSize) {
  const Batches batches{{0, 1, 2}, {3}, {4, 5}};
  auto ours = loader(testing::Range(6), BatchSampler(batches), 1);
  Batches given;
  for (auto& batch : ours) given.push_back(batch);

  EXPECT_EQ(given, batches);
  EXPECT_EQ(ours.size(), 3u);
  EXPECT_EQ(ours.total_batch_size(), 3u);
}

TEST(DistributedDL, CutsTheOrderIntoBlocksAsFastaiDoes) {
  for (const size_t workers : {0, 2}) {
    auto whole =
        loader(testing::Range(50), SeedableSequentialSampler(50), torch::data::DataLoaderOptions(12).workers(workers));
    for (size_t rank = 0; rank < 4; ++rank) {
      DistributedDL mine(whole, static_cast<int>(rank), 4);
      Batches expected(2), given;
      for (size_t i = 0; i < 12; ++i) expected[0].push_back((rank * 13 + i) % 50);
      expected[1].push_back((rank * 13 + 12) % 50);
      for (auto& batch : mine) given.push_back(batch);

      EXPECT_EQ(given, expected);
      EXPECT_EQ(mine.size(), 2u);
    }
  }
}

TEST(DistributedDL, TogetherTheRanksGiveTheShuffledOrderWithItsStartOnceMore) {
  auto whole = loader(testing::Range(10), SeedableRandomSampler(10, {.seed = 3}), 4);
  Indices order = torch_permutation(10, 3), given;
  order.insert(order.end(), {order[0], order[1]});
  for (int rank = 0; rank < 3; ++rank) {
    for (auto& batch : DistributedDL(whole, rank, 3)) given.insert(given.end(), batch.begin(), batch.end());
  }

  EXPECT_EQ(given, order);
  EXPECT_THROW(DistributedDL(whole, 3, 3), UsageError);
  EXPECT_EQ(contiguous_block({5}, 2, 4), Indices{5});
  EXPECT_TRUE(contiguous_block({}, 1, 2).empty());
}

TEST(Samplers, WorkInTorchsOwnLoader) {
  auto theirs = torch::data::make_data_loader(testing::Range(9), SeedableRandomSampler(9, {.seed = 3}), 4);
  Indices given;
  for (auto& batch : *theirs) given.insert(given.end(), batch.begin(), batch.end());

  EXPECT_EQ(given, torch_permutation(9, 3));
}

TEST(Samplers, SavedBeforeTheyBeganTheyBeginWithTheSameEpoch) {
  SeedableRandomSampler before(8, {.seed = 3}), after(8, {.seed = 3});
  torch::serialize::OutputArchive out;
  before.save(out);
  std::stringstream file;
  out.save_to(file);
  torch::serialize::InputArchive in;
  in.load_from(file);
  after.load(in);

  EXPECT_EQ(flat(epoch_of(after, 3)), flat(epoch_of(before, 3)));
  EXPECT_EQ(after.epoch(), 0u);
}

}  // namespace
}  // namespace hasten::data
