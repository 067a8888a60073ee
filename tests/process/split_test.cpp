#include "hasten/process/split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "hasten/core/error.h"

namespace hasten::process {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Process split_process_of(int rank, int world_size) {
  return Process({.rank = rank, .world_size = world_size}, comm::Group());
}

std::string split_message(const std::function<void()>& action) {
  try {
    action();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no UsageError";
}

TEST(ShareOf, CoversEveryElementOnceInRankOrderForAnySizes) {
  for (int world_size = 1; world_size <= 5; ++world_size) {
    for (int64_t length = 0; length <= 12; ++length) {
      int64_t next = 0;
      for (int rank = 0; rank < world_size; ++rank) {
        const Share share = share_of(length, rank, world_size);
        EXPECT_EQ(share.begin, next) << length << " over " << world_size;
        EXPECT_GE(share.end - share.begin, length / world_size);
        EXPECT_LE(share.end - share.begin, (length + world_size - 1) / world_size);
        next = share.end;
      }
      EXPECT_EQ(next, length) << length << " over " << world_size;
    }
  }
}

TEST(ShareOf, PaddingMakesAllSharesAsLongAsTheFirst) {
  for (int rank = 0; rank < 4; ++rank) {
    const Share share = share_of(10, rank, 4, true);
    EXPECT_EQ(share.end - share.begin + share.padding, 3) << rank;
  }
  EXPECT_EQ(share_of(0, 1, 4, true).padding, 0);
}

TEST(SplitBetweenProcesses, GivesTheFirstRanksTheExtraElements) {
  const std::vector<std::string> prompts = {"a", "b", "c", "d", "e"};

  EXPECT_THAT(split_between_processes(split_process_of(0, 3), prompts), ElementsAre("a", "b"));
  EXPECT_THAT(split_between_processes(split_process_of(1, 3), prompts), ElementsAre("c", "d"));
  EXPECT_THAT(split_between_processes(split_process_of(2, 3), prompts), ElementsAre("e"));
}

TEST(SplitBetweenProcesses, PadsWithTheLastElementOfTheList) {
  const std::vector<int> values = {1, 2, 3, 4, 5, 6};

  EXPECT_THAT(split_between_processes(split_process_of(2, 4), values, true), ElementsAre(5, 5 + 1));
  EXPECT_THAT(split_between_processes(split_process_of(3, 4), values, false), ElementsAre(6));
  EXPECT_THAT(split_between_processes(split_process_of(3, 4), values, true), ElementsAre(6, 6));
}

TEST(SplitBetweenProcesses, ARankWithoutElementsIsEmptyOrAllPadding) {
  const std::vector<int> values = {1, 2};

  EXPECT_THAT(split_between_processes(split_process_of(3, 4), values), IsEmpty());
  EXPECT_THAT(split_between_processes(split_process_of(3, 4), values, true), ElementsAre(2));
  EXPECT_THAT(split_between_processes(split_process_of(3, 4), std::vector<int>{}, true), IsEmpty());
}

TEST(SplitBetweenProcesses, CutsTensorsByRows) {
  const auto rows = torch::arange(10).view({5, 2});

  EXPECT_TRUE(split_between_processes(split_process_of(1, 2), rows).equal(rows.slice(0, 3, 5)));
  EXPECT_TRUE(
      split_between_processes(split_process_of(1, 2), rows, true).equal(torch::tensor({{6, 7}, {8, 9}, {8, 9}})));
  EXPECT_TRUE(split_between_processes(split_process_of(7, 8), rows, true).equal(torch::tensor({{8, 9}})));
  EXPECT_THAT(split_message([] { split_between_processes(split_process_of(0, 2), torch::tensor(1)); }),
              HasSubstr("scalar"));
}

TEST(SplitBetweenProcesses, SplitsEveryNamedListAlike) {
  const std::map<std::string, std::vector<int>> lists = {{"a", {1, 2, 3}}, {"b", {4, 5, 6}}};
  const std::unordered_map<std::string, torch::Tensor> tensors = {{"x", torch::arange(3)}};

  const auto mine = split_between_processes(split_process_of(1, 2), lists, true);

  EXPECT_THAT(mine.at("a"), ElementsAre(3, 3));
  EXPECT_THAT(mine.at("b"), ElementsAre(6, 6));
  EXPECT_TRUE(split_between_processes(split_process_of(0, 2), tensors).at("x").equal(torch::arange(2)));
}

TEST(SplitBetweenProcesses, NamedListsOfDifferentLengthsAreRefusedByName) {
  const std::map<std::string, std::vector<int>> lists = {{"prompts", {1, 2, 3}}, {"seeds", {4}}};

  EXPECT_THAT(split_message([&] { split_between_processes(split_process_of(0, 2), lists); }),
              HasSubstr("'prompts' has 3 elements and 'seeds' has 1"));
}

}  // namespace
}  // namespace hasten::process
