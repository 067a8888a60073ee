// Carries the agent's actions out; see rendezvous_node.h.
#include "launch/rendezvous/rendezvous_node.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "hasten/core/error.h"
#include "hasten/launch/base/port.h"

namespace hasten::launcher {

RendezvousNode::RendezvousNode(RendezvousNodeOptions options, std::unique_ptr<HostFinder> finder, TimePoint now)
    : options_(std::move(options)),
      finder_(std::move(finder)),
      id_(text(options_.name, "_", getpid(), "_", hex(random_bytes()).substr(0, 8))),
      self_{.id = id_, .name = text(options_.name, " (pid ", getpid(), ")"), .num_workers = options_.num_workers},
      agent_(std::make_unique<NodeAgent>(self_, options_.settings, now)),
      server_(
          {.settings = options_.settings, .run_key = options_.run_key, .local_id = id_, .notice = options_.notice}) {
  finder_->begin({.self_id = id_}, now);
}

void RendezvousNode::add_sources(std::vector<pollfd>& sources) const {
  server_.add_sources(sources);
  finder_->add_sources(sources);
  if (host_) host_->add_source(sources);
  if (probe_) probe_->add_source(sources);
}

std::optional<TimePoint> RendezvousNode::deadline() const {
  std::optional<TimePoint> first;
  const auto consider = [&](std::optional<TimePoint> time) {
    if (time) first = std::min(first.value_or(*time), *time);
  };
  consider(agent_->deadline());
  consider(server_.deadline());
  consider(finder_->deadline());
  if (server_.hosting() && options_.endpoint && !at_endpoint_) consider(next_probe_);
  if (exit_code_) consider(leave_by_);
  return first;
}

void RendezvousNode::pump(TimePoint now) {
  std::vector<pollfd> sources;
  add_sources(sources);
  std::vector<int> ready;
  if (poll(sources.data(), sources.size(), 0) > 0) {
    for (const pollfd& source : sources) {
      if (source.revents != 0) ready.push_back(source.fd);
    }
  }
  std::sort(ready.begin(), ready.end());
  server_.pump(ready, now);
  if (const auto claim = server_.take_claim()) {
    lose_host(text("the run goes on at ", shown(claim->host)), now, claim->host);
  }
  if (host_ && std::binary_search(ready.begin(), ready.end(), host_->handle())) read_host(now);
  if (auto found = finder_->pump(ready, now)) take(std::move(*found), now);
  if (const auto other = finder_->replaced_by(); other && server_.hosting())
    lose_host(text("the run goes on at ", shown(*other)), now, other);
  look_for_others(ready, now);
  carry_out(agent_->on_time(now), now);
  for (bool more = true; more;) {
    const std::vector<Order> orders = server_.take_local_orders();
    for (const Order& order : orders) carry_out(agent_->on_order(order, now), now);
    more = !orders.empty();
  }
}

void RendezvousNode::read_host(TimePoint now) {
  const std::vector<std::string> texts = host_->pump();
  for (const std::string& text : texts) {
    const auto message = from_wire(text);
    const auto* order = message ? std::get_if<Order>(&*message) : nullptr;
    if (order == nullptr) continue;
    carry_out(agent_->on_order(*order, now), now);
    if (order->kind == Order::Kind::kClose) host_.reset();
    if (!host_) return;
  }
  if (host_->closed()) lose_host(host_->why_closed(), now);
}

void RendezvousNode::take(Found found, TimePoint now) {
  if (!found.hopeless.empty()) {
    options_.notice(found.hopeless);
    exit_code_ = 1;
  } else if (found.here) {
    become_host(std::move(found), now);
  } else {
    join_at(std::move(found), now);
  }
}

void RendezvousNode::become_host(Found found, TimePoint now) {
  const bool is_first = agent_->successors().empty();
  at_endpoint_ |= found.listener.handle() >= 0 || !options_.endpoint;
  if (found.listener.handle() >= 0) {
    self_.address = found.host.host;
    self_.port = found.host.port;
    server_.add_listener(std::move(found.listener));
  }
  RunSoFar so_far{.round = agent_->round(), .restarts = agent_->restarts()};
  for (const NodeInfo& node : agent_->successors()) {
    const bool was_host = Endpoint{node.address, node.port} == last_host_;
    if (!was_host && !found.unreachable.contains(node.id)) so_far.expected.insert(node.id);
  }
  if (!is_first) ++generation_;
  next_probe_ = now;
  options_.notice(text(is_first ? "hosting the rendezvous at " : "took the rendezvous over, at ",
                       shown(Endpoint{self_.address, self_.port})));
  server_.begin(std::move(so_far), generation_, now);
  agent_->move_to(self_);
  carry_out(agent_->on_host_found(now), now);
}

void RendezvousNode::join_at(Found found, TimePoint now) {
  host_ = std::move(found.channel);
  generation_ = found.generation;
  if (!listening_) {
    const Endpoint here = listen_here(options_.local_addr.empty() ? host_->local().host : options_.local_addr);
    self_.address = here.host;
    self_.port = here.port;
    agent_->move_to(self_);
  }
  server_.point_to(found.host);
  last_host_ = found.host;
  carry_out(agent_->on_host_found(now), now);
}

// The address at which this launcher listens, should it have to take over.
Endpoint RendezvousNode::listen_here(const std::string& address) {
  auto [listener, why] = listen_at({address, 0});
  if (listener.handle() < 0) {
    throw UsageError({"launch"}, "cannot listen at ", address, ": ", why,
                     ". Give an address of this machine with --local_addr.");
  }
  const Endpoint here = local_end(listener);
  server_.add_listener(std::move(listener));
  listening_ = true;
  return here;
}

void RendezvousNode::lose_host(std::string how, TimePoint now, std::optional<Endpoint> hint) {
  host_.reset();
  probe_.reset();
  server_.step_down();
  server_.point_to(std::nullopt);
  hint_ = std::move(hint);
  carry_out(agent_->on_host_lost(how, now), now);
}

void RendezvousNode::carry_out(const AgentActions& actions, TimePoint now) {
  for (const std::string& line : actions.lines) options_.notice(line);
  for (const NodeMessage& message : actions.messages) send(message, now);
  if (actions.choose_master) choose_master(*actions.choose_master, now);
  if (actions.stop_workers) stop_ = true;
  if (actions.start) {
    start_ = actions.start;
    stop_ = false;
  }
  if (actions.find_host) {
    host_.reset();
    server_.point_to(std::nullopt);
    finder_->begin({.self_id = id_, .successors = agent_->successors(), .hint = std::exchange(hint_, {})}, now);
  }
  if (actions.exit_code) {
    exit_code_ = actions.exit_code;
    report_ = actions.report;
    leave_by_ = later(now, options_.settings.loss_timeout());
  }
}

void RendezvousNode::send(const NodeMessage& message, TimePoint now) {
  if (server_.hosting()) {
    server_.from_local(message, now);
  } else if (host_) {
    host_->send(to_wire(message));
  }
}

void RendezvousNode::choose_master(int round, TimePoint now) {
  const std::string address = options_.local_addr.empty() ? self_.address : options_.local_addr;
  send({.kind = NodeMessage::Kind::kMaster, .round = round, .value = free_port(), .text = address}, now);
}

// A host that has taken over may be unknown at the endpoint, which newcomers use. It listens there if it can. Otherwise
// it checks whether a newcomer has made itself the host there.
void RendezvousNode::look_for_others(const std::vector<int>& ready, TimePoint now) {
  if (!server_.hosting() || !options_.endpoint || at_endpoint_ || exit_code_) return;
  const Endpoint here{self_.address, self_.port};
  if (probe_ && std::binary_search(ready.begin(), ready.end(), probe_->handle())) {
    for (const std::string& text : probe_->pump()) {
      const auto message = from_wire(text);
      const auto* answer = message ? std::get_if<Answer>(&*message) : nullptr;
      if (answer == nullptr || answer->kind == Answer::Kind::kVacant) continue;
      const bool is_host = answer->kind == Answer::Kind::kHost;
      const Endpoint other = is_host ? *options_.endpoint : answer->host;
      if (other == here) continue;
      if (!is_host || answer->generation >= generation_)
        return lose_host(hasten::text("the run goes on at ", shown(other)), now, other);
      probe_->send(to_wire(Claim{generation_, here}));
    }
  }
  if (now < next_probe_) return;
  next_probe_ = later(now, options_.settings.loss_timeout());
  if (Socket listener = listen_at(*options_.endpoint).first; listener.handle() >= 0) {
    server_.add_listener(std::move(listener));
    at_endpoint_ = true;
    probe_.reset();
    return;
  }
  probe_ = std::make_unique<Channel>(connect_to(*options_.endpoint), Channel::Side::kClient, options_.run_key);
  probe_->send(to_wire(Ask{}));
}

void RendezvousNode::worker_failed(const std::string& what, int exit_code, TimePoint now) {
  carry_out(agent_->on_worker_failed(what, exit_code), now);
}

void RendezvousNode::workers_gone(int exit_code, const std::string& report, TimePoint now) {
  carry_out(agent_->on_workers_gone(exit_code, report), now);
}

void RendezvousNode::end_signal(int signal, TimePoint now) {
  carry_out(agent_->on_end_signal(signal), now);
  // Another host is to take over at once, and not only when the workers here are gone.
  is_last_ = server_.hosting() && server_.num_guests() == 0;
  if (server_.hosting()) server_.step_down();
}

std::optional<int> RendezvousNode::exit_code(TimePoint now) const {
  const bool all_know = !server_.hosting() || server_.num_guests() == 0 || now >= leave_by_;
  return all_know ? exit_code_ : std::nullopt;
}

}  // namespace hasten::launcher
