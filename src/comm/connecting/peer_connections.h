// PeerConnections: a TCP connection between every two ranks of a group, for messages so short that latency is all there
// is.
//
// The sending thread writes a message. The remainder that the connection does not take at once is copied, and a thread
// of the mesh writes it. Waiting threads read messages, and poll for a short while before they sleep. So no thread has
// to wake for a message but one that sleeps for it. A rank's messages arrive in order. The n-th message from a rank
// belongs to the n-th round, and a header names its operation.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/backend/backend.h"
#include "comm/connecting/counter.h"
#include "comm/types/header.h"
#include "hasten/core/socket.h"

namespace hasten::comm {

class PeerConnections {
 public:
  /// A message from every rank to every other. All messages of a rank have one size.
  class Round {
   public:
    /// `parts`, by rank: this rank's data, in its own place, and the destinations of the others' messages; contiguous.
    /// `finish` is called once all are there, in the thread that has read the last.
    Round(const Header& call, std::vector<at::Tensor> parts, std::function<void()> finish = nullptr);

   private:
    friend class PeerConnections;
    /// Once all messages are there.
    void complete(const RankNames& names);

    Header call_;
    std::vector<at::Tensor> parts_;
    std::function<void()> finish_;
    /// Each rank's header; nothing if its message has not been read to its end.
    std::vector<std::optional<Header>> headers_;
    size_t num_missing_;
    std::exception_ptr error_ = {};
  };

  /// Collective: yes. Blocks: until the ranks are connected. Throws: CommError; std::exception.
  explicit PeerConnections(const BackendSetup& setup);
  /// Waits for all rounds first, unless the mesh was closed.
  ~PeerConnections();
  PeerConnections(const PeerConnections&) = delete;
  PeerConnections& operator=(const PeerConnections&) = delete;

  int rank() const noexcept { return rank_; }
  int world_size() const noexcept { return static_cast<int>(peers_.size()); }

  /// All ranks start the same rounds in the same order. This rank's part has been sent or copied when it returns. Does
  /// not wait. The round goes on with or without a waiter, as far as other waiting reads its messages.
  void start(const std::shared_ptr<Round>& round);
  /// Returns true if wait() would not wait.
  bool done(const Round& round);
  /// Throws: Backend::Mismatch on every rank where ranks started different rounds, Backend::TimedOut,
  /// std::runtime_error where a rank has gone; what `finish` threw.
  void wait(const Round& round);

  /// Waits that begin later may take this long.
  void set_timeout(std::chrono::milliseconds timeout) noexcept { timeout_ = timeout; }

  /// Ends all rounds, here and at the peers, with an error.
  void close() noexcept;

 private:
  using Clock = std::chrono::steady_clock;

  /// Makes a sleeper in poll() poll again.
  class Bell {
   public:
    Bell();
    void ring() const noexcept;
    void silence() const noexcept;
    int handle() const noexcept { return socket_.handle(); }

   private:
    net::Socket socket_;
  };

  struct Peer {
    net::Socket socket = net::Socket();
    /// Bytes that the connection did not take yet.
    std::string unsent = {};
    /// Rounds whose message has not been read to its end; of the first, `num_read` bytes have.
    std::deque<std::shared_ptr<Round>> expected = {};
    Header header = {};
    size_t num_read = 0;
    /// Why nothing more will come.
    std::string lost = {};
  };

  void connect(const BackendSetup& setup);
  void write(Peer& peer, const Header& header, const at::Tensor& bytes);
  void write_unsent();

  bool is_over(const Round& round) const;
  void read_all();
  bool read_message(int from);
  void sleep(std::unique_lock<std::mutex>& lock);

  const int rank_;
  std::atomic<std::chrono::milliseconds> timeout_;
  const RankNames names_;
  const shared::SpinPolicy spin_;
  std::vector<Peer> peers_;
  std::atomic<bool> closed_ = false;

  /// Guards what is written: sockets' sending side, `unsent`, and the order of rounds.
  std::mutex writing_;
  std::condition_variable left_over_;
  std::thread writer_;
  Bell writers_bell_;
  bool stopping_ = false;

  /// Guards what is read. A single waiter polls, and the others wait for the messages that it reads.
  std::mutex reading_;
  std::condition_variable has_read_;
  Bell readers_bell_;
  bool somebody_polls_ = false;
};

}  // namespace hasten::comm
