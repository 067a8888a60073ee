// The decisions of rendezvous.h, one function an event; `gather` is where every round begins.
#include "hasten/launch/rendezvous/rendezvous.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "hasten/core/count_text.h"
#include "hasten/core/text.h"

namespace hasten::launcher {
namespace {

std::string number_of(size_t count, const char* what) {
  return text(count, " ", what, count == 1 ? "" : "s");
}

}  // namespace

Rendezvous::Rendezvous(RendezvousSettings settings, TimePoint now, RunSoFar so_far)
    : settings_(settings),
      expected_(std::move(so_far.expected)),
      round_(so_far.round),
      restarts_(so_far.restarts),
      wants_window_(expected_.empty()) {
  // The others may notice a loss_timeout later that the host is gone, and then have to find the new one.
  if (!expected_.empty()) expected_until_ = later(now, 2 * settings_.loss_timeout());
  join_ends_ = later(now, settings_.join_timeout);
}

Rendezvous::Orders Rendezvous::on_message(const std::string& id, const NodeMessage& message, TimePoint now) {
  using Kind = NodeMessage::Kind;
  if (message.kind == Kind::kJoin) on_join(message, now);
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return std::exchange(orders_, {});
  Node& node = found->second;
  node.last_heard = now;
  const bool of_this_round = message.round == round_ && node.in_round;
  switch (message.kind) {
    case Kind::kMaster:
      if (phase_ == Phase::kPlacing && of_this_round) start_round(message);
      break;
    case Kind::kFailed:
      if (phase_ == Phase::kRunning && of_this_round) failed(node, message);
      break;
    case Kind::kStopped:
    case Kind::kFinished:
      ended(node, message, now);
      break;
    case Kind::kLeave:
      remove(id, text("node ", node.info.name, " left: ", message.text), now);
      break;
    default:
      break;
  }
  return std::exchange(orders_, {});
}

Rendezvous::Orders Rendezvous::on_lost(const std::string& id, const std::string& how, TimePoint now) {
  const auto found = nodes_.find(id);
  if (found != nodes_.end()) remove(id, text("node ", found->second.info.name, " was lost: ", how), now);
  return std::exchange(orders_, {});
}

Rendezvous::Orders Rendezvous::on_time(TimePoint now) {
  std::vector<std::string> silent;
  for (const auto& [id, node] : nodes_) {
    if (now >= later(node.last_heard, settings_.loss_timeout())) silent.push_back(id);
  }
  for (const std::string& id : silent) {
    const NodeInfo info = nodes_.at(id).info;
    remove(id, text("node ", info.name, " was lost: nothing heard for ", settings_.loss_timeout().count(), " s"), now);
    orders_.push_back({.to = id, .kind = Order::Kind::kDrop});
  }
  if (phase_ == Phase::kGathering) gather(now);
  return std::exchange(orders_, {});
}

std::optional<TimePoint> Rendezvous::deadline() const {
  if (closed()) return std::nullopt;
  std::optional<TimePoint> first;
  const auto consider = [&](std::optional<TimePoint> time) {
    if (time) first = std::min(first.value_or(*time), *time);
  };
  for (const auto& [id, node] : nodes_) consider(later(node.last_heard, settings_.loss_timeout()));
  if (phase_ != Phase::kGathering) return first;
  for (const auto& time : {join_ends_, last_call_, not_before_, expected_until_}) consider(time);
  return first;
}

void Rendezvous::on_join(const NodeMessage& message, TimePoint now) {
  const NodeInfo& info = message.node;
  if (closed()) {
    closing_.to = info.id;  // latecomers end as the others did
    orders_.push_back(closing_);
    return;
  }
  if (knows(info.id)) remove(info.id, text("node ", info.name, " was lost: it has joined once more"), now);
  round_ = std::max(round_, message.round);
  restarts_ = std::max(restarts_, message.restarts);
  expected_.erase(info.id);
  nodes_[info.id] = {.info = info, .seat = num_seats_++, .busy = message.busy, .last_heard = now};
  const auto num_members = static_cast<int>(nodes_.size());
  if (num_members > settings_.max_nodes) {
    order(nodes_[info.id], {.kind = Order::Kind::kNotice,
                            .text = text("waiting: the run has its ", count_text(settings_.max_nodes, "node"))});
    return;
  }
  if (phase_ == Phase::kRunning) {
    if (someone_finished()) return;  // the run is about to end
    return stop_round(text("node ", info.name, " joined"));
  }
  if (phase_ == Phase::kPlacing) phase_ = Phase::kGathering;
  if (phase_ != Phase::kGathering) return;
  if (num_members < settings_.min_nodes) {
    order(nodes_[info.id],
          {.kind = Order::Kind::kNotice,
           .text = text("waiting: ", number_of(nodes_.size(), "node"), " of at least ", settings_.min_nodes)});
  }
  gather(now);
}

void Rendezvous::start_round(const NodeMessage& master) {
  phase_ = Phase::kRunning;
  failure_.reset();
  Assignment assignment{
      .round = round_, .restart_count = restarts_, .master_addr = master.text, .master_port = master.value};
  std::vector<Node*> members;
  for (Node* node : by_seat()) {
    if (node->in_round) members.push_back(node);
  }
  assignment.num_nodes = static_cast<int>(members.size());
  assignment.world_size = 0;
  for (const Node* node : members) {
    assignment.world_size += node->info.num_workers;
    if (assignment.successors.size() < Assignment::kMaxSuccessors) assignment.successors.push_back(node->info);
  }
  for (Node* node : members) {
    node->busy = true;
    order(*node, {.kind = Order::Kind::kStart, .round = round_, .assignment = assignment});
    ++assignment.node_rank;
    assignment.first_rank += node->info.num_workers;
  }
}

void Rendezvous::failed(const Node& node, const NodeMessage& message) {
  failure_ = {.node = node.info.id,
              .text = text(message.text, " on node ", node.info.name),
              .report = "",
              .exit_code = message.value};
  const bool again = restarts_ < settings_.max_restarts;
  const std::string next = again ? text("; restart ", restarts_ + 1, " of ", settings_.max_restarts) : std::string();
  stop_round(failure_->text + next, node.info.id);
  order(node, {.kind = Order::Kind::kNotice, .text = failure_->text + next});
}

void Rendezvous::ended(Node& node, const NodeMessage& message, TimePoint now) {
  node.busy = false;
  if (node.in_round && message.round == round_) {
    node.finished = message.kind == NodeMessage::Kind::kFinished;
    if (failure_ && failure_->node == node.info.id) failure_->report = message.text;
    if (phase_ == Phase::kRunning && all_of_round(&Node::finished, true)) return close(0, "");
    if (phase_ == Phase::kRunning && !node.finished) {
      stop_round(text("the workers of node ", node.info.name, " were stopped"), node.info.id);
    }
    if (phase_ == Phase::kStopping && all_of_round(&Node::busy, false)) return round_stopped(now);
  }
  if (phase_ == Phase::kGathering) gather(now);
}

// The node has gone. Its part in the run decides the next step.
void Rendezvous::remove(const std::string& id, const std::string& what_happened, TimePoint now) {
  const Node gone = nodes_.at(id);
  nodes_.erase(id);
  if (closed()) return;
  const bool breaks_round = phase_ == Phase::kRunning && gone.in_round && !gone.finished;
  for (const Node* node : by_seat()) {
    const bool is_told_with_stop = breaks_round && node->in_round;
    if (!is_told_with_stop) order(*node, {.kind = Order::Kind::kNotice, .text = what_happened});
  }
  if (phase_ == Phase::kPlacing && gone.in_round) phase_ = Phase::kGathering;
  if (phase_ == Phase::kGathering) return gather(now);
  if (!gone.in_round || phase_ == Phase::kPlacing) return;
  if (phase_ == Phase::kRunning && gone.finished) {
    // Its part was done; the last of the others may have finished before.
    if (all_of_round(&Node::finished, true)) close(0, "");
    return;
  }
  // Where a node is lost, workers of the others fail: that is no failure of theirs.
  if (!gone.finished) failure_.reset();
  if (breaks_round) stop_round(what_happened);
  if (all_of_round(&Node::busy, false)) round_stopped(now);
}

void Rendezvous::stop_round(const std::string& reason, const std::string& but_for) {
  phase_ = Phase::kStopping;
  for (Node* node : by_seat()) {
    if (node->in_round && node->info.id != but_for)
      order(*node, {.kind = Order::Kind::kStop, .round = round_, .text = reason});
  }
}

// No node has workers left.
void Rendezvous::round_stopped(TimePoint now) {
  if (failure_) {
    if (restarts_ >= settings_.max_restarts) return close(failure_->exit_code, failure_->text, failure_->report);
    const Seconds delay = settings_.restart_delay * std::exp2(restarts_);
    not_before_ = later(now, std::min(delay, SupervisorOptions::kMaxRestartDelay));
    ++restarts_;
    failure_.reset();
  } else if (someone_finished() && all_of_round(&Node::finished, true)) {
    return close(0, "");
  }
  phase_ = Phase::kGathering;
  gather(now);
}

// Starts the next round if everything for it is there. Otherwise `deadline` holds the reason of the wait.
void Rendezvous::gather(TimePoint now) {
  for (auto* time : {&not_before_, &expected_until_}) {
    if (*time && now >= **time) time->reset();
  }
  for (auto& [id, node] : nodes_) node.in_round = node.finished = false;
  std::vector<Node*> members = by_seat();
  const auto most = static_cast<size_t>(settings_.max_nodes);
  if (members.size() > most) members.resize(most);
  if (members.size() < static_cast<size_t>(settings_.min_nodes)) return wait_for_least(members.size(), now);
  join_ends_.reset();
  const bool busy = std::any_of(members.begin(), members.end(), [](const Node* node) { return node->busy; });
  if (window_is_open(members.size(), now) || busy || not_before_) return;
  place(members);
}

void Rendezvous::wait_for_least(size_t num_ready, TimePoint now) {
  last_call_.reset();
  wants_window_ = true;
  if (!join_ends_) {
    join_ends_ = later(now, settings_.join_timeout);
    order_all({.kind = Order::Kind::kNotice,
               .text = text("waiting up to ", settings_.join_timeout.count(), " s: ", number_of(num_ready, "node"),
                            " of at least ", settings_.min_nodes)});
  }
  if (now < *join_ends_) return;
  close(1, text("only ", number_of(num_ready, "node"), " of at least ", settings_.min_nodes, " came within ",
                settings_.join_timeout.count(), " s (join_timeout)"));
}

// Returns true if further nodes are still waited for.
bool Rendezvous::window_is_open(size_t num_ready, TimePoint now) {
  if (num_ready == static_cast<size_t>(settings_.max_nodes)) {
    last_call_.reset();
    return false;
  }
  if (expected_until_ && !expected_.empty()) return true;
  if (!wants_window_) return false;
  if (!last_call_) {
    last_call_ = later(now, settings_.last_call_timeout);
    order_all({.kind = Order::Kind::kNotice,
               .text = text("waiting ", settings_.last_call_timeout.count(), " s for further nodes: ",
                            number_of(num_ready, "node"), " of at most ", settings_.max_nodes)});
  }
  if (now < *last_call_) return true;
  last_call_.reset();
  return wants_window_ = false;
}

void Rendezvous::place(const std::vector<Node*>& members) {
  phase_ = Phase::kPlacing;
  ++round_;
  wants_window_ = false;
  expected_until_.reset();
  expected_.clear();
  for (Node* node : members) node->in_round = true;
  order(*members.front(), {.kind = Order::Kind::kChooseMaster, .round = round_});
}

void Rendezvous::close(int exit_code, const std::string& reason, const std::string& report) {
  phase_ = Phase::kClosed;
  closing_ = {.kind = Order::Kind::kClose, .value = exit_code, .text = reason, .report = report};
  order_all(closing_);
}

std::vector<Rendezvous::Node*> Rendezvous::by_seat() {
  std::vector<Node*> nodes;
  for (auto& [id, node] : nodes_) nodes.push_back(&node);
  std::sort(nodes.begin(), nodes.end(), [](const Node* a, const Node* b) { return a->seat < b->seat; });
  return nodes;
}

bool Rendezvous::all_of_round(bool Node::*flag, bool value) const {
  return std::all_of(nodes_.begin(), nodes_.end(),
                     [=](const auto& entry) { return !entry.second.in_round || entry.second.*flag == value; });
}

bool Rendezvous::someone_finished() const {
  return std::any_of(nodes_.begin(), nodes_.end(), [](const auto& entry) { return entry.second.finished; });
}

void Rendezvous::order(const Node& node, Order order) {
  order.to = node.info.id;
  orders_.push_back(std::move(order));
}

void Rendezvous::order_all(const Order& order_for_all) {
  for (const Node* node : by_seat()) order(*node, order_for_all);
}

std::string Rendezvous::summary() const {
  std::string result = text("phase ", static_cast<int>(phase_), " round ", round_, " restarts ", restarts_,
                            wants_window_ ? " window" : "", join_ends_ ? " join" : "", last_call_ ? " last" : "",
                            not_before_ ? " delay" : "", expected_until_ ? " expected " + join(expected_, " ") : "",
                            failure_ ? text(" failure ", failure_->node, failure_->report) : "");
  std::vector<std::pair<int64_t, std::string>> nodes;
  for (const auto& [id, node] : nodes_) {
    nodes.emplace_back(node.seat, text("; ", id, node.busy ? " busy" : "", node.in_round ? " in" : "",
                                       node.finished ? " finished" : ""));
  }
  std::sort(nodes.begin(), nodes.end());
  for (const auto& [seat, node] : nodes) result += node;
  return result;
}

}  // namespace hasten::launcher
