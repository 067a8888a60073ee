// See messages.h: connections and the loop that serves them. How a connection works is connection.h's matter.
#include "hasten/comm/messages/messages.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <optional>
#include <system_error>
#include <unordered_map>

#include "comm/messages/messages_impl.h"
#include "hasten/core/error.h"
#include "hasten/core/log.h"

namespace hasten::comm {
namespace {

constexpr std::chrono::seconds kHandshakePatience{10};
constexpr int kMostRanks = 32'767;

}  // namespace

Messages::Impl::Impl(int own_rank, int num_ranks, MessageSink& receiver, const MessagesOptions& requested)
    : rank(own_rank),
      world_size(num_ranks),
      options(requested),
      sink(receiver),
      epoll(epoll_create1(EPOLL_CLOEXEC)),
      bell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      timer(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)),
      log("messages", {rank, num_ranks}),
      peers(static_cast<size_t>(num_ranks)) {
  if (epoll.handle() < 0 || bell.handle() < 0 || timer.handle() < 0)
    throw std::system_error(errno, std::generic_category(), "no descriptors for messages (ulimit -n)");
  watch(bell.handle(), kWake, EPOLLIN, true);
  watch(timer.handle(), kTimer, EPOLLIN, true);
}

void Messages::Impl::watch(int handle, uint64_t id, uint32_t events, bool is_new) const {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  epoll_ctl(epoll.handle(), is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, handle, &event);
}

// Frames come after the handshake, which has given the peer's rank.
FrameReader::Actions Messages::Impl::actions(const std::shared_ptr<std::weak_ptr<Connection>>& self) {
  const auto pull = [this, self](uint64_t token, const std::vector<RemotePart>& parts, IncomingMessage& into) {
    const auto connection = self->lock();
    std::vector<iovec> here, there;
    for (const auto& part : into.body) {
      if (!part.empty()) here.push_back({part.data(), part.size()});
    }
    for (const RemotePart& part : parts) {
      if (part.num_bytes > 0) there.push_back({reinterpret_cast<void*>(part.address), part.num_bytes});
    }
    if (!read_memory(connection->process(), std::move(here), std::move(there)))
      throw DataError(Origin{"messages"}, "frame", "the body could not be read from the sender's memory");
    if (connection->send_control(FrameKind::kPulled, token)) want_writing(connection, true);
  };
  const auto control = [this, self](FrameKind kind, uint64_t value) {
    const auto connection = self->lock();
    if (kind == FrameKind::kPulled) connection->pulled(value);
    if (kind != FrameKind::kBye) return;
    const std::lock_guard lock(mutex);
    const auto from = static_cast<size_t>(connection->peer());
    if (from < peers.size()) peers[from].left = true;
  };
  const auto begin = [this, self](std::string_view head, int64_t body_bytes) {
    const auto connection = self->lock();
    connection->note_message();
    return sink.begin(connection->peer(), head, body_bytes);
  };
  return {.begin = begin, .pull = pull, .control = control};
}

// With the lock.
ConnectionPtr Messages::Impl::add(net::Socket socket, bool is_local, bool connects, int peer) {
  const auto self = std::make_shared<std::weak_ptr<Connection>>();
  const int handle = socket.handle();
  const pid_t process = is_local ? process_behind(handle) : 0;
  const Handshake::Probe probe = [process](uint64_t address, std::string_view expected) {
    return holds(process, address, expected);
  };
  auto handshake = connects ? Handshake::connector(key, rank, peer, probe)
                            : Handshake::acceptor(key, rank, directory ? kMostRanks : world_size.load(), probe);
  const auto state = connects && !is_local ? Connection::State::kConnecting : Connection::State::kHandshake;
  const auto connection = std::make_shared<Connection>(std::move(socket), is_local, state, std::move(handshake),
                                                       FrameReader(actions(self), options.max_message_bytes));
  *self = connection;
  const uint64_t id = next_id++;
  connections.emplace(id, connection);
  ids.emplace(connection.get(), id);
  watch(handle, id, state == Connection::State::kConnecting ? EPOLLOUT : EPOLLIN, true);
  // A connector that stays silent is closed. So is a connection that is not made in time.
  if (!tick_timer) {
    tick_timer = MessageClock::now() + kHandshakePatience;
    arm_timer();
  }
  return connection;
}

