// Sums that are added up in place: every part of a share is taken once, by whoever is there.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <numeric>
#include <thread>

#include "comm/shared/algorithms/operation.h"
#include "comm/shared/memory/segment.h"

namespace hasten::comm::shared {
namespace {

TEST(SharedClaims, GiveEachPartOfEachOperationOnce) {
  constexpr int kThreads = 4, kParts = 1000;
  Claims claims;
  for (const uint32_t step : {1U, 5U, 0xffffffffU, 0U, 3U}) {
    std::vector<std::vector<int64_t>> taken(kThreads);
    {
      std::vector<std::jthread> threads;
      for (auto& mine : taken) {
        threads.emplace_back([&] {
          for (int64_t part = 0; (part = claims.next(step)) < kParts;) mine.push_back(part);
        });
      }
    }

    std::vector<int64_t> all;
    for (const auto& mine : taken) all.insert(all.end(), mine.begin(), mine.end());
    std::sort(all.begin(), all.end());
    std::vector<int64_t> wanted(kParts);
    std::iota(wanted.begin(), wanted.end(), 0);
    EXPECT_EQ(all, wanted) << step;
  }
}

// Ranks of one segment, each with a tensor in its heap.
class InPlace {
 public:
  InPlace(int world_size, int64_t count) : segment_(Segment::create(Layout::of(world_size, 16 << 20))) {
    for (int rank = 0; rank < world_size; ++rank) {
      steps.push_back(std::make_unique<PhaseProtocol>(segment_, rank, watch_));
      tensors.push_back(torch::from_blob(segment_->heap(rank), {count}));
      tensors.back().copy_(torch::arange(count) % 100 + rank);
      operations.push_back(all_reduce(tensors.back(), ReduceOp::kSum, 0));
      segment_->take_place(rank);
    }
  }

  at::Tensor sum() const {
    const auto world = static_cast<int64_t>(steps.size());
    return (torch::arange(tensors[0].numel()) % 100 * world + world * (world - 1) / 2).to(at::kFloat);
  }

  std::vector<std::unique_ptr<PhaseProtocol>> steps;
  std::vector<at::Tensor> tensors;
  std::vector<std::unique_ptr<Operation>> operations;

 private:
  std::shared_ptr<Segment> segment_;
  PeerMonitor watch_{segment_, std::chrono::minutes(1), {}};
};

TEST(SharedInPlace, WhoeverIsThereDoesTheWorkOfThoseWhoComeLater) {
  for (const auto& [world_size, count] : {std::pair(2, 1000003), std::pair(3, 70000), std::pair(4, 40001)}) {
    InPlace ranks(world_size, count);
    for (int rank = 1; rank < world_size; ++rank) ranks.operations[rank]->contribute(*ranks.steps[rank]);
    std::jthread first([&] {
      ranks.operations[0]->contribute(*ranks.steps[0]);
      ranks.operations[0]->complete(*ranks.steps[0]);
    });
    // Its next step says that it has found nothing more to do.
    const uint32_t next = ranks.steps[1]->step() + 1;
    ranks.steps[1]->wait_for(0, next, next);

    for (const at::Tensor& tensor : ranks.tensors) EXPECT_TRUE(torch::equal(tensor, ranks.sum()));

    std::vector<std::jthread> others;
    for (int rank = 1; rank < world_size; ++rank) {
      others.emplace_back([&, rank] { ranks.operations[rank]->complete(*ranks.steps[rank]); });
    }
    others.clear();
    first.join();
    for (const at::Tensor& tensor : ranks.tensors) EXPECT_TRUE(torch::equal(tensor, ranks.sum()));
  }
}

TEST(SharedInPlace, RanksThatComeTogetherShareTheWork) {
  for (const int world_size : {2, 3, 5}) {
    InPlace ranks(world_size, 300001);
    {
      std::vector<std::jthread> all;
      for (int rank = 0; rank < world_size; ++rank) {
        all.emplace_back([&, rank] {
          ranks.operations[rank]->contribute(*ranks.steps[rank]);
          ranks.operations[rank]->complete(*ranks.steps[rank]);
        });
      }
    }

    for (const at::Tensor& tensor : ranks.tensors) EXPECT_TRUE(torch::equal(tensor, ranks.sum()));
  }
}

}  // namespace
}  // namespace hasten::comm::shared
