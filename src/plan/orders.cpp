// See orders.h. The rules of each kind are listed in docs/plan.md.
#include "hasten/plan/orders.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <sstream>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/core/strings.h"
#include "hasten/core/text.h"

namespace hasten::plan {
namespace {

using enum ActionKind;
using Actions = std::vector<Action>;

struct OrderNames {
  OrderKind kind;
  std::string_view name, torch_name;
};
constexpr OrderNames kOrderNames[] = {
    {OrderKind::kDefault, "default", "default"},
    {OrderKind::kGPipe, "gpipe", "gpipe"},
    {OrderKind::kLoopedBfs, "looped_bfs", "loopedbfs"},
    {OrderKind::k1F1B, "1f1b", "1f1b"},
    {OrderKind::kInterleaved1F1B, "interleaved_1f1b", "interleaved1f1b"},
    {OrderKind::kInterleavedZeroBubble, "interleaved_zero_bubble", "interleavedzerobubble"},
    {OrderKind::kZbvZeroBubble, "zbv_zero_bubble", "zbvzerobubble"},
    {OrderKind::kForwardOnly, "forward_only", "forwardonly"},
    {OrderKind::kAuto, "auto", "auto"},
};

OrderKind resolved(OrderKind kind, const OrderSizes& sizes) {
  if (kind != OrderKind::kDefault) return kind;
  return sizes.chunks == 1 ? OrderKind::k1F1B : OrderKind::kInterleaved1F1B;
}

Actions gpipe(const OrderSizes& sizes, int rank) {
  Actions actions;
  for (int i = 0; i < sizes.microbatches; ++i) actions.push_back({rank, kForward, i});
  for (int i = 0; i < sizes.microbatches; ++i) actions.push_back({rank, kBackward, i});
  return actions;
}

Actions forward_only(const OrderSizes& sizes, int rank) {
  Actions actions;
  for (int chunk = 0; chunk < sizes.chunks; ++chunk) {
    for (int i = 0; i < sizes.microbatches; ++i) actions.push_back({chunk * sizes.ranks + rank, kForward, i});
  }
  return actions;
}

Actions looped_bfs(const OrderSizes& sizes, int rank) {
  Actions actions = forward_only(sizes, rank);
  for (int chunk = sizes.chunks - 1; chunk >= 0; --chunk) {
    for (int i = sizes.microbatches - 1; i >= 0; --i) actions.push_back({chunk * sizes.ranks + rank, kBackward, i});
  }
  return actions;
}

Actions one_forward_one_backward(const OrderSizes& sizes, int rank) {
  const int warm_up = std::min(sizes.microbatches, sizes.ranks - 1 - rank);
  Actions actions;
  for (int i = 0; i < warm_up; ++i) actions.push_back({rank, kForward, i});
  for (int i = warm_up; i < sizes.microbatches; ++i) {
    actions.push_back({rank, kForward, i});
    actions.push_back({rank, kBackward, i - warm_up});
  }
  for (int i = sizes.microbatches - warm_up; i < sizes.microbatches; ++i) actions.push_back({rank, kBackward, i});
  return actions;
}

// Numbers of rounds, and microbatches of each, of the orders that go chunk by chunk.
int rounds_of(const OrderSizes& sizes) {
  return std::max(1, sizes.microbatches / sizes.ranks);
}

// Interleaved 1F1B, or ZB1P if backwards are halved. Forwards, backwards and weights each go round after round.
class Interleaved {
 public:
  Interleaved(const OrderSizes& sizes, int rank, bool halved)
      : sizes_(sizes), rank_(rank), halved_(halved), round_(sizes.microbatches / rounds_of(sizes)) {}

  Actions actions() {
    const int total = sizes_.microbatches * sizes_.chunks, hops = sizes_.ranks - 1 - rank_;
    const int warm_up = std::min(total, (sizes_.chunks - 1) * round_ + (halved_ ? 1 : 2) * hops);
    for (int n = 0; n < warm_up; ++n) add(kForward, n);
    for (int n = 0; n < total; ++n) {
      if (warm_up + n < total) add(kForward, warm_up + n);
      add(halved_ ? kBackwardInput : kBackward, n);
      if (halved_ && n >= rank_) add(kBackwardWeight, n - rank_);
    }
    for (int n = std::max(0, total - rank_); halved_ && n < total; ++n) add(kBackwardWeight, n);
    return std::move(actions_);
  }

 private:
  // The n-th forward or backward of this rank. A round takes `round_` microbatches through all chunks.
  void add(ActionKind kind, int n) {
    const int chunk = n / round_ % sizes_.chunks;
    const int microbatch = n / (round_ * sizes_.chunks) * round_ + n % round_;
    const int place = kind == kForward ? chunk : sizes_.chunks - 1 - chunk;
    actions_.push_back({place * sizes_.ranks + rank_, kind, microbatch});
  }

