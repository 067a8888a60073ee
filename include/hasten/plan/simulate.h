// Simulated pipelines: how long an order takes, what stands idle, and what it keeps in memory.
//
// Each rank runs its actions one after the other and waits for what it needs. The bubble is idle time over busy time.
// docs/plan.md lists the formulas that hold for stages of equal times.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "hasten/plan/orders.h"

namespace hasten::plan {

/// Seconds, and bytes, of one microbatch in one stage. A full backward takes both halves.
struct StageCost {
  double forward_s = 1;
  double input_s = 1;   ///< backward of the inputs
  double weight_s = 1;  ///< backward of the weights
  double send_s = 0;    ///< to a stage of another rank, after a forward or a backward
  double bytes = 1;     ///< kept from the forward until the backward, or its half of the weights, has ended
};

/// Returns the seconds of an action in a stage of that cost.
double action_seconds(const Action& action, const StageCost& cost);

struct Timeline {
  double seconds = 0;
  std::vector<double> busy_s = {};                 ///< of each rank
  std::vector<double> peak_bytes = {};             ///< of each rank
  std::vector<int> peak_in_flight = {};            ///< of each rank: microbatches kept, counted in each of its stages
  std::vector<std::vector<double>> starts_s = {};  ///< of each action, in the form of PipelineOrder::ranks

  /// Returns the idle time of all ranks over their busy time.
  double bubble() const;
};

/// Returns the times of an order that check_order takes. `costs` has one entry a stage, or a single one for all.
/// Throws: UsageError for another number of entries; for times that are negative or not finite; for an order that
/// stands still.
Timeline simulate(const PipelineOrder& order, const std::vector<StageCost>& costs = {StageCost{}});

struct OrderChoice {
  OrderKind kind = OrderKind::kDefault;
  Timeline timeline = {};
  std::string reason = {};  ///< why it was not taken, "" for those that fit
};

/// Returns every order for the sizes, the fastest first; those that do not fit, with the reason, come last. Of equally
/// fast ones the one of less memory comes first. `costs` as in simulate; `capacity_bytes` limits each rank.
/// Throws: UsageError for sizes below 1.
std::vector<OrderChoice> rank_orders(const OrderSizes& sizes, const std::vector<StageCost>& costs,
                                     double capacity_bytes = std::numeric_limits<double>::infinity());

/// Returns the fastest order that fits: the meaning of OrderKind::kAuto.
/// Throws: UsageError if none fits, with the bytes of the smallest one.
OrderKind best_order(const OrderSizes& sizes, const std::vector<StageCost>& costs,
                     double capacity_bytes = std::numeric_limits<double>::infinity());

}  // namespace hasten::plan
