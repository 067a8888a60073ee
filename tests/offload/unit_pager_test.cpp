// Units that have pages while they are in use: by faults and by touch, in one process and shared by several.
#include "hasten/offload/units/unit_pager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "hasten/comm/shared_region.h"
#include "hasten/core/error.h"
#include "support/folder.h"

namespace hasten::offload {
namespace {

constexpr int64_t kPageBytes = 4096;

// A region of units of two pages, all bytes of unit i being i + 1 once it is filled.
struct Paged {
  explicit Paged(size_t num_units)
      : region(comm::SharedRegion::create(comm::Group(), static_cast<int64_t>(num_units) * 2 * kPageBytes)),
        control(comm::SharedRegion::create(comm::Group(), UnitPager::control_bytes(num_units))) {
    for (size_t i = 0; i < num_units; ++i)
      options.units.push_back({static_cast<int64_t>(i) * 2 * kPageBytes, 2 * kPageBytes});
    options.readable = region.data();
    options.writable = region.writable();
    options.control = control.writable();
    options.timeout = std::chrono::seconds(20);
    options.fill = [this](size_t unit) {
      ++num_fills;
      std::memset(region.writable() + options.units[unit].begin, static_cast<int>(unit + 1),
                  static_cast<size_t>(options.units[unit].num_bytes));
    };
  }
  int at(size_t unit, int64_t offset = 0) const {
    return static_cast<int>(
        *static_cast<const volatile std::byte*>(region.data() + options.units[unit].begin + offset));
  }

