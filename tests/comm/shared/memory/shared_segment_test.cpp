#include "comm/shared/memory/segment.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <limits>
#include <numeric>
#include <thread>

#include "comm/shared/algorithms/chain_reduce.h"
#include "comm/shared/memory/chunks.h"
#include "comm/shared/memory/copying.h"
#include "comm/shared/memory/segment_allocator.h"
#include "hasten/core/error.h"

namespace hasten::comm::shared {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMegabyte = size_t{1} << 20;

TEST(SharedLayout, PlacesNothingOverAnything) {
  for (const int world_size : {1, 2, 3, 7, 8, 9, 64, 256}) {
    const Layout layout = Layout::of(world_size, 64 * kMegabyte);
    const auto world = static_cast<size_t>(world_size);

    EXPECT_GE(layout.areas_begin, Layout::kPage + world * sizeof(RankBlock));
    EXPECT_GE(layout.rings_begin, layout.areas_begin + 2 * world * layout.chunk_bytes);
    EXPECT_GE(layout.heaps_begin, layout.rings_begin + world * world * (sizeof(Ring) + layout.ring_bytes));
    EXPECT_EQ(layout.total_bytes, layout.heaps_begin + world * layout.heap_bytes);
    EXPECT_EQ(layout.chunk_bytes % Layout::kPage, 0u);
    EXPECT_LE(chain_reduce_bytes(world_size), 2 * world * layout.chunk_bytes);
  }
}

TEST(SharedLayout, TooLittleMemoryIsAnErrorThatNamesTheLeast) {
  try {
    Layout::of(2, kMegabyte);
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("shared memory of 1048576 bytes a rank"));
    EXPECT_THAT(error.what(), HasSubstr("(4 MB)"));
  }
  EXPECT_NO_THROW(Layout::of(2, 4 * kMegabyte));
}

TEST(SharedSegment, OfAnotherSizeIsNotAttached) {
  const auto segment = Segment::create(Layout::of(2, 8 * kMegabyte));
  const int copy = fcntl(segment->descriptor(), F_DUPFD_CLOEXEC, 0);

  EXPECT_THROW(Segment::attach(Layout::of(2, 16 * kMegabyte), copy), std::runtime_error);
}

TEST(SharedLayout, MoreMemoryThanThereIsIsRefused) {
  EXPECT_THROW(Layout::of(2, std::numeric_limits<size_t>::max() / 2), UsageError);
}

