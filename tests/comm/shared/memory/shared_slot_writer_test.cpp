#include "comm/shared/memory/slot_writer.h"

#include <gtest/gtest.h>

#include <vector>

namespace hasten::comm::shared {
namespace {

// A clock that stands still unless it is moved.
struct ManualClock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<ManualClock>;

  static time_point now() { return time_point(elapsed); }
  inline static duration elapsed{0};
};

constexpr int64_t kChunk = 128 << 10, kLarge = 100 * kChunk;

// What share of `num_chunks` chunks was written past the caches, where a byte takes this long.
double share_past_caches(SlotWriter<ManualClock>& writer, int num_chunks, int through_ns, int past_ns) {
  int64_t past_caches = 0;
  for (int i = 0; i < num_chunks; ++i) {
    int64_t next = 0;
    writer.write(kChunk, [&](int64_t begin, int64_t size, bool past) {
      EXPECT_EQ(begin, next);
      EXPECT_EQ(begin % 64, 0);
      next = begin + size;
      if (past) past_caches += size;
      ManualClock::elapsed += std::chrono::nanoseconds(size * (past ? past_ns : through_ns));
    });
    EXPECT_EQ(next, kChunk);
  }
  return static_cast<double>(past_caches) / static_cast<double>(num_chunks * kChunk);
}

TEST(SlotWriter, KeepsToTheCachesWhereMemoryIsNotMuchFaster) {
  SlotWriter<ManualClock> writer(kLarge);
  EXPECT_LT(share_past_caches(writer, 100, 10, 11), 0.02);
  EXPECT_LT(share_past_caches(writer, 100, 10, 6), 0.02);
}

TEST(SlotWriter, WritesPastCachesThatAreFar) {
  SlotWriter<ManualClock> writer(kLarge);
  EXPECT_GT(share_past_caches(writer, 100, 60, 8), 0.96);
}

TEST(SlotWriter, NoticesWhenTheRanksAreMoved) {
  SlotWriter<ManualClock> writer(kLarge);
  share_past_caches(writer, 100, 10, 11);
  EXPECT_GT(share_past_caches(writer, 100, 60, 8), 0.92);
  EXPECT_LT(share_past_caches(writer, 100, 10, 11), 0.08);
}

TEST(SlotWriter, KeepsToTheCachesWithWhatTheyHold) {
  SlotWriter<ManualClock> writer(2 << 20);
  EXPECT_EQ(share_past_caches(writer, 16, 60, 8), 0);
}

TEST(SlotWriter, ShortChunksAreWrittenWhole) {
  SlotWriter<ManualClock> writer(kLarge);
  std::vector<int64_t> sizes;
  for (const int64_t size : {1, 63, 8192, 8193}) {
    writer.write(size, [&](int64_t, int64_t part, bool) { sizes.push_back(part); });
  }
  EXPECT_EQ(sizes, (std::vector<int64_t>{1, 63, 8192, 8193}));
}

}  // namespace
}  // namespace hasten::comm::shared
