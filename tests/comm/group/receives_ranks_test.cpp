// Receives that are under way while their starter does something else. Run on shared memory and on Gloo.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <latch>
#include <thread>

#include "comm/on_shared_memory.h"
#include "hasten/comm/group/group.h"
#include "hasten/core/error.h"

namespace hasten::comm {
namespace {

using process::Process;
using testing::run_ranks;

void wait_until_done(const Work<>& work) {
  while (!work.done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(ReceivesRanks, AreMatchedInTheOrderOfTheirStartWhoeverIsWaitedForFirst) {
  for (const bool check : {false, true}) {
    run_ranks(2,
              [](Process& process) {
                const Group& group = process.group();
                if (process.rank() == 0) {
                  for (const int64_t value : {1, 2, 3}) group.send(torch::full({2}, value), 1);
                  return;
                }
                std::vector<at::Tensor> tensors;
                std::vector<Work<>> works;
                for (int i = 0; i < 3; ++i) {
                  tensors.push_back(torch::zeros({2}, at::kLong));
                  works.push_back(group.receive_async_(tensors.back(), 0));
                }
                for (const size_t i : {2, 0, 1}) works[i].wait();
                for (int64_t i = 0; i < 3; ++i) EXPECT_TRUE(torch::equal(tensors[i], torch::full({2}, i + 1))) << i;
              },
              {.check = check});
  }
}

TEST(ReceivesRanks, OneThatWasDroppedHasTakenItsMessage) {
  for (const bool check : {false, true}) {
    run_ranks(2,
              [](Process& process) {
                const Group& group = process.group();
                if (process.rank() == 0) {
                  group.send(torch::full({2}, 1), 1), group.send(torch::full({2}, 2), 1);
                  return;
                }
                { const auto dropped = group.receive_async_(torch::zeros({2}, at::kLong), 0); }
                const at::Tensor next = torch::zeros({2}, at::kLong);
                group.receive_(next, 0);
                EXPECT_TRUE(torch::equal(next, torch::full({2}, 2)));
              },
              {.check = check});
  }
}

// Together they are more than shared memory holds of one sender.
TEST(ReceivesRanks, ManyMayBeOpenWhileTheirStarterWaitsForSomethingElse) {
  constexpr int kNum = 10;
  run_ranks(2,
            [](Process& process) {
              const Group& group = process.group();
              std::vector<at::Tensor> tensors;
              std::vector<Work<>> works;
              for (int i = 0; i < kNum; ++i) {
                tensors.push_back(process.rank() == 0 ? bytes_from(0, i, 200'000) : torch::empty({200'000}, at::kByte));
                if (process.rank() == 0) {
                  group.send(tensors[i], 1);
                } else {
                  works.push_back(group.receive_async_(tensors[i], 0));
                }
              }
              group.barrier();
              for (Work<>& work : works) work.wait();
              for (int i = 0; i < kNum; ++i) EXPECT_TRUE(torch::equal(tensors[i], bytes_from(0, i, 200'000))) << i;
            },
            {.check = false});
}

TEST(ReceivesRanks, ABatchIsNotDoneBeforeItsReceivesAre) {
  std::latch rank_1_has_asked(1);
  run_ranks(2, [&](Process& process) {
    const at::Tensor tensor = torch::full({2}, process.rank());
    const int other = 1 - process.rank();
    const auto kind = process.rank() == 0 ? PointToPoint::Kind::kSend : PointToPoint::Kind::kReceive;
    if (process.rank() == 0) rank_1_has_asked.wait();

    auto work = process.group().batch_send_recv({{.kind = kind, .tensor = tensor, .peer = other}});
    if (process.rank() == 1) {
      EXPECT_FALSE(work.done());
      rank_1_has_asked.count_down();
    }
    work.wait();

    EXPECT_TRUE(torch::equal(tensor, torch::full({2}, 0)));
  });
}

// A loop that asks again and again must come to an end.
TEST(SharedMemoryReceivesRanks, WhatCannotEndWellIsDone) {
  run_ranks(
      2,
      [](Process& process) {
        if (process.rank() == 1) return;
        const Group& group = process.group();
        auto receive = group.receive_async_(torch::zeros({2}), 1);
        auto barrier = group.barrier_async();

        wait_until_done(receive);
        wait_until_done(barrier);

        EXPECT_THROW(receive.wait(), CommError);
        EXPECT_THROW(barrier.wait(), CommError);
      },
      kShared);
}

// Ranks 1 and 2 send, rank 0 takes both without naming them. Where some ranks share a host it is refused.
TEST(ReceivesRanks, FromAnyRankTakeEachMessageOnceAndTellItsSender) {
  for (const int64_t size : {3, 700'000}) {
    for (const bool check : {false, true}) {
      run_ranks(3,
                [size](Process& process) {
                  const Group& group = process.group();
                  if (process.rank() > 0) return group.send(torch::full({size}, process.rank(), at::kLong), 0, 5);
                  const at::Tensor tensor = torch::zeros({size}, at::kLong);
                  if (group.backend_name() == "shm+gloo") {
                    EXPECT_THROW(group.receive_any_(tensor, 5), UsageError);
                    for (const int rank : {1, 2}) group.receive_(tensor, rank, 5);
                    return;
                  }
                  std::vector<int> senders;
                  for (int i = 0; i < 2; ++i) {
                    senders.push_back(group.receive_any_(tensor, 5));
                    EXPECT_TRUE(torch::equal(tensor, torch::full({size}, senders.back(), at::kLong)));
                  }
                  std::sort(senders.begin(), senders.end());
                  EXPECT_EQ(senders, (std::vector<int>{1, 2}));
                },
                {.check = check});
    }
  }
}

TEST(SharedMemoryReceivesRanks, FromAnyRankAndFromOneTakeMessagesInTheOrderOfTheirStart) {
  run_ranks(
      2,
      [](Process& process) {
        const Group& group = process.group();
        if (process.rank() == 1) {
          for (const int64_t value : {1, 2}) group.send(torch::full({2}, value), 0);
          return;
        }
        const at::Tensor first = torch::zeros({2}, at::kLong), second = torch::zeros({2}, at::kLong);
        auto any = group.receive_any_async_(first);
        auto named = group.receive_async_(second, 1);
        named.wait();
        EXPECT_EQ(any.wait(), 1);
        EXPECT_EQ(first[0].item<int64_t>(), 1);
        EXPECT_EQ(second[0].item<int64_t>(), 2);
      },
      kShared);
}

TEST(ReceivesRanks, FromAnyRankNeedATensorWithElements) {
  run_ranks(2, [](Process& process) {
    EXPECT_THROW(process.group().receive_any_(torch::zeros({0})), UsageError);
    EXPECT_THROW(process.group().receive_any_(torch::zeros({1}), -1), UsageError);
  });
  EXPECT_THROW(Group().receive_any_(torch::zeros({1})), UsageError);
}

}  // namespace
}  // namespace hasten::comm
