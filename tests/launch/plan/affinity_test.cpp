#include "hasten/launch/plan/affinity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include "hasten/core/error.h"

namespace hasten::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Cpus = std::set<int>;

// Two sockets with two nodes each; a node has three cores of two threads (0 and 12, 1 and 13, …); on each
// node the first two cores share a cache.
Machine big() {
  Machine machine;
  for (int number = 0; number < 24; ++number) {
    const int core = number % 12, node = core / 3;
    machine.cpus.push_back(
        {.number = number, .core = core, .node = node, .socket = node / 2, .cache = core % 3 == 2 ? core : 3 * node});
  }
  return machine;
}

TEST(Affinity, WithoutGpusWorkersAreDealtOutOverTheNodes) {
  EXPECT_THAT(bound_cpus(big(), "node", 2), ElementsAre(Cpus{0, 1, 2, 12, 13, 14}, Cpus{6, 7, 8, 18, 19, 20}));
}

TEST(Affinity, AWorkerIsAtHomeWhereItsGpuIs) {
  Machine machine = big();
  machine.gpu_nodes = {3, 0};

  EXPECT_THAT(bound_cpus(machine, "node", 2), ElementsAre(Cpus{9, 10, 11, 21, 22, 23}, Cpus{0, 1, 2, 12, 13, 14}));
}

TEST(Affinity, ASocketHasAllItsNodes) {
  const auto cpus = bound_cpus(big(), "socket", 1);

  EXPECT_EQ(cpus[0].size(), 12u);
  EXPECT_EQ(cpus[0].count(5), 1u);
  EXPECT_EQ(cpus[0].count(6), 0u);
}

TEST(Affinity, ExclusiveSharesAreWholeCoresAndDisjoint) {
  Machine machine = big();
  machine.gpu_nodes = {0, 0};

  EXPECT_THAT(bound_cpus(machine, "exclusive", 2), ElementsAre(Cpus{0, 1, 12, 13}, Cpus{2, 14}));
}

TEST(Affinity, MoreWorkersThanCoresCannotBeExclusive) {
  Machine machine = big();
  machine.gpu_nodes = {0, 0, 0, 0};

  try {
    bound_cpus(machine, "exclusive", 4);
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("NUMA node 0 has 3 cores for 4 workers"));
  }
}

TEST(Affinity, CoreComplexesAreTakenInTurnTheLargestFirst) {
  Machine machine = big();
  machine.gpu_nodes = {1, 1, 1};

  EXPECT_THAT(bound_cpus(machine, "core-complex", 3), ElementsAre(Cpus{3, 4, 15, 16}, Cpus{5, 17}, Cpus{3, 4, 15, 16}));
}

TEST(Affinity, BindsThisProcess) {
  cpu_set_t before;
  sched_getaffinity(0, sizeof before, &before);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;

  bind_to({first});
  cpu_set_t now;
  sched_getaffinity(0, sizeof now, &now);
  sched_setaffinity(0, sizeof before, &before);

  EXPECT_EQ(CPU_COUNT(&now), 1);
  EXPECT_TRUE(CPU_ISSET(first, &now));
}

}  // namespace
}  // namespace hasten::launcher