// With the lock.
ConnectionPtr Messages::Impl::connect_to(int to) {
  Peer& peer = peers[static_cast<size_t>(to)];
  const bool is_local = peer.address.host == peers[static_cast<size_t>(rank)].address.host;
  net::Socket socket;
  std::string problem;
  if (is_local) {
    socket = unix_socket(true);
    const auto [address, size] = abstract_address(peer.address.unix_name);
    int connected;
    do {
      connected = connect(socket.handle(), reinterpret_cast<const sockaddr*>(&address), size);
    } while (connected != 0 && errno == EINTR);
    if (connected != 0)
      problem = errno == ECONNREFUSED ? "its process has ended or closed its messages" : std::strerror(errno);
  } else {
    socket = net::connect_to({peer.address.tcp_host, peer.address.tcp_port});
    if (socket.handle() < 0) problem = std::strerror(errno);
  }
  if (!problem.empty()) {
    peer.gone = problem;
    peer.reported = true;
    return nullptr;
  }
  const auto connection = add(std::move(socket), is_local, true, to);
  peer.all.push_back(connection);
  return connection;
}

ConnectionPtr Messages::Impl::connection_to(int to) {
  std::string gone;
  ConnectionPtr fresh;
  {
    const std::lock_guard lock(mutex);
    Peer& peer = peers[static_cast<size_t>(to)];
    if (peer.out) return peer.out;
    if (closed) throw CommError(origin(), "send", "messages are closed here; nothing can be sent to rank ", to, ".");
    if (peer.gone.empty() && !peer.left) {
      const auto open = std::find_if(peer.all.begin(), peer.all.end(),
                                     [](const ConnectionPtr& one) { return one->state() == Connection::State::kOpen; });
      if (open != peer.all.end()) return peer.out = *open;
      if ((fresh = connect_to(to))) peer.out = fresh;
      gone = peer.gone;
    } else {
      gone = peer.left ? "it has left" : peer.gone;
      if (gone.empty()) gone = "it has left";
      throw CommError(origin(), "send", "rank ", to, " cannot be reached: ", gone, ".");
    }
  }
  if (!fresh) {
    if (directory) directory->mark_left(to);
    sink.gone(to, false, reason_of(to, gone));
    throw CommError(origin(), "send", "rank ", to, " cannot be reached: ", gone, ".");
  }
  if (fresh->state() != Connection::State::kConnecting) fresh->write_some();
  return fresh;
}

