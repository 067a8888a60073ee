// See steps.h.
#include "comm/shared/steps.h"

#include <c10/core/ScalarType.h>

#include "comm/agreement.h"
#include "hasten/core/text.h"

namespace hasten::comm::shared {
namespace {

std::string describe(const Header& header) {
  std::string call = name_of(static_cast<Kind>(header.kind));
  if (header.reduce_op >= 0) call += text('(', name_of(static_cast<ReduceOp>(header.reduce_op)), ')');
  if (header.dtype >= 0) call += text(" of ", header.count, ' ', static_cast<c10::ScalarType>(header.dtype));
  if (header.dtype < 0 && header.count > 0) call += text(" of ", header.count, " bytes");
  if (header.root >= 0) call += text(", root ", header.root);
  return call;
}

bool same(const Header& a, const Header& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.reduce_op == b.reduce_op && a.root == b.root &&
         a.count == b.count;
}

}  // namespace

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
  const Header& first = header(0);
  for (int peer = 1; peer < world_size_; ++peer) {
    if (same(first, header(peer))) continue;
    throw Backend::Mismatch(text("rank 0 calls ", describe(first), ", rank ", peer, " calls ",
                                 describe(header(peer)),
                                 ". Every rank of a group must make the same calls in the same order"));
  }
}

}  // namespace hasten::comm::shared
