// Pipeline orders: which forward or backward of which microbatch each rank runs, one after the other.
//
// Pure lists, equal to those of torch.distributed.pipelining. order_check.h tells whether an order can run, simulate.h
// how long it takes. Text is torch's: "2F13" is the forward of microbatch 13 in stage 2.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hasten::plan {

enum class ActionKind : char {
  kForward = 'F',
  kBackward = 'B',        ///< gradients of inputs and weights
  kBackwardInput = 'I',   ///< gradients of inputs alone; a kBackwardWeight follows later
  kBackwardWeight = 'W',  ///< gradients of weights alone
};

/// One step of a rank's work.
struct Action {
  int stage = 0;
  ActionKind kind = ActionKind::kForward;
  int microbatch = 0;
  bool operator==(const Action&) const = default;
};

/// Returns "2F13".
std::string action_text(const Action& action);

/// What each rank of a pipeline runs.
struct PipelineOrder {
  std::vector<std::vector<Action>> ranks = {};
  int num_stages = 0;
  int num_microbatches = 0;
  bool operator==(const PipelineOrder&) const = default;
};

enum class OrderKind {
  kDefault,                ///< 1F1B, or its interleaved form if ranks have several stages
  kGPipe,                  ///< all forwards, then all backwards; 1 stage a rank
  kLoopedBfs,              ///< the same stage after stage, backwards of microbatches descending
  k1F1B,                   ///< 1 stage a rank; as few microbatches in flight as keep all ranks busy
  kInterleaved1F1B,        ///< several stages a rank, r, p + r, …
  kInterleavedZeroBubble,  ///< ZB1P: backwards of weights fill the bubble; ZB-H1 for 1 stage a rank
  kZbvZeroBubble,          ///< 2 stages a rank, r and 2p - 1 - r
  kForwardOnly,            ///< inference: forwards stage after stage
  kAuto,                   ///< pipelines: the one of least simulated time, by measured costs (best_order in simulate.h)
};

/// Returns the name as options have it: "1f1b", "interleaved_zero_bubble" …
std::string_view order_name(OrderKind kind);

/// Reads order_name's text, or torch's: "Interleaved1F1B", "ScheduleGPipe", in letters of any case.
/// Throws: UsageError with the nearest name; for DualPipeV, which needs experts to pay.
OrderKind parse_order(std::string_view name);

struct OrderSizes {
  int ranks = 1;         ///< p
  int chunks = 1;        ///< v, stages on each rank
  int microbatches = 1;  ///< m
};

/// Returns the order of that kind. Any number of microbatches is taken where the kind's rounds allow it.
/// Throws: UsageError for sizes below 1; chunks that the kind does not take; microbatches that do not fill its rounds,
/// with the next legal numbers; kAuto.
PipelineOrder make_order(OrderKind kind, const OrderSizes& sizes);

/// Returns the mistake in the sizes for a kind, as a sentence without its full stop; "" if make_order takes them.
std::string problem_with_order(OrderKind kind, const OrderSizes& sizes);

/// Returns the rank of a stage: stage % ranks, or for kZbvZeroBubble the rank at which the V's arms are.
int rank_of_stage(OrderKind kind, const OrderSizes& sizes, int stage);

/// Returns the rank of each stage as the order has it, -1 for a stage that nothing runs.
std::vector<int> stage_ranks(const PipelineOrder& order);

/// Returns torch's compute-only CSV: a line a rank, actions separated by commas.
std::string order_csv(const PipelineOrder& order);

/// Reads such a CSV; empty cells, which torch writes for idle slots, are left out. Whether the order can run is the
/// question of check_order. `name` is the file in messages.
/// Throws: DataError with row and column, both from 1, for a cell that is no action, or one that names an exchange.
PipelineOrder parse_order_csv(std::string_view text, const std::string& name = "order");

}  // namespace hasten::plan
