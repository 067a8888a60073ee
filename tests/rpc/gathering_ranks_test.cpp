// barrier() and all_gather() whose members end.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <iostream>

#include "hasten/process/process.h"
#include "hasten/rpc/agent.h"
#include "rpc/layers.h"
#include "support/ranks.h"

namespace hasten::rpc {
namespace {

// Returns the words of the error.
template <class F>
std::string words_of_loss(const F& fn) {
  try {
    fn();
  } catch (const CommError& error) {
    return error.what();
  }
  return "no CommError";
}

bool names_w2(const std::string& words) {
  std::cout << words << std::endl;
  return words.find("rank 2 'w2' is gone: ") != std::string::npos;
}

HASTEN_PROCESS_CASE(member_dies_while_others_wait) {
  const process::Process process({.cpu = true});
  Agent* self = nullptr;
  Functions functions;
  functions.add("num_waiting", [&]() -> int64_t {
    const auto counted = self->stats().functions;
    const auto gather = counted.find("hasten.gather");
    return gather == counted.end() ? 0 : gather->second.num_calls;
  });
  Agent agent(process, functions, {.name = "w" + std::to_string(process.rank())});
  self = &agent;
  process.wait_for_everyone();
  if (process.rank() == 2) {
    while (agent.call<int64_t>("w0", "num_waiting") < 2) usleep(1000);
    raise(SIGKILL);
  }
  CHECK_THAT(names_w2(words_of_loss([&] { agent.barrier(); })));
  // It was lost before.
  CHECK_THAT(names_w2(words_of_loss([&] { agent.all_gather(process.rank()); })));
  const auto rest = agent.all_gather(process.rank(), {"w0", "w1"});
  CHECK_THAT((rest == std::map<std::string, int>{{"w0", 0}, {"w1", 1}}));
  words_of_loss([&] { agent.shutdown(); });
  return 0;
}

// Nobody has a connection to the worker that ends.
HASTEN_PROCESS_CASE(unknown_member_dies) {
  const process::Process process({.cpu = true});
  Agent agent(process, {}, {.name = "w" + std::to_string(process.rank())});
  process.wait_for_everyone();
  if (process.rank() == 2) raise(SIGKILL);
  CHECK_THAT(names_w2(words_of_loss([&] { agent.barrier(); })));
  words_of_loss([&] { agent.shutdown(); });
  return 0;
}

void expect_survivors_end_well(const char* what) {
  const auto results = hasten::testing::run_processes(3, what);
  for (size_t rank = 0; rank < 2; ++rank) EXPECT_EQ(results[rank].exit_code, 0) << results[rank].output;
  EXPECT_EQ(results[2].exit_code, 128 + SIGKILL);
}

TEST(Gathering, EndsAtOnceWithTheNameOfAMemberThatDies) {
  expect_survivors_end_well("member_dies_while_others_wait");
}

TEST(Gathering, EndsAtOnceIfAMemberDiedBeforeAnyMessage) {
  expect_survivors_end_well("unknown_member_dies");
}

TEST(AgentRoles, WorkersWithRolesAreCalledByRoleAndNumber) {
  testing::run_ranks(3, [](process::Process& process) {
    const bool is_server = process.rank() == 0;
    const process::Process with_role({.rank = process.rank(),
                                      .world_size = 3,
                                      .role = is_server ? "ps" : "trainer",
                                      .role_rank = is_server ? 0 : process.rank() - 1},
                                     process.group());
    Agent agent(with_role, Functions());

    std::vector<std::string> names;
    for (const WorkerInfo& worker : agent.workers()) names.push_back(worker.name);
    EXPECT_EQ(names, (std::vector<std::string>{"ps0", "trainer0", "trainer1"}));
    agent.shutdown();
  });
}

process::Process with_role(const process::Process& process, const std::string& role, int role_rank) {
  return process::Process(
      {.rank = process.rank(), .world_size = process.world_size(), .role = role, .role_rank = role_rank},
      process.group());
}

TEST(AgentRoles, WorkersWithRolesAreFoundByTheNameThatTheyHaveWithoutRoles) {
  testing::run_ranks(3, [](process::Process& process) {
    Functions functions;
    functions.add("number", [rank = process.rank()] { return int64_t{rank}; });
    Agent agent(with_role(process, "trainer", process.rank()), functions);

    EXPECT_EQ(agent.call<int64_t>("worker1", "number"), 1);
    EXPECT_EQ(agent.call<int64_t>("trainer1", "number"), 1);
    EXPECT_EQ(agent.worker("worker2").name, "trainer2");
    EXPECT_THROW(agent.worker("worker3"), UsageError);
    EXPECT_EQ(agent.all_gather(process.rank(), {"worker0", "trainer1", "worker2"}).size(), 3u);
    agent.shutdown();
  });
}

TEST(AgentRoles, ANameOfTheProgramsOwnCountsBeforeAnotherWorkersSecondName) {
  testing::run_ranks(3, [](process::Process& process) {
    RpcOptions options;
    if (process.rank() == 2) options.name = "worker1";
    Agent agent(with_role(process, "trainer", process.rank()), Functions(), options);

    EXPECT_EQ(agent.worker("worker1").id, 2);
    EXPECT_EQ(agent.worker("trainer1").id, 1);
    EXPECT_THROW(agent.worker("worker2"), UsageError);
    agent.shutdown();
  });
}

}  // namespace
}  // namespace hasten::rpc
