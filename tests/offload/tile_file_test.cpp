// Tiles that rest in a file: values through writing and reading, bounded memory, what is left behind, and faults.
#include "hasten/offload/units/tile_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <filesystem>

#include "hasten/core/error.h"
#include "support/folder.h"

namespace hasten::offload {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using TileFileTest = testing::InFolder;

void fill(TileFile& file, size_t tile, int value) {
  std::memset(file.open(tile), value, static_cast<size_t>(file.tile_bytes(tile)));
  file.close(tile);
}

TEST_F(TileFileTest, TilesKeepTheirBytesWithFewBuffers) {
  TileFile file(path("state"), {.block_bytes = 3000, .queue_depth = 3, .num_buffers = 2});
  std::vector<size_t> tiles;
  for (const int64_t bytes : {1, 4096, 10'000, 123'457}) tiles.push_back(file.add(bytes));
  EXPECT_EQ(file.open(tiles[2])[9'999], std::byte{0});
  file.close(tiles[2]);
  for (int round = 1; round < 4; ++round) {
    for (size_t i = 0; i < tiles.size(); ++i) {
      file.fetch(tiles[(i + 1) % tiles.size()]);
      fill(file, tiles[i], static_cast<int>(10 * i) + round);
    }
  }
  file.flush();
  for (size_t i = 0; i < tiles.size(); ++i) {
    const std::byte wanted{static_cast<unsigned char>(10 * i + 3)};
    const auto last = static_cast<size_t>(file.tile_bytes(tiles[i])) - 1;
    EXPECT_EQ(file.open(tiles[i])[last], wanted);
    file.close(tiles[i]);
    file.flush();
    EXPECT_EQ(file.map(tiles[i]).get()[last], wanted);
  }
}

TEST_F(TileFileTest, AMappingOutlivesTheFileAndNothingIsLeftInTheFolder) {
  std::shared_ptr<const std::byte> mapped;
  {
    TileFile file(path("state"));
    EXPECT_TRUE(std::filesystem::is_empty(path("state")));
    const size_t tile = file.add(5000);
    fill(file, tile, 7);
    file.flush();
    mapped = file.map(tile);
    EXPECT_THAT(file.describe(), HasSubstr("8 threads"));
  }
  EXPECT_EQ(mapped.get()[4999], std::byte{7});
}

TEST_F(TileFileTest, ARemovedTileGivesItsPlaceToOneOfItsSize) {
  TileFile file(path("state"));
  const size_t first = file.add(5000);
  fill(file, first, 1);
  file.flush();
  const int64_t before = file.num_bytes();
  file.remove(first);
  EXPECT_EQ(file.add(5001), first);
  EXPECT_EQ(file.num_bytes(), before);
  EXPECT_NE(file.add(50'000), first);
}

TEST_F(TileFileTest, MoreOpenTilesThanBuffersAreRefused) {
  TileFile file(path("state"), {.num_buffers = 2});
  const size_t a = file.add(10), b = file.add(10), c = file.add(10);
  file.open(a);
  file.open(b);
  EXPECT_THROW(file.open(c), UsageError);
  EXPECT_THROW(TileFile(path("state"), {.num_buffers = 1}), UsageError);
}

TEST(TileFile, AFolderThatTakesNoFileIsNamed) {
  for (const char* folder : {"/proc/no/such", "/dev/full", "/dev/null/x"}) {
    EXPECT_THAT(testing::words_of<DataError>([&] { TileFile file(folder); }), HasSubstr(folder));
  }
}

// A limit on the size of files stands for a disk that is full.
TEST_F(TileFileTest, ADiskWithoutSpaceIsNamedWithTheBytesNeeded) {
  TileFile file(path("state"));
  const size_t small = file.add(4096);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit low{65536, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  const auto words = testing::words_of<DataError>([&] { file.add(1'000'000); });
  // What fits goes on.
  fill(file, small, 5);
  file.flush();
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(words, AllOf(HasSubstr("1007616 bytes"), HasSubstr(path("state"))));
  EXPECT_EQ(file.open(small)[0], std::byte{5});
}

// Writing fails after the space was reserved: the tile is torn, and says so.
TEST_F(TileFileTest, ATileWhoseWritingHasFailedIsNotReadAgain) {
  TileFile file(path("state"));
  const size_t first = file.add(4096), torn = file.add(200'000);
  fill(file, first, 1);
  fill(file, torn, 1);
  file.flush();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit low{8192, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  fill(file, torn, 2);
  const auto words = testing::words_of<DataError>([&] { file.flush(); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(words, HasSubstr("could not be written"));
  EXPECT_THAT(testing::words_of<DataError>([&] { file.open(torn); }), HasSubstr("Go on from a checkpoint"));
  EXPECT_EQ(file.open(first)[0], std::byte{1});
}

}  // namespace
}  // namespace hasten::offload
