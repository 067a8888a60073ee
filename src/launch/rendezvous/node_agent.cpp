// The decisions of node_agent.h, one function an event.
#include "launch/rendezvous/node_agent.h"

#include <algorithm>
#include <utility>

#include "hasten/core/text.h"
#include "hasten/launch/base/signals.h"

namespace hasten::launcher {
namespace {

std::string described(const Assignment& assignment, int num_workers) {
  const int last = assignment.first_rank + num_workers - 1;
  const std::string ranks =
      last == assignment.first_rank ? text("rank ", last) : text("ranks ", assignment.first_rank, " to ", last);
  return text("round ", assignment.round, ": ", assignment.num_nodes, assignment.num_nodes == 1 ? " node" : " nodes",
              ", world size ", assignment.world_size, "; this is node ", assignment.node_rank, " with ", ranks);
}

}  // namespace

NodeAgent::NodeAgent(NodeInfo self, RendezvousSettings settings, TimePoint now)
    : self_(std::move(self)), settings_(settings), seek_ends_(later(now, settings.join_timeout)) {}

AgentActions NodeAgent::on_host_found(TimePoint now) {
  has_host_ = true;
  host_heard_ = now;
  next_heartbeat_ = later(now, settings_.keep_alive_interval);
  NodeMessage join = message(NodeMessage::Kind::kJoin);
  join.node = self_;
  join.busy = has_workers();
  join.restarts = restarts_;
  return {.messages = {join}};
}

AgentActions NodeAgent::on_host_lost(const std::string& how, TimePoint now) {
  if (!std::exchange(has_host_, false)) return {};
  if (exit_code_) return {};
  seek_ends_ = later(now, settings_.join_timeout);
  AgentActions actions{.lines = {text("lost the host of the rendezvous: ", how)}, .find_host = true};
  // The host's workers are gone with it, so this round cannot go on.
  actions.stop_workers = workers_ == Workers::kRunning;
  if (actions.stop_workers) workers_ = Workers::kStopping;
  return actions;
}

AgentActions NodeAgent::on_order(const Order& order, TimePoint now) {
  host_heard_ = now;
  if (exit_code_) return {};
  AgentActions actions;
  switch (order.kind) {
    case Order::Kind::kNotice:
      actions.lines = {order.text};
      break;
    case Order::Kind::kChooseMaster:
      actions.choose_master = order.round;
      break;
    case Order::Kind::kStart:
      if (has_workers()) break;  // the host waits until no node is left
      workers_ = Workers::kRunning;
      round_ = order.round;
      restarts_ = order.assignment.restart_count;
      successors_ = order.assignment.successors;
      actions.lines = {described(order.assignment, self_.num_workers)};
      actions.start = order.assignment;
      break;
    case Order::Kind::kStop:
      if (order.round != round_) break;
      actions.lines = {order.text};
      actions.stop_workers = workers_ == Workers::kRunning;
      if (actions.stop_workers) workers_ = Workers::kStopping;
      break;
    case Order::Kind::kClose:
      return close(order);
    default:
      break;
  }
  return actions;
}

AgentActions NodeAgent::close(const Order& order) {
  AgentActions actions;
  exit_code_ = order.value;
  report_ = order.report;
  if (!order.text.empty()) actions.lines = {text("the run is over: ", order.text)};
  actions.stop_workers = workers_ == Workers::kRunning;
  if (actions.stop_workers) workers_ = Workers::kStopping;
  if (has_workers()) return actions;
  actions.exit_code = exit_code_;
  actions.report = report_;
  return actions;
}

AgentActions NodeAgent::on_worker_failed(const std::string& what, int exit_code) {
  if (workers_ != Workers::kRunning) return {};
  workers_ = Workers::kStopping;
  NodeMessage failed = message(NodeMessage::Kind::kFailed);
  failed.text = what;
  failed.value = exit_code;
  return {.messages = {failed}};
}

AgentActions NodeAgent::on_workers_gone(int exit_code, const std::string& report) {
  const bool finished = workers_ == Workers::kRunning && exit_code == 0;
  workers_ = Workers::kNone;
  if (exit_code_) return {.exit_code = exit_code_, .report = report_};
  NodeMessage ended = message(finished ? NodeMessage::Kind::kFinished : NodeMessage::Kind::kStopped);
  ended.text = report;
  ended.value = exit_code;
  return {.messages = {ended}};
}

AgentActions NodeAgent::on_end_signal(int signal) {
  if (exit_code_) return {};
  exit_code_ = 128 + signal;
  NodeMessage leave = message(NodeMessage::Kind::kLeave);
  leave.text = text("its launcher was sent ", signal_name(signal));
  AgentActions actions{.messages = {leave}};
  if (has_workers()) {
    workers_ = Workers::kStopping;
  } else {
    actions.exit_code = exit_code_;
  }
  return actions;
}

AgentActions NodeAgent::on_time(TimePoint now) {
  if (exit_code_) return {};
  if (!has_host_) {
    if (now < seek_ends_ || has_workers()) return {};
    exit_code_ = 1;
    return {.lines = {text("no host of the rendezvous was found within ", settings_.join_timeout.count(),
                           " s (join_timeout)")},
            .exit_code = exit_code_};
  }
  if (now >= later(host_heard_, settings_.loss_timeout())) {
    return on_host_lost(text("nothing heard for ", settings_.loss_timeout().count(), " s"), now);
  }
  if (now < next_heartbeat_) return {};
  next_heartbeat_ = later(now, settings_.keep_alive_interval);
  return {.messages = {message(NodeMessage::Kind::kHeartbeat)}};
}

std::optional<TimePoint> NodeAgent::deadline() const {
  if (exit_code_) return std::nullopt;
  if (!has_host_) return has_workers() ? std::optional<TimePoint>() : seek_ends_;
  return std::min(next_heartbeat_, later(host_heard_, settings_.loss_timeout()));
}

std::string NodeAgent::summary() const {
  return text(self_.id, " workers ", static_cast<int>(workers_), " round ", round_, " restarts ", restarts_,
              has_host_ ? " host" : "", exit_code_ ? text(" exit ", *exit_code_) : "");
}

}  // namespace hasten::launcher
