// A step of optimizer state in a file: while a tile is stepped, the next one is read and the one before is written.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/parallel/shard/sharding.h"
#include "parallel/shard/trained.h"
#include "support/file_transfers.h"
#include "support/folder.h"

namespace hasten::parallel {
namespace {

using shard_testing::adamw;

// Six tiles of one parameter each.
struct SixImpl : torch::nn::Module {
  SixImpl() {
    for (int i = 0; i < 6; ++i) weights.push_back(register_parameter(text("weight", i), torch::ones({64, 64})));
  }
  std::vector<at::Tensor> weights;
};

using TiledStep = testing::InFolder;

TEST_F(TiledStep, ReadsTheNextTileAndWritesTheLastOneWhileOneIsStepped) {
  constexpr size_t kNumTiles = 6, kNumBuffers = 3;
  testing::FileTransfers transfers(path("state"));
  const comm::Group group;
  Sharding sharding(
      group,
      {.stage = ShardStage::kGradients,
       .optimizer_offload = {
           .device = OffloadDevice::kFile, .path = path("state"), .tile_numel = 64 * 64, .num_buffers = kNumBuffers}});
  auto net = std::make_shared<SixImpl>();
  const auto optimizer = adamw(net->parameters());
  const Ddp ddp(*net, group, {.exchange = sharding.make_exchange(group)});
  for (const auto& weight : net->weights) weight.mutable_grad() = torch::ones({64, 64});
  sharding.step(*optimizer, [&] { return optim::optimizer_step(*optimizer); });
  transfers.begin();
  ASSERT_EQ(transfers.num_parts(), kNumTiles);

  for (int step = 0; step < 2; ++step) {
    size_t tile = 0;
    transfers.forget();
    // The writing of a tile is held until the step of the next one has begun.
    transfers.hold_writes();
    sharding.step(*optimizer, [&] {
      if (tile > 0 && !HasFailure()) {
        EXPECT_TRUE(transfers.has_begun(true, tile - 1)) << "the writing of tile " << tile - 1;
      }
      if (tile > 0) transfers.allow_write(tile - 1);
      if (tile + 1 < kNumTiles && !HasFailure()) {
        EXPECT_TRUE(transfers.has_begun(false, tile + 1)) << "the reading of tile " << tile + 1;
      }
      if (++tile == kNumTiles) transfers.allow_all();
      return optim::optimizer_step(*optimizer);
    });
    EXPECT_EQ(tile, kNumTiles);
  }

  EXPECT_FALSE(transfers.waited_in_vain()) << "a tile was stepped after the one before it had been written";
  EXPECT_LE(transfers.most_in_memory(), kNumBuffers);
  EXPECT_GE(transfers.most_in_memory(), 2U);
}

}  // namespace
}  // namespace hasten::parallel
