#include "data/loader/detail/fetch_queue.h"

#include <gtest/gtest.h>

#include <latch>
#include <stdexcept>

namespace hasten::data::detail {
namespace {

using std::chrono::milliseconds;

ShardedBatch sample(size_t index) {
  return {.indices = {index}};
}
int number_of(const FetchQueue::Entry& entry) {
  return batch_in<int>(entry->batch);
}
AnyBatch fetched(size_t, const Indices& indices) {
  return any_batch(static_cast<int>(indices[0]));
}

TEST(FetchQueue, GivesInOrderWhatWorkersHaveDone) {
  WorkerPool workers(2);
  FetchQueue queue(&workers, fetched);
  for (size_t i = 0; i < 5; ++i) queue.add(sample(i));

  for (int i = 0; i < 5; ++i) EXPECT_EQ(number_of(queue.take_done(true, {})), i);
  EXPECT_TRUE(queue.empty());
}

TEST(FetchQueue, WithoutOrderTheFirstDoneComesFirstAndTheNewestLast) {
  WorkerPool workers(2);
  std::latch gate(1);
  FetchQueue queue(&workers, [&](size_t worker, const Indices& indices) {
    if (indices[0] == 0) gate.wait();
    return fetched(worker, indices);
  });
  for (size_t i = 0; i < 3; ++i) queue.add(sample(i));

  EXPECT_EQ(number_of(queue.take_done(false, {})), 1);
  EXPECT_EQ(queue.take_done(true, milliseconds(0)), nullptr) << "the first is not done";
  gate.count_down();
  EXPECT_EQ(number_of(queue.take_done(false, {})), 0);
  EXPECT_EQ(number_of(queue.take_done(false, {})), 2);
}

TEST(FetchQueue, AnErrorStaysWithItsBatch) {
  WorkerPool workers(1);
  FetchQueue queue(&workers, [](size_t worker, const Indices& indices) {
    if (indices[0] == 1) throw std::runtime_error("no such sample");
    return fetched(worker, indices);
  });
  for (size_t i = 0; i < 3; ++i) queue.add(sample(i));

  EXPECT_EQ(queue.take_done(true, {})->error, nullptr);
  EXPECT_NE(queue.take_done(true, {})->error, nullptr);
  EXPECT_EQ(number_of(queue.take_done(true, {})), 2);
}

TEST(FetchQueue, WithoutWorkersItKeepsWhatItIsGiven) {
  FetchQueue queue(nullptr);
  EXPECT_FALSE(queue.front_is_there());
  queue.add(sample(7));
  EXPECT_FALSE(queue.front_is_there());
  queue.take_front();
  queue.add(sample(8), any_batch(8));

  EXPECT_TRUE(queue.front_is_there());
  const auto entry = queue.take_front();
  EXPECT_EQ(number_of(entry), 8);
  EXPECT_EQ(entry->planned.indices, Indices{8});
}

}  // namespace
}  // namespace hasten::data::detail
