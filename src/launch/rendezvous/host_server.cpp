// Connections and their texts; see host_server.h. rendezvous.cpp makes all decisions.
#include "launch/rendezvous/host_server.h"

#include <algorithm>

#include "hasten/core/text.h"

namespace hasten::launcher {
namespace {

constexpr Seconds kHandshakeTimeout = std::chrono::seconds(5);
// Connections that have not proved the secret; further ones wait in the kernel.
constexpr size_t kMaxUnproved = 128;
constexpr int kMaxStrangersLogged = 20;

bool contains(const std::vector<int>& ready, int handle) {
  return std::binary_search(ready.begin(), ready.end(), handle);
}

}  // namespace

void HostServer::begin(RunSoFar so_far, int generation, TimePoint now) {
  generation_ = generation;
  rendezvous_.emplace(options_.settings, now, std::move(so_far));
  next_heartbeat_ = later(now, options_.settings.keep_alive_interval);
}

void HostServer::step_down() {
  rendezvous_.reset();
  std::erase_if(guests_, [](const Guest& guest) { return !guest.node.empty(); });
  local_orders_.clear();
}

void HostServer::from_local(const NodeMessage& message, TimePoint now) {
  if (rendezvous_) carry_out(rendezvous_->on_message(options_.local_id, message, now));
}

void HostServer::add_sources(std::vector<pollfd>& sources) const {
  const auto num_unproved =
      std::count_if(guests_.begin(), guests_.end(), [](const Guest& guest) { return !guest.channel->ready(); });
  if (static_cast<size_t>(num_unproved) < kMaxUnproved) {
    for (const Socket& listener : listeners_) sources.push_back({listener.handle(), POLLIN, 0});
  }
  for (const Guest& guest : guests_) guest.channel->add_source(sources);
}

void HostServer::pump(const std::vector<int>& ready, TimePoint now) {
  for (const Socket& listener : listeners_) {
    if (contains(ready, listener.handle())) accept_all(listener, now);
  }
  // By index: to take a text may end connections, and closed ones stay until drop_closed.
  for (size_t i = 0; i < guests_.size(); ++i) {
    if (guests_[i].channel->closed() || !contains(ready, guests_[i].channel->handle())) continue;
    for (const std::string& text : guests_[i].channel->pump()) take(guests_[i], text, now);
  }
  if (rendezvous_) {
    carry_out(rendezvous_->on_time(now));
    send_heartbeats(now);
  }
  drop_closed(now);
}

void HostServer::accept_all(const Socket& listener, TimePoint now) {
  while (true) {
    Socket socket = accept_from(listener).first;
    if (socket.handle() < 0) return;
    guests_.push_back(
        {.channel = std::make_unique<Channel>(std::move(socket), Channel::Side::kServer, options_.run_key),
         .since = now});
  }
}

void HostServer::take(Guest& guest, const std::string& text, TimePoint now) {
  const auto message = from_wire(text);
  if (!message) return guest.channel->close("it sent a message that cannot be understood");
  if (std::holds_alternative<Ask>(*message)) return answer(guest);
  if (const auto* claim = std::get_if<Claim>(&*message)) {
    if (rendezvous_ && claim->generation > generation_) claim_ = *claim;
    return;
  }
  const auto* received = std::get_if<NodeMessage>(&*message);
  if (received == nullptr) return guest.channel->close("it sent a message that is none of a node's");
  if (received->kind == NodeMessage::Kind::kJoin) guest.node = received->node.id;
  if (!rendezvous_ || guest.node.empty()) return guest.channel->close("there is no host here");
  carry_out(rendezvous_->on_message(guest.node, *received, now));
}

void HostServer::answer(Guest& guest) const {
  Answer answer{.kind = Answer::Kind::kVacant, .generation = generation_};
  if (rendezvous_) answer.kind = Answer::Kind::kHost;
  if (!rendezvous_ && elsewhere_) {
    answer.kind = Answer::Kind::kElsewhere;
    answer.host = *elsewhere_;
  }
  guest.channel->send(to_wire(answer));
}

void HostServer::drop_closed(TimePoint now) {
  std::vector<std::pair<std::string, std::string>> lost;
  for (Guest& guest : guests_) {
    Channel& channel = *guest.channel;
    if (!channel.ready() && !channel.closed() && now >= later(guest.since, kHandshakeTimeout)) {
      log_stranger(guest, text("it proved nothing within ", kHandshakeTimeout.count(), " s"));
      channel.close("too slow");
    } else if (channel.refused()) {
      log_stranger(guest, channel.why_closed());
    }
    if (channel.closed() && !guest.node.empty()) lost.emplace_back(guest.node, channel.why_closed());
  }
  std::erase_if(guests_, [](const Guest& guest) { return guest.channel->closed(); });
  for (const auto& [node, why] : lost) {
    const bool is_back = std::any_of(guests_.begin(), guests_.end(), [&](auto& g) { return g.node == node; });
    if (rendezvous_ && !is_back) carry_out(rendezvous_->on_lost(node, why, now));
  }
}

void HostServer::log_stranger(const Guest& guest, const std::string& why) {
  if (++num_strangers_ > kMaxStrangersLogged) return;
  const bool last = num_strangers_ == kMaxStrangersLogged;
  options_.notice(text("refused a connection from ", shown(guest.channel->remote()), ": ", why,
                       last ? "; further ones are refused without a line" : ""));
}

void HostServer::carry_out(const Rendezvous::Orders& orders) {
  for (const Order& order : orders) {
    if (order.to == options_.local_id) {
      local_orders_.push_back(order);
      continue;
    }
    for (Guest& guest : guests_) {
      if (guest.node != order.to) continue;
      if (order.kind == Order::Kind::kDrop) {
        guest.node.clear();
        guest.channel->close("nothing was heard from it");
      } else {
        guest.channel->send(to_wire(order));
      }
    }
  }
}

void HostServer::send_heartbeats(TimePoint now) {
  if (now < next_heartbeat_) return;
  next_heartbeat_ = later(now, options_.settings.keep_alive_interval);
  local_orders_.push_back(Order{});
  const std::string beat = to_wire(Order{});
  for (Guest& guest : guests_) {
    if (!guest.node.empty()) guest.channel->send(beat);
  }
}

std::optional<TimePoint> HostServer::deadline() const {
  std::optional<TimePoint> first;
  const auto consider = [&](std::optional<TimePoint> time) {
    if (time) first = std::min(first.value_or(*time), *time);
  };
  for (const Guest& guest : guests_) {
    if (!guest.channel->ready()) consider(later(guest.since, kHandshakeTimeout));
  }
  if (rendezvous_) {
    consider(rendezvous_->deadline());
    consider(next_heartbeat_);
  }
  return first;
}

size_t HostServer::num_guests() const {
  return static_cast<size_t>(
      std::count_if(guests_.begin(), guests_.end(), [](const Guest& guest) { return !guest.node.empty(); }));
}

}  // namespace hasten::launcher
