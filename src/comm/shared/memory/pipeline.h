// Pipeline: chunks that ranks hand to one another through slots, each rank at its own pace.
//
// A rank passes on one chunk after the other, and takes those of the others a number of chunks later, the lag. So the
// data is there by then, and ranks that share a core do much before a rank yields it to the next. There are twice as
// many slots, since only the next chunk announces which slots were taken.
//
// The ranks' counters (phase_protocol.h) show the progress of each. With step s0 the operation began. With s0 + i + 1 a
// rank has passed on chunk i and taken chunk i - lag - 1. With the last step it has taken everything.
#pragma once

#include "comm/shared/memory/phase_protocol.h"

namespace hasten::comm::shared {

class Pipeline {
 public:
  /// All ranks make it alike, with a lag of two or more, once all have posted the operation's first step.
  Pipeline(PhaseProtocol& steps, int64_t num_chunks, int64_t lag)
      : steps_(steps),
        num_chunks_(num_chunks),
        lag_(lag),
        start_(steps.step()),
        end_(start_ + static_cast<uint32_t>(num_chunks) + 1) {}

  /// Where chunk i lies.
  int64_t slot(int64_t i) const { return i % (2 * lag_); }

  /// Calls hand_over(i) and take(i) of each chunk.
  template <class HandOver, class Take>
  void run(const HandOver& hand_over, const Take& take) {
    for (int64_t i = 0; i < num_chunks_ + lag_; ++i) {
      if (i < num_chunks_) {
        hand_over(i);
        steps_.post_next();
      }
      if (i >= lag_) take(i - lag_);
    }
    steps_.post_next();
  }

  /// Waits until `peer` has passed on chunk i.
  void wait_for(int peer, int64_t i) const { steps_.wait_for(peer, handed_over(i), end_); }

  /// Waits until all ranks have taken what was in chunk i's slot before.
  void wait_for_slot(int64_t i) const {
    if (i < 2 * lag_) return;
    for (int peer = 0; peer < steps_.world_size(); ++peer) {
      if (peer != steps_.rank()) steps_.wait_for(peer, handed_over(i - lag_ + 1), end_);
    }
  }

 private:
  uint32_t handed_over(int64_t i) const { return start_ + static_cast<uint32_t>(i) + 1; }

  PhaseProtocol& steps_;
  const int64_t num_chunks_;
  const int64_t lag_;
  const uint32_t start_, end_;
};

}  // namespace hasten::comm::shared
