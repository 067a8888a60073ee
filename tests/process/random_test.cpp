#include "hasten/process/random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "hasten/core/error.h"

namespace hasten::process {
namespace {

Process process_of(int rank, int world_size) {
  return Process({.rank = rank, .world_size = world_size}, comm::Group());
}

TEST(SetSeed, GivesEveryRankTheSameStream) {
  set_seed(process_of(0, 2), 7);
  const auto first = torch::rand({8});
  set_seed(process_of(1, 2), 7);

  EXPECT_TRUE(torch::rand({8}).equal(first));
}

TEST(SetSeed, SeedsAsTheFrontEndDoes) {
  set_seed(process_of(1, 2), 7);
  const auto ours = torch::rand({8});
  torch::manual_seed(7);

  EXPECT_TRUE(torch::rand({8}).equal(ours));
}

TEST(SetSeed, DeviceSpecificAddsTheRank) {
  const uint64_t used = set_seed(process_of(1, 2), 7, {.device_specific = true});
  const auto ours = torch::rand({8});
  torch::manual_seed(8);

  EXPECT_EQ(used, 8u);
  EXPECT_TRUE(torch::rand({8}).equal(ours));
}

TEST(SetSeed, ReproducibleAndDeterministicSetWhatTorchHasForThem) {
  auto& context = at::globalContext();
  context.setBenchmarkCuDNN(true);

  set_seed(process_of(0, 1), 7, {.reproducible = true});
  EXPECT_TRUE(context.deterministicCuDNN());
  EXPECT_FALSE(context.benchmarkCuDNN());
  EXPECT_FALSE(context.deterministicAlgorithms());

  set_seed(process_of(0, 1), 7, {.deterministic = true});
  EXPECT_TRUE(context.deterministicAlgorithms());
  context.setDeterministicAlgorithms(false, false);
  context.setDeterministicCuDNN(false);
}

TEST(RandomState, RestoredGoesOnAsItDidAfterTheCapture) {
  torch::manual_seed(3);
  torch::randn({5});
  const RandomState state = capture_random_state();
  const auto after = torch::randn({16});

  restore_random_state(state);

  EXPECT_TRUE(torch::randn({16}).equal(after));
}

TEST(RandomState, SurvivesPacking) {
  torch::manual_seed(4);
  RandomState state = capture_random_state();
  state.cuda = {torch::full({16}, 1, torch::kUInt8), torch::full({24}, 2, torch::kUInt8)};

  const RandomState unpacked = unpack_random_state(pack(state));

  EXPECT_TRUE(unpacked.cpu.equal(state.cpu));
  ASSERT_EQ(unpacked.cuda.size(), 2u);
  EXPECT_TRUE(unpacked.cuda[0].equal(state.cuda[0]));
  EXPECT_TRUE(unpacked.cuda[1].equal(state.cuda[1]));
}

TEST(RandomState, EveryTruncationOfAPackedStateIsADataError) {
  const auto packed = pack({torch::full({40}, 1, torch::kUInt8), {torch::full({16}, 2, torch::kUInt8)}});

  for (int64_t length = 0; length < packed.numel(); ++length) {
    EXPECT_THROW(unpack_random_state(packed.slice(0, 0, length)), DataError) << length;
  }
  EXPECT_THROW(unpack_random_state(torch::cat({packed, packed})), DataError);
  EXPECT_THROW(unpack_random_state(packed.to(torch::kFloat)), DataError);
  EXPECT_THROW(unpack_random_state(torch::full({64}, 255, torch::kUInt8)), DataError);
}

TEST(RandomState, OfMoreCudaDevicesThanAreHereIsRefused) {
  RandomState state = capture_random_state();
  state.cuda.resize(1000, torch::zeros({16}, torch::kUInt8));

  EXPECT_THROW(restore_random_state(state), UsageError);
}

}  // namespace
}  // namespace hasten::process
