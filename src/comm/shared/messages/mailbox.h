// Mailbox: messages between two ranks, over one ring of bytes for each direction of each pair.
//
// A message is a frame (tag, size) and its bytes, cut if the ring is full. The receiver takes frames in the order in
// which they come and stores those that were not requested yet. A waiter moves bytes for all its messages. If messages
// do not fit the ring, a thread does so while there is no waiter.
#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/shared/memory/phase_protocol.h"
#include "comm/shared/memory/slot_writer.h"

namespace hasten::comm::shared {

class Mailbox {
 public:
  static constexpr int kAnyPeer = -1;

  struct Message {
    Message(at::Tensor bytes_, int peer_, int tag_, PeerMonitor::Clock::time_point deadline_)
        : bytes(std::move(bytes_)), peer(peer_), tag(tag_), deadline(deadline_), writer(bytes.numel()) {}
    at::Tensor bytes;
    /// kAnyPeer for a receive from any rank that has no message yet.
    int peer;
    int tag;
    PeerMonitor::Clock::time_point deadline;
    SlotWriter<> writer;
    /// The place of a receive in the order of their starts.
    uint64_t number = 0;
    /// Gets the sender of a receive from any rank.
    std::shared_ptr<int> from = {};
    /// With the frame and the padding.
    uint64_t moved = 0;
    bool done = false;
    std::exception_ptr error;
  };

  Mailbox(std::shared_ptr<Segment> segment, int rank, const PeerMonitor& watch);
  /// Ends the sends that have been started.
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  std::shared_ptr<Message> send(at::Tensor bytes, int to, int tag);
  std::shared_ptr<Message> receive(at::Tensor bytes, int from, int tag);
  /// Takes the message with this tag that came first, of any rank; `*from` is that rank then.
  std::shared_ptr<Message> receive_any(at::Tensor bytes, int tag, std::shared_ptr<int> from);
  /// Returns true if wait() would return or throw at once. Detects within a tenth of a second that it never can.
  bool done(const std::shared_ptr<Message>& message);
  /// Throws: what ended the message; Backend::Mismatch where the two sides name different sizes.
  void wait(const std::shared_ptr<Message>& message);

 private:
  struct Frame {
    uint64_t size;
    int64_t tag;
  };

  /// A message that came, or is coming, without a request.
  struct Arrival {
    Arrival(const Frame& frame, bool is_wanted_, uint64_t number_)
        : tag(frame.tag),
          size(frame.size),
          bytes(std::make_unique_for_overwrite<std::byte[]>(frame.size)),
          is_wanted(is_wanted_),
          number(number_) {}
    int64_t tag;
    uint64_t size;
    std::unique_ptr<std::byte[]> bytes;
    /// Not if it was requested in another size: it only has to be taken out of the ring.
    bool is_wanted;
    /// Its place in the order in which messages of all ranks came.
    uint64_t number;
  };

  struct Channel {
    std::deque<std::shared_ptr<Message>> sends;
    std::list<std::shared_ptr<Message>> receives;
    std::list<Arrival> arrivals;
    /// The frame whose bytes are coming; `target` or else the last arrival takes them.
    bool incoming = false;
    Frame frame{};
    uint64_t moved = 0;
    std::shared_ptr<Message> target;
    std::exception_ptr broken;
  };

  using Lock = std::unique_lock<std::mutex>;
  std::shared_ptr<Message> started(Lock& lock, std::shared_ptr<Message> message);
  std::list<Arrival>::iterator find_arrival(Channel& channel, int64_t tag);
  /// Takes the receive for a message of `peer` with this tag out of its list; null if there is none.
  std::shared_ptr<Message> take_receive(int peer, int64_t tag);
  void move_all();
  void push(int peer);
  void pull(int peer);
  void take_frame(int peer);
  void finish_frame(int peer);
  void hand_over(const std::shared_ptr<Message>& message, std::list<Arrival>::iterator arrival);
  bool fits(Message& message, uint64_t size, int peer);
  void move_until(Lock& lock, const std::shared_ptr<Message>& message);
  /// Ends the message, and all with its peer, if it cannot end well any more.
  void look_after(const std::shared_ptr<Message>& message);
  /// Throws where no message from any rank can come any more.
  void check_all_peers(const Message& message) const;
  /// Returns true if more bytes are to be received than a ring should hold until there is a waiter.
  bool expects_much(const Channel& channel) const;
  bool expects_much_of_any() const;
  void ask_thread();
  /// Everything under way with this peer ends with the current exception.
  void break_channel(int peer);
  void serve();
  bool pending() const;

  std::shared_ptr<Segment> segment_;
  const int rank_;
  const PeerMonitor& watch_;
  const SpinPolicy spin_;
  const std::chrono::milliseconds linger_;
  std::mutex mutex_;
  std::condition_variable work_arrived_;
  std::vector<Channel> channels_;
  /// Receives from any rank without a message, in the order of their starts.
  std::list<std::shared_ptr<Message>> receives_from_any_;
  uint64_t num_receives_ = 0, num_arrivals_ = 0;
  Throttle looks_at_peers_;
  /// Threads that move bytes until their message is done.
  int num_waiting_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace hasten::comm::shared
