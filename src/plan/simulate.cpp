// See simulate.h.
#include "hasten/plan/simulate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/text.h"

namespace hasten::plan {
namespace {

using enum ActionKind;

std::vector<StageCost> costs_of_stages(const PipelineOrder& order, const std::vector<StageCost>& costs) {
  const auto stages = static_cast<size_t>(order.num_stages);
  if (costs.size() != 1 && costs.size() != stages)
    throw UsageError({"plan"}, costs.size(), " costs are given for ", count_text(stages, "stage"),
                     "; expected one for each, or one.");
  for (const StageCost& cost : costs) {
    for (const double value : {cost.forward_s, cost.input_s, cost.weight_s, cost.send_s, cost.bytes}) {
      if (!std::isfinite(value) || value < 0)
        throw UsageError({"plan"}, "a stage's cost is ", value, "; expected finite numbers of at least 0.");
    }
  }
  return costs.size() == 1 ? std::vector<StageCost>(stages, costs.front()) : costs;
}

class Simulation {
 public:
  Simulation(const PipelineOrder& order, const std::vector<StageCost>& costs)
      : order_(order),
        costs_(costs_of_stages(order, costs)),
        owner_(stage_ranks(order)),
        microbatches_(static_cast<size_t>(order.num_microbatches)),
        forward_end_(costs_.size() * microbatches_, kNever),
        backward_end_(forward_end_) {}

  Timeline run() {
    const size_t ranks = order_.ranks.size();
    timeline_.busy_s.resize(ranks);
    timeline_.starts_s.resize(ranks);
    std::vector<double> free_at(ranks);
    size_t left = 0;
    for (const auto& row : order_.ranks) left += row.size();
    for (bool moved = true; moved && left > 0;) {
      moved = false;
      for (size_t rank = 0; rank < ranks; ++rank) {
        auto& starts = timeline_.starts_s[rank];
        for (; starts.size() < order_.ranks[rank].size(); --left, moved = true) {
          const double ready = ready_at(order_.ranks[rank][starts.size()], static_cast<int>(rank));
          if (ready == kNever) break;
          run_action(rank, std::max(ready, free_at[rank]), free_at[rank]);
        }
      }
    }
    if (left > 0) throw UsageError({"plan"}, "the pipeline order stands still, ", count_text(left, "action"),
                                   " before its end.");
    for (size_t rank = 0; rank < ranks; ++rank) keep_peaks(rank);
    return std::move(timeline_);
  }

 private:
  static constexpr double kNever = -1;

  size_t index(int stage, int microbatch) const {
    return static_cast<size_t>(stage) * microbatches_ + static_cast<size_t>(microbatch);
  }
  // The end of another stage's action, and the way from there.
  double arrival(const std::vector<double>& ends, int stage, int microbatch, int rank) const {
    const double end = ends[index(stage, microbatch)];
    const bool crosses = owner_[static_cast<size_t>(stage)] != rank;
    return end == kNever || !crosses ? end : end + costs_[static_cast<size_t>(stage)].send_s;
  }
  double ready_at(const Action& action, int rank) const {
    const double own_forward = forward_end_[index(action.stage, action.microbatch)];
    switch (action.kind) {
      case kForward:
        return action.stage == 0 ? 0 : arrival(forward_end_, action.stage - 1, action.microbatch, rank);
      case kBackwardWeight:
        return backward_end_[index(action.stage, action.microbatch)];
      default:
        break;
    }
    if (own_forward == kNever || action.stage + 1 == order_.num_stages) return own_forward;
    const double above = arrival(backward_end_, action.stage + 1, action.microbatch, rank);
    return above == kNever ? kNever : std::max(own_forward, above);
  }
  void run_action(size_t rank, double start, double& free_at) {
    auto& starts = timeline_.starts_s[rank];
    const Action& action = order_.ranks[rank][starts.size()];
    const double seconds = action_seconds(action, costs_[static_cast<size_t>(action.stage)]);
    starts.push_back(start);
    free_at = start + seconds;
    timeline_.busy_s[rank] += seconds;
    timeline_.seconds = std::max(timeline_.seconds, free_at);
    if (action.kind == kForward) forward_end_[index(action.stage, action.microbatch)] = free_at;
    if (action.kind == kBackward || action.kind == kBackwardInput)
      backward_end_[index(action.stage, action.microbatch)] = free_at;
  }
  // Actions of one rank do not overlap, so that its row alone tells what it keeps.
  void keep_peaks(size_t rank) {
    double bytes = 0, most_bytes = 0;
    int count = 0, most = 0;
    for (const Action& action : order_.ranks[rank]) {
      const double size = costs_[static_cast<size_t>(action.stage)].bytes;
      if (action.kind == kForward) bytes += size, ++count;
      most_bytes = std::max(most_bytes, bytes);
      most = std::max(most, count);
      if (action.kind == kBackward || action.kind == kBackwardWeight) bytes -= size, --count;
    }
    timeline_.peak_bytes.push_back(most_bytes);
    timeline_.peak_in_flight.push_back(most);
  }

