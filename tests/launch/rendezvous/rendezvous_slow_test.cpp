// Larger walks through all orders of events than rendezvous_test.cpp has time for.
#include "hasten/launch/rendezvous/rendezvous.h"

#include <gtest/gtest.h>

#include "launch/rendezvous_world.h"

namespace hasten::launcher {
namespace {

TEST(RendezvousOrders, ThreeNodesWithAFailureAndALoss) {
  const RendezvousSettings settings{.min_nodes = 2, .max_nodes = 3, .max_restarts = 1};
  EXPECT_GT(World::walk(World(settings, 0, 3, {.kills = 1, .failures = 1})), 100000u);
}

TEST(RendezvousOrders, FourNodesOfWhichOneMayBeMissing) {
  const RendezvousSettings settings{.min_nodes = 3, .max_nodes = 4};
  for (const Faults faults : {Faults{.kills = 1}, Faults{.failures = 1}}) {
    EXPECT_GT(World::walk(World(settings, 4, 4, faults)), 50000u);
  }
}

}  // namespace
}  // namespace hasten::launcher
