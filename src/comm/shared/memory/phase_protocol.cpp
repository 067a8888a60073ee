// See phase_protocol.h.
#include "comm/shared/memory/phase_protocol.h"

#include <string>

#include "hasten/core/text.h"

namespace hasten::comm::shared {

void PeerMonitor::check_presence(int peer) const {
  if (closed()) throw std::runtime_error("this rank has closed the group");
  if (segment_->block(peer).presence.load() == Presence::kLeft) {
    throw std::runtime_error(text("rank ", names_.of(peer), " has left the group", words_of_others(peer)));
  }
  if (!segment_->lives(peer)) {
    throw std::runtime_error(text("the process of rank ", names_.of(peer), " has ended", words_of_others(peer)));
  }
}

std::string PeerMonitor::words_of_others(int peer) const {
  std::vector<int> ended;
  for (int other = 0; other < segment_->layout().world_size; ++other) {
    const bool is_here = other != peer && segment_->block(other).presence.load() == Presence::kHere;
    if (is_here && !segment_->lives(other)) ended.push_back(other);
  }
  return ended.empty() ? "" : text("; ended without leaving it: rank ", names_.of(ended));
}

void PeerMonitor::check_time(Clock::time_point deadline, const std::vector<int>& missing) const {
  if (Clock::now() > deadline) {
    throw Backend::TimedOut(text("timed out: not there yet: rank ", names_.of(missing)));
  }
}

PhaseProtocol::PhaseProtocol(std::shared_ptr<Segment> segment, int rank, const PeerMonitor& watch)
    : segment_(std::move(segment)),
      rank_(rank),
      world_size_(segment_->layout().world_size),
      watch_(watch),
      spin_(SpinPolicy::of(world_size_)) {}

bool PhaseProtocol::all_reached(uint32_t step) const {
  for (int peer = 0; peer < world_size_; ++peer) {
    if (!reached(peer, step)) return false;
  }
  return true;
}

void PhaseProtocol::wait_for_all(uint32_t step) const {
  for (int peer = 0; peer < world_size_; ++peer) {
    shared::wait(segment_->block(peer).posted, step, spin_, [&] {
      check_presence(step);
      std::vector<int> missing;
      for (int other = 0; other < world_size_; ++other) {
        if (!reached(other, step)) missing.push_back(other);
      }
      watch_.check_time(deadline_, missing);
    });
  }
}

void PhaseProtocol::wait_for(int peer, uint32_t step, uint32_t last) const {
  shared::wait(segment_->block(peer).posted, step, spin_, [&] {
    check_presence(last);
    watch_.check_time(deadline_, {last_of_all()});
  });
}

void PhaseProtocol::check_presence(uint32_t step) const {
  // From the one that the others wait for: those may have given up and left by now.
  const int first = last_of_all();
  for (int i = 0; i < world_size_; ++i) {
    const int peer = (first + i) % world_size_;
    if (peer == rank_ || reached(peer, step)) continue;
    try {
      watch_.check_presence(peer);
    } catch (...) {
      if (!reached(peer, step)) throw;
    }
  }
}

bool PhaseProtocol::may_end_by(PeerMonitor::Clock::time_point deadline) const {
  try {
    check_presence(step_);
  } catch (const std::exception&) {
    return false;
  }
  return PeerMonitor::Clock::now() <= deadline;
}

int PhaseProtocol::last_of_all() const {
  const auto posted = [this](int rank) { return segment_->block(rank).posted.value.load(); };
  int found = 0;
  for (int rank = 1; rank < world_size_; ++rank) {
    if (!Counter::reached(posted(rank), posted(found))) found = rank;
  }
  return found;
}

bool PhaseProtocol::can_begin() const {
  return all_reached(step_);
}

void PhaseProtocol::begin() {
  wait_for_all(step_);
  ++step_;
}

void PhaseProtocol::check_headers() const {
  for (int peer = 1; peer < world_size_; ++peer) {
    if (!same_call(header(0), header(peer))) {
      throw Backend::Mismatch(difference(watch_.names().of(0), header(0), watch_.names().of(peer), header(peer)));
    }
  }
}

}  // namespace hasten::comm::shared