// In a process that is a copy of this one.
bool in_a_fork(const std::function<bool()>& check) {
  const pid_t child = fork();
  if (child == 0) _exit(check() ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0;
}

TEST(SharedSegment, ARankLivesOnWhenAnotherOfItsProcessHasGone) {
  const Layout layout = Layout::of(3, 8 * kMegabyte);
  const auto segment = Segment::create(layout);
  segment->take_place(0);
  {
    const auto other = Segment::attach(layout, fcntl(segment->descriptor(), F_DUPFD_CLOEXEC, 0));
    other->take_place(1);
  }

  EXPECT_TRUE(in_a_fork([&] { return segment->lives(0) && segment->lives(1) && !segment->lives(2); }));
}

TEST(SharedSegment, ARankOfAForkIsDeadWhenThatHasEnded) {
  const auto segment = Segment::create(Layout::of(2, 8 * kMegabyte));
  segment->take_place(0);

  EXPECT_TRUE(in_a_fork([&] {
    segment->take_place(1);
    return segment->lives(1);
  }));

  EXPECT_FALSE(segment->lives(1));
}

TEST(SharedSegment, AForkThatLeavesDoesNotTakeItsParentsRankAlong) {
  const auto segment = Segment::create(Layout::of(2, 8 * kMegabyte));
  segment->take_place(0);

  EXPECT_TRUE(in_a_fork([&] {
    segment->leave(0);
    return true;
  }));
  EXPECT_EQ(segment->block(0).presence.load(), Presence::kHere);

  segment->leave(0);
  EXPECT_EQ(segment->block(0).presence.load(), Presence::kLeft);
}

TEST(SharedSegment, AttachedTwiceIsOneMemory) {
  const Layout layout = Layout::of(2, 8 * kMegabyte);
  const auto segment = Segment::create(layout);
  const auto other = Segment::attach(layout, fcntl(segment->descriptor(), F_DUPFD_CLOEXEC, 0));

  segment->block(1).posted.raise(7);
  segment->area(1, 1)[5] = std::byte{42};

  EXPECT_TRUE(other->block(1).posted.reached(7));
  EXPECT_EQ(other->area(1, 1)[5], std::byte{42});
}

TEST(SharedCounter, ASleeperIsWokenByTheNumberItWaitsFor) {
  Counter counter;
  std::thread waiter([&] { wait(counter, 3, {.time = std::chrono::microseconds(0)}, [] {}); });

  for (uint32_t value = 1; value <= 3; ++value) counter.raise(value);
  waiter.join();

  EXPECT_EQ(counter.sleepers.load(), 0u);
}

TEST(SharedCounter, NumbersWrapAround) {
  EXPECT_TRUE(Counter::reached(2, 0xFFFFFFFF));
  EXPECT_TRUE(Counter::reached(5, 5));
  EXPECT_FALSE(Counter::reached(0xFFFFFFFF, 2));
}

TEST(SharedCounter, GivingUpIsForgottenIfThePeerHasCome) {
  Counter counter;

  EXPECT_NO_THROW(wait(counter, 1, {.time = std::chrono::microseconds(0)}, [&] {
    counter.value = 1;
    throw std::runtime_error("left");
  }));
  EXPECT_THROW(wait(counter, 2, {.time = std::chrono::microseconds(0)}, [] { throw std::runtime_error("left"); }),
               std::runtime_error);
}

TEST(SharedChunks, HoldEverythingOnce) {
  for (const int64_t total : {0, 1, 63, 64, 65, 1000, 4096, 100000, 1000003}) {
    const Chunks chunks(total, 4096);
    int64_t sum = 0;
    for (int64_t i = 0; i < chunks.count(); ++i) {
      EXPECT_EQ(chunks.begin(i), sum);
      EXPECT_GT(chunks.size(i), 0);
      EXPECT_LE(chunks.size(i), 4096);
      sum += chunks.size(i);
    }
    EXPECT_EQ(sum, total);
  }
}

TEST(SharedCopies, WriteWhatTheyCopyAndNothingElse) {
  constexpr int64_t kRoom = 1024;
  std::vector<char> source(kRoom);
  std::iota(source.begin(), source.end(), char{1});
  for (const int64_t total : {int64_t{1} << 20, int64_t{1} << 30}) {
    for (const int64_t to : {0, 1, 63, 64}) {
      for (const int64_t from : {0, 5}) {
        for (const int64_t size : {0, 1, 127, 128, 129, 191, 192, 500, 900}) {
          std::vector<char> target(kRoom, 0), expected(kRoom, 0);
          std::copy_n(source.begin() + from, size, expected.begin() + to);
          copy_out(target.data() + to, source.data() + from, size, total);
          EXPECT_EQ(target, expected) << size << " bytes from " << from << " to " << to << " of " << total;
        }
      }
    }
  }
}

TEST(SharedHeap, PartsDoNotOverlapAndAreJoinedAgain) {
  SegmentAllocator heap(1024);
  const auto a = heap.take(100), b = heap.take(1), c = heap.take(832);

  ASSERT_TRUE(a && b && c);
  EXPECT_EQ(*b, *a + 128);
  EXPECT_EQ(*c, *b + 64);
  EXPECT_FALSE(heap.take(1));
  heap.give(*a, 100);
  heap.give(*c, 832);
  EXPECT_FALSE(heap.take(1024));
  heap.give(*b, 1);
  EXPECT_EQ(heap.take(1024), 0u);
}

TEST(SharedHeap, OfNothingHasNothing) {
  EXPECT_FALSE(SegmentAllocator(0).take(1));
}

}  // namespace
}  // namespace hasten::comm::shared
