// Connection: one socket between two ranks, with its handshake, its queue of frames to write and its reader.
//
// Any thread writes. Bytes that the socket does not take at once stay in the queue, and the reading thread goes on when
// the socket is ready. A single thread at a time reads, which `claim` decides.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/messages/frame.h"
#include "comm/messages/handshake.h"
#include "hasten/core/socket.h"

namespace hasten::comm {

class Connection {
 public:
  using Clock = std::chrono::steady_clock;
  enum class State { kConnecting, kHandshake, kOpen, kClosed };

  Connection(net::Socket socket, bool is_local, State state, Handshake handshake, FrameReader reader);

  int handle() const { return socket_.handle(); }
  bool is_local() const { return is_local_; }
  State state() const { return state_.load(std::memory_order_acquire); }
  int peer() const { return handshake_.peer(); }
  /// Returns the process at the other end of a Unix socket, 0 for TCP.
  pid_t process() const { return process_; }
  Clock::time_point last_heard() const { return last_heard_.load(std::memory_order_relaxed); }

  /// Allows a single reader at a time: true if the caller is the one now.
  bool claim() { return !claimed_.exchange(true, std::memory_order_acquire); }
  void release() { claimed_.store(false, std::memory_order_release); }

  /// The peer sends its messages on this connection, and on no other as long as it has this one.
  bool is_peers_choice() const { return is_peers_choice_.load(std::memory_order_relaxed); }
  void note_message() { is_peers_choice_.store(true, std::memory_order_relaxed); }

  /// The TCP connection is there (or not: returns why).
  std::string finish_connecting();
  /// Queues a frame and writes if nothing else does. Returns true if the socket took less than all: call again through
  /// write_some() when it is ready for writing.
  bool send(OutgoingMessage message, int64_t pull_bytes, bool flush);
  bool write_some();
  /// Returns true if frames wait that could be sent now and no thread is sending.
  bool has_unsent() const;
  /// Returns as send().
  bool send_control(FrameKind kind, uint64_t value);
  /// Reads what there is. Returns false at the end of the stream. Throws: DataError for bytes that are no frames.
  bool read_some();
  /// The receiver has copied the body of a pull.
  void pulled(uint64_t token);
  /// Ends the stream in both directions. What has come already is still read, and then the end.
  void hang_up();
  /// Fails what is queued; nothing is sent or read from now on.
  void close();

  /// Guards how the socket is watched; `has_waiter`: a thread that waits for an answer reads it.
  std::mutex watching;
  bool has_waiter = false;

 private:
  struct Queued {
    std::string head;
    std::vector<std::span<const std::byte>> body;
    std::function<void()> sent;
  };
  bool read_handshake(const char* bytes, size_t size);
  bool write_locked(std::unique_lock<std::mutex>& lock);
  size_t gather(std::vector<iovec>& parts) const;
  void consume(size_t num_bytes, std::vector<std::function<void()>>& sent);
  void queue_raw(std::string bytes);
  void take_queues(std::vector<std::function<void()>>& sent);

  net::Socket socket_;
  const bool is_local_;
  pid_t process_ = 0;
  std::atomic<State> state_;
  Handshake handshake_;
  std::string handshake_bytes_;
  FrameReader reader_;
  std::atomic<bool> claimed_ = false, is_peers_choice_ = false;
  std::atomic<Clock::time_point> last_heard_;

  mutable std::mutex writing_;
  std::deque<Queued> raw_;  // the handshake's answers, before all frames
  std::deque<Queued> queue_;
  size_t front_offset_ = 0;  // bytes of the first that have been written
  bool writer_active_ = false;
  std::unordered_map<uint64_t, std::function<void()>> pulls_;
  uint64_t next_pull_ = 1;
};

}  // namespace hasten::comm
