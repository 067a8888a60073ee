// Batches in memory, in their order or shuffled.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hasten/learner/loaders.h"
#include "support/ranks.h"

namespace hasten::learner {
namespace {

using Numbers = std::vector<int64_t>;
using ::testing::UnorderedElementsAreArray;

std::vector<Batch> numbered(int64_t count) {
  std::vector<Batch> batches;
  for (int64_t i = 0; i < count; ++i) batches.push_back({{at::full({1}, i, at::kLong)}, {}});
  return batches;
}

Accelerator alone() {
  return Accelerator(process::Process(process::RankInfo{}, comm::Group()), {.cpu = true});
}

// The next `count` batches of the pass that is open, or those that are left.
Numbers take(PreparedLoader& loader, size_t count = 100) {
  Numbers taken;
  for (Batch batch; taken.size() < count && loader.next(batch);) taken.push_back(batch.inputs.at(0).item<int64_t>());
  return taken;
}

Numbers pass(PreparedLoader& loader) {
  loader.begin();
  const Numbers taken = take(loader);
  loader.end();
  return taken;
}

TEST(MemoryBatches, ShuffledOnesComeOnceAnEpochInAnotherOrder) {
  const Loader loader = shuffled(numbered(8), 5);
  const auto first = loader.prepare(alone()), again = loader.prepare(alone());
  const auto other = shuffled(numbered(8), 6).prepare(alone());

  const Numbers epoch = pass(*first), next = pass(*first);

  EXPECT_THAT(epoch, UnorderedElementsAreArray({0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_THAT(next, UnorderedElementsAreArray(epoch));
  EXPECT_NE(next, epoch);
  EXPECT_EQ(pass(*again), epoch);
  EXPECT_NE(pass(*other), epoch);
  EXPECT_EQ(pass(*loader.in_order().prepare(alone())), (Numbers{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(MemoryBatches, TwoRanksTakeTurnsInTheOrderOfOne) {
  const auto one = shuffled(numbered(8), 5).prepare(alone());
  const Numbers whole = pass(*one);
  std::vector<Numbers> parts(2);

  testing::run_ranks(2, [&](process::Process& process) {
    const Accelerator accelerator(process, {.cpu = true});
    parts[static_cast<size_t>(process.rank())] = pass(*shuffled(numbered(8), 5).prepare(accelerator));
  });

  EXPECT_EQ(parts[0], (Numbers{whole[0], whole[2], whole[4], whole[6]}));
  EXPECT_EQ(parts[1], (Numbers{whole[1], whole[3], whole[5], whole[7]}));
}

TEST(MemoryBatches, AStateGoesOnBehindEachBatchAndBetweenEpochs) {
  for (const Loader& loader : {shuffled(numbered(5), 7), Loader(numbered(5))}) {
    const auto whole = loader.prepare(alone());
    const Numbers epoch = pass(*whole), next = pass(*whole);
    for (size_t cut = 0; cut <= 5; ++cut) {
      const auto before = loader.prepare(alone()), resumed = loader.prepare(alone());
      before->begin();
      const Numbers taken = take(*before, cut);

      resumed->load_state(before->state());

      EXPECT_EQ(pass(*resumed), Numbers(epoch.begin() + static_cast<std::ptrdiff_t>(cut), epoch.end())) << cut;
      EXPECT_EQ(pass(*resumed), next) << cut;
    }
    const auto ended = loader.prepare(alone()), resumed = loader.prepare(alone());
    pass(*ended);
    resumed->load_state(ended->state());
    EXPECT_EQ(pass(*resumed), next);
  }
}

TEST(MemoryBatches, AStateOfOtherBatchesOrAnotherSeedIsRefused) {
  const auto state = shuffled(numbered(4), 1).prepare(alone())->state();

  const auto seed =
      testing::words_of<UsageError>([&] { shuffled(numbered(4), 2).prepare(alone())->load_state(state); });
  const auto size =
      testing::words_of<UsageError>([&] { shuffled(numbered(5), 1).prepare(alone())->load_state(state); });

  EXPECT_THAT(seed, ::testing::HasSubstr("with seed \"1\" for one with \"2\"; resume with the same seed"));
  EXPECT_THAT(size, ::testing::HasSubstr("with 4 batches for one with 5"));
}

}  // namespace
}  // namespace hasten::learner
