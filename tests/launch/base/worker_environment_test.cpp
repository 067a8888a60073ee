#include "hasten/launch/base/worker_environment.h"

#include <gtest/gtest.h>

namespace hasten::launcher {
namespace {

TEST(WorkerEnvironment, ALoneWorkerKeepsAllCoresAndAmongOthersEachGetsOneThread) {
  const auto alone = worker_environment(Environment::of({}), {}, {}, "e");
  const auto among =
      worker_environment(Environment::of({}), {}, {.world_size = 2, .local_world_size = 2}, "e");

  EXPECT_FALSE(alone.has("OMP_NUM_THREADS"));
  EXPECT_EQ(among.integer("OMP_NUM_THREADS"), 1);
}

TEST(WorkerEnvironment, WhatTheUserHasSetStays) {
  const auto inherited =
      Environment::of({{"OMP_NUM_THREADS", "3"}, {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"}, {"HOME", "/h"}});

  const auto environment = worker_environment(inherited, {}, {.world_size = 2, .local_world_size = 2}, "e");

  EXPECT_EQ(environment.integer("OMP_NUM_THREADS"), 3);
  EXPECT_EQ(environment.integer("TORCH_NCCL_ASYNC_ERROR_HANDLING"), 0);
  EXPECT_EQ(environment.text("HOME"), "/h");
}

TEST(WorkerEnvironment, AnOuterRunsPlaceIsReplaced) {
  const auto inherited =
      Environment::of({{"RANK", "7"}, {"WORLD_SIZE", "8"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}});

  const auto environment = worker_environment(inherited, {}, {}, "e");

  EXPECT_EQ(environment.integer("RANK"), 0);
  EXPECT_EQ(environment.integer("WORLD_SIZE"), 1);
  EXPECT_EQ(environment.text("TORCHELASTIC_USE_AGENT_STORE"), "False");
}

TEST(WorkerEnvironment, RolesTakeTheRanksInTheirOrder) {
  const RunSettings settings{.roles = {{"ps", 1}, {"trainer", 2}, {"observer", 3}}, .run_key = "00ff"};
  const auto of_rank = [&](int rank) {
    return worker_environment(Environment::of({}), settings, {.rank = rank, .world_size = 6}, "e");
  };

  EXPECT_EQ(of_rank(0).text("ROLE_NAME"), "ps");
  EXPECT_EQ(of_rank(2).text("ROLE_NAME"), "trainer");
  EXPECT_EQ(of_rank(2).integer("ROLE_RANK"), 1);
  EXPECT_EQ(of_rank(5).text("ROLE_NAME"), "observer");
  EXPECT_EQ(of_rank(5).integer("ROLE_RANK"), 2);
  EXPECT_EQ(of_rank(5).integer("ROLE_WORLD_SIZE"), 3);
  EXPECT_EQ(of_rank(5).text("HASTEN_RUN_KEY"), "00ff");
}

TEST(WorkerEnvironment, CountsRanksOverMachinesAndLocalRanksOnOne) {
  const WorkerPlace place{
      .rank = 5, .local_rank = 1, .world_size = 6, .local_world_size = 2, .node_rank = 2, .num_nodes = 3};

  const auto environment = worker_environment(Environment::of({}), {}, place, "e");

  EXPECT_EQ(environment.integer("RANK"), 5);
  EXPECT_EQ(environment.integer("ROLE_RANK"), 5);
  EXPECT_EQ(environment.integer("LOCAL_RANK"), 1);
  EXPECT_EQ(environment.integer("LOCAL_WORLD_SIZE"), 2);
  EXPECT_EQ(environment.integer("GROUP_RANK"), 2);
  EXPECT_EQ(environment.integer("GROUP_WORLD_SIZE"), 3);
}

}  // namespace
}  // namespace hasten::launcher
