// See steps.h.
#include "comm/shared/steps.h"

#include "hasten/core/text.h"

namespace hasten::comm::shared {
void Watch::check(int peer, Clock::time_point deadline, const std::string& missing) const {
  if (closed()) throw std::runtime_error("this rank has closed the group");
  if (segment_->block(peer).presence.load() == Presence::kLeft) {
    throw std::runtime_error(text("rank ", peer, " has left the group"));
  }
  if (!segment_->lives(peer)) throw std::runtime_error(text("the process of rank ", peer, " has ended"));
  if (Clock::now() > deadline) {
    throw Backend::TimedOut(text("timed out: not there yet: rank ", missing));
  }
}

Steps::Steps(std::shared_ptr<Segment> segment, int rank, const Watch& watch)
    : segment_(std::move(segment)),
      rank_(rank),
      world_size_(segment_->layout().world_size),
      watch_(watch),
      patience_(Patience::of(world_size_)) {}

bool Steps::all_reached(uint32_t step) const {
  for (int peer = 0; peer < world_size_; ++peer) {
    if (!segment_->block(peer).posted.reached(step)) return false;
  }
  return true;
}

void Steps::wait_for_all(uint32_t step) {
  for (int peer = 0; peer < world_size_; ++peer) {
    shared::wait(segment_->block(peer).posted, step, patience_, [&] {
      std::vector<int> missing;
      for (int other = 0; other < world_size_; ++other) {
        if (!segment_->block(other).posted.reached(step)) missing.push_back(other);
      }
      if (!missing.empty()) watch_.check(missing.front(), deadline_, join(missing));
    });
  }
}

bool Steps::can_begin() const {
  return all_reached(step_);
}

void Steps::begin() {
  wait_for_all(step_);
  ++step_;
}

void Steps::check_headers() const {
  for (int peer = 1; peer < world_size_; ++peer) {
    if (!same_call(header(0), header(peer))) {
      throw Backend::Mismatch(difference(0, header(0), peer, header(peer)));
    }
  }
}

}  // namespace hasten::comm::shared
