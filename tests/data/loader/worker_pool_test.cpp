#include "data/loader/detail/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <set>

namespace hasten::data {
namespace {

TEST(WorkerPool, RunsEveryJobAndItsWritesAreSeen) {
  WorkerPool pool(3);
  int done = 0;
  for (int job = 0; job < 100; ++job) {
    pool.submit(&pool, [&](size_t) { pool.finish([&] { ++done; }); });
  }

  EXPECT_TRUE(pool.wait([&] { return done == 100; }, std::nullopt));
}

TEST(WorkerPool, TellsEachJobWhichWorkerItIs) {
  WorkerPool pool(2);
  std::latch both(2);
  std::set<size_t> workers;
  for (int job = 0; job < 2; ++job) {
    pool.submit(&pool, [&](size_t worker) {
      both.arrive_and_wait();  // so that one worker cannot do both
      pool.finish([&] { workers.insert(worker); });
    });
  }

  pool.wait([&] { return workers.size() == 2; }, std::nullopt);

  EXPECT_EQ(workers, (std::set<size_t>{0, 1}));
}

TEST(WorkerPool, DestructionWaitsForTheRunningJobAndDropsTheOthers) {
  std::latch started(1), go(1);
  std::atomic<int> ran = 0;
  {
    WorkerPool pool(1);
    pool.submit(&pool, [&](size_t) {
      started.count_down();
      go.wait();
      ++ran;
    });
    pool.submit(&pool, [&](size_t) { ++ran; });
    started.wait();
    pool.drop_queued();
    go.count_down();
  }

  EXPECT_EQ(ran, 1);
}

TEST(WorkerPool, AWaitEndsAfterItsTimeout) {
  WorkerPool pool(1);

  EXPECT_FALSE(pool.wait([] { return false; }, std::chrono::milliseconds(1)));
}

TEST(WorkerPool, DropsTheJobsOfOneOwnerOnly) {
  WorkerPool pool(1);
  std::latch started(1), go(1);
  bool one = false, other = false;
  pool.submit(&pool, [&](size_t) {
    started.count_down();
    go.wait();
  });
  started.wait();
  pool.submit(&one, [&](size_t) { pool.finish([&] { one = true; }); });
  pool.submit(&other, [&](size_t) { pool.finish([&] { other = true; }); });

  pool.drop_queued(&one);
  go.count_down();

  EXPECT_TRUE(pool.wait([&] { return other; }, std::chrono::seconds(30)));
  EXPECT_FALSE(one);
}

}  // namespace
}  // namespace hasten::data
