// See order_check.h. An order that waits in a circle is found by running it without times.
#include "hasten/plan/order_check.h"

#include <optional>
#include <vector>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/text.h"

namespace hasten::plan {
namespace {

using enum ActionKind;

// Which kinds have been seen, for each stage and microbatch.
struct Seen {
  bool forward = false, backward = false, input = false, weight = false;
};

std::string place_of(const PipelineOrder& order, size_t rank, size_t index) {
  return text("row ", rank + 1, ", column ", index + 1, " (", action_text(order.ranks[rank][index]), ")");
}

class Table {
 public:
  explicit Table(const PipelineOrder& order)
      : stages_(order.num_stages),
        microbatches_(order.num_microbatches),
        seen_(static_cast<size_t>(stages_) * static_cast<size_t>(microbatches_)) {}
  bool contains(const Action& action) const {
    return action.stage >= 0 && action.stage < stages_ && action.microbatch >= 0 && action.microbatch < microbatches_;
  }
  Seen& at(int stage, int microbatch) {
    return seen_[static_cast<size_t>(stage) * static_cast<size_t>(microbatches_) + static_cast<size_t>(microbatch)];
  }

 private:
  int stages_, microbatches_;
  std::vector<Seen> seen_;
};

// The mistake of one action after those before it on its rank; "" if there is none.
std::string problem_with_action(const Action& action, Seen& seen) {
  switch (action.kind) {
    case kForward:
      if (seen.forward) return "runs a second time";
      seen.forward = true;
      return "";
    case kBackward:
      if (!seen.forward) return "comes before its forward";
      if (seen.backward || seen.input) return "runs a second time";
      seen.backward = true;
      return "";
    case kBackwardInput:
      if (!seen.forward) return "comes before its forward";
      if (seen.backward || seen.input) return "runs a second time";
      seen.input = true;
      return "";
    case kBackwardWeight:
      if (!seen.input) return "comes before its I, the gradients of the inputs";
      if (seen.weight) return "runs a second time";
      seen.weight = true;
      return "";
  }
  return "is of no known kind";
}

std::string problem_in_rows(const PipelineOrder& order, Table& table) {
  std::vector<int> owner(static_cast<size_t>(order.num_stages), -1);
  for (size_t rank = 0; rank < order.ranks.size(); ++rank) {
    for (size_t i = 0; i < order.ranks[rank].size(); ++i) {
      const Action& action = order.ranks[rank][i];
      if (!table.contains(action))
        return text(place_of(order, rank, i), " is outside of ", count_text(order.num_stages, "stage"), " and ",
                    count_text(order.num_microbatches, "microbatch"));
      int& holder = owner[static_cast<size_t>(action.stage)];
      if (holder >= 0 && holder != static_cast<int>(rank))
        return text(place_of(order, rank, i), " runs stage ", action.stage, ", which row ", holder + 1, " has");
      holder = static_cast<int>(rank);
      const std::string problem = problem_with_action(action, table.at(action.stage, action.microbatch));
      if (!problem.empty()) return text(place_of(order, rank, i), " ", problem);
    }
  }
  return "";
}

std::string problem_of_omission(const PipelineOrder& order, Table& table, bool forward_only) {
  for (int stage = 0; stage < order.num_stages; ++stage) {
    for (int microbatch = 0; microbatch < order.num_microbatches; ++microbatch) {
      const Seen seen = table.at(stage, microbatch);
      const auto lacks = [&](ActionKind kind) { return text("no row has ", action_text({stage, kind, microbatch})); };
      if (!seen.forward) return lacks(kForward);
      if (forward_only) continue;
      if (!seen.backward && !seen.input) return lacks(kBackward);
      if (seen.input && !seen.weight) return lacks(kBackwardWeight);
    }
  }
  return "";
}

// Runs the rows without times. A row goes on until it needs a value that has not been made, or sends into a full
// channel.
class Run {
 public:
  Run(const PipelineOrder& order, int capacity)
      : order_(order),
        capacity_(capacity),
        owner_(stage_ranks(order)),
        done_(order),
        next_(order.ranks.size()),
        sending_(order.ranks.size()),
        waiting_(2 * static_cast<size_t>(order.num_stages)) {}