  comm::SharedRegion region, control;
  UnitPagerOptions options;
  std::atomic<int> num_fills{0};
};

TEST(UnitPager, AReadOfAUnitThatIsNotThereWaitsForItsValues) {
  Paged paged(5);
  UnitPager pager(paged.options);
  for (size_t unit = 0; unit < 5; ++unit) EXPECT_EQ(paged.at(unit, kPageBytes + 17), static_cast<int>(unit) + 1);
  EXPECT_EQ(paged.num_fills, 5);
  EXPECT_EQ(pager.counts().faults, 5);
  // The oldest have gone; they come again.
  EXPECT_EQ(paged.at(0), 1);
  EXPECT_EQ(paged.num_fills, 6);
  EXPECT_LE(pager.counts().max_held_bytes, 3 * 2 * kPageBytes);
}

TEST(UnitPager, TheUnitThatFollowedLastTimeIsFilledAhead) {
  Paged paged(4);
  paged.options.prefetch_bytes = 2 * kPageBytes;
  UnitPager pager(paged.options);
  for (int round = 0; round < 3; ++round) {
    for (size_t unit = 0; unit < 4; ++unit) {
      pager.touch(unit);
      EXPECT_EQ(paged.at(unit), static_cast<int>(unit) + 1);
    }
  }
  EXPECT_EQ(pager.counts().faults, 0);
  // Nothing is filled twice for one use.
  EXPECT_LE(paged.num_fills, 13);
}

// Teaches the order 0, 1, 2, 3 and gives all units back.
void teach(UnitPager& pager) {
  for (int round = 0; round < 2; ++round) {
    for (size_t unit = 0; unit < 4; ++unit) pager.touch(unit, false);
  }
  pager.pause();
  pager.drop();
  pager.resume();
  for (size_t unit = 0; unit < 2; ++unit) pager.touch(unit, false);
}

TEST(UnitPager, FillsAheadOnRequestAlone) {
  Paged paged(4);
  paged.options.prefetch_bytes = 2 * kPageBytes;
  paged.options.max_live_bytes = 100 * kPageBytes;
  std::vector<size_t> filled;
  paged.options.fill = [&filled, fill = paged.options.fill](size_t unit) {
    filled.push_back(unit);
    fill(unit);
  };
  UnitPager pager(paged.options);
  teach(pager);
  pager.pause();
  const auto before = filled;

  pager.resume();
  pager.fill_next();
  while (pager.counts().fills < static_cast<int64_t>(before.size()) + 1) std::this_thread::yield();
  pager.pause();

  EXPECT_EQ(std::vector<size_t>(before.end() - 2, before.end()), (std::vector<size_t>{0, 1}));
  EXPECT_EQ(filled.size(), before.size() + 1);
  EXPECT_EQ(filled.back(), 2U);
  pager.resume();
}

// Waits until the pager's thread has also given back what goes for the unit.
void touch_and_settle(UnitPager& pager, size_t unit) {
  pager.touch(unit, false);
  pager.pause();
  pager.resume();
}

// Fills of one step that reads unit 0 once more, after three others, once the order is known.
int fills_of_a_step(int64_t max_reuse_bytes) {
  Paged paged(5);
  paged.options.max_reuse_bytes = max_reuse_bytes;
  UnitPager pager(paged.options);
  int before = 0;
  for (int step = 0; step < 3; ++step) {
    before = paged.num_fills;
    for (const size_t unit : {0, 1, 2, 3, 0, 4}) {
      touch_and_settle(pager, unit);
      EXPECT_EQ(paged.at(unit), static_cast<int>(unit) + 1);
    }
    pager.pause();
    pager.drop();
    pager.resume();
  }
  return paged.num_fills - before;
}

TEST(UnitPager, AUnitThatIsReusedWithinTheDistanceStays) {
  constexpr int64_t kUnit = 2 * kPageBytes;
  EXPECT_EQ(fills_of_a_step(0), 6);
  // Two units are held: at the fill of 2, unit 0 has to go or stay, and unit 3 comes before it.
  EXPECT_EQ(fills_of_a_step(kUnit), 5);
  EXPECT_EQ(fills_of_a_step(kUnit - 1), 6);
}

TEST(UnitPager, AnotherOrderThanTheLastOneKeepsNothing) {
  Paged paged(5);
  paged.options.max_reuse_bytes = 100 * kPageBytes;
  UnitPager pager(paged.options);
  for (const size_t unit : {0, 1, 2, 3, 1}) touch_and_settle(pager, unit);
  pager.pause();
  pager.drop();
  pager.resume();
  // By the place alone, unit 1 would come behind unit 3.
  for (const size_t unit : {1, 4, 2}) touch_and_settle(pager, unit);
  const int before = paged.num_fills;
  touch_and_settle(pager, 1);
  EXPECT_EQ(paged.num_fills, before + 1);
}

TEST(UnitPager, AfterDropTheValuesAreNew) {
  Paged paged(2);
  UnitPager pager(paged.options);
  EXPECT_EQ(paged.at(1), 2);
  pager.pause();
  pager.drop();
  paged.options.fill = {};
  EXPECT_EQ(paged.num_fills, 1);
  std::atomic<bool> was_read{false};
  std::thread reader([&] {
    EXPECT_EQ(paged.at(1), 2);
    was_read = true;
  });
  EXPECT_FALSE(was_read);
  pager.resume();
  reader.join();
  EXPECT_EQ(paged.num_fills, 2);
}

TEST(UnitPager, SeveralReadersAtOnceGetTheirUnits) {
  Paged paged(8);
  UnitPager pager(paged.options);
  std::vector<std::thread> readers;
  for (size_t first = 0; first < 4; ++first) {
    readers.emplace_back([&, first] {
      for (size_t i = 0; i < 200; ++i) {
        const size_t unit = (first * 3 + i * (first + 1)) % 8;
        EXPECT_EQ(paged.at(unit, static_cast<int64_t>(i)), static_cast<int>(unit) + 1);
      }
    });
  }
  for (auto& reader : readers) reader.join();
}

TEST(UnitPager, WhatCannotBeFilledIsAnErrorOfTouch) {
  Paged paged(2);
  paged.options.fill = [](size_t) { throw CommError(Origin{"test"}, "unit", "rank 3 is gone"); };
  UnitPager pager(paged.options);
  EXPECT_THAT(testing::words_of<CommError>([&] { pager.touch(1); }), ::testing::HasSubstr("rank 3 is gone"));
}

}  // namespace
}  // namespace hasten::offload