  OrderSizes sizes_;
  int rank_;
  bool halved_;
  int round_;
  Actions actions_;
};

// ZBV. The order is made for at least 2p - 1 microbatches, and those that are not there are dropped.
class Zbv {
 public:
  Zbv(const OrderSizes& sizes, int rank)
      : ranks_(sizes.ranks),
        rank_(rank),
        microbatches_(sizes.microbatches),
        made_(std::max(sizes.microbatches, 2 * sizes.ranks - 1)) {
    down_.stage = rank;
    up_.stage = 2 * sizes.ranks - 1 - rank;
  }

  Actions actions() {
    for (int i = 0; i < 2 * (ranks_ - rank_) - 1; ++i) forward(down_);
    for (int i = 0; i < rank_; ++i) forward(up_), forward(down_);
    for (int i = 0; i < ranks_ - rank_; ++i) forward(up_), input(up_), weight(up_);
    while (up_.forwards < down_.forwards || down_.forwards < made_) {
      if (down_.forwards < made_) forward(down_);
      input(down_), weight(down_), forward(up_), input(up_), weight(up_);
    }
    for (int i = 0; i < rank_; ++i) input(down_), input(up_);
    for (int i = 0; i < ranks_ - rank_; ++i) input(down_), weight(down_);
    while (up_.weights < up_.inputs) weight(up_);
    while (down_.weights < down_.inputs) weight(down_);
    std::erase_if(actions_, [&](const Action& action) { return action.microbatch >= microbatches_; });
    return std::move(actions_);
  }

 private:
  // One arm of the V: its stage, and how many of each kind have been placed.
  struct Arm {
    int stage = 0, forwards = 0, inputs = 0, weights = 0;
  };
  void forward(Arm& arm) { actions_.push_back({arm.stage, kForward, arm.forwards++}); }
  void input(Arm& arm) { actions_.push_back({arm.stage, kBackwardInput, arm.inputs++}); }
  void weight(Arm& arm) { actions_.push_back({arm.stage, kBackwardWeight, arm.weights++}); }

  int ranks_, rank_, microbatches_, made_;
  Arm down_, up_;
  Actions actions_;
};

Actions actions_of(OrderKind kind, const OrderSizes& sizes, int rank) {
  switch (kind) {
    case OrderKind::kGPipe:
      return gpipe(sizes, rank);
    case OrderKind::kLoopedBfs:
      return looped_bfs(sizes, rank);
    case OrderKind::k1F1B:
      return one_forward_one_backward(sizes, rank);
    case OrderKind::kInterleaved1F1B:
      return Interleaved(sizes, rank, false).actions();
    case OrderKind::kInterleavedZeroBubble:
      return Interleaved(sizes, rank, true).actions();
    case OrderKind::kZbvZeroBubble:
      return Zbv(sizes, rank).actions();
    default:
      return forward_only(sizes, rank);
  }
}

// The legal numbers of microbatches on both sides of one that is not: "4 or 6".
std::string legal_microbatches(const OrderSizes& sizes) {
  const auto legal = [&](int m) { return m % std::max(1, m / sizes.ranks) == 0; };
  int below = sizes.microbatches, above = sizes.microbatches;
  while (!legal(below)) --below;
  while (!legal(above)) ++above;
  return text(below, " or ", above);
}

// A cell such as " 2F13 "; false if it is none.
bool read_action(std::string_view cell, Action& action) {
  const auto read = [&](int& number) {
    const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), number);
    if (error != std::errc() || number < 0) return false;
    cell.remove_prefix(static_cast<size_t>(end - cell.data()));
    return true;
  };
  if (!read(action.stage) || cell.empty() || std::string_view("FBIW").find(cell.front()) == std::string_view::npos)
    return false;
  action.kind = static_cast<ActionKind>(cell.front());
  cell.remove_prefix(1);
  return read(action.microbatch) && cell.empty();
}

}  // namespace

std::string action_text(const Action& action) {
  return text(action.stage, static_cast<char>(action.kind), action.microbatch);
}

std::string_view order_name(OrderKind kind) {
  for (const OrderNames& names : kOrderNames) {
    if (names.kind == kind) return names.name;
  }
  return "?";
}

