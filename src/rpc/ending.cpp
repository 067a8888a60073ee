// See ending.h.
#include "rpc/ending.h"

#include <utility>

namespace hasten::rpc {

void Ending::report(int rank, int round, EndingReport report) {
  if (round != round_ || rank < 0 || rank >= world_size_) return;
  report.sent.resize(static_cast<size_t>(world_size_));
  report.received.resize(static_cast<size_t>(world_size_));
  now_[rank] = std::move(report);
}

bool Ending::complete() const {
  for (int rank = 0; rank < world_size_; ++rank) {
    if (!lost_.contains(rank) && !now_.contains(rank)) return false;
  }
  return true;
}

// Messages from and to a lost worker do not count.
bool Ending::balanced() const {
  for (const auto& [from, report] : now_) {
    for (const auto& [to, other] : now_) {
      if (lost_.contains(from) || lost_.contains(to) || from == to) continue;
      if (report.sent[static_cast<size_t>(to)] == kLostCount || other.sent[static_cast<size_t>(from)] == kLostCount)
        continue;
      if (report.sent[static_cast<size_t>(to)] != other.received[static_cast<size_t>(from)]) return false;
    }
  }
  return true;
}

bool Ending::advance() {
  if (done_ || !complete()) return false;
  for (const int rank : lost_) {
    now_.erase(rank);
    before_.erase(rank);
  }
  done_ = balanced() && now_ == before_;
  before_ = std::exchange(now_, {});
  if (!done_) ++round_;
  return true;
}

}  // namespace hasten::rpc
