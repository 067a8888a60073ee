#include "comm/hierarchical/hierarchical.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace hasten::comm {
namespace {

TEST(Hierarchical, RanksAreGroupedByHostInTheOrderOfTheirFirstRanks) {
  EXPECT_EQ(group_by_host({"b", "a", "b", "a", "c"}), (Hosts{{0, 2}, {1, 3}, {4}}));
  EXPECT_EQ(group_by_host({"a", "a"}), (Hosts{{0, 1}}));
}

TEST(Hierarchical, ARankWhoseHostIsUnknownIsAlone) {
  EXPECT_EQ(group_by_host({"", "a", "", "a"}), (Hosts{{0}, {1, 3}, {2}}));
}

// Every part must be collected once on each host and sent to the rank whose it is.
TEST(Hierarchical, EachPartOfAReduceScatterIsCollectedOnceOnEveryHost) {
  for (const Hosts& hosts :
       {Hosts{{0, 1}, {2, 3}}, Hosts{{0, 2, 4}, {1, 3}}, Hosts{{1}, {0, 2, 3}}, Hosts{{0, 1, 2}}}) {
    size_t world_size = 0;
    for (const auto& ranks : hosts) world_size += ranks.size();
    std::vector<std::vector<int>> told(world_size);
    for (size_t host = 0; host < hosts.size(); ++host) {
      std::vector<int> collected;
      for (size_t local = 0; local < hosts[host].size(); ++local) {
        const auto plan = plan_scatter(hosts, static_cast<int>(host), static_cast<int>(local));
        const size_t rows = plan.order.size() / hosts[host].size();
        for (size_t row = 0; row < plan.collected.size(); ++row) {
          EXPECT_EQ(plan.order[local * rows + row], plan.collected[row]);
          told[static_cast<size_t>(plan.collected[row])].push_back(hosts[host][local]);
        }
        collected.insert(collected.end(), plan.collected.begin(), plan.collected.end());
      }
      EXPECT_EQ(collected.size(), world_size);
    }
    for (size_t host = 0; host < hosts.size(); ++host) {
      for (size_t local = 0; local < hosts[host].size(); ++local) {
        auto senders = told[static_cast<size_t>(hosts[host][local])];
        std::sort(senders.begin(), senders.end());
        EXPECT_EQ(plan_scatter(hosts, static_cast<int>(host), static_cast<int>(local)).senders, senders);
      }
    }
  }
}

}  // namespace
}  // namespace hasten::comm