void Messages::Impl::accept_all(uint64_t listener) {
  const bool is_local = listener == kUnixListener;
  for (;;) {
    auto [socket, from] = net::accept_from(is_local ? unix_listener : tcp_listener);
    if (socket.handle() < 0) return;
    if (is_local && !is_of_this_user(socket.handle())) continue;
    const int yes = 1;
    if (!is_local) setsockopt(socket.handle(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    const std::lock_guard lock(mutex);
    if (!closed) add(std::move(socket), is_local, false, -1);
  }
}

uint64_t Messages::Impl::id_of(const ConnectionPtr& connection) const {
  const std::lock_guard lock(mutex);
  const auto found = ids.find(connection.get());
  return found == ids.end() ? 0 : found->second;
}

void Messages::Impl::want_writing(const ConnectionPtr& connection, bool on) {
  const uint64_t id = id_of(connection);
  if (id == 0) return;
  const std::lock_guard lock(connection->watching);
  const uint32_t reading = connection->has_waiter ? 0u : uint32_t{EPOLLIN};
  // Asked anew: another thread may have queued a message since the caller looked.
  const bool writing = on || connection->has_unsent();
  watch(connection->handle(), id, writing ? reading | uint32_t{EPOLLOUT} : reading, false);
}

// While a waiter reads, serve() must not be notified of readable bytes.
void Messages::Impl::set_waiter(const ConnectionPtr& connection, bool on) {
  {
    const std::lock_guard lock(connection->watching);
    connection->has_waiter = on;
  }
  want_writing(connection, connection->write_some());
}

void Messages::Impl::handle(uint64_t id, uint32_t events) {
  ConnectionPtr connection;
  {
    const std::lock_guard lock(mutex);
    const auto found = connections.find(id);
    if (found == connections.end()) return;
    connection = found->second;
  }
  if (connection->state() == Connection::State::kConnecting) {
    if (const std::string problem = connection->finish_connecting(); !problem.empty()) {
      drop(connection, id, problem);
      return;
    }
    want_writing(connection, false);
    return;
  }
  if ((events & EPOLLOUT) != 0) want_writing(connection, connection->write_some());
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0 || !connection->claim()) return;
  read(connection, id);
  connection->release();
}

void Messages::Impl::read(const ConnectionPtr& connection, uint64_t id) {
  const bool was_open = connection->state() == Connection::State::kOpen;
  std::string why;
  bool goes_on = false;
  try {
    goes_on = connection->read_some();
  } catch (const std::exception& error) {
    why = error.what();
    log.warning(text("closes the connection with ",
                     connection->peer() < 0 ? std::string("a stranger") : text("rank ", connection->peer()), ": ", why),
                {.main_process_only = false});
  }
  try {
    if (!was_open && connection->state() == Connection::State::kOpen) opened(connection);
  } catch (const std::exception& error) {
    why = error.what();
    goes_on = false;
  }
  if (!goes_on) drop(connection, id, why);
}

void Messages::Impl::opened(const ConnectionPtr& connection) {
  if (directory) know(connection->peer());
  {
    const std::lock_guard lock(mutex);
    Peer& peer = peers[static_cast<size_t>(connection->peer())];
    if (!peer.gone.empty())
      throw DataError(Origin{"messages"}, "handshake", text("rank ", connection->peer(), " was lost before"));
    auto& all = peer.all;
    if (std::find(all.begin(), all.end(), connection) == all.end()) all.push_back(connection);
  }
  if (connection->write_some()) want_writing(connection, true);
}

bool Messages::Impl::shares_host(int peer) const {
  const std::lock_guard lock(mutex);
  return peers.at(static_cast<size_t>(peer)).address.host == peers[static_cast<size_t>(rank)].address.host;
}

const PeerAddress& Messages::Impl::address_of(int peer) const {
  const std::lock_guard lock(mutex);
  return peers.at(static_cast<size_t>(peer)).address;
}

bool Messages::Impl::has_ended(int peer) const {
  const PeerAddress& address = address_of(peer);
  if (!shares_host(peer) || address.pid == owner) return false;
  const char state = letter_of(address.pid);
  return state == 0 || state == 'Z' || state == 'X';
}

std::string Messages::Impl::reason_of(int peer, const std::string& why) const {
  if (has_ended(peer)) return text("its process ", address_of(peer).pid, " has ended");
  return why.empty() ? "the connection was closed" : why;
}

// An end without a goodbye may have lost messages, so it breaks the rank's other connections too: nothing is sent to it
// any more. It is gone with its last connection: what it has sent on another, a goodbye perhaps, is read first.
void Messages::Impl::drop(const ConnectionPtr& connection, uint64_t id, const std::string& why) {
  const int from = connection->peer();
  bool left = false, breaks = false, ends = false;
  std::vector<ConnectionPtr> others;
  {
    const std::lock_guard lock(mutex);
    if (connections.erase(id) == 0) return;
    ids.erase(connection.get());
    epoll_ctl(epoll.handle(), EPOLL_CTL_DEL, connection->handle(), nullptr);
    // A caller that never proved to be a rank gives no evidence about that rank.
    const bool is_rank = from >= 0 && static_cast<size_t>(from) < peers.size();
    if (is_rank && !closed && std::erase(peers[static_cast<size_t>(from)].all, connection) > 0) {
      Peer& known = peers[static_cast<size_t>(from)];
      left = known.left;
      breaks = !left && known.gone.empty();
      ends = known.all.empty() && !known.reported;
      if (ends) known.reported = true;
      if (breaks) {
        known.gone = "the connection was closed";
        others = known.all;
      }
      if (breaks || known.out == connection) known.out = nullptr;
    }
  }
  connection->close();
  for (const auto& other : others) other->hang_up();
  std::string reason = breaks ? reason_of(from, why) : "";
  if (breaks || ends) {
    const std::lock_guard lock(mutex);
    std::string& gone = peers[static_cast<size_t>(from)].gone;
    if (breaks) gone = reason;
    if (left) gone = "it has left";
    reason = gone;
  }
  if (!ends) return;
  // A worker that lives goes on with the others, and workers that join later meet it.
  if (!left && directory && (has_ended(from) || !shares_host(from))) directory->mark_left(from);
  sink.gone(from, left, reason);
}

// With the lock.
void Messages::Impl::arm_timer() {
  std::optional<MessageClock::time_point> next = users_timer;
  if (tick_timer && (!next || *tick_timer < *next)) next = tick_timer;
  if (!next || (armed && *armed <= *next)) return;
  armed = next;
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(next->time_since_epoch()).count();
  itimerspec when{};
  when.it_value.tv_sec = ns / 1'000'000'000;
  when.it_value.tv_nsec = std::max<int64_t>(ns % 1'000'000'000, 1);
  timerfd_settime(timer.handle(), TFD_TIMER_ABSTIME, &when, nullptr);
}

void Messages::Impl::tick() {
  const auto now = MessageClock::now();
  const auto silence = std::chrono::duration<double>(options.lost_after_s);
  std::vector<std::pair<ConnectionPtr, std::pair<uint64_t, std::string>>> dead;
  std::vector<ConnectionPtr> beats;
  {
    const std::lock_guard lock(mutex);
    for (const auto& [id, connection] : connections) {
      const auto quiet = now - connection->last_heard();
      if (connection->state() != Connection::State::kOpen) {
        // A local rank that is stopped may answer later.
        const bool waits = connection->is_local() && connection->peer() >= 0;
        if (!waits && quiet > kHandshakePatience) dead.push_back({connection, {id, "it did not answer in time"}});
      } else if (!connection->is_local()) {
        if (quiet > silence)
          dead.push_back({connection, {id, text("nothing was heard from it for ", options.lost_after_s, " s")}});
        beats.push_back(connection);
      }
    }
  }
  for (const auto& connection : beats) {
    if (connection->send_control(FrameKind::kHeartbeat, 0)) want_writing(connection, true);
  }
  for (const auto& [connection, what] : dead) drop(connection, what.first, what.second);
}

void Messages::Impl::close(bool say_goodbye) noexcept {
  std::vector<ConnectionPtr> all;
  {
    const std::lock_guard lock(mutex);
    if (closed) return;
    closed = true;
    if (directory && getpid() == owner) directory->leave();
    for (const auto& [id, connection] : connections) all.push_back(connection);
    connections.clear();
    ids.clear();
    for (Peer& peer : peers) {
      peer.out = nullptr;
      peer.all.clear();
    }
  }
  const bool is_child = getpid() != owner;  // a child of fork() has copies of the parent's sockets
  // All goodbyes first: a peer that finds one connection closed looks for one on the others.
  for (const auto& connection : all) {
    if (say_goodbye && !is_child) connection->send_control(FrameKind::kBye, 0);
  }
  for (const auto& connection : all) {
    if (!is_child) connection->close();
  }
  unix_listener = net::Socket();
  tcp_listener = net::Socket();
}

Messages::Messages(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Messages::Messages(const Group& group, MessageSink& sink, const MessagesOptions& options)
    : impl_(std::make_unique<Impl>(group.rank(), group.world_size(), sink, options)) {
  impl_->listen(group);
}

std::unique_ptr<Messages> Messages::join(const Store& store, const GroupOptions& where, MessageSink& sink,
                                         const MessagesOptions& options) {
  auto directory = std::make_unique<RankDirectory>(store);
  const int rank = directory->rank();
  if (rank >= kMostRanks)
    throw UsageError({"messages"}, "rank ", rank, " is one too many: at most ", kMostRanks,
                     " may join one after another.");
  auto impl = std::make_unique<Impl>(rank, rank + 1, sink, options);
  impl->directory = std::move(directory);
  impl->join(where);
  return std::unique_ptr<Messages>(new Messages(std::move(impl)));
}
Messages::~Messages() = default;

int Messages::rank() const noexcept {
  return impl_->rank;
}
int Messages::world_size() const noexcept {
  return impl_->world_size;
}
const std::string& Messages::about(int rank) const {
  return impl_->address_of(rank).about;
}
bool Messages::has_run_key() const noexcept {
  return impl_->has_key;
}
bool Messages::is_on_this_host(int rank) const {
  return impl_->shares_host(rank);
}

void Messages::send(int to, OutgoingMessage message, bool flush) {
  if (getpid() != impl_->owner) {
    throw UsageError(impl_->origin(),
                     "this process was forked after its parent had connected; messages stay with the parent. "
                     "Start processes by exec, or fork first.");
  }
  const auto connection = impl_->connection_to(to);
  if (connection->send(std::move(message), impl_->options.pull_bytes, flush)) impl_->want_writing(connection, true);
}

void Messages::flush(int to) {
  ConnectionPtr connection;
  {
    const std::lock_guard lock(impl_->mutex);
    connection = impl_->peers[static_cast<size_t>(to)].out;
  }
  if (connection && connection->state() == Connection::State::kOpen && connection->write_some())
    impl_->want_writing(connection, true);
}

void Messages::serve(std::chrono::milliseconds timeout) {
  std::array<epoll_event, 16> events;
  int count = 0;
  const auto wait = [&](std::chrono::milliseconds time) {
    count = epoll_wait(impl_->epoll.handle(), events.data(), events.size(), static_cast<int>(time.count()));
    return count != 0;
  };
  if (!impl_->serving.poll([&] { return wait(std::chrono::milliseconds(0)); })) wait(timeout);
  bool users = false, ticks = false;
  for (int i = 0; i < count; ++i) {
    const uint64_t id = events[static_cast<size_t>(i)].data.u64;
    uint64_t number = 0;
    if (id == kWake) {
      [[maybe_unused]] const auto size = ::read(impl_->bell.handle(), &number, sizeof number);
    } else if (id == kTimer) {
      [[maybe_unused]] const auto size = ::read(impl_->timer.handle(), &number, sizeof number);
      const auto now = MessageClock::now();
      const std::lock_guard lock(impl_->mutex);
      impl_->armed.reset();
      if ((users = impl_->users_timer && *impl_->users_timer <= now)) impl_->users_timer.reset();
      if ((ticks = impl_->tick_timer && *impl_->tick_timer <= now)) {
        impl_->tick_timer.reset();
        const bool across = impl_->tcp_listener.handle() >= 0;
        const bool shaking = std::any_of(impl_->connections.begin(), impl_->connections.end(), [](const auto& one) {
          return one.second->state() != Connection::State::kOpen;
        });
        if (across || shaking)
          impl_->tick_timer = now + (across ? std::chrono::seconds(kHeartbeat) : kHandshakePatience);
      }
      impl_->arm_timer();
    } else if (id == kUnixListener || id == kTcpListener) {
      impl_->accept_all(id);
    } else {
      impl_->handle(id, events[static_cast<size_t>(i)].events);
    }
  }
  if (ticks) impl_->tick();
  if (users) impl_->sink.timer();
}

void Messages::wake() {
  eventfd_write(impl_->bell.handle(), 1);
}

bool Messages::read_from(int rank, const std::function<bool()>& done) {
  ConnectionPtr connection;
  uint64_t id = 0;
  {
    const std::lock_guard lock(impl_->mutex);
    const auto& all = impl_->peers[static_cast<size_t>(rank)].all;
    // Both ranks may have connected. Until the peer has sent on one of two connections, serve() reads both.
    auto chosen = std::find_if(all.begin(), all.end(), [](const auto& one) { return one->is_peers_choice(); });
    if (chosen == all.end() && all.size() == 1) chosen = all.begin();
    if (chosen == all.end() || (*chosen)->state() != Connection::State::kOpen) return false;
    connection = *chosen;
    id = impl_->ids[connection.get()];
  }
  // Another thread may be at the end of an earlier message.
  bool is_mine = connection->claim();
  if (!is_mine) impl_->answering.poll([&] { return done() || (is_mine = connection->claim()); });
  if (!is_mine) return done();
  impl_->set_waiter(connection, true);
  const auto has_come = [&](int at_most_ms) {
    pollfd source{connection->handle(), POLLIN, 0};
    return poll(&source, 1, at_most_ms) > 0;
  };
  bool is_quiet = false;
  while (!done() && connection->state() == Connection::State::kOpen) {
    // Other threads may end the wait (a timeout, a cancel), so a sleep is short.
    const bool came = (!is_quiet && impl_->answering.poll([&] { return has_come(0) || done(); })) || has_come(50);
    if (came) impl_->read(connection, id);
    is_quiet = !came;
  }
  impl_->set_waiter(connection, false);
  connection->release();
  return done();
}

void Messages::set_timer(MessageClock::time_point when) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->users_timer && *impl_->users_timer <= when) return;
  impl_->users_timer = when;
  impl_->arm_timer();
}

std::string Messages::process_state(int rank) const {
  if (impl_->has_ended(rank)) return "ended";
  const auto& address = impl_->address_of(rank);
  if (!is_on_this_host(rank) || address.pid == impl_->owner) return "";
  const char letter = letter_of(address.pid);
  return letter == 'T' || letter == 't' ? "stopped" : "";
}

bool Messages::has_connection(int rank) const {
  const std::lock_guard lock(impl_->mutex);
  return !impl_->peers.at(static_cast<size_t>(rank)).all.empty();
}

std::string Messages::why_gone(int rank) const {
  const std::lock_guard lock(impl_->mutex);
  const auto& peer = impl_->peers.at(static_cast<size_t>(rank));
  return peer.left && peer.gone.empty() ? "it has left" : peer.gone;
}

void Messages::close(bool say_goodbye) noexcept {
  impl_->close(say_goodbye);
}

}  // namespace hasten::comm