  std::string problem() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < order_.ranks.size(); ++rank) {
        while (step(rank)) moved = true;
      }
    }
    for (size_t rank = 0; rank < order_.ranks.size(); ++rank) {
      if (sending_[rank] || next_[rank] < order_.ranks[rank].size()) return stuck(rank);
    }
    return "";
  }

 private:
  // The action whose value this one takes from a neighbouring stage; none for the ends of the pipeline.
  std::optional<Action> source(const Action& action) const {
    if (action.kind == kForward && action.stage > 0) return Action{action.stage - 1, kForward, action.microbatch};
    const bool takes = action.kind == kBackward || action.kind == kBackwardInput;
    if (takes && action.stage + 1 < order_.num_stages) return Action{action.stage + 1, kBackward, action.microbatch};
    return std::nullopt;
  }
  bool is_done(const Action& action) {
    const Seen seen = done_.at(action.stage, action.microbatch);
    return action.kind == kForward ? seen.forward : seen.backward || seen.input;
  }
  bool crosses(int stage, int other) const {
    return owner_[static_cast<size_t>(stage)] != owner_[static_cast<size_t>(other)];
  }
  // Channels are numbered by the stage that receives: first those of forwards, then those of backwards.
  size_t channel_into(const Action& receiver) const {
    return static_cast<size_t>(receiver.stage + (receiver.kind == kForward ? 0 : order_.num_stages));
  }

  bool step(size_t rank) {
    if (sending_[rank]) {
      if (waiting_[*sending_[rank]] >= capacity_) return false;
      ++waiting_[*sending_[rank]];
      sending_[rank].reset();
      return true;
    }
    if (next_[rank] == order_.ranks[rank].size()) return false;
    const Action& action = order_.ranks[rank][next_[rank]];
    const auto from = source(action);
    if (from && (!is_done(*from) || (crosses(from->stage, action.stage) && is_held_back(*from)))) return false;
    if (from && crosses(from->stage, action.stage)) --waiting_[channel_into(action)];
    problem_with_action(action, done_.at(action.stage, action.microbatch));
    ++next_[rank];
    send(rank, action);
    return true;
  }
  // A value that is made, and waits on its own rank for room in the channel.
  bool is_held_back(const Action& made) const {
    const auto rank = static_cast<size_t>(owner_[static_cast<size_t>(made.stage)]);
    if (!sending_[rank] || next_[rank] == 0) return false;
    const Action& last = order_.ranks[rank][next_[rank] - 1];
    return last.stage == made.stage && last.microbatch == made.microbatch &&
           (last.kind == kForward) == (made.kind == kForward);
  }
  void send(size_t rank, const Action& action) {
    if (action.kind == kBackwardWeight) return;
    const int to = action.stage + (action.kind == kForward ? 1 : -1);
    if (to < 0 || to >= order_.num_stages || !crosses(action.stage, to)) return;
    const size_t channel = channel_into({to, action.kind == kForward ? kForward : kBackward, 0});
    if (capacity_ > 0 && waiting_[channel] >= capacity_) {
      sending_[rank] = channel;
    } else {
      ++waiting_[channel];
    }
  }
  std::string stuck(size_t rank) {
    if (sending_[rank]) {
      return text(place_of(order_, rank, next_[rank] - 1), " waits for room in a channel of ", capacity_,
                  ", and so do others in a circle");
    }
    const auto from = source(order_.ranks[rank][next_[rank]]);
    return text(place_of(order_, rank, next_[rank]), " waits for ", from ? action_text(*from) : "nothing",
                ", which waits for it in a circle");
  }

  const PipelineOrder& order_;
  int capacity_;
  std::vector<int> owner_;
  Table done_;
  std::vector<size_t> next_;
  std::vector<std::optional<size_t>> sending_;
  std::vector<int> waiting_;
};

}  // namespace

std::string problem_in_order(const PipelineOrder& order, const OrderCheck& options) {
  if (order.ranks.empty() || order.num_stages < 1 || order.num_microbatches < 1) return "the order is empty";
  Table table(order);
  std::string problem = problem_in_rows(order, table);
  if (problem.empty()) problem = problem_of_omission(order, table, options.forward_only);
  if (problem.empty()) problem = Run(order, options.channel_capacity).problem();
  return problem;
}

void check_order(const PipelineOrder& order, const OrderCheck& options) {
  const std::string problem = problem_in_order(order, options);
  if (!problem.empty()) throw UsageError({"plan"}, "the pipeline order cannot run: ", problem, ".");
}

}  // namespace hasten::plan
