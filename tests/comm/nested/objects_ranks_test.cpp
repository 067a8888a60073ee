#include "hasten/comm/nested/json_objects.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "support/ranks.h"

namespace hasten::comm {
namespace {

using hasten::testing::run_ranks;
using hasten::testing::run_ranks_collecting;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Score {
  std::string name;
  double value = 0;
};
void to_json(nlohmann::json& json, const Score& score) {
  json = {{"name", score.name}, {"value", score.value}};
}
void from_json(const nlohmann::json& json, Score& score) {
  json.at("name").get_to(score.name);
  json.at("value").get_to(score.value);
}

struct Stubborn {};
void to_json(nlohmann::json&, const Stubborn&) {
  throw std::runtime_error("the file is closed");
}
void from_json(const nlohmann::json&, Stubborn&) {}

TEST(GatherObject, GivesEveryRanksObjectByRank) {
  run_ranks(3, [](process::Process& process) {
    const std::string mine(10 * process.rank(), 'x');

    EXPECT_THAT(gather_object(process.group(), mine), ElementsAre("", std::string(10, 'x'), std::string(20, 'x')));
    EXPECT_THAT(gather_object(process.group(), process.rank()), ElementsAre(0, 1, 2));
  });
}

TEST(GatherObject, CarriesAnyTypeThatJsonConverts) {
  run_ranks(2, [](process::Process& process) {
    const std::map<std::string, std::vector<double>> table{{"loss", {1.0 / 3, process.rank() + 0.1}}};

    const std::optional<std::pair<std::string, int>> none, some(std::in_place, "x", 7);
    const auto tables = gather_object(process.group(), table);
    const auto scores = gather_object(process.group(), Score{"rank", 0.5 * process.rank()});
    const auto json = gather_object(process.group(), nlohmann::json{{"rank", process.rank()}, {"none", nullptr}});

    EXPECT_EQ(tables[1].at("loss"), (std::vector<double>{1.0 / 3, 1.1}));
    EXPECT_EQ(gather_object(process.group(), process.rank() == 0 ? none : some), (std::vector{none, some}));
    EXPECT_EQ(gather_object(process.group(), core::Value::map({{"b", 1}, {"a", core::Value()}}))[1],
              core::Value::map({{"b", 1}, {"a", core::Value()}}));
    EXPECT_EQ(gather_object(process.group(), std::vector{Score{"x", 2}})[1][0].value, 2);
    EXPECT_EQ(scores[1].value, 0.5);
    EXPECT_EQ(json[1], (nlohmann::json{{"rank", 1}, {"none", nullptr}}));
  });
}

TEST(GatherObject, IsExactForUnusualNumbersAndBytes) {
  run_ranks(2, [](process::Process& process) {
    const std::vector<double> numbers = {5e-324, -std::numeric_limits<double>::infinity(), 0.1, std::nan("")};
    const std::string bytes("\0\xff\x80", 3);

    const auto all = gather_object(process.group(), numbers);

    EXPECT_TRUE(std::equal(numbers.begin(), numbers.begin() + 3, all[1].begin()));
    EXPECT_TRUE(std::isnan(all[1][3]));
    EXPECT_EQ(gather_object(process.group(), bytes)[1], bytes);
    EXPECT_EQ(gather_object(process.group(), std::numeric_limits<uint64_t>::max())[1],
              std::numeric_limits<uint64_t>::max());
  });
}

TEST(GatherObject, ThatCannotBeEncodedThrowsItsWordsOnEveryRank) {
  const auto words = run_ranks_collecting(3, [](process::Process& process) {
    if (process.rank() == 1) {
      gather_object(process.group(), Stubborn{});
    } else {
      gather_object(process.group(), 1);
    }
  });

  EXPECT_THAT(words, Each(HasSubstr("gather_object: rank 1 sent no object: the file is closed")));
}

TEST(BroadcastObject, GivesEveryRankTheRootsObject) {
  run_ranks(3, [](process::Process& process) {
    const std::string mine = process.rank() == 1 ? "the root's" : "";

    EXPECT_EQ(broadcast_object(process.group(), mine, 1), "the root's");
  });
}

TEST(BroadcastObject, OfAnotherTypeIsACommErrorThatNamesTheRank) {
  const auto words = run_ranks_collecting(2, [](process::Process& process) {
    if (process.rank() == 0) {
      broadcast_object(process.group(), std::string("text"));
    } else {
      broadcast_object(process.group(), 0);
    }
  });

  EXPECT_THAT(words[1], HasSubstr("broadcast_object: the object of rank 0 cannot be read"));
}

TEST(BroadcastObjectList, TakesListsOfDifferentLengths) {
  run_ranks(2, [](process::Process& process) {
    const std::vector<int> mine(process.rank() == 0 ? 3 : 0, 7);

    EXPECT_THAT(broadcast_object_list(process.group(), mine), ElementsAre(7, 7, 7));
  });
}

TEST(ScatterObject, GivesEachRankItsOwn) {
  run_ranks(3, [](process::Process& process) {
    const auto all = process.rank() == 2 ? std::vector<std::string>{"a", "bb", ""} : std::vector<std::string>{};

    const std::string mine = scatter_object(process.group(), all, 2);

    EXPECT_EQ(mine, (std::vector<std::string>{"a", "bb", ""})[process.rank()]);
  });
}

TEST(ScatterObject, OfTooFewObjectsThrowsOnEveryRank) {
  const auto words = run_ranks_collecting(3, [](process::Process& process) {
    scatter_object(process.group(), std::vector<int>{1, 2});
  });

  EXPECT_THAT(words, Each(HasSubstr("rank 0 sent no object: it has 2 object(s) for 3 rank(s)")));
}

TEST(SendObject, ArrivesAtTheRankThatReceives) {
  run_ranks(3, [](process::Process& process) {
    if (process.rank() == 0) send_object(process.group(), Score{"accuracy", 0.9}, 2, 5);

    if (process.rank() == 2) {
      EXPECT_EQ(receive_object<Score>(process.group(), 0, 5).name, "accuracy");
    }
  });
}

}  // namespace
}  // namespace hasten::comm
