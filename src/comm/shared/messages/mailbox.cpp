// See mailbox.h.
#include "comm/shared/messages/mailbox.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "comm/connecting/serial_executor.h"
#include "hasten/core/text.h"

namespace hasten::comm::shared {
namespace {

constexpr uint64_t kFrameBytes = 16;
// Size of a piece: one side of a ring writes while the other reads.
constexpr uint64_t kPieceBytes = 32 << 10;

uint64_t padded(uint64_t size) {
  return (size + kFrameBytes - 1) / kFrameBytes * kFrameBytes;
}

std::byte* data_of(const at::Tensor& bytes) {
  return static_cast<std::byte*>(bytes.data_ptr());
}

// Copies in or out of a ring, around its end.
template <class Copy>
void around(uint64_t position, uint64_t count, uint64_t ring_bytes, const Copy& copy) {
  const uint64_t begin = position % ring_bytes, first = std::min(count, ring_bytes - begin);
  if (first > 0) copy(begin, uint64_t{0}, first);
  if (count > first) copy(uint64_t{0}, first, count - first);
}

}  // namespace

Mailbox::Mailbox(std::shared_ptr<Segment> segment, int rank, const PeerMonitor& watch)
    : segment_(std::move(segment)),
      rank_(rank),
      watch_(watch),
      spin_(SpinPolicy::of(segment_->layout().world_size)),
      linger_(linger_of(segment_->layout().world_size)),
      channels_(static_cast<size_t>(segment_->layout().world_size)) {}

Mailbox::~Mailbox() {
  Lock lock(mutex_);
  for (Channel& channel : channels_) {
    while (!channel.sends.empty()) {
      const auto message = channel.sends.front();
      move_until(lock, message);
    }
  }
  stopping_ = true;
  lock.unlock();
  work_arrived_.notify_all();
  if (thread_.joinable()) {
    segment_->block(rank_).doorbell.raise_by_one();
    thread_.join();
  }
}

std::shared_ptr<Mailbox::Message> Mailbox::send(at::Tensor bytes, int to, int tag) {
  auto message = std::make_shared<Message>(std::move(bytes), to, tag, watch_.deadline());
  Lock lock(mutex_);
  Channel& channel = channels_[to];
  if (!channel.broken) channel.sends.push_back(message);
  return started(lock, std::move(message));
}

std::shared_ptr<Mailbox::Message> Mailbox::receive(at::Tensor bytes, int from, int tag) {
  auto message = std::make_shared<Message>(std::move(bytes), from, tag, watch_.deadline());
  Lock lock(mutex_);
  message->number = num_receives_++;
  Channel& channel = channels_[from];
  const auto found = find_arrival(channel, tag);
  if (found != channel.arrivals.end()) {
    hand_over(message, found);
  } else if (!channel.broken) {
    channel.receives.push_back(message);
  }
  return started(lock, std::move(message));
}

std::list<Mailbox::Arrival>::iterator Mailbox::find_arrival(Channel& channel, int64_t tag) {
  return std::find_if(channel.arrivals.begin(), channel.arrivals.end(),
                      [tag](const Arrival& arrival) { return arrival.tag == tag && arrival.is_wanted; });
}

std::shared_ptr<Mailbox::Message> Mailbox::receive_any(at::Tensor bytes, int tag, std::shared_ptr<int> from) {
  auto message = std::make_shared<Message>(std::move(bytes), kAnyPeer, tag, watch_.deadline());
  message->from = std::move(from);
  Lock lock(mutex_);
  message->number = num_receives_++;
  // Messages that lie in the rings come before those that arrive later.
  move_all();
  std::optional<std::list<Arrival>::iterator> first;
  for (int peer = 0; peer < segment_->layout().world_size; ++peer) {
    const auto found = find_arrival(channels_[peer], tag);
    if (found == channels_[peer].arrivals.end() || (first && (*first)->number < found->number)) continue;
    first = found;
    message->peer = peer;
  }
  if (!first) {
    receives_from_any_.push_back(message);
  } else {
    *message->from = message->peer;
    hand_over(message, *first);
  }
  return started(lock, std::move(message));
}

std::shared_ptr<Mailbox::Message> Mailbox::started(Lock&, std::shared_ptr<Message> message) {
  if (message->done) return message;
  if (message->peer == kAnyPeer) {
    if (expects_much_of_any()) ask_thread();
    return message;
  }
  if (const auto broken = channels_[message->peer].broken) {
    message->error = broken;
    message->done = true;
    return message;
  }
  move_all();
  if (message->done) return message;
  const Channel& channel = channels_[message->peer];
  const bool waits_for_space = !channel.sends.empty() && channel.sends.back() == message;
  if (waits_for_space || expects_much(channel)) ask_thread();
  return message;
}

bool Mailbox::expects_much(const Channel& channel) const {
  int64_t bytes = channel.target ? channel.target->bytes.numel() : 0;
  for (const auto& message : channel.receives) bytes += message->bytes.numel();
  return static_cast<uint64_t>(bytes) > segment_->layout().ring_bytes / 2;
}

bool Mailbox::expects_much_of_any() const {
  return std::any_of(receives_from_any_.begin(), receives_from_any_.end(), [this](const auto& message) {
    return static_cast<uint64_t>(message->bytes.numel()) > segment_->layout().ring_bytes / 2;
  });
}

void Mailbox::ask_thread() {
  if (thread_.joinable()) {
    work_arrived_.notify_one();
  } else {
    thread_ = start_without_signals([this] { serve(); });
  }
}

bool Mailbox::done(const std::shared_ptr<Message>& message) {
  const Lock lock(mutex_);
  if (!message->done) move_all();
  if (!message->done && looks_at_peers_.is_time()) look_after(message);
  return message->done;
}

void Mailbox::wait(const std::shared_ptr<Message>& message) {
  Lock lock(mutex_);
  move_until(lock, message);
  if (message->error) std::rethrow_exception(message->error);
}

void Mailbox::move_until(Lock& lock, const std::shared_ptr<Message>& message) {
  Counter& doorbell = segment_->block(rank_).doorbell;
  ++num_waiting_;
  for (;;) {
    const uint32_t seen = doorbell.value.load();
    move_all();
    if (message->done) break;
    lock.unlock();
    const bool rung = look(spin_, [&] { return doorbell.value.load(std::memory_order_acquire) != seen; });
    if (!rung) doorbell.sleep(seen, kSleep);
    lock.lock();
    if (!rung && doorbell.value.load() == seen) look_after(message);
  }
  if (--num_waiting_ > 0) return;
  const auto waits = [this](const Channel& channel) { return !channel.sends.empty() || expects_much(channel); };
  const bool needs_thread = expects_much_of_any() || std::any_of(channels_.begin(), channels_.end(), waits);
  if (thread_.joinable() ? pending() : needs_thread) ask_thread();
}

void Mailbox::look_after(const std::shared_ptr<Message>& message) {
  try {
    WaitCheck::run();
    if (message->peer == kAnyPeer) return check_all_peers(*message);
    watch_.check_presence(message->peer);
    watch_.check_time(message->deadline, {message->peer});
  } catch (...) {
    // Data that a peer wrote before it left still counts.
    move_all();
    if (message->done) return;
    if (message->peer != kAnyPeer) return break_channel(message->peer);
    receives_from_any_.remove(message);
    message->error = std::current_exception();
    message->done = true;
  }
}

void Mailbox::check_all_peers(const Message& message) const {
  std::vector<int> others;
  std::exception_ptr gone;
  int num_gone = 0;
  for (int peer = 0; peer < segment_->layout().world_size; ++peer) {
    if (peer == rank_) continue;
    others.push_back(peer);
    try {
      watch_.check_presence(peer);
    } catch (...) {
      gone = std::current_exception();
      ++num_gone;
    }
  }
  if (num_gone == static_cast<int>(others.size())) std::rethrow_exception(gone);
  watch_.check_time(message.deadline, others);
}

void Mailbox::move_all() {
  for (int peer = 0; peer < segment_->layout().world_size; ++peer) {
    if (peer == rank_) continue;
    push(peer), pull(peer);
  }
}

void Mailbox::push(int peer) {
  Channel& channel = channels_[peer];
  if (channel.broken) return;
  Ring& ring = segment_->ring(rank_, peer);
  std::byte* data = segment_->ring_data(rank_, peer);
  const uint64_t ring_bytes = segment_->layout().ring_bytes;
  uint64_t written = ring.written.load(std::memory_order_relaxed);
  // No more than a ring at a time: others wait for the lock, too.
  const uint64_t last = written + ring_bytes;
  while (!channel.sends.empty() && written < last) {
    Message& message = *channel.sends.front();
    const auto size = static_cast<uint64_t>(message.bytes.numel());
    uint64_t space = ring_bytes - (written - ring.read.load(std::memory_order_acquire));
    if (space < kFrameBytes) return;
    if (message.moved == 0) {
      const Frame frame{size, message.tag};
      // Frames begin at multiples of their size, so none lies around the ring's end.
      std::memcpy(data + written % ring_bytes, &frame, sizeof(frame));
      written += kFrameBytes, space -= kFrameBytes, message.moved = kFrameBytes;
    }
    const uint64_t at = message.moved - kFrameBytes;
    const uint64_t count = std::min({space, padded(size) - at, kPieceBytes});
    around(written, std::min(count, size - std::min(at, size)), ring_bytes,
           [&](uint64_t to, uint64_t from, uint64_t n) {
             message.writer.copy(data + to, data_of(message.bytes) + at + from, static_cast<int64_t>(n));
           });
    written += count, message.moved += count;
    ring.written.store(written, std::memory_order_release);
    segment_->block(peer).doorbell.raise_by_one();
    if (message.moved < kFrameBytes + padded(size)) continue;
    message.done = true;
    channel.sends.pop_front();
  }
}

void Mailbox::pull(int peer) {
  Channel& channel = channels_[peer];
  if (channel.broken) return;
  Ring& ring = segment_->ring(peer, rank_);
  const std::byte* data = segment_->ring_data(peer, rank_);
  const uint64_t ring_bytes = segment_->layout().ring_bytes;
  uint64_t read = ring.read.load(std::memory_order_relaxed);
  const uint64_t last = read + ring_bytes;
  while (read < last) {
    const uint64_t there = ring.written.load(std::memory_order_acquire) - read, before = read;
    if (there == 0) return;
    if (!channel.incoming) {
      std::memcpy(&channel.frame, data + read % ring_bytes, sizeof(Frame));
      read += kFrameBytes;
      take_frame(peer);
    }
    const uint64_t size = channel.frame.size, at = channel.moved;
    const uint64_t count = std::min({there - (read - before), padded(size) - at, kPieceBytes});
    std::byte* to = channel.target ? data_of(channel.target->bytes) : channel.arrivals.back().bytes.get();
    around(read, std::min(count, size - std::min(at, size)), ring_bytes,
           [&](uint64_t from, uint64_t offset, uint64_t n) {
             copy_out(to + at + offset, data + from, static_cast<int64_t>(n), static_cast<int64_t>(size));
           });
    read += count, channel.moved += count;
    ring.read.store(read, std::memory_order_release);
    segment_->block(peer).doorbell.raise_by_one();
    if (channel.moved == padded(size)) finish_frame(peer);
  }
}

void Mailbox::take_frame(int peer) {
  Channel& channel = channels_[peer];
  channel.incoming = true;
  channel.moved = 0;
  const auto message = take_receive(peer, channel.frame.tag);
  if (message && fits(*message, channel.frame.size, peer)) {
    channel.target = message;
    return;
  }
  channel.arrivals.emplace_back(channel.frame, /*is_wanted=*/!message, num_arrivals_++);
}

std::shared_ptr<Mailbox::Message> Mailbox::take_receive(int peer, int64_t tag) {
  auto& of_peer = channels_[peer].receives;
  const auto has_tag = [tag](const auto& message) { return message->tag == tag; };
  const auto named = std::find_if(of_peer.begin(), of_peer.end(), has_tag);
  const auto any = std::find_if(receives_from_any_.begin(), receives_from_any_.end(), has_tag);
  const bool takes_any =
      any != receives_from_any_.end() && (named == of_peer.end() || (*any)->number < (*named)->number);
  if (!takes_any && named == of_peer.end()) return nullptr;
  auto message = takes_any ? *any : *named;
  if (!takes_any) {
    of_peer.erase(named);
    return message;
  }
  receives_from_any_.erase(any);
  message->peer = peer;
  *message->from = peer;
  return message;
}

void Mailbox::finish_frame(int peer) {
  Channel& channel = channels_[peer];
  channel.incoming = false;
  if (channel.target) {
    channel.target->done = true;
    channel.target.reset();
    return;
  }
  if (!channel.arrivals.back().is_wanted) channel.arrivals.pop_back();
}

bool Mailbox::fits(Message& message, uint64_t size, int peer) {
  const auto expected = static_cast<uint64_t>(message.bytes.numel());
  if (expected == size) return true;
  message.error = std::make_exception_ptr(Backend::Mismatch(
      text("rank ", watch_.names().of(peer), " sends ", size, " bytes with tag ", message.tag,
           ", but this rank receives ", expected, ". Both sides must name the same dtype and shape")));
  message.done = true;
  return false;
}

void Mailbox::hand_over(const std::shared_ptr<Message>& message, std::list<Arrival>::iterator arrival) {
  const int peer = message->peer;
  Channel& channel = channels_[peer];
  const bool still_coming = channel.incoming && !channel.target && &*arrival == &channel.arrivals.back();
  if (!fits(*message, arrival->size, peer)) {
    arrival->is_wanted = false;
  } else {
    const uint64_t there = still_coming ? std::min(channel.moved, arrival->size) : arrival->size;
    copy_out(data_of(message->bytes), arrival->bytes.get(), static_cast<int64_t>(there),
             static_cast<int64_t>(arrival->size));
    // Later data goes straight to its place.
    if (still_coming) channel.target = message;
    message->done = !still_coming;
  }
  if (!still_coming || channel.target) channel.arrivals.erase(arrival);
}

void Mailbox::break_channel(int peer) {
  Channel& channel = channels_[peer];
  channel.broken = std::current_exception();
  const auto end = [&](const std::shared_ptr<Message>& message) {
    if (!message || message->done) return;
    message->error = channel.broken;
    message->done = true;
  };
  for (const auto& message : channel.sends) end(message);
  for (const auto& message : channel.receives) end(message);
  end(channel.target);
  const auto broken = channel.broken;
  channel = Channel();
  channel.broken = broken;
}

bool Mailbox::pending() const {
  return !receives_from_any_.empty() || std::any_of(channels_.begin(), channels_.end(), [](const Channel& channel) {
    return !channel.sends.empty() || !channel.receives.empty() || channel.incoming;
  });
}

void Mailbox::serve() {
  Counter& doorbell = segment_->block(rank_).doorbell;
  Lock lock(mutex_);
  for (;;) {
    work_arrived_.wait(lock, [this] { return stopping_ || (num_waiting_ == 0 && pending()); });
    if (work_arrived_.wait_for(lock, linger_, [this] { return stopping_; })) return;
    while (!stopping_ && num_waiting_ == 0) {
      const uint32_t seen = doorbell.value.load();
      move_all();
      if (!pending()) break;
      lock.unlock();
      doorbell.sleep(seen, kSleep);
      lock.lock();
    }
  }
}

}  // namespace hasten::comm::shared
