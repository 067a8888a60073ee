#include "hasten/process/ordered.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>

#include "hasten/core/error.h"
#include "support/ranks.h"

namespace hasten::process {
namespace {

using hasten::testing::run_ranks;
using hasten::testing::run_ranks_collecting;
using ::testing::HasSubstr;

/// Notes who ran, in order.
class Order {
 public:
  void add(int rank) {
    const std::lock_guard lock(mutex_);
    ranks_.push_back(rank);
  }
  std::vector<int> ranks() const { return ranks_; }

 private:
  std::mutex mutex_;
  std::vector<int> ranks_;
};

TEST(MainProcessFirst, RunsTheMainProcessBeforeAllOthersAndEveryRankOnce) {
  for (int repeat = 0; repeat < 5; ++repeat) {
    Order order;
    run_ranks(4, [&](Process& process) { main_process_first(process, [&] { order.add(process.rank()); }); });

    EXPECT_EQ(order.ranks().front(), 0);
    EXPECT_THAT(order.ranks(), ::testing::UnorderedElementsAre(0, 1, 2, 3));
  }
}

TEST(MainProcessFirst, GivesEachRankItsOwnValue) {
  run_ranks(3, [](Process& process) {
    const auto value = main_process_first(process, [&] { return std::make_unique<int>(process.rank()); });

    EXPECT_EQ(*value, process.rank());
  });
}

TEST(MainProcessFirst, WhatTheMainProcessThrowsIsThrownOnAllAndTheOthersDoNotRun) {
  std::atomic<int> others = 0;
  const auto words = run_ranks_collecting(3, [&](Process& process) {
    try {
      main_process_first(process, [&] {
        if (!process.is_main_process()) {
          ++others;
        } else {
          throw std::out_of_range("no network");
        }
      });
    } catch (const std::out_of_range&) {
      throw std::runtime_error("its own");
    } catch (const CommError& error) {
      throw std::runtime_error(error.what());
    }
  });

  EXPECT_EQ(words[0], "its own");
  for (const int rank : {1, 2}) {
    EXPECT_THAT(words[rank], HasSubstr("main_process_first: the function threw on rank 0: no network")) << rank;
  }
  EXPECT_EQ(others, 0);
}

TEST(MainProcessFirst, WhatAnotherRankThrowsIsThrownOnAll) {
  const auto words = run_ranks_collecting(3, [](Process& process) {
    main_process_first(process, [&] {
      if (process.rank() == 2) throw std::runtime_error("disk full");
    });
  });

  EXPECT_EQ(words[2], "disk full");
  EXPECT_THAT(words[0], HasSubstr("the function threw on rank 2: disk full"));
  EXPECT_THAT(words[1], HasSubstr("the function threw on rank 2: disk full"));
}

TEST(MainProcessFirst, AnExceptionThatIsNoStdExceptionIsThrownOnAllToo) {
  const auto words = run_ranks_collecting(2, [](Process& process) {
    try {
      main_process_first(process, [&] {
        if (process.is_main_process()) throw 7;
      });
    } catch (int seven) {
      throw std::runtime_error(std::to_string(seven));
    }
  });

  EXPECT_EQ(words[0], "7");
  EXPECT_THAT(words[1], HasSubstr("the function threw on rank 0"));
}

TEST(LocalMainProcessFirst, RunsEachMachinesMainProcessBeforeTheOthers) {
  Order order;
  run_ranks(4, [&](Process& rank) {
    const Process process({.rank = rank.rank(),
                           .local_rank = rank.rank() % 2,
                           .node_rank = rank.rank() / 2,
                           .world_size = 4,
                           .local_world_size = 2},
                          rank.group());
    local_main_process_first(process, [&] { order.add(process.rank()); });
  });

  const auto ranks = order.ranks();
  EXPECT_THAT((std::vector<int>{ranks[0], ranks[1]}), ::testing::UnorderedElementsAre(0, 2));
  EXPECT_THAT((std::vector<int>{ranks[2], ranks[3]}), ::testing::UnorderedElementsAre(1, 3));
}

TEST(MainProcessFirst, InAWorldOfOneJustRuns) {
  const Process process({}, comm::Group());

  EXPECT_EQ(main_process_first(process, [] { return 5; }), 5);
  EXPECT_THROW(main_process_first(process, [] { throw std::out_of_range("own"); }), std::out_of_range);
}

}  // namespace
}  // namespace hasten::process
