// See connection.h.
#include "comm/messages/connection.h"

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "comm/messages/peer_address.h"
#include "hasten/core/error.h"

namespace hasten::comm {
namespace {

constexpr size_t kMostParts = 256;

}  // namespace

Connection::Connection(net::Socket socket, bool is_local, State state, Handshake handshake, FrameReader reader)
    : socket_(std::move(socket)),
      is_local_(is_local),
      state_(state),
      handshake_(std::move(handshake)),
      reader_(std::move(reader)),
      last_heard_(Clock::now()) {
  if (is_local_) process_ = process_behind(socket_.handle());
  if (state == State::kHandshake) queue_raw(handshake_.start());
}

std::string Connection::finish_connecting() {
  if (const int error = net::connect_error(socket_); error != 0) return std::strerror(error);
  state_.store(State::kHandshake, std::memory_order_release);
  queue_raw(handshake_.start());
  write_some();
  return "";
}

void Connection::queue_raw(std::string bytes) {
  if (bytes.empty()) return;
  const std::lock_guard lock(writing_);
  raw_.push_back({std::move(bytes), {}, nullptr});
}

bool Connection::send(OutgoingMessage message, int64_t pull_bytes, bool flush) {
  size_t body_bytes = 0;
  for (const auto& part : message.body) body_bytes += part.size();
  std::unique_lock lock(writing_);
  if (state() == State::kClosed) {
    lock.unlock();
    if (message.sent) message.sent();
    return false;
  }
  const bool pull = state() == State::kOpen && handshake_.peer_can_pull() && is_local_ &&
                    body_bytes >= static_cast<size_t>(pull_bytes) && !message.body.empty();
  if (pull) {
    const uint64_t token = next_pull_++;
    append_pull_table(message.head, token, message.body);
    pulls_.emplace(token, std::move(message.sent));
    message.sent = nullptr;
    message.body.clear();
  }
  write_prefix(message.head.data(), pull ? FrameKind::kPull : FrameKind::kMessage,
               static_cast<uint32_t>(message.head.size() - kFramePrefixBytes), body_bytes);
  queue_.push_back({std::move(message.head), std::move(message.body), std::move(message.sent)});
  if (!flush || writer_active_ || state() != State::kOpen) return false;
  return write_locked(lock);
}

bool Connection::send_control(FrameKind kind, uint64_t value) {
  std::unique_lock lock(writing_);
  if (state() != State::kOpen) return false;
  queue_.push_back({control_frame(kind, value), {}, nullptr});
  return !writer_active_ && write_locked(lock);
}

bool Connection::write_some() {
  std::unique_lock lock(writing_);
  if (writer_active_ || state() == State::kClosed || state() == State::kConnecting) return false;
  return write_locked(lock);
}

bool Connection::has_unsent() const {
  const std::lock_guard lock(writing_);
  if (writer_active_) return false;  // the writer tells what it leaves
  return !raw_.empty() || (state() == State::kOpen && !queue_.empty());
}

size_t Connection::gather(std::vector<iovec>& parts) const {
  parts.clear();
  size_t total = 0, skip = front_offset_;
  const auto add = [&](const void* data, size_t size) {
    if (skip >= size) {
      skip -= size;
      return;
    }
    parts.push_back({const_cast<char*>(static_cast<const char*>(data)) + skip, size - skip});
    total += size - skip;
    skip = 0;
  };
  const auto add_all = [&](const std::deque<Queued>& queue) {
    for (const Queued& queued : queue) {
      if (parts.size() + queued.body.size() + 1 > kMostParts && !parts.empty()) return;
      add(queued.head.data(), queued.head.size());
      for (const auto& part : queued.body) add(part.data(), part.size());
    }
  };
  if (!raw_.empty()) {
    add_all(raw_);
  } else if (state() == State::kOpen) {
    add_all(queue_);
  }
  if (parts.size() > 1000) parts.resize(1000);  // a message of very many tensors goes in several calls
  return total;
}

void Connection::consume(size_t num_bytes, std::vector<std::function<void()>>& sent) {
  auto& queue = raw_.empty() ? queue_ : raw_;
  front_offset_ += num_bytes;
  while (!queue.empty()) {
    size_t size = queue.front().head.size();
    for (const auto& part : queue.front().body) size += part.size();
    if (front_offset_ < size) return;
    front_offset_ -= size;
    if (queue.front().sent) sent.push_back(std::move(queue.front().sent));
    queue.pop_front();
  }
}

// Writes until the queue is empty or the socket full. Frames that others queue meanwhile go along.
bool Connection::write_locked(std::unique_lock<std::mutex>& lock) {
  writer_active_ = true;
  std::vector<iovec> parts;
  std::vector<std::function<void()>> sent;
  bool full = false;
  while (state() != State::kClosed && gather(parts) > 0) {
    lock.unlock();
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const auto size = sendmsg(socket_.handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    const int error = errno;
    lock.lock();
    if (size < 0) {
      if (error == EINTR) continue;
      full = error == EAGAIN || error == EWOULDBLOCK;
      break;  // a broken connection is found by its reader
    }
    if (state() != State::kClosed) consume(static_cast<size_t>(size), sent);
  }
  writer_active_ = false;
  if (state() == State::kClosed) take_queues(sent);
  lock.unlock();
  for (const auto& done : sent) done();
  return full;
}

bool Connection::read_some() {
  for (;;) {
    const bool frames = state() == State::kOpen;
    char small[256];
    size_t room = 0;
    char* place = small;
    if (frames) {
      const auto free = reader_.room();
      place = reinterpret_cast<char*>(free.data());
      room = free.size();
    } else {
      // Not a byte beyond the awaited message: the frames behind it belong to the reader.
      room = std::min(sizeof small, handshake_.num_expected() - handshake_bytes_.size());
    }
    const auto size = recv(socket_.handle(), place, room, MSG_DONTWAIT);
    if (size == 0) return false;
    if (size < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    last_heard_.store(Clock::now(), std::memory_order_relaxed);
    if (frames) {
      reader_.advance(static_cast<size_t>(size));
      if (static_cast<size_t>(size) < room) return true;
    } else {
      read_handshake(place, static_cast<size_t>(size));
      // The owner learns of the open connection before the first frame.
      if (state() == State::kOpen) return true;
    }
    if (state() == State::kClosed) return false;
  }
}

bool Connection::read_handshake(const char* bytes, size_t size) {
  handshake_bytes_.append(bytes, size);
  if (handshake_bytes_.size() < handshake_.num_expected()) return false;
  const std::string answer = handshake_.take(std::exchange(handshake_bytes_, {}));
  queue_raw(answer);
  if (handshake_.done()) state_.store(State::kOpen, std::memory_order_release);
  return write_some();
}

void Connection::pulled(uint64_t token) {
  std::function<void()> sent;
  {
    const std::lock_guard lock(writing_);
    const auto found = pulls_.find(token);
    if (found == pulls_.end())
      throw DataError(Origin{"messages"}, "frame", "a pull ", token, " that was not asked for");
    sent = std::move(found->second);
    pulls_.erase(found);
  }
  if (sent) sent();
}

void Connection::take_queues(std::vector<std::function<void()>>& sent) {
  for (auto* queue : {&raw_, &queue_}) {
    for (auto& queued : *queue) {
      if (queued.sent) sent.push_back(std::move(queued.sent));
    }
    queue->clear();
  }
}

void Connection::hang_up() {
  shutdown(socket_.handle(), SHUT_RDWR);
}

void Connection::close() {
  std::vector<std::function<void()>> sent;
  {
    const std::lock_guard lock(writing_);
    if (state_.exchange(State::kClosed) == State::kClosed) return;
    shutdown(socket_.handle(), SHUT_RDWR);
    if (!writer_active_) take_queues(sent);  // else the writer, which uses the memory, does so
    for (auto& [token, done] : pulls_) {
      if (done) sent.push_back(std::move(done));
    }
    pulls_.clear();
  }
  for (const auto& done : sent) done();
}

}  // namespace hasten::comm