OrderKind parse_order(std::string_view name) {
  std::string word = core::lower(name);
  if (word.starts_with("schedule")) word.erase(0, 8);
  std::vector<std::string> known;
  for (const OrderNames& names : kOrderNames) {
    if (word == names.name || word == names.torch_name) return names.kind;
    known.emplace_back(names.name);
  }
  if (word == "dualpipev")
    throw UsageError({"plan"},
                     "the order DualPipeV is not built, since it pays for models of experts only. Use "
                     "zbv_zero_bubble, which has the same stages.");
  throw UsageError({"plan"}, "'", name, "' is no pipeline order; expected one of ", join(known),
                   guess_end(word, known));
}

std::string problem_with_order(OrderKind kind, const OrderSizes& sizes) {
  kind = resolved(kind, sizes);
  if (sizes.ranks < 1 || sizes.chunks < 1 || sizes.microbatches < 1)
    return text("ranks ", sizes.ranks, ", chunks ", sizes.chunks, ", microbatches ", sizes.microbatches,
                "; expected at least 1 each");
  if (kind == OrderKind::kAuto) return "the order auto is chosen by best_order; expected the name of one order";
  if ((kind == OrderKind::kGPipe || kind == OrderKind::k1F1B) && sizes.chunks != 1)
    return text("the order ", order_name(kind), " takes 1 stage a rank, not ", sizes.chunks, "; for several there is ",
                kind == OrderKind::kGPipe ? "looped_bfs" : "interleaved_1f1b");
  if (kind == OrderKind::kZbvZeroBubble && sizes.chunks != 2)
    return text("the order zbv_zero_bubble takes 2 stages a rank, not ", sizes.chunks);
  const bool by_rounds = kind == OrderKind::kInterleaved1F1B || kind == OrderKind::kInterleavedZeroBubble;
  if (by_rounds && sizes.microbatches % rounds_of(sizes) != 0)
    return text("the order ", order_name(kind), " runs ", count_text(sizes.microbatches, "microbatch"), " on ",
                count_text(sizes.ranks, "rank"),
                " in ", count_text(rounds_of(sizes), "round"),
                ", which do not divide them; the next numbers that fit are ",
                legal_microbatches(sizes));
  return "";
}

PipelineOrder make_order(OrderKind kind, const OrderSizes& sizes) {
  const std::string problem = problem_with_order(kind, sizes);
  if (!problem.empty()) throw UsageError({"plan"}, problem, ".");
  PipelineOrder order{{}, sizes.ranks * sizes.chunks, sizes.microbatches};
  for (int rank = 0; rank < sizes.ranks; ++rank) order.ranks.push_back(actions_of(resolved(kind, sizes), sizes, rank));
  return order;
}

int rank_of_stage(OrderKind kind, const OrderSizes& sizes, int stage) {
  const bool upwards = kind == OrderKind::kZbvZeroBubble && stage >= sizes.ranks;
  return upwards ? 2 * sizes.ranks - 1 - stage : stage % sizes.ranks;
}

std::vector<int> stage_ranks(const PipelineOrder& order) {
  std::vector<int> ranks(static_cast<size_t>(order.num_stages), -1);
  for (size_t rank = 0; rank < order.ranks.size(); ++rank) {
    for (const Action& action : order.ranks[rank]) {
      if (action.stage < order.num_stages) ranks[static_cast<size_t>(action.stage)] = static_cast<int>(rank);
    }
  }
  return ranks;
}

std::string order_csv(const PipelineOrder& order) {
  std::string out;
  for (const auto& actions : order.ranks) {
    std::vector<std::string> cells;
    for (const Action& action : actions) cells.push_back(action_text(action));
    out += join(cells, ",") + "\n";
  }
  return out;
}

PipelineOrder parse_order_csv(std::string_view csv, const std::string& name) {
  PipelineOrder order;
  std::istringstream lines{std::string(csv)};
  size_t row = 0;
  for (std::string line; std::getline(lines, line);) {
    ++row;
    if (core::trim(line).empty()) continue;
    order.ranks.emplace_back();
    size_t column = 0;
    for (const std::string& cell : core::split(line, ',')) {
      ++column;
      const std::string_view word = core::trim(cell);
      if (word.empty()) continue;
      Action action;
      if (!read_action(word, action))
        throw DataError({"plan"}, name, name, ", row ", row, ", column ", column, ": '", word,
                        "' is no action of computing; expected a stage, F, B, I or W, and a microbatch, as 2F13.");
      order.ranks.back().push_back(action);
      order.num_stages = std::max(order.num_stages, action.stage + 1);
      order.num_microbatches = std::max(order.num_microbatches, action.microbatch + 1);
    }
  }
  if (order.num_stages == 0) throw DataError({"plan"}, name, name, " holds no action; expected a line for each rank.");
  return order;
}

}  // namespace hasten::plan
