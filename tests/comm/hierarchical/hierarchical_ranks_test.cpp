// What every backend does is in group_ranks_test.cpp, which is run over two levels, too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <atomic>
#include <future>

#include "hasten/comm/group/group.h"
#include "hasten/core/error.h"
#include "hasten/core/text.h"
#include "support/ranks.h"

namespace hasten::comm {
namespace {

using process::Process;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::RankOptions;
using testing::run_ranks;
using testing::run_ranks_collecting;

// Three hosts, of three, two and one ranks.
void on_three_hosts(int rank, GroupOptions& options) {
  options.backend = BackendKind::kAuto;
  options.host = std::vector<std::string>{"a", "b", "a", "c", "b", "a"}[rank];
}
const RankOptions kThreeHosts{.check = false, .adjust = on_three_hosts};

TEST(HierarchicalRanks, IsChosenWhereAHostHasSeveralRanks) {
  run_ranks(
      6, [](Process& process) { EXPECT_EQ(process.group().backend_name(), "shm+gloo"); }, kThreeHosts);
}

TEST(HierarchicalRanks, CollectivesGiveWhatOneHostGives) {
  run_ranks(
      6,
      [](Process& process) {
        const Group& group = process.group();
        const int rank = process.rank();
        for (int root = 0; root < 6; ++root) {
          at::Tensor sum = torch::full({1001}, rank + 1.0), part = torch::full({3}, rank + 1.0),
                     word = torch::full({5}, rank);
          group.all_reduce_(sum);
          group.reduce_(part, root);
          group.broadcast_(word, root);
          const auto gathered = group.gather(torch::full({rank}, rank), root);

          EXPECT_TRUE(torch::equal(sum, torch::full({1001}, 21.0)));
          EXPECT_EQ(part[0].item<double>(), rank == root ? 21 : rank + 1);
          EXPECT_TRUE(torch::equal(word, torch::full({5}, root)));
          EXPECT_EQ(gathered.size(), rank == root ? 6u : 0u);
        }
        const auto all = group.all_gather(torch::full({2}, rank));
        for (int peer = 0; peer < 6; ++peer) EXPECT_TRUE(torch::equal(all[peer], torch::full({2}, peer)));
        const at::Tensor exchanged = torch::empty({6}, at::kLong);
        group.all_to_all_into_(exchanged, 10 * rank + torch::arange(6));
        EXPECT_TRUE(torch::equal(exchanged, 10 * torch::arange(6) + rank));
        const at::Tensor mine = group.reduce_scatter(torch::arange(12).to(at::kFloat));
        EXPECT_TRUE(torch::equal(mine, torch::tensor({12.0F * rank, 12.0F * rank + 6})));
      },
      kThreeHosts);
}

TEST(HierarchicalRanks, MessagesFindTheirWayInsideAndBetweenHosts) {
  run_ranks(
      6,
      [](Process& process) {
        std::vector<at::Tensor> tensors;
        std::vector<PointToPoint> messages;
        for (int peer = 0; peer < 6; ++peer) {
          if (peer == process.rank()) continue;
          messages.push_back({PointToPoint::Kind::kSend, torch::full({4}, process.rank() * 10 + peer), peer});
          messages.push_back({PointToPoint::Kind::kReceive, torch::zeros({4}, at::kLong), peer});
        }

        process.group().batch_send_recv(messages).wait();

        for (const auto& message : messages) {
          if (message.kind == PointToPoint::Kind::kSend) continue;
          EXPECT_EQ(message.tensor[3].item<int64_t>(), message.peer * 10 + process.rank());
        }
      },
      kThreeHosts);
}

TEST(HierarchicalRanks, ManyOperationsUnderWayEndInAnyOrder) {
  run_ranks(
      6,
      [](Process& process) {
        std::vector<at::Tensor> tensors;
        std::vector<Work<>> works;
        for (const int64_t size : {3, 100000, 1}) {
          tensors.push_back(torch::ones({size}));
          works.push_back(process.group().all_reduce_async_(tensors.back()));
        }
        for (size_t i = works.size(); i-- > 0;) works[i].wait();
        for (const auto& tensor : tensors) EXPECT_TRUE(torch::equal(tensor, torch::full_like(tensor, 6)));
      },
      kThreeHosts);
}

TEST(HierarchicalRanks, AFailureOnOneHostReachesTheRanksOfAllOthers) {
  const auto words = run_ranks_collecting(
      6,
      [](Process& process) {
        if (process.rank() == 4) throw std::runtime_error("no more data");
        process.group().all_reduce_(torch::ones({10}));
      },
      kThreeHosts);

  for (const int rank : {0, 1, 2, 3, 5}) EXPECT_THAT(words[rank], HasSubstr("rank 4 failed: no more data")) << rank;
}

// What a rank was told of a collective that failed, and the group goes on.
std::string words_of(const Group& group, const std::function<void()>& call) {
  std::string words;
  try {
    call();
  } catch (const CommError& error) {
    words = error.what();
  }
  at::Tensor next = torch::ones({2});
  group.all_reduce_(next);
  EXPECT_EQ(next[0].item<double>(), 6);
  return words;
}

TEST(HierarchicalRanks, WithCheckAMismatchIsNamedOnAllRanksAndTheGroupGoesOn) {
  for (const int odd : {4, 5}) {  // with others on its host, and alone there
    run_ranks(
        6,
        [&](Process& process) {
          at::Tensor tensor = torch::ones({process.rank() == odd ? 20 : 10});
          const Group checked = process.group().with_check(true);
          const auto words = words_of(process.group(), [&] { checked.all_reduce_(tensor); });
          EXPECT_THAT(words, HasSubstr("rank 0 calls all_reduce(sum) of Float [10]"));
          EXPECT_THAT(words, HasSubstr(text("rank ", odd, " calls all_reduce(sum) of Float [20]")));
          EXPECT_EQ(tensor.sum().item<double>(), tensor.numel());
        },
        kThreeHosts);
  }
}

TEST(HierarchicalRanks, WithCheckOperationsWithTheSameStepsAreToldApart) {
  run_ranks(
      6,
      [](Process& process) {
        const Group group = process.group().with_check(true);
        const auto words = words_of(group, [&] {
          if (process.rank() == 2) {
            group.reduce_scatter(torch::ones({12}));
          } else {
            group.all_reduce_(torch::ones({12}));
          }
        });
        EXPECT_THAT(words, HasSubstr("rank 0 calls all_reduce(sum) of Float [12]"));
        EXPECT_THAT(words, HasSubstr("rank 2 calls reduce_scatter(sum) of Float [12]"));

        const int root = process.rank() == 4 ? 4 : 1;  // each the first or second of its host
        at::Tensor bytes = torch::full({3}, 7, at::kByte);
        const auto of_broadcast = words_of(group, [&] { group.broadcast_(bytes, root); });
        EXPECT_THAT(of_broadcast, HasSubstr("rank 0 calls broadcast"));
        EXPECT_THAT(of_broadcast, HasSubstr("rank 4 calls broadcast"));
      },
      kThreeHosts);
}

TEST(HierarchicalRanks, WithoutCheckAMismatchInsideAHostIsNamedInTheGroupsRanks) {
  const auto words = run_ranks_collecting(
      6,
      [](Process& process) {
        // Rank 4 is the second of the host whose first is rank 1.
        process.group().all_reduce_(torch::ones({process.rank() == 4 ? 20 : 10}));
      },
      kThreeHosts);

  for (const int rank : {1, 4}) {
    EXPECT_THAT(words[rank], HasSubstr("in a part of all_reduce, rank 1 calls reduce(sum) of 10 Float, root 0 ("))
        << rank;
    EXPECT_THAT(words[rank], HasSubstr("rank 4 calls reduce(sum) of 20 Float, root 0 (hierarchical_ranks_test.cpp:"))
        << rank;
  }
  for (const int rank : {0, 2, 3, 5}) EXPECT_THAT(words[rank], Not(IsEmpty())) << rank;
}

TEST(HierarchicalRanks, WithoutCheckAMismatchOfSmallCallsBetweenHostsIsNamed) {
  const auto words = run_ranks_collecting(
      6,
      [](Process& process) {
        const bool on_b = process.rank() == 1 || process.rank() == 4;
        process.group().all_reduce_(torch::ones({on_b ? 20 : 10}));
      },
      kThreeHosts);

  EXPECT_THAT(words[0], HasSubstr("all_reduce(sum) of 10 Float"));
  EXPECT_THAT(words[0], HasSubstr("all_reduce(sum) of 20 Float"));
}

TEST(HierarchicalRanks, ATimeoutNamesRanksAsTheGroupDoes) {
  std::promise<void> others_have_given_up;
  std::atomic<int> num_waiting = 5;
  const auto words =
      run_ranks_collecting(6,
                           [&](Process& process) {
                             if (process.rank() == 4) return others_have_given_up.get_future().wait();
                             try {
                               process.group().all_reduce_(torch::ones({10}));
                             } catch (...) {
                               if (--num_waiting == 0) others_have_given_up.set_value();
                               throw;
                             }
                           },
                           {.timeout = std::chrono::seconds(2), .check = false, .adjust = on_three_hosts});

  // Rank 1 knows it by itself, the others from rank 1.
  for (const int rank : {0, 1, 2, 3, 5}) EXPECT_THAT(words[rank], HasSubstr("not there yet: rank 4")) << rank;
}

}  // namespace
}  // namespace hasten::comm
