#include "hasten/launch/plan/compose_environment.h"

#include <gtest/gtest.h>

namespace hasten::launcher {
namespace {

TEST(ComposeEnvironment, ALoneWorkerKeepsAllCoresAndAmongOthersEachGetsOneThread) {
  const auto alone = compose_environment({}, {});
  const auto among = compose_environment({}, {.world_size = 2, .local_world_size = 2});

  EXPECT_FALSE(alone.has("OMP_NUM_THREADS"));
  EXPECT_EQ(among.integer("OMP_NUM_THREADS"), 1);
}

TEST(ComposeEnvironment, WhatTheUserHasSetStays) {
  const auto inherited =
      Environment::of({{"OMP_NUM_THREADS", "3"}, {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"}, {"HOME", "/h"}});

  const auto environment = compose_environment({.inherited = inherited}, {.world_size = 2, .local_world_size = 2});

  EXPECT_EQ(environment.integer("OMP_NUM_THREADS"), 3);
  EXPECT_EQ(environment.integer("TORCH_NCCL_ASYNC_ERROR_HANDLING"), 0);
  EXPECT_EQ(environment.text("HOME"), "/h");
}

TEST(ComposeEnvironment, AnOuterRunsPlaceIsReplaced) {
  const auto inherited =
      Environment::of({{"RANK", "7"}, {"WORLD_SIZE", "8"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}});

  const auto environment = compose_environment({.inherited = inherited}, {});

  EXPECT_EQ(environment.integer("RANK"), 0);
  EXPECT_EQ(environment.integer("WORLD_SIZE"), 1);
  EXPECT_EQ(environment.text("TORCHELASTIC_USE_AGENT_STORE"), "False");
}

TEST(ComposeEnvironment, RolesTakeTheRanksInTheirOrder) {
  const RunSettings settings{.roles = {{"ps", 1}, {"trainer", 2}, {"observer", 3}}, .run_key = "00ff"};
  const auto of_rank = [&](int rank) {
    return compose_environment({.run = settings}, {.rank = rank, .world_size = 6});
  };

  EXPECT_EQ(of_rank(0).text("ROLE_NAME"), "ps");
  EXPECT_EQ(of_rank(2).text("ROLE_NAME"), "trainer");
  EXPECT_EQ(of_rank(2).integer("ROLE_RANK"), 1);
  EXPECT_EQ(of_rank(5).text("ROLE_NAME"), "observer");
  EXPECT_EQ(of_rank(5).integer("ROLE_RANK"), 2);
  EXPECT_EQ(of_rank(5).integer("ROLE_WORLD_SIZE"), 3);
  EXPECT_EQ(of_rank(5).text("HASTEN_RUN_KEY"), "00ff");
}

TEST(ComposeEnvironment, CountsRanksOverMachinesAndLocalRanksOnOne) {
  const WorkerPlace place{
      .rank = 5, .local_rank = 1, .world_size = 6, .local_world_size = 2, .node_rank = 2, .num_nodes = 3};

  const auto environment = compose_environment({}, place);

  EXPECT_EQ(environment.integer("RANK"), 5);
  EXPECT_EQ(environment.integer("ROLE_RANK"), 5);
  EXPECT_EQ(environment.integer("LOCAL_RANK"), 1);
  EXPECT_EQ(environment.integer("LOCAL_WORLD_SIZE"), 2);
  EXPECT_EQ(environment.integer("GROUP_RANK"), 2);
  EXPECT_EQ(environment.integer("GROUP_WORLD_SIZE"), 3);
}

TEST(ComposeEnvironment, PythonsGroupsAreTakenOverWhereThatIsAskedFor) {
  for (const bool asked : {false, true}) {
    const std::vector<std::string> words = asked ? std::vector<std::string>{"--for_gloo"} : std::vector<std::string>{};
    const RunPlan plan;
    const Machine machine;
    const LaunchSettings settings(read_command_line(launch_options(), words), nullptr, Environment::of({}));

    const auto environment = compose_environment({.launch = LaunchFacts{settings, plan, machine}}, {});

    EXPECT_EQ(environment.has("HASTEN_FOR_GLOO"), asked);
  }
}

TEST(ComposeEnvironment, SecretsStayWithTheLauncher) {
  const auto environment = compose_environment(
      {.inherited = Environment::of({{"HASTEN_RDZV_SECRET", "x"}, {"HOME", "/h"}}), .withheld = {"HASTEN_RDZV_SECRET"}},
      {});

  EXPECT_FALSE(environment.has("HASTEN_RDZV_SECRET"));
  EXPECT_EQ(environment.text("HOME"), "/h");
}

TEST(ComposeEnvironment, TheInterfaceTowardsTheOthersIsSetUnlessTheUserChoseOne) {
  const auto found = [](std::map<std::string, std::string> inherited) {
    return compose_environment({.inherited = Environment::of(std::move(inherited)), .network_interface = "eth1"}, {})
        .text("GLOO_SOCKET_IFNAME");
  };

  EXPECT_EQ(found({}), "eth1");
  EXPECT_EQ(found({{"GLOO_SOCKET_IFNAME", ""}}), "eth1");
  EXPECT_EQ(found({{"GLOO_SOCKET_IFNAME", "lo"}}), "lo");
}

TEST(ComposeEnvironment, TheErrorFileIsTheWorkersOwn) {
  EXPECT_EQ(compose_environment({}, {.error_file = "/e/rank_0.json"}).text("TORCHELASTIC_ERROR_FILE"),
            "/e/rank_0.json");
}

}  // namespace
}  // namespace hasten::launcher
