// Steps: how the ranks of a segment move data past each other without locks.
//
// Each rank's contributions are numbered, alike on all ranks. In step t a rank writes into half t % 2 of its own area
// and posts t. When all ranks have posted t, it may read the others' data. Posting t + 1 means that the rank has read
// step t. So a half is written again only when no rank reads it any more. begin() waits for that: for step t - 1 of all
// ranks, and for nothing if steps follow each other. Each step has one wait. A pipeline (pipeline.h) uses the numbers
// in its own way.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/backend/backend.h"
#include "comm/shared/memory/segment.h"

namespace hasten::comm::shared {

/// Gives up waiting for peers that have left or ended, when this rank closes, or when the time is over.
class PeerMonitor {
 public:
  PeerMonitor(std::shared_ptr<Segment> segment, std::chrono::milliseconds timeout, RankNames names)
      : segment_(std::move(segment)), timeout_(timeout), names_(std::move(names)) {}

  using Clock = std::chrono::steady_clock;
  Clock::time_point deadline() const { return Clock::now() + timeout_.load(); }
  /// Deadlines that are asked for later lie this far ahead.
  void set_timeout(std::chrono::milliseconds timeout) noexcept { timeout_ = timeout; }

  /// Throws: std::runtime_error if the peer has left or its process ended, or this rank has closed the group. The words
  /// name other ranks, too, whose processes ended in the group: a peer may have left because of them.
  void check_presence(int peer) const;
  /// Throws: Backend::TimedOut after the deadline. `missing` names the ranks that are waited for.
  void check_time(Clock::time_point deadline, const std::vector<int>& missing) const;
  const RankNames& names() const noexcept { return names_; }
  void close() noexcept { closed_.store(true); }
  bool closed() const noexcept { return closed_.load(); }

 private:
  std::string words_of_others(int peer) const;

  std::shared_ptr<Segment> segment_;
  std::atomic<std::chrono::milliseconds> timeout_;
  RankNames names_;
  std::atomic<bool> closed_ = false;
};

/// For a check of the peers, which takes system calls, in a function that is called again and again.
class Throttle {
 public:
  /// Returns true if a tenth of a second has passed since it last returned true.
  bool is_time() {
    const auto now = PeerMonitor::Clock::now();
    if (now < next_) return false;
    next_ = now + std::chrono::milliseconds(100);
    return true;
  }

 private:
  PeerMonitor::Clock::time_point next_{};
};

class PhaseProtocol {
 public:
  PhaseProtocol(std::shared_ptr<Segment> segment, int rank, const PeerMonitor& watch);

  int rank() const noexcept { return rank_; }
  int world_size() const noexcept { return world_size_; }
  const Layout& layout() const noexcept { return segment_->layout(); }

  /// From now on waiting ends at `deadline`.
  void set_deadline(PeerMonitor::Clock::time_point deadline) { deadline_ = deadline; }

  /// Returns true if begin() would not wait.
  bool can_begin() const;
  /// Goes on to the next step: its half of this rank's area is free to be written.
  void begin();
  std::byte* mine() const { return segment_->area(rank_, step_ % 2); }
  /// The header that goes out with this step.
  void set_header(const Header& header) { segment_->block(rank_).headers[step_ % 2] = header; }
  /// Hands the step to the others.
  void post() { segment_->block(rank_).posted.raise(step_); }
  /// Returns true if wait() would not wait.
  bool all_posted() const { return all_reached(step_); }
  /// Waits until all ranks have posted this step.
  void wait() { wait_for_all(step_); }
  /// Returns true if wait() may still end well: the peers it waits for are there, and it is not `deadline` yet.
  bool may_end_by(PeerMonitor::Clock::time_point deadline) const;

  // For operations with an order of waiting of their own, once all have posted their first step. In the end all must
  // have posted one and the same step.
  uint32_t step() const noexcept { return step_; }
  /// Goes on to the next step and hands it over.
  void post_next() {
    ++step_;
    post();
  }
  /// Waits until `peer` has posted `step`, of an operation whose last step is `last`.
  void wait_for(int peer, uint32_t step, uint32_t last) const;
  /// If ranks outnumber the cores, yields this core to another rank, if any waits for one.
  void yield() const {
    if (spin_.yields) pause_or_yield(true);
  }
  /// Returns the whole area of a rank; those of all ranks lie one behind the other.
  std::byte* whole_area(int rank) const { return segment_->area(rank, 0); }

  /// Data of a rank in a step of this parity that all have posted.
  const std::byte* area(int rank, uint32_t half) const { return segment_->area(rank, half); }
  uint32_t half() const noexcept { return step_ % 2; }
  /// Header of the current step, once all ranks have posted it.
  const Header& header(int rank) const { return segment_->block(rank).headers[step_ % 2]; }
  /// Throws: Backend::Mismatch on every rank where the ranks' headers differ.
  void check_headers() const;

  std::byte* heap(int rank) const { return segment_->heap(rank); }
  /// Returns the next part of `rank`'s share in the current operation that no rank has taken yet.
  int64_t claim(int rank) const { return segment_->block(rank).claims.next(step_); }

 private:
  bool reached(int rank, uint32_t step) const { return segment_->block(rank).posted.reached(step); }
  bool all_reached(uint32_t step) const;
  void wait_for_all(uint32_t step) const;
  /// Throws where a rank can never come to `step`.
  void check_presence(uint32_t step) const;
  /// Returns the first of those that are behind all others.
  int last_of_all() const;

  std::shared_ptr<Segment> segment_;
  const int rank_;
  const int world_size_;
  const PeerMonitor& watch_;
  const SpinPolicy spin_;
  PeerMonitor::Clock::time_point deadline_ = PeerMonitor::Clock::time_point::max();
  uint32_t step_ = 0;
};

}  // namespace hasten::comm::shared
