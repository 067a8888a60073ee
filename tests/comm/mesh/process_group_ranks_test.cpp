#include "hasten/comm/mesh/process_group.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <latch>
#include <thread>

#include "comm/on_shared_memory.h"
#include "hasten/core/error.h"

namespace hasten::comm {
namespace {

using process::Process;
using testing::run_ranks;
using Tensors = std::vector<at::Tensor>;

TEST(ProcessGroupRanks, CollectivesOfLibtorchRunOverTheGroup) {
  run_ranks(3, [](Process& process) {
    const auto native = process_group(process.group());
    const int rank = process.rank();
    EXPECT_EQ(native->getRank(), rank);
    EXPECT_EQ(native->getSize(), 3);
    Tensors sum{torch::full({1000}, rank + 1.0)}, word{torch::full({2}, rank)}, part{torch::full({2}, rank)};
    std::vector<Tensors> gathered{
        {torch::empty({2}, at::kLong), torch::empty({2}, at::kLong), torch::empty({2}, at::kLong)}};
    at::Tensor flat = torch::empty({6}, at::kLong), slice = torch::empty({2}, at::kLong);

    native->allreduce(sum)->wait();
    c10d::BroadcastOptions from_one;
    from_one.rootRank = 1;
    native->broadcast(word, from_one)->wait();
    native->allgather(gathered, part)->wait();
    native->getBackend(c10::DeviceType::CPU)->_allgather_base(flat, part[0])->wait();
    native->getBackend(c10::DeviceType::CPU)->_reduce_scatter_base(slice, flat)->wait();
    native->barrier()->wait();

    EXPECT_TRUE(torch::equal(sum[0], torch::full({1000}, 6.0)));
    EXPECT_TRUE(torch::equal(word[0], torch::tensor({1, 1})));
    EXPECT_TRUE(torch::equal(gathered[0][2], torch::tensor({2, 2})));
    EXPECT_TRUE(torch::equal(flat, torch::tensor({0, 0, 1, 1, 2, 2})));
    EXPECT_TRUE(torch::equal(slice, torch::tensor({3 * rank, 3 * rank})));
  });
}

TEST(ProcessGroupRanks, MessagesAndUnequalExchangesRunOverTheGroup) {
  run_ranks(2, [](Process& process) {
    const auto native = process_group(process.group());
    const int rank = process.rank(), other = 1 - rank;
    Tensors mine{torch::full({3}, rank)}, theirs{torch::zeros({3}, at::kLong)};
    at::Tensor output = torch::zeros({rank == 0 ? 3 : 5}, at::kLong), input = torch::full({4}, rank);
    std::vector<int64_t> take = rank == 0 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{3, 2};
    std::vector<int64_t> give = rank == 0 ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{2, 2};

    const auto sent = native->send(mine, other, 7), received = native->recv(theirs, other, 7);
    received->wait(), sent->wait();
    native->getBackend(c10::DeviceType::CPU)->alltoall_base(output, input, take, give)->wait();

    EXPECT_TRUE(torch::equal(theirs[0], torch::full({3}, other)));
    EXPECT_TRUE(torch::equal(output, rank == 0 ? torch::tensor({0, 1, 1}) : torch::tensor({0, 0, 0, 1, 1})));
  });
}

TEST(ProcessGroupRanks, AWorkIsNotCompletedBeforeTheOthersHaveCome) {
  std::latch rank_0_has_asked(1);
  run_ranks(2,
            [&](Process& process) {
              const auto backend = process_group(process.group())->getBackend(c10::DeviceType::CPU);
              at::Tensor input = torch::ones({2 * 100'000}), output = torch::empty({100'000});
              if (process.rank() == 1) rank_0_has_asked.wait();

              const auto work = backend->_reduce_scatter_base(output, input);
              if (process.rank() == 0) {
                EXPECT_FALSE(work->isCompleted());
                rank_0_has_asked.count_down();
              }
              work->wait();

              EXPECT_TRUE(work->isCompleted());
              EXPECT_TRUE(torch::equal(output, torch::full({100'000}, 2.0)));
            },
            {.check = false});
}

TEST(ProcessGroupRanks, WhatIsCompletedHasWrittenItsResults) {
  run_ranks(2, [](Process& process) {
    const auto native = process_group(process.group());
    std::vector<Tensors> gathered{{torch::zeros({2}), torch::zeros({2})}};
    Tensors mine{torch::ones({2})};

    const auto work = native->allgather(gathered, mine);
    while (!work->isCompleted()) std::this_thread::yield();

    EXPECT_TRUE(work->isSuccess());
    EXPECT_TRUE(torch::equal(gathered[0][1], torch::ones({2})));
    native->barrier()->wait();
  });
}

TEST(ProcessGroupRanks, WaitingMayHaveATimeOfItsOwn) {
  std::latch rank_0_gave_up(1);
  run_ranks(
      2,
      [&](Process& process) {
        const auto native = process_group(process.group());
        Tensors tensors{torch::ones({4})};
        if (process.rank() == 1) rank_0_gave_up.wait();

        const auto work = native->allreduce(tensors);
        if (process.rank() == 0) {
          EXPECT_THROW(work->wait(std::chrono::milliseconds(20)), CommError);
          rank_0_gave_up.count_down();
        }
        work->wait();

        EXPECT_TRUE(torch::equal(tensors[0], torch::full({4}, 2.0)));
      },
      kShared);
}

TEST(ProcessGroupRanks, FuturesAreCompletedAsTheirWorksEnd) {
  run_ranks(
      2,
      [](Process& process) {
        const auto native = process_group(process.group());
        Tensors message{torch::full({2}, process.rank())}, sum{torch::ones({2})};

        // Rank 0 sends only when the sum has ended, whose future is asked for after the message's.
        const auto received = process.rank() == 1 ? native->recv(message, 0, 0)->getFuture() : nullptr;
        native->allreduce(sum)->getFuture()->wait();
        if (process.rank() == 0) native->send(message, 1, 0)->wait();
        if (received) received->wait();

        EXPECT_TRUE(torch::equal(message[0], torch::full({2}, 0)));
      },
      kShared);
}

TEST(ProcessGroupRanks, AFutureOutlivesItsProcessGroup) {
  run_ranks(2, [](Process& process) {
    Tensors tensors{torch::ones({4})};

    const auto future = process_group(process.group())->allreduce(tensors)->getFuture();
    future->wait();

    EXPECT_TRUE(torch::equal(tensors[0], torch::full({4}, 2.0)));
  });
}

TEST(ProcessGroupRanks, AListOfAnotherLengthIsRefused) {
  run_ranks(2, [](Process& process) {
    const auto native = process_group(process.group());
    std::vector<Tensors> gathered{{torch::zeros({2})}};
    Tensors mine{torch::ones({2})};

    EXPECT_THROW(native->allgather(gathered, mine), UsageError);
  });
}

TEST(ProcessGroupRanks, AFutureIsCompletedWithTheTensors) {
  run_ranks(2, [](Process& process) {
    const auto native = process_group(process.group());
    Tensors tensors{torch::ones({4})};

    const auto future = native->allreduce(tensors)->getFuture();
    future->wait();

    EXPECT_TRUE(torch::equal(future->value().toTensorVector()[0], torch::full({4}, 2.0)));
  });
}

}  // namespace
}  // namespace hasten::comm
