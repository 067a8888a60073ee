// The queue of tiles: no more are in memory than there are buffers, and one that waits for a buffer is read as soon as
// a writing has ended.
#include <gtest/gtest.h>

#include <cstring>

#include "hasten/offload/units/tile_file.h"
#include "support/file_transfers.h"
#include "support/folder.h"

namespace hasten::offload {
namespace {

using namespace std::chrono_literals;
using TileQueue = testing::InFolder;

TEST_F(TileQueue, TilesInMemoryAreAsManyAsBuffersAtMost) {
  testing::FileTransfers transfers(path("state"));
  TileFile file(path("state"), {.queue_depth = 6, .num_buffers = 3});
  std::vector<size_t> tiles;
  for (int i = 0; i < 5; ++i) {
    tiles.push_back(file.add(8192));
    std::memset(file.open_empty(tiles.back()), i, 8192);
    file.close(tiles.back());
  }
  file.flush();
  transfers.begin();
  ASSERT_EQ(transfers.num_parts(), 5U);

  transfers.hold_writes();
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(file.open(tiles[i])[8191], std::byte(i));
    file.close(tiles[i]);
    EXPECT_TRUE(transfers.has_begun(true, i)) << "the writing of tile " << i << " has to begin at its close";
  }
  file.fetch(tiles[3]);
  EXPECT_FALSE(transfers.has_begun(false, 3, 100ms)) << "all buffers are being written";
  transfers.allow_write(1);
  EXPECT_TRUE(transfers.has_begun(false, 3));
  transfers.allow_all();
  EXPECT_EQ(file.open(tiles[3])[0], std::byte(3));
  file.close(tiles[3]);
  file.flush();

  EXPECT_EQ(transfers.most_in_memory(), 3U);
  EXPECT_FALSE(transfers.waited_in_vain());
}

}  // namespace
}  // namespace hasten::offload
