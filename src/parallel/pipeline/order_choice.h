// The choice of an order by measured times: OrderKind::kAuto.
//
// The first step runs 1F1B, or its interleaved form, with the two halves of each backward apart. Each rank measures its
// actions. Then all ranks have the times of all stages, and each takes the order of least simulated time
// (plan/simulate.h). Costs are equal to the last bit on all ranks, so choices are, too.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/plan/orders.h"
#include "hasten/plan/simulate.h"
#include "parallel/pipeline/program.h"
#include "parallel/pipeline/stage_axis.h"

namespace hasten::parallel::pipeline {

/// Returns the order with each backward as its halves, that of the weights at once behind that of the inputs.
plan::PipelineOrder with_split_backwards(plan::PipelineOrder order);

/// Returns every order as plan::rank_orders does. Those whose stages would lie on other ranks than those of 1F1B are
/// not taken, with that reason. `capacity_bytes`: of activations on a rank.
/// Throws: UsageError for sizes below 1.
std::vector<plan::OrderChoice> orders_in_place(const plan::OrderSizes& sizes, const std::vector<plan::StageCost>& costs,
                                               double capacity_bytes);

/// Returns the first of orders_in_place. Throws: UsageError with all reasons if none fits.
plan::OrderChoice best_in_place(const plan::OrderSizes& sizes, const std::vector<plan::StageCost>& costs,
                                double capacity_bytes);

/// Returns the choice and the others' times, as a sentence for the log.
std::string describe(const std::vector<plan::OrderChoice>& choices, const std::vector<plan::StageCost>& costs);

/// The seconds of this rank's actions, without waits for other ranks.
class ActionTimes {
 public:
  explicit ActionTimes(StageAxis& axis) : axis_(axis) {}

  template <class Fn>
  void measure(const plan::Action& action, const Fn& fn) {
    const double before = seconds(), waited = axis_.messages().waited_s();
    fn();
    add(action, seconds() - before - (axis_.messages().waited_s() - waited));
  }

  /// Returns the cost of each stage: times of the middle microbatch, and the bytes of a microbatch's results by its
  /// record. All ranks of the axis and of its cut, and those of `groups` one after the other, have the same.
  /// Collective: yes, over all of these. Blocks: until all have come. Throws: CommError.
  std::vector<plan::StageCost> agree(const Program& program, const std::vector<comm::Group>& groups);

 private:
  double seconds() const;
  void add(const plan::Action& action, double seconds);
  double send_seconds(const Program& program);

  StageAxis& axis_;
  std::map<std::pair<int, plan::ActionKind>, std::vector<double>> seconds_ = {};
};

}  // namespace hasten::parallel::pipeline
