// A launcher's listening sockets, and the launchers that come to them. It reports the host's address. Or it is the
// host, and carries messages and orders between the nodes and the Rendezvous.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "hasten/launch/rendezvous/rendezvous.h"
#include "launch/rendezvous/channel.h"
#include "launch/rendezvous/rendezvous_wire.h"

namespace hasten::launcher {

class HostServer {
 public:
  struct Options {
    RendezvousSettings settings = {};
    Bytes run_key = {};
    std::string local_id = {};  ///< of this launcher's own node
    std::function<void(const std::string&)> notice = [](const std::string&) {};
  };

  explicit HostServer(Options options) : options_(std::move(options)) {}

  void add_listener(Socket listener) { listeners_.push_back(std::move(listener)); }

  /// Becomes the host of the run.
  void begin(RunSoFar so_far, int generation, TimePoint now);
  /// Ends the connections of all nodes, which then search for another host.
  void step_down();
  bool hosting() const { return rendezvous_.has_value(); }
  int generation() const { return generation_; }
  /// The answer while this is not the host; none: no host is known.
  void point_to(std::optional<Endpoint> host) { elsewhere_ = std::move(host); }

  /// The way of this launcher's own node.
  void from_local(const NodeMessage& message, TimePoint now);
  std::vector<Order> take_local_orders() { return std::exchange(local_orders_, {}); }
  /// A host of a higher generation has spoken up.
  std::optional<Claim> take_claim() { return std::exchange(claim_, std::nullopt); }

  void add_sources(std::vector<pollfd>& sources) const;
  /// Deals with all of `ready` (descriptors) that are its own, and with what is due.
  void pump(const std::vector<int>& ready, TimePoint now);
  std::optional<TimePoint> deadline() const;

  /// How many nodes are connected, this one aside.
  size_t num_guests() const;

 private:
  struct Guest {
    std::unique_ptr<Channel> channel;
    std::string node = {};  // its id, once it has joined
    TimePoint since = {};
  };

  void accept_all(const Socket& listener, TimePoint now);
  void take(Guest& guest, const std::string& text, TimePoint now);
  void answer(Guest& guest) const;
  void drop_closed(TimePoint now);
  void log_stranger(const Guest& guest, const std::string& why);
  void carry_out(const Rendezvous::Orders& orders);
  void send_heartbeats(TimePoint now);

  Options options_;
  std::vector<Socket> listeners_;
  std::vector<Guest> guests_;
  std::optional<Rendezvous> rendezvous_;
  int generation_ = 0;
  std::optional<Endpoint> elsewhere_;
  std::optional<Claim> claim_;
  std::vector<Order> local_orders_;
  TimePoint next_heartbeat_ = {};
  int num_strangers_ = 0;
};

}  // namespace hasten::launcher
