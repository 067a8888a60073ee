// Simulated pipelines: the formulas of docs/plan.md for stages of equal times, limits of memory, the picture.
#include "hasten/plan/simulate.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "hasten/core/error.h"

namespace hasten::plan {
namespace {

using ::testing::HasSubstr;

int largest(const std::vector<int>& values) {
  return *std::max_element(values.begin(), values.end());
}

// Calls fn(p, v, m) for the sizes that a kind takes.
template <class Fn>
void for_sizes(OrderKind kind, Fn fn) {
  for (int p = 1; p <= 8; ++p) {
    for (int v = 1; v <= 4; ++v) {
      for (const int m : {1, 2, 3, 4, 6, 8, 12, 16, 24, 33, 48, 64}) {
        if (problem_with_order(kind, {p, v, m}).empty()) fn(p, v, m);
      }
    }
  }
}

TEST(Simulate, bubble_of_one_stage_a_rank_is_p_minus_1_over_m) {
  for (const OrderKind kind : {OrderKind::kGPipe, OrderKind::k1F1B}) {
    for_sizes(kind, [&](int p, int, int m) {
      const Timeline timeline =
          simulate(make_order(kind, {p, 1, m}), {{.forward_s = 2, .input_s = 2, .weight_s = 1.5}});
      EXPECT_NEAR(timeline.bubble(), (p - 1.0) / m, 1e-9) << p << " " << m;
      for (int r = 0; r < p; ++r) {
        EXPECT_EQ(timeline.peak_in_flight[static_cast<size_t>(r)], kind == OrderKind::kGPipe ? m : std::min(m, p - r));
      }
    });
  }
}

TEST(Simulate, bubble_of_several_stages_a_rank_is_smaller_by_their_number) {
  for (const OrderKind kind : {OrderKind::kLoopedBfs, OrderKind::kInterleaved1F1B}) {
    for_sizes(kind, [&](int p, int v, int m) {
      if (m % p != 0) return;
      const Timeline timeline = simulate(make_order(kind, {p, v, m}), {{.forward_s = 1, .input_s = 1, .weight_s = 1}});
      EXPECT_NEAR(timeline.bubble(), (p - 1.0) / (m * v), 1e-9) << order_name(kind) << " " << p << " " << v << " " << m;
      const int round = p;
      for (int r = 0; r < p; ++r) {
        const int interleaved = std::min(m * v, (v - 1) * round + 2 * (p - 1 - r) + 1);
        EXPECT_EQ(timeline.peak_in_flight[static_cast<size_t>(r)], kind == OrderKind::kLoopedBfs ? m * v : interleaved);
      }
    });
  }
}

TEST(Simulate, one_chunk_interleaved_takes_as_long_as_1f1b) {
  for_sizes(OrderKind::kInterleaved1F1B, [&](int p, int v, int m) {
    if (v != 1) return;
    EXPECT_EQ(simulate(make_order(OrderKind::kInterleaved1F1B, {p, 1, m})).seconds,
              simulate(make_order(OrderKind::k1F1B, {p, 1, m})).seconds);
  });
}

TEST(Simulate, weights_fill_the_bubble_of_zero_bubble_orders) {
  for (const auto& [f, i, w] : {std::tuple{1.0, 1.0, 1.0}, {1.0, 1.2, 0.9}, {1.0, 0.8, 0.8}}) {
    for_sizes(OrderKind::kInterleavedZeroBubble, [&](int p, int v, int m) {
      if (m % p != 0 || m < 2 * p) return;
      const Timeline timeline = simulate(make_order(OrderKind::kInterleavedZeroBubble, {p, v, m}),
                                         {{.forward_s = f, .input_s = i, .weight_s = w}});
      if (v == 1) {
        EXPECT_NEAR(timeline.bubble(), (p - 1) * (f + i - w) / (m * (f + i + w)), 1e-9) << p << " " << m;
      }
      EXPECT_LE(largest(timeline.peak_in_flight), p * v);
    });
  }
  for_sizes(OrderKind::kZbvZeroBubble, [&](int p, int, int m) {
    if (m < 2 * p - 1) return;
    const Timeline timeline = simulate(make_order(OrderKind::kZbvZeroBubble, {p, 2, m}));
    EXPECT_NEAR(timeline.bubble(), (p - 1.0) / (6 * m), 1e-9) << p << " " << m;
    EXPECT_LE(largest(timeline.peak_in_flight), 2 * p);
  });
}

TEST(Simulate, sends_delay_and_slow_stages_hold_the_others_up) {
  // A forward, a send, a forward and backward, a send, a backward.
  EXPECT_DOUBLE_EQ(simulate(make_order(OrderKind::k1F1B, {2, 1, 1}), {{.send_s = 0.5}}).seconds, 1 + 0.5 + 3 + 0.5 + 2);
  const Timeline uneven = simulate(make_order(OrderKind::k1F1B, {2, 1, 4}),
                                   {{.forward_s = 1}, {.forward_s = 3, .input_s = 3, .weight_s = 3}});
  EXPECT_DOUBLE_EQ(uneven.busy_s[1], 4 * 9);
  EXPECT_GE(uneven.seconds, 1 + 36);
  EXPECT_THROW(simulate(make_order(OrderKind::k1F1B, {2, 1, 1}), {{}, {}, {}}), UsageError);
  EXPECT_THROW(simulate(make_order(OrderKind::k1F1B, {2, 1, 1}), {{.forward_s = -1}}), UsageError);
  EXPECT_THROW(simulate(parse_order_csv("0B0,0F0")), UsageError);
}

TEST(Simulate, the_best_order_is_the_fastest_that_fits) {
  const OrderSizes sizes{4, 2, 8};
  const std::vector<StageCost> costs = {{.forward_s = 1, .input_s = 1, .weight_s = 1, .bytes = 10}};
  const auto choices = rank_orders(sizes, costs);
  EXPECT_EQ(best_order(sizes, costs), OrderKind::kInterleavedZeroBubble);
  for (size_t i = 1; i < choices.size() && choices[i].reason.empty(); ++i)
    EXPECT_LE(choices[i - 1].timeline.seconds, choices[i].timeline.seconds);
  // 1F1B and GPipe take one stage a rank: they stand last, with that reason.
  EXPECT_THAT(choices.back().reason, HasSubstr("takes 1 stage a rank"));
  // GPipe, which keeps all 8 microbatches, no longer fits.
  EXPECT_EQ(best_order({4, 1, 8}, costs, 45), OrderKind::kInterleavedZeroBubble);
  EXPECT_THAT(rank_orders({4, 1, 8}, costs, 45)[2].reason, HasSubstr("keeps 80 bytes"));
  try {
    best_order(sizes, costs, 5);
    ADD_FAILURE();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("zbv_zero_bubble: keeps 80 bytes of activations on a rank, 5 are free"));
  }
}

}  // namespace
}  // namespace hasten::plan
