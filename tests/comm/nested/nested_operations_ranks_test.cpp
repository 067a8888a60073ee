#include "hasten/comm/nested/nested_operations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "support/ranks.h"

namespace hasten::comm {
namespace {

using hasten::testing::run_ranks;
using hasten::testing::run_ranks_collecting;
using ::testing::Each;
using ::testing::HasSubstr;
using Named = std::map<std::string, torch::Tensor>;

TEST(Gather, ConcatenatesEveryRanksRowsInRankOrder) {
  run_ranks(3, [](process::Process& process) {
    const int rank = process.rank();
    const std::tuple value{torch::full({2, 2}, rank), torch::tensor(10 * rank)};

    const auto [rows, scalars] = gather(process.group(), value);

    EXPECT_TRUE(rows.equal(torch::tensor({0, 0, 1, 1, 2, 2}).unsqueeze(1).expand({6, 2})));
    EXPECT_TRUE(scalars.equal(torch::tensor({0, 10, 20})));
  });
}

TEST(Gather, TakesDifferentNumbersOfRows) {
  run_ranks(3, [](process::Process& process) {
    const auto gathered = gather(process.group(), torch::full({process.rank()}, process.rank()));

    EXPECT_TRUE(gathered.equal(torch::tensor({1, 2, 2})));
  });
}

TEST(Gather, AlignsUnorderedMapsThatWereFilledInAnyOrder) {
  run_ranks(2, [](process::Process& process) {
    std::unordered_map<std::string, torch::Tensor> value;
    for (int i = 0; i < 20; ++i) {
      const int key = process.rank() == 0 ? i : 19 - i;
      value.emplace(std::to_string(key), torch::tensor(key));
    }

    const auto gathered = gather(process.group(), value);

    for (int i = 0; i < 20; ++i) EXPECT_TRUE(gathered.at(std::to_string(i)).equal(torch::tensor({i, i})));
  });
}

TEST(Gather, OfDifferentStructuresThrowsOnEveryRankNamingBothSides) {
  const auto words = run_ranks_collecting(3, [](process::Process& process) {
    gather(process.group(), Named{{process.rank() == 2 ? "lables" : "labels", torch::zeros({4, 2})}});
  });

  EXPECT_THAT(words, Each(HasSubstr("rank 0 passes {labels: Float[*, 2]}, rank 2 passes {lables: Float[*, 2]}")));
}

TEST(Gather, JoinsListsOfObjectsInRankOrderWhateverTheirLengths) {
  run_ranks(3, [](process::Process& process) {
    const int rank = process.rank();
    const std::vector<std::string> words(rank, "word " + std::to_string(rank));
    const std::map<std::string, std::vector<std::vector<int64_t>>> nested{{"a", {{rank, rank}}}};
    const std::tuple value{torch::tensor({rank}), words, nested, std::vector<bool>{rank == 1}};

    for (const bool check : {false, true}) {
      const auto [rows, all_words, all_nested, flags] = gather(process.group().with_check(check), value);

      EXPECT_TRUE(rows.equal(torch::tensor({0, 1, 2})));
      EXPECT_THAT(all_words, ::testing::ElementsAre("word 1", "word 2", "word 2"));
      EXPECT_THAT(all_nested.at("a"), ::testing::ElementsAre(std::vector<int64_t>{0, 0}, std::vector<int64_t>{1, 1},
                                                             std::vector<int64_t>{2, 2}));
      EXPECT_THAT(flags, ::testing::ElementsAre(false, true, false));
    }
  });
}

TEST(Broadcast, SendsNumbersTextsAndLists) {
  run_ranks(2, [](process::Process& process) {
    const int rank = process.rank();
    const std::tuple value{torch::tensor(rank), rank + 0.5, std::string(rank + 1, 'x'),
                           std::vector<int>(rank + 1, rank)};

    const auto [tensor, number, word, list] = broadcast(process.group(), value, 1);

    EXPECT_EQ(tensor.item<int>(), 1);
    EXPECT_EQ(number, 1.5);
    EXPECT_EQ(word, "xx");
    EXPECT_THAT(list, ::testing::ElementsAre(1, 1));
  });
}

TEST(Broadcast, GivesEveryRankTheRootsTensorsAndKeepsItsOwn) {
  run_ranks(3, [](process::Process& process) {
    const Named mine{{"a", torch::full({2}, process.rank())}, {"b", torch::tensor(process.rank() * 0.5)}};

    const Named received = broadcast(process.group(), mine, 2);

    EXPECT_TRUE(received.at("a").equal(torch::tensor({2, 2})));
    EXPECT_TRUE(received.at("b").equal(torch::tensor(1.0)));
    EXPECT_TRUE(mine.at("a").equal(torch::full({2}, process.rank())));
  });
}

TEST(Broadcast, FromDifferentRanksThrowsOnEveryRank) {
  const auto words = run_ranks_collecting(
      2, [](process::Process& process) { broadcast(process.group(), torch::zeros({1}), process.rank()); });

  EXPECT_THAT(words, Each(HasSubstr("rank 0 passes from rank 0: Float[1], rank 1 passes from rank 1: Float[1]")));
}

TEST(Reduce, SumsAveragesAndScales) {
  run_ranks(3, [](process::Process& process) {
    const std::vector value = {torch::full({2}, 1.0 + process.rank())};

    const auto sum = reduce(process.group(), value);
    const auto mean = reduce(process.group(), value, {.op = ReduceOp::kMean});
    const auto scaled = reduce(process.group(), value, {.scale = 0.5});

    EXPECT_TRUE(sum[0].equal(torch::full({2}, 6.0)));
    EXPECT_TRUE(mean[0].equal(torch::full({2}, 2.0)));
    EXPECT_TRUE(scaled[0].equal(torch::full({2}, 3.0)));
    EXPECT_TRUE(value[0].equal(torch::full({2}, 1.0 + process.rank())));
  });
}

TEST(Reduce, AddsUpNumbersAloneAndInStructures) {
  run_ranks(3, [](process::Process& process) {
    const int rank = process.rank();
    const auto group = process.group();
    const std::unordered_map<std::string, double> losses{{"a", rank + 0.25}, {"b", 1e-300}};
    const std::tuple value{rank, torch::tensor(rank * 2.0), std::vector<int8_t>{1, 2}, losses, rank == 1};

    const auto [count, tensor, list, map, flag] = reduce(group, value);

    EXPECT_EQ(count, 3);
    EXPECT_EQ(tensor.item<double>(), 6.0);
    EXPECT_THAT(list, ::testing::ElementsAre(3, 6));
    EXPECT_EQ(map.at("a"), 3.75);
    EXPECT_EQ(map.at("b"), 3e-300);
    EXPECT_TRUE(flag);
    EXPECT_EQ(reduce(group, 1.5 * rank, {.op = ReduceOp::kMean}), 1.5);
    EXPECT_EQ(reduce(group, int64_t{1} << (40 + rank), {.op = ReduceOp::kMax}), int64_t{1} << 42);
    EXPECT_EQ(reduce(group, 1.0F * rank, {.scale = 0.5}), 1.5F);
    EXPECT_THAT(reduce(group, std::vector<bool>{rank == 0, false}), ::testing::ElementsAre(true, false));
  });
}

TEST(Reduce, OfAnIntegerThatItsTypeCannotHoldThrowsOnEveryRank) {
  const auto words =
      run_ranks_collecting(2, [](process::Process& process) { reduce(process.group(), std::vector<int8_t>{100}); });

  EXPECT_THAT(words, Each(HasSubstr("the integer 200 does not fit its type")));
}

TEST(PadAcrossProcesses, PadsToTheLargestSizeOfAnyRank) {
  run_ranks(3, [](process::Process& process) {
    const int64_t mine = process.rank() + 1;
    const std::pair value{torch::ones({mine, 2}), torch::full({2, mine}, 7)};

    const auto rows = pad_across_processes(process.group(), value.first);
    const auto last = pad_across_processes(process.group(), value, {.dim = -1, .pad_index = -100});
    const auto first = pad_across_processes(process.group(), value.second, {.dim = 1, .pad_first = true});

    EXPECT_TRUE(rows.equal(torch::cat({torch::ones({mine, 2}), torch::zeros({3 - mine, 2})})));
    EXPECT_TRUE(last.first.equal(value.first));
    EXPECT_TRUE(last.second.equal(torch::cat({value.second, torch::full({2, 3 - mine}, -100)}, 1)));
    EXPECT_TRUE(first.equal(torch::cat({torch::zeros({2, 3 - mine}, torch::kInt64), value.second}, 1)));
  });
}

TEST(PadAcrossProcesses, LeavesTensorsWithoutTheDimensionAndTheDtypeAlone) {
  run_ranks(2, [](process::Process& process) {
    const std::pair value{torch::tensor(1.5), torch::ones({process.rank() + 1}, torch::kBool)};

    const auto padded = pad_across_processes(process.group(), value);

    EXPECT_TRUE(padded.first.equal(value.first));
    EXPECT_EQ(padded.second.scalar_type(), torch::kBool);
    EXPECT_EQ(padded.second.size(0), 2);
  });
}

TEST(PadAcrossProcesses, NoticesOtherNumbersOfTensorsWithoutChecks) {
  const auto words = run_ranks_collecting(
      2,
      [](process::Process& process) {
        pad_across_processes(process.group(), std::vector<torch::Tensor>(process.rank() + 1, torch::zeros({1})));
      },
      {.check = false});

  EXPECT_THAT(words[0], HasSubstr("this rank passes 1 tensor(s), rank 1 passes 2"));
  EXPECT_THAT(words[1], HasSubstr("this rank passes 2 tensor(s), rank 0 passes 1"));
}

}  // namespace
}  // namespace hasten::comm