  const PipelineOrder& order_;
  std::vector<StageCost> costs_;
  std::vector<int> owner_;
  size_t microbatches_;
  std::vector<double> forward_end_, backward_end_;
  Timeline timeline_;
};

double most(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

}  // namespace

double action_seconds(const Action& action, const StageCost& cost) {
  switch (action.kind) {
    case kForward:
      return cost.forward_s;
    case kBackward:
      return cost.input_s + cost.weight_s;
    case kBackwardInput:
      return cost.input_s;
    case kBackwardWeight:
      return cost.weight_s;
  }
  return 0;
}

double Timeline::bubble() const {
  const double busy = std::accumulate(busy_s.begin(), busy_s.end(), 0.0);
  return busy > 0 ? seconds * static_cast<double>(busy_s.size()) / busy - 1 : 0;
}

Timeline simulate(const PipelineOrder& order, const std::vector<StageCost>& costs) {
  return Simulation(order, costs).run();
}

std::vector<OrderChoice> rank_orders(const OrderSizes& sizes, const std::vector<StageCost>& costs,
                                     double capacity_bytes) {
  std::vector<OrderChoice> choices;
  for (const OrderKind kind : {OrderKind::k1F1B, OrderKind::kGPipe, OrderKind::kInterleaved1F1B, OrderKind::kLoopedBfs,
                               OrderKind::kInterleavedZeroBubble, OrderKind::kZbvZeroBubble}) {
    // With one stage a rank the interleaved form is 1F1B, and the looped one GPipe.
    const bool twin = kind == OrderKind::kInterleaved1F1B || kind == OrderKind::kLoopedBfs;
    if (twin && sizes.chunks == 1) continue;
    OrderChoice choice{kind, {}, problem_with_order(kind, sizes)};
    if (choice.reason.empty()) {
      choice.timeline = simulate(make_order(kind, sizes), costs);
      if (const double bytes = most(choice.timeline.peak_bytes); bytes > capacity_bytes)
        choice.reason = text("keeps ", count_text(bytes, "byte"), " of activations on a rank, ", capacity_bytes,
                             " are free");
    }
    choices.push_back(std::move(choice));
  }
  const auto key = [](const OrderChoice& choice) {
    const bool ran = !choice.timeline.peak_bytes.empty();
    return std::tuple(!choice.reason.empty(), !ran, choice.timeline.seconds,
                      ran ? most(choice.timeline.peak_bytes) : 0);
  };
  std::stable_sort(choices.begin(), choices.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  return choices;
}

OrderKind best_order(const OrderSizes& sizes, const std::vector<StageCost>& costs, double capacity_bytes) {
  const auto choices = rank_orders(sizes, costs, capacity_bytes);
  if (choices.front().reason.empty()) return choices.front().kind;
  std::vector<std::string> reasons;
  for (const OrderChoice& choice : choices) reasons.push_back(text(order_name(choice.kind), ": ", choice.reason));
  throw UsageError({"plan"}, "no pipeline order fits. ", join(reasons, "; "), ".");
}

}  // namespace hasten::plan
