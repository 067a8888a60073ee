// Messages between two ranks over shared memory. What every backend does is in group_ranks_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "comm/on_shared_memory.h"
#include "hasten/comm/group/group.h"
#include "hasten/core/error.h"

namespace hasten::comm {
namespace {

using process::Process;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::run_ranks_collecting;

// Large ones that meet on their way, and small ones behind them.
TEST(SharedMemoryMessagesRanks, MessagesInBothDirectionsArriveWhole) {
  const std::vector<int64_t> sizes = {5 * kMegabyte + 1, 0, 9 * kMegabyte, 17, kMegabyte + 3};
  for (const int world_size : {2, 3}) {
    run_ranks(
        world_size,
        [&](Process& process) {
          const int me = process.rank(), next = (me + 1) % world_size, last = (me + world_size - 1) % world_size;
          std::vector<at::Tensor> sent;
          std::vector<Work<>> works;
          for (size_t i = 0; i < sizes.size(); ++i) {
            sent.push_back(bytes_from(me, static_cast<int>(i), sizes[i]));
            works.push_back(process.group().send_async(sent.back(), next));
          }
          for (size_t i = 0; i < sizes.size(); ++i) {
            const at::Tensor message = torch::empty({sizes[i]}, at::kByte);
            process.group().receive_(message, last);
            ASSERT_TRUE(torch::equal(message, bytes_from(last, static_cast<int>(i), sizes[i]))) << i;
          }
          for (Work<>& work : works) work.wait();
        },
        kShared);
  }
}

TEST(SharedMemoryMessagesRanks, SendsAndReceivesGoOnWhileTheirStarterDoesSomethingElse) {
  for (const int sleeper : {0, 1}) {
    std::latch other_is_done(1);
    run_ranks(
        2,
        [&](Process& process) {
          at::Tensor tensor =
              process.rank() == 0 ? torch::arange(2 * kMegabyte) : torch::zeros({2 * kMegabyte}, at::kLong);
          auto work =
              process.rank() == 0 ? process.group().send_async(tensor, 1) : process.group().receive_async_(tensor, 0);
          if (process.rank() == sleeper) other_is_done.wait();
          work.wait();
          if (process.rank() != sleeper) other_is_done.count_down();
          EXPECT_EQ(tensor[2 * kMegabyte - 1].item<int64_t>(), 2 * kMegabyte - 1);
        },
        kShared);
  }
}

// Who waits moves everything; what is left then is the thread's again.
TEST(SharedMemoryMessagesRanks, ASendGoesOnAfterItsStarterHasWaitedForSomethingElse) {
  std::latch rank_1_is_done(1);
  run_ranks(
      2,
      [&](Process& process) {
        const at::Tensor large = torch::full({2 * kMegabyte}, 7, at::kLong), small = torch::zeros({3});
        if (process.rank() == 0) {
          auto work = process.group().send_async(large, 1, 1);
          process.group().receive_(small, 1, 2);
          rank_1_is_done.wait();
          return work.wait();
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(50));  // until rank 0 waits
        process.group().send(small, 0, 2);
        large.zero_();
        process.group().receive_(large, 0, 1);
        rank_1_is_done.count_down();
        EXPECT_TRUE(torch::equal(large, torch::full_like(large, 7)));
      },
      kShared);
}

TEST(SharedMemoryMessagesRanks, MessagesOfDifferentTagsAreTakenInAnyOrder) {
  run_ranks(
      2,
      [](Process& process) {
        const Group& group = process.group();
        if (process.rank() == 0) {
          for (int tag = 0; tag < 50; ++tag) group.send(torch::full({1000 * tag + 1}, tag, at::kFloat), 1, tag);
        } else {
          for (int tag = 49; tag >= 0; --tag) {
            at::Tensor tensor = torch::zeros({1000 * tag + 1});
            group.receive_(tensor, 0, tag);
            EXPECT_TRUE(torch::equal(tensor, torch::full_like(tensor, tag))) << tag;
          }
        }
      },
      kShared);
}

// Asking for a small one takes the beginning of the large one before it out of the ring.
TEST(SharedMemoryMessagesRanks, WhatIsAskedForWhileItComesGoesOnToItsPlace) {
  constexpr int64_t kLarge = 5 * kMegabyte + 7;
  run_ranks(
      2,
      [](Process& process) {
        const Group& group = process.group();
        const at::Tensor small = torch::zeros({1}), large = torch::zeros({kLarge}, at::kByte);
        if (process.rank() == 0) {
          auto sent = group.send_async(bytes_from(0, 1, kLarge), 1, 1);
          group.barrier();
          group.send(torch::full({1}, 2.0f), 1, 2);
          return sent.wait();
        }
        group.barrier();
        auto behind = group.receive_async_(small, 0, 2);
        group.receive_(large, 0, 1);
        behind.wait();
        EXPECT_TRUE(torch::equal(large, bytes_from(0, 1, kLarge)));
        EXPECT_EQ(small.item<float>(), 2);
      },
      kShared);
}

// What nobody can take is gone when the next one comes.
TEST(SharedMemoryMessagesRanks, ALargeMessageOfAnotherSizeMakesWayForTheNext) {
  constexpr int64_t kLarge = 5 * kMegabyte + 7;
  for (const bool is_coming : {false, true}) {
    run_ranks(
        2,
        [&](Process& process) {
          const Group& group = process.group();
          const at::Tensor large = torch::zeros({kLarge}, at::kByte);
          if (process.rank() == 0) {
            auto sent = group.send_async(bytes_from(0, 1, kLarge), 1, 1);
            group.barrier();
            group.send(bytes_from(0, 2, kLarge), 1, 1);
            return sent.wait();
          }
          auto behind = is_coming ? std::nullopt : std::optional(group.receive_async_(large.slice(0, 5), 0, 1));
          group.barrier();
          if (is_coming) {
            const at::Tensor other = torch::zeros({1});
            auto never = group.receive_async_(other, 0, 2);
            behind = group.receive_async_(large.slice(0, 5), 0, 1);
          }
          EXPECT_THROW(behind->wait(), CommError);
          group.receive_(large, 0, 1);
          EXPECT_TRUE(torch::equal(large, bytes_from(0, 2, kLarge)));
        },
        kShared);
  }
}

TEST(SharedMemoryMessagesRanks, MessagesOfDifferentSizesNameBothSides) {
  const auto words = run_ranks_collecting(
      2,
      [](Process& process) {
        at::Tensor tensor = torch::zeros({process.rank() == 0 ? 5 : 6});
        if (process.rank() == 0) process.group().send(tensor, 1);
        if (process.rank() == 1) process.group().receive_(tensor, 0);
      },
      kShared);

  EXPECT_THAT(words[1], HasSubstr("rank 0 sends 20 bytes with tag 0, but this rank receives 24"));
}

}  // namespace
}  // namespace hasten::comm
