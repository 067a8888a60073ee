// Checks of a pipeline order: whether it can run, whichever hand or rule made it.
//
// An order can run under three conditions. Each stage is on one rank. Each microbatch passes every stage once, forward
// before backward. No rank waits in a circle.
#pragma once

#include <string>

#include "hasten/plan/orders.h"

namespace hasten::plan {

struct OrderCheck {
  /// Values that may wait between two neighbouring stages in one direction before their sender has to stop. 0: any
  /// number, as for sends that are not waited for.
  int channel_capacity = 0;
  /// Forwards alone are enough.
  bool forward_only = false;
};

/// Returns the first mistake, with the row (rank) and column (action) of it, both from 1, as order_csv prints them.
/// Returns "" for an order that can run.
std::string problem_in_order(const PipelineOrder& order, const OrderCheck& options = {});

/// Throws: UsageError with what problem_in_order returns.
void check_order(const PipelineOrder& order, const OrderCheck& options = {});

}  // namespace hasten::plan
