// Queue: the operations of one rank, one after the other in the order in which they were started.
//
// A waiter carries its operation out itself, so that a blocking call costs no switch of threads. A thread of the queue
// carries out operations that others may need while this rank computes. It is started when the first of them comes and
// sleeps otherwise. If it would have no core for itself, it lingers first. As a rule the caller comes to wait within a
// few milliseconds and needs no thread. An operation of a single step is contributed to at its start and needs neither.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/shared/algorithms/operation.h"

namespace hasten::comm::shared {

class Queue {
 public:
  struct Entry {
    std::unique_ptr<Operation> operation;
    PeerMonitor::Clock::time_point deadline;
    bool contributed = false;
    bool done = false;
    std::exception_ptr error;
  };

  Queue(const std::shared_ptr<Segment>& segment, int rank, const PeerMonitor& watch)
      : watch_(watch), linger_(linger_of(segment->layout().world_size)), steps_(segment, rank, watch) {}
  /// Ends what has been started.
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  std::shared_ptr<Entry> start(std::unique_ptr<Operation> operation);
  /// Returns true if wait() would return or throw at once. Detects within a tenth of a second that it never can.
  bool done(const std::shared_ptr<Entry>& entry);
  /// Throws: what ended the operation.
  void wait(const std::shared_ptr<Entry>& entry);

 private:
  using Lock = std::unique_lock<std::mutex>;
  /// Carries operations out until `last` is done (nothing: all).
  void drive(Lock& lock, const Entry* last);
  /// Carries it out, unless all is `broken` already. Returns the reason why nothing can be carried out any more.
  std::exception_ptr run(Entry& entry, std::exception_ptr broken);
  void ask_thread();
  void serve();

  const PeerMonitor& watch_;
  std::mutex mutex_;
  std::condition_variable finished_;
  std::condition_variable work_arrived_;
  std::deque<std::shared_ptr<Entry>> entries_;
  /// A thread carries operations out; the steps are its own.
  bool driving_ = false;
  bool thread_wanted_ = false;
  /// The thread lingers and need not be woken.
  bool lingers_ = false;
  bool stopping_ = false;
  /// Why nothing can be carried out any more.
  std::exception_ptr broken_;
  const std::chrono::milliseconds linger_;
  Throttle looks_at_peers_;
  PhaseProtocol steps_;
  std::thread thread_;
};

}  // namespace hasten::comm::shared
