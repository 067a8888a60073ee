// The hidden parts of Messages: peers, connections, descriptors and timers. messages.cpp serves them, joining.cpp finds
// the peers.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/group/origin.h"
#include "comm/messages/connection.h"
#include "comm/messages/peer_address.h"
#include "comm/messages/polling.h"
#include "comm/messages/rank_directory.h"
#include "hasten/comm/messages/messages.h"
#include "hasten/core/log.h"

namespace hasten::comm {

using MessageClock = std::chrono::steady_clock;
using ConnectionPtr = std::shared_ptr<Connection>;
constexpr std::chrono::seconds kHeartbeat{1};
constexpr uint64_t kUnixListener = 1, kTcpListener = 2, kWake = 3, kTimer = 4, kFirstConnection = 16;

struct Messages::Impl {
  Impl(int rank, int world_size, MessageSink& sink, const MessagesOptions& options);
  ~Impl() { close(false); }

  struct Peer {
    PeerAddress address = {};
    ConnectionPtr out = nullptr;
    std::vector<ConnectionPtr> all = {};
    std::string gone = {};  // why nothing more can be sent to it
    bool left = false, reported = false;
  };

  Origin origin() const { return {"messages", rank, world_size}; }
  void listen(const Group& group);
  void join(const GroupOptions& where);
  void know(int other);
  PeerAddress listen_at(const std::string& host, const GroupOptions& where, bool across);
  void watch(int handle, uint64_t id, uint32_t events, bool is_new) const;
  FrameReader::Actions actions(const std::shared_ptr<std::weak_ptr<Connection>>& self);
  ConnectionPtr add(net::Socket socket, bool is_local, bool connects, int peer);
  ConnectionPtr connect_to(int to);
  ConnectionPtr connection_to(int to);
  void accept_all(uint64_t listener);
  void handle(uint64_t id, uint32_t events);
  void read(const ConnectionPtr& connection, uint64_t id);
  void opened(const ConnectionPtr& connection);
  void drop(const ConnectionPtr& connection, uint64_t id, const std::string& why);
  bool shares_host(int peer) const;
  const PeerAddress& address_of(int peer) const;
  bool has_ended(int peer) const;
  std::string reason_of(int peer, const std::string& why) const;
  void tick();
  void arm_timer();
  void want_writing(const ConnectionPtr& connection, bool on);
  void set_waiter(const ConnectionPtr& connection, bool on);
  uint64_t id_of(const ConnectionPtr& connection) const;
  void close(bool say_goodbye) noexcept;

  const int rank;
  std::atomic<int> world_size;
  const MessagesOptions options;
  MessageSink& sink;
  const pid_t owner = getpid();
  Bytes key;
  bool has_key = false;
  net::Socket epoll, bell, timer, unix_listener, tcp_listener;
  Logger log;
  Polling serving, answering;                // of serve(), and of read_from()
  std::unique_ptr<RankDirectory> directory;  // where ranks come and go; else null
  mutable std::mutex mutex;                  // guards what follows; an address does not change any more
  std::deque<Peer> peers;
  std::unordered_map<uint64_t, ConnectionPtr> connections;
  std::unordered_map<const Connection*, uint64_t> ids;
  uint64_t next_id = kFirstConnection;
  std::optional<MessageClock::time_point> users_timer, tick_timer, armed;
  bool closed = false;
};

}  // namespace hasten::comm
