// Which receive functions no gradient reaches, on random graphs beside a search by transitive closure.
#include "rpc/engine/unreached_receives.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "hasten/core/env.h"

namespace hasten::rpc {
namespace {

struct SettleNode {
  std::vector<SettleNode*> next;
};

TEST(UnreachedReceives, FindsWhatIsNotReachedOnRandomGraphs) {
  const auto rounds = 300 * Environment::current().integer("HASTEN_TEST_SCALE").value_or(1);
  std::mt19937 random(7);
  for (int64_t round = 0; round < rounds; ++round) {
    const size_t count = 1 + random() % 12;
    std::vector<SettleNode> nodes(count);
    std::vector<std::vector<bool>> reaches(count, std::vector<bool>(count));
    for (size_t i = 0; i < count; ++i) {
      reaches[i][i] = true;
      for (size_t edges = random() % 4; edges > 0; --edges) {
        const size_t to = random() % count;
        nodes[i].next.push_back(random() % 8 == 0 ? nullptr : &nodes[to]);
        if (nodes[i].next.back() != nullptr) reaches[i][to] = true;
      }
    }
    for (size_t via = 0; via < count; ++via) {
      for (size_t a = 0; a < count; ++a) {
        for (size_t b = 0; b < count; ++b) reaches[a][b] = reaches[a][b] || (reaches[a][via] && reaches[via][b]);
      }
    }
    std::vector<SettleNode*> starts = {nullptr};
    std::vector<size_t> start_numbers;
    for (size_t left = random() % 3; left > 0; --left) {
      start_numbers.push_back(random() % count);
      starts.push_back(&nodes[start_numbers.back()]);
    }
    std::map<SettleNode*, int64_t> awaited;
    for (size_t i = 0; i < count; i += 2) awaited.emplace(&nodes[i], static_cast<int64_t>(i));

    auto missing = unreached(starts, awaited, [](SettleNode* node) { return node->next; });
    std::sort(missing.begin(), missing.end());

    std::vector<int64_t> expected;
    for (size_t i = 0; i < count; i += 2) {
      if (std::none_of(start_numbers.begin(), start_numbers.end(), [&](size_t start) { return reaches[start][i]; }))
        expected.push_back(static_cast<int64_t>(i));
    }
    ASSERT_EQ(missing, expected) << "seed 7, round " << round;
  }
}

}  // namespace
}  // namespace hasten::rpc
