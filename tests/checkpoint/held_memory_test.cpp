#include "checkpoint/save/held_memory.h"

#include <gtest/gtest.h>

namespace hasten::checkpoint {
namespace {

TEST(HeldMemory, BuffersThatAWriterReadsStayWhereTheyAreAndAsTheyWere) {
  HeldMemory memory;
  const auto before = memory.buffers({4096, 4096});
  before[0][0] = 1, before[1][0] = 2;

  memory.prepare(size_t{64} << 20);

  EXPECT_EQ(memory.capacity(), 2 * 4096U);
  EXPECT_EQ(memory.touched(), 0U);
  EXPECT_EQ(memory.buffers({4096, 4096}), before);
  EXPECT_EQ(before[0][0], 1);
  EXPECT_EQ(before[1][0], 2);
}

TEST(HeldMemory, PagesArePreparedBeforeTheFirstBuffers) {
  HeldMemory memory;

  memory.prepare(size_t{1} << 20);

  EXPECT_EQ(memory.capacity(), size_t{1} << 20);
  EXPECT_EQ(memory.buffers({4096}).size(), 1U);
}

}  // namespace
}  // namespace hasten::checkpoint
