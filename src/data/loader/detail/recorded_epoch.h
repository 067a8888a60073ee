// The epoch and the batch of it that a loop is in, in the page of its rank (flight/recorder.h).
#pragma once

#include <cstdint>

#include "hasten/flight/recorder.h"

namespace hasten::data::detail {

/// A pass over a loader begins.
inline void record_epoch(uint64_t epoch) {
  const auto recorder = flight::process_recorder();
  if (!recorder) return;
  recorder->set_epoch(static_cast<int64_t>(epoch));
  recorder->set_batch(0);
}

/// The loop gets a further batch.
inline void record_batch() {
  const auto recorder = flight::process_recorder();
  if (recorder) recorder->set_batch(recorder->page().now.batch.load(flight::kRelaxed) + 1);
}

}  // namespace hasten::data::detail
