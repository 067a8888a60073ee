// Batches of a loader on ranks 0 and 1 of one model and 2 and 3 of another.
#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <vector>

#include "hasten/accelerator.h"

namespace hasten::testing {

/// Expects that the ranks of a model get the same samples, and all ranks together each of 0, 1, … `count` - 1 once.
template <class Loader>
void expect_dealt_to_two_models(const Accelerator& accelerator, Loader& loader, int64_t count) {
  std::vector<int64_t> seen, own;
  for (auto& batch : loader) {
    for (int64_t i = 0; i < batch.data.numel(); ++i) own.push_back(batch.data[i].template item<int64_t>());
    const at::Tensor all = accelerator.gather_for_metrics(batch.data);
    for (int64_t i = 0; i < all.numel(); ++i) seen.push_back(all[i].item<int64_t>());
  }
  std::sort(seen.begin(), seen.end());
  ASSERT_EQ(seen.size(), static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], i);
  const auto by_rank = accelerator.group().all_gather(torch::tensor(own));
  EXPECT_TRUE(by_rank[0].equal(by_rank[1]));
  EXPECT_TRUE(by_rank[2].equal(by_rank[3]));
  EXPECT_FALSE(by_rank[0].equal(by_rank[2]));
}

}  // namespace hasten::testing
