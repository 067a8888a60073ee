// Messages: ordered byte messages between any two ranks of a group. It does not depend on calls.
//
// A connection is made at the first message, over a Unix socket on one host and over TCP between hosts. Both ends prove
// the run's key before a message is read. The sender writes in its own thread. Reading is done by the thread that runs
// serve(), or by a thread that waits for an answer (read_from), which saves a switch of threads. The receiver copies a
// large body on one host once, out of the sender's memory (process_vm_readv). Elsewhere it goes through the socket.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "hasten/comm/group/group.h"
#include "hasten/comm/messages/message.h"
#include "hasten/comm/store/store.h"

namespace hasten::comm {

struct MessagesOptions {
  /// 32 bytes that all ranks of the run have (Process::run_key). Empty on any rank: rank 0 draws a key and the group
  /// carries it.
  std::string run_key = {};
  /// A rank on another host that has been silent for so long is lost. Ranks on one host are never taken for lost while
  /// their process exists.
  double lost_after_s = 10;
  /// A larger message closes the connection.
  int64_t max_message_bytes = int64_t{4} << 30;
  /// Least size in bytes of a body that a receiver on the same host pulls.
  int64_t pull_bytes = 64 * 1024;
  /// Handed to all ranks: Messages::about().
  std::string about = {};
};

class Messages {
 public:
  /// Listens, and gets the addresses of the other ranks. `sink` must outlive it.
  /// Collective: yes. Blocks: until all ranks have called. Throws: CommError, UsageError (no address to listen at).
  Messages(const Group& group, MessageSink& sink, const MessagesOptions& options = {});
  /// Joins the ranks that have met at `store`, as the next rank. Ranks may come and go at any time. `where`: its host,
  /// address and network_interface count. The others learn of this rank at its first message to them.
  /// Blocks: for some round trips to the store. Throws: CommError, UsageError (no run key where the
  /// others have one).
  static std::unique_ptr<Messages> join(const Store& store, const GroupOptions& where, MessageSink& sink,
                                        const MessagesOptions& options = {});
  /// As close(false).
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  int rank() const noexcept;
  /// How many ranks have come so far, also those that are gone.
  int world_size() const noexcept;
  /// MessagesOptions::about of a rank.
  const std::string& about(int rank) const;
  /// True if all ranks have the same run key. False if rank 0 drew one.
  bool has_run_key() const noexcept;
  bool is_on_this_host(int rank) const;

  /// Sends to another rank; messages to one rank arrive in order. The message has been written or queued when it
  /// returns. Throws: CommError if the rank is gone; UsageError in a child of fork().
  void send(int to, OutgoingMessage message, bool flush = true);
  /// Writes the messages to `to` that were sent with flush = false.
  void flush(int to);

  /// Waits for events, up to `timeout` (negative: for ever), and handles them. One thread at a time.
  void serve(std::chrono::milliseconds timeout);
  /// Lets serve() return.
  void wake();
  /// Reads messages of `rank` in this thread until `done()` or until the rank is gone. Returns false at once if another
  /// thread reads them already or there is no connection.
  bool read_from(int rank, const std::function<bool()>& done);
  /// Calls MessageSink::timer at `when`, unless it is due earlier. Only the earliest time is kept.
  void set_timer(std::chrono::steady_clock::time_point when);

  /// "stopped" or "ended" if the system reports it (a rank of this host), else "".
  std::string process_state(int rank) const;
  /// Returns true if messages have been exchanged with the rank.
  bool has_connection(int rank) const;
  /// "" while the rank can be reached, else why it is gone.
  std::string why_gone(int rank) const;

  /// Closes all connections; `say_goodbye`: the others learn that this rank has left by intention. No thread may be in
  /// another function of this object.
  void close(bool say_goodbye) noexcept;

  struct Impl;

 private:
  explicit Messages(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hasten::comm
