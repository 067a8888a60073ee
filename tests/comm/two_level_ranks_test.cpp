// What every backend does is in group_ranks_test.cpp, which is run over two levels, too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "hasten/comm/group.h"
#include "hasten/core/error.h"
#include "support/ranks.h"

namespace hasten::comm {
namespace {

using state::Process;
using ::testing::AllOf;
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

TEST(TwoLevelRanks, IsChosenWhereAHostHasSeveralRanks) {
  run_ranks(
      6, [](Process& process) { EXPECT_EQ(process.group().backend_name(), "shm+gloo"); }, kThreeHosts);
}

TEST(TwoLevelRanks, CollectivesGiveWhatOneHostGives) {
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
        const at::Tensor mine = group.reduce_scatter(torch::arange(12).to(at::kFloat));
        EXPECT_TRUE(torch::equal(mine, torch::tensor({12.0F * rank, 12.0F * rank + 6})));
      },
      kThreeHosts);
}

TEST(TwoLevelRanks, MessagesFindTheirWayInsideAndBetweenHosts) {
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

TEST(TwoLevelRanks, ManyOperationsUnderWayEndInAnyOrder) {
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

TEST(TwoLevelRanks, AFailureOnOneHostReachesTheRanksOfAllOthers) {
  const auto words = run_ranks_collecting(
      6,
      [](Process& process) {
        if (process.rank() == 4) throw std::runtime_error("no more data");
        process.group().all_reduce_(torch::ones({10}));
      },
      kThreeHosts);

  for (const int rank : {0, 1, 2, 3, 5})
    EXPECT_THAT(words[rank], HasSubstr("rank 4 failed: no more data")) << rank;
}

TEST(TwoLevelRanks, CallsThatDifferOnOneHostOrBetweenHostsEndThoseOfAllRanks) {
  for (const int odd : {4, 5}) {  // with others on its host, and alone there
    const auto words =
        run_ranks_collecting(6,
                             [&](Process& process) {
                               process.group().all_reduce_(torch::ones({process.rank() == odd ? 20 : 10}));
                             },
                             {.timeout = std::chrono::minutes(1), .check = false, .adjust = on_three_hosts});

    int num_that_say_why = 0;
    for (const std::string& said : words) {
      EXPECT_THAT(said, AllOf(Not(IsEmpty()), Not(HasSubstr("was not completed within"))));
      num_that_say_why += said.find("(sum) of 20 Float") != std::string::npos;
    }
    EXPECT_GT(num_that_say_why, 0);
  }
}

}  // namespace
}  // namespace hasten::comm
