// Survive with ranks as threads: one leaves the loop by an exception of its own, and a new thread takes its place.
#include "hasten/parallel/survive/survive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <mutex>
#include <thread>

#include "hasten/comm/group/rejoin.h"
#include "hasten/core/error.h"
#include "parallel/survive/heal.h"
#include "support/folder.h"
#include "support/ranks.h"

namespace hasten::parallel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::words_of;

TEST(Heal, TheRankThatHasComeFurthestGivesItsState) {
  EXPECT_EQ(choose_root({{3}, {3}, {3}}), 0);
  EXPECT_EQ(choose_root({{3}, {4}, {4}}), 1);
  EXPECT_EQ(choose_root({{9, false}, {4}, {3}}), 1) << "a newcomer has nothing to give";
  EXPECT_EQ(choose_root({{4, true, false}, {4}, {3}}), 1) << "its last step was cut off behind the optimizer's";
  EXPECT_EQ(choose_root({{4, true, false}, {3}}), 0);
  EXPECT_FALSE(choose_root({{0, false}, {0, false}}));
}

TEST(Heal, AStateGoesToAllWithItsTensors) {
  testing::run_ranks(3, [](process::Process& process) {
    using training::State;
    const auto mine = process.rank() == 1 ? State::of({{"count", 7},
                                                       {"inner", State::of({{"mean", torch::ones({2, 3}, at::kHalf)}})},
                                                       {"empty", torch::empty({0, 4})}})
                                          : State();

    const State got = broadcast_state(process.group(), mine, 1);

    EXPECT_EQ(got.at("count").value().as_int(), 7);
    EXPECT_TRUE(got.at("inner").at("mean").tensor().equal(torch::ones({2, 3}, at::kHalf)));
    EXPECT_EQ(got.at("empty").tensor().sizes(), (std::vector<int64_t>{0, 4}));
  });
}

TEST(Heal, StandingsComeByRank) {
  testing::run_ranks(2, [](process::Process& process) {
    const auto all = gather_standings(process.group(), {process.rank() + 5, process.rank() == 0, false});

    EXPECT_EQ(all[1].committed, 6);
    EXPECT_FALSE(all[1].has_state);
    EXPECT_TRUE(all[0].has_state);
    EXPECT_FALSE(all[0].is_whole);
  });
}

/// A loop over so many numbers, without a loader.
struct Numbers {
  int64_t count;
  int64_t next = 0;
  uint64_t epoch = 0;

  SurvivedLoop loop(const std::function<void(int64_t)>& step) {
    return {.begin = [this] { next = next == count ? 0 : next; },
            .at_end = [this] { return next == count; },
            .step = [this, step] { step(next); },
            .advance = [this] { ++next; },
            .leave = [] {},
            .state =
                [this] {
                  data::LoaderState state;
                  state.position = static_cast<uint64_t>(next + (inside ? 1 : 0)), state.epoch = epoch;
                  return state;
                },
            .load_state =
                [this](const data::LoaderState& state) {
                  next = static_cast<int64_t>(state.position), epoch = state.epoch;
                }};
  }
  bool inside = false;
};

TEST(Survive, IsThePlainLoopWhereNoRankIsReplaced) {
  testing::run_ranks(2, [](process::Process& process) {
    const DistributedModels models;
    training::StateRegistry registry;
    training::Accumulation accumulation({});
    Numbers numbers{3};
    std::vector<int64_t> steps, epochs;
    const SurviveParts parts{process, models, registry, accumulation, std::make_shared<training::GradientState>()};

    survive(parts, {.epochs = 2}, numbers.loop([&](int64_t i) { steps.push_back(i); }),
            [&](int64_t epoch) { epochs.push_back(epoch); });

    EXPECT_THAT(steps, ElementsAre(0, 1, 2, 0, 1, 2));
    EXPECT_THAT(epochs, ElementsAre(0, 1));
  });
}

TEST(Survive, RefusesOptionsOutOfRange) {
  testing::run_ranks(1, [](process::Process& process) {
    const DistributedModels models;
    training::StateRegistry registry;
    training::Accumulation accumulation({});
    Numbers numbers{1};
    const SurviveParts parts{process, models, registry, accumulation, std::make_shared<training::GradientState>()};
    const auto loop = numbers.loop([](int64_t) {});

    EXPECT_THAT(words_of<UsageError>([&] { survive(parts, {.epochs = -1}, loop); }), HasSubstr("-1 epochs"));
    EXPECT_THAT(words_of<UsageError>([&] { survive(parts, {.replace_timeout = std::chrono::seconds(0)}, loop); }),
                HasSubstr("replace_timeout of 0 s"));
  });
}

TEST(Survive, NeedsAPreparedOptimizerWhereRanksAreReplaced) {
  const auto store = comm::Store::in_process();
  const auto meetings = std::make_shared<comm::Meetings>([&](std::chrono::milliseconds) { return store; }, 0, false);
  const process::Process process({.world_size = 2}, comm::stand_in(0, 2, {}, meetings));
  const DistributedModels models;
  training::StateRegistry registry;
  training::Accumulation accumulation({});
  Numbers numbers{1};
  const SurviveParts parts{process, models, registry, accumulation, std::make_shared<training::GradientState>()};

  EXPECT_THAT(words_of<UsageError>([&] { survive(parts, {}, numbers.loop([](int64_t) {})); }),
              HasSubstr("without a prepared optimizer"));
}

}  // namespace
}  // namespace hasten::parallel
