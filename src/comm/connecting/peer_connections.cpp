// See peer_connections.h.
#include "comm/connecting/peer_connections.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include "comm/connecting/serial_executor.h"
#include "comm/store/store_all_gather.h"
#include "hasten/core/error.h"

namespace hasten::comm {
namespace {

using std::chrono::milliseconds;

// A sleeper takes 50 us and more to wake, which is longer than most messages are on their way. A poll is a system call
// and takes long enough to yield the core after each.
shared::SpinPolicy spin_policy_of(int world_size) {
  const auto spin = shared::SpinPolicy::of(world_size);
  return {.yields = true, .time = std::min(spin.time, std::chrono::microseconds(200))};
}

constexpr milliseconds kSleep{100};
// A caller that sends nothing, or too little, for so long is none of the ranks.
constexpr milliseconds kHelloPatience{1000};

struct Hello {
  std::array<char, 32> secret;
  int32_t rank;
};

// Where this rank can be reached, chosen as ProcessGroupGloo does. The name of this rank for other machines may mean a
// loopback address here. Then the ranks are on one machine, or Gloo would not have connected.
net::Socket listen_for_peers(const GroupOptions& options) {
  const std::string& interface = options.network_interface;
  const std::string host = !options.address.empty() ? options.address
                           : !interface.empty()     ? net::address_of_interface(interface)
                                                    : net::host_name();
  auto [listener, problem] = net::listen_at({host, 0});
  if (listener.handle() < 0) std::tie(listener, problem) = net::listen_at({"127.0.0.1", 0});
  if (listener.handle() < 0) throw std::runtime_error(text("cannot listen on ", host, ": ", problem));
  return std::move(listener);
}

// The rank that has connected: one above `rank`, or nothing.
std::optional<int> caller_of(const net::Socket& socket, const std::string& secret, int rank, int world_size) {
  Hello hello{};
  auto* const bytes = reinterpret_cast<char*>(&hello);
  size_t num_read = 0;
  while (num_read < sizeof hello && net::is_ready_within(socket, POLLIN, kHelloPatience)) {
    const auto size = recv(socket.handle(), bytes + num_read, sizeof hello - num_read, MSG_DONTWAIT);
    if (size <= 0) return std::nullopt;
    num_read += static_cast<size_t>(size);
  }
  const bool knows =
      num_read == sizeof hello && std::memcmp(hello.secret.data(), secret.data(), hello.secret.size()) == 0;
  return knows && hello.rank > rank && hello.rank < world_size ? std::optional(hello.rank) : std::nullopt;
}

void send_at_once(const net::Socket& socket) {
  const int yes = 1;
  setsockopt(socket.handle(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

// How much of `parts` the connection takes now. If it is broken, all: the reader will report it.
size_t write_some(const net::Socket& socket, const std::vector<iovec>& parts) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  const auto size = sendmsg(socket.handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (size >= 0) return static_cast<size_t>(size);
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
  size_t all = 0;
  for (const iovec& part : parts) all += part.iov_len;
  return all;
}

}  // namespace

PeerConnections::Round::Round(const Header& call, std::vector<at::Tensor> parts, std::function<void()> finish)
    : call_(call),
      parts_(std::move(parts)),
      finish_(std::move(finish)),
      headers_(parts_.size()),
      num_missing_(parts_.size() - 1) {}

void PeerConnections::Round::complete(const RankNames& names) {
  try {
    for (size_t rank = 1; rank < headers_.size(); ++rank) {
      if (same_call(*headers_[0], *headers_[rank])) continue;
      throw Backend::Mismatch(difference(names.of(0), *headers_[0], names.of(static_cast<int>(rank)), *headers_[rank]));
    }
    if (finish_) finish_();
  } catch (...) {
    error_ = std::current_exception();
  }
}

PeerConnections::Bell::Bell() : socket_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (socket_.handle() < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
}

void PeerConnections::Bell::ring() const noexcept {
  eventfd_write(socket_.handle(), 1);
}

void PeerConnections::Bell::silence() const noexcept {
  eventfd_t count = 0;
  eventfd_read(socket_.handle(), &count);
}

PeerConnections::PeerConnections(const BackendSetup& setup)
    : rank_(setup.rank),
      timeout_(setup.options.timeout),
      names_(setup.names),
      spin_(spin_policy_of(setup.world_size)),
      peers_(static_cast<size_t>(setup.world_size)) {
  connect(setup);
}

void PeerConnections::connect(const BackendSetup& setup) {
  const auto deadline = Clock::now() + timeout_.load();
  const net::Socket listener = listen_for_peers(setup.options);
  const net::Endpoint here = net::local_end(listener);
  const std::string secret = random_hex(sizeof(Hello::secret) / 2);
  const auto lines = store_all_gather(setup.store, "address", rank_, world_size(),
                                      text(here.host, ' ', here.port, ' ', secret), timeout_);
  // A rank calls those below it, which listen already, and is called by those above.
  for (int peer = 0; peer < rank_; ++peer) {
    std::istringstream line(lines[peer]);
    net::Endpoint where;
    std::string peers_secret;
    line >> where.host >> where.port >> peers_secret;
    auto [socket, problem] = net::connect_within(where, timeout_);
    Hello hello{.secret = {}, .rank = rank_};
    std::copy_n(peers_secret.data(), std::min(peers_secret.size(), hello.secret.size()), hello.secret.data());
    if (socket.handle() < 0 || send(socket.handle(), &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello) {
      throw std::runtime_error(
          text("rank ", names_.of(peer), " cannot be reached at ", net::shown(where), ": ", problem));
    }
    peers_[peer].socket = std::move(socket);
  }
  for (int num_missing = world_size() - 1 - rank_; num_missing > 0;) {
    if (Clock::now() > deadline) throw Backend::TimedOut("timed out: a rank did not call");
    if (!net::is_ready_within(listener, POLLIN, kSleep)) continue;
    auto socket = net::accept_from(listener).first;
    const auto caller = caller_of(socket, secret, rank_, world_size());
    if (!caller || peers_[*caller].socket.handle() >= 0) continue;
    peers_[*caller].socket = std::move(socket);
    --num_missing;
  }
  for (const Peer& peer : peers_) {
    if (peer.socket.handle() >= 0) send_at_once(peer.socket);
  }
}

PeerConnections::~PeerConnections() {
  std::shared_ptr<Round> last;
  {
    const std::lock_guard lock(reading_);
    for (const Peer& peer : peers_) {
      if (!peer.expected.empty()) last = peer.expected.back();
    }
  }
  try {
    if (last) wait(*last);
  } catch (const std::exception&) {
    // Its end has not been queried.
  }
  {
    const std::lock_guard lock(writing_);
    stopping_ = true;
  }
  left_over_.notify_all();
  if (writer_.joinable()) writer_.join();
}

void PeerConnections::start(const std::shared_ptr<Round>& round) {
  const std::lock_guard order(writing_);
  {
    const std::lock_guard lock(reading_);
    round->headers_[rank_] = round->call_;
    for (int step = 1; step < world_size(); ++step) {
      peers_[(rank_ + step) % world_size()].expected.push_back(round);
    }
    if (somebody_polls_) readers_bell_.ring();
  }
  const at::Tensor& mine = round->parts_[rank_];
  Header header = round->call_;
  header.extra = static_cast<int64_t>(mine.nbytes());
  for (int step = 1; step < world_size(); ++step) {
    write(peers_[(rank_ + step) % world_size()], header, mine);
  }
}

void PeerConnections::write(Peer& peer, const Header& header, const at::Tensor& bytes) {
  const auto* const begin_of_header = reinterpret_cast<const char*>(&header);
  const auto* const begin = static_cast<const char*>(bytes.const_data_ptr());
  size_t sent = 0;
  if (peer.unsent.empty()) {
    sent = write_some(
        peer.socket, {{const_cast<char*>(begin_of_header), sizeof header}, {const_cast<char*>(begin), bytes.nbytes()}});
  }
  if (sent == sizeof header + bytes.nbytes()) return;
  const size_t of_header = std::min(sent, sizeof header);
  peer.unsent.append(begin_of_header + of_header, sizeof header - of_header);
  peer.unsent.append(begin + (sent - of_header), bytes.nbytes() - (sent - of_header));
  if (!writer_.joinable()) writer_ = start_without_signals([this] { write_unsent(); });
  left_over_.notify_all();
  writers_bell_.ring();
}

void PeerConnections::write_unsent() {
  std::unique_lock lock(writing_);
  Clock::time_point deadline = Clock::time_point::max();
  for (;;) {
    std::vector<pollfd> targets{{writers_bell_.handle(), POLLIN, 0}};
    for (const Peer& peer : peers_) {
      if (!peer.unsent.empty()) targets.push_back({peer.socket.handle(), POLLOUT, 0});
    }
    const bool has_unsent = targets.size() > 1;
    if (stopping_ && deadline == Clock::time_point::max()) deadline = Clock::now() + timeout_.load();
    if (closed_ || (stopping_ && (!has_unsent || Clock::now() > deadline))) return;
    if (!has_unsent) {
      left_over_.wait(lock);
      continue;
    }
    lock.unlock();
    poll(targets.data(), targets.size(), static_cast<int>(kSleep.count()));
    writers_bell_.silence();
    lock.lock();
    for (Peer& peer : peers_) {
      if (peer.unsent.empty()) continue;
      peer.unsent.erase(0, write_some(peer.socket, {{peer.unsent.data(), peer.unsent.size()}}));
    }
  }
}

bool PeerConnections::is_over(const Round& round) const {
  if (round.num_missing_ == 0 || closed_) return true;
  for (size_t peer = 0; peer < peers_.size(); ++peer) {
    if (!round.headers_[peer] && !peers_[peer].lost.empty()) return true;
  }
  return false;
}

void PeerConnections::read_all() {
  for (int peer = 0; peer < world_size(); ++peer) {
    while (read_message(peer)) {
    }
  }
}

// Reads on what `from` sends; whether a message has been read to its end.
bool PeerConnections::read_message(int from) {
  Peer& peer = peers_[from];
  if (peer.expected.empty()) return false;
  const auto receive = [&](char* to, size_t num_bytes) {
    if (!peer.lost.empty()) return false;
    const auto size = recv(peer.socket.handle(), to, num_bytes, MSG_DONTWAIT);
    if (size > 0) peer.num_read += static_cast<size_t>(size);
    if (size > 0) return true;
    // A peer that leaves messages unread resets the connection when it closes it.
    if (size == 0 || errno == ECONNRESET) {
      peer.lost = "has closed its connection";
    } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
      peer.lost = text("cannot be heard any more: ", std::strerror(errno));
    }
    return false;
  };
  while (peer.num_read < sizeof(Header)) {
    const size_t offset = peer.num_read;
    if (!receive(reinterpret_cast<char*>(&peer.header) + offset, sizeof(Header) - offset)) return false;
  }
  Round& round = *peer.expected.front();
  const at::Tensor& part = round.parts_[from];
  const auto size = static_cast<size_t>(peer.header.extra);
  // A message of another round is read as well, so that the next one is found behind it.
  const bool fits = same_call(peer.header, round.call_) && size == part.nbytes();
  while (peer.num_read < sizeof(Header) + size) {
    const size_t offset = peer.num_read - sizeof(Header);
    std::array<char, 4096> unwanted;
    const bool has_come = fits ? receive(static_cast<char*>(part.data_ptr()) + offset, size - offset)
                               : receive(unwanted.data(), std::min(unwanted.size(), size - offset));
    if (!has_come) return false;
  }
  round.headers_[from] = peer.header;
  peer.num_read = 0;
  const auto ended = std::move(peer.expected.front());
  peer.expected.pop_front();
  if (--ended->num_missing_ == 0) ended->complete(names_);
  return true;
}

// Until something has been read, here or in another thread, or a while has passed.
void PeerConnections::sleep(std::unique_lock<std::mutex>& lock) {
  if (somebody_polls_) {
    has_read_.wait_for(lock, kSleep);
    return;
  }
  somebody_polls_ = true;
  std::vector<pollfd> sources{{readers_bell_.handle(), POLLIN, 0}};
  for (const Peer& peer : peers_) {
    if (!peer.expected.empty() && peer.lost.empty()) sources.push_back({peer.socket.handle(), POLLIN, 0});
  }
  lock.unlock();
  poll(sources.data(), sources.size(), static_cast<int>(kSleep.count()));
  lock.lock();
  readers_bell_.silence();
  somebody_polls_ = false;
  read_all();
  has_read_.notify_all();
}

bool PeerConnections::done(const Round& round) {
  const std::lock_guard lock(reading_);
  if (!is_over(round)) read_all();
  return is_over(round);
}

void PeerConnections::wait(const Round& round) {
  const auto deadline = Clock::now() + timeout_.load();
  if (!shared::look(spin_, [&] { return done(round); })) {
    std::unique_lock lock(reading_);
    while (!is_over(round) && Clock::now() < deadline) {
      sleep(lock);
      if (!is_over(round)) WaitCheck::run();
    }
  }
  const std::lock_guard lock(reading_);
  if (round.error_) std::rethrow_exception(round.error_);
  if (round.num_missing_ == 0) return;
  if (closed_) throw std::runtime_error("this rank has closed the group");
  std::vector<int> missing;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (round.headers_[peer]) continue;
    missing.push_back(peer);
    if (peers_[peer].lost.empty()) continue;
    throw std::runtime_error(text("rank ", names_.of(peer), ' ', peers_[peer].lost));
  }
  throw Backend::TimedOut(text("timed out: not there yet: rank ", names_.of(missing)));
}

void PeerConnections::close() noexcept {
  closed_ = true;
  for (const Peer& peer : peers_) shutdown(peer.socket.handle(), SHUT_RDWR);
  readers_bell_.ring();
  writers_bell_.ring();
  left_over_.notify_all();
}

}  // namespace hasten::comm
