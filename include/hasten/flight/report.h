// The words of a standstill: a box, and the line that comes before it where the culprit may be at work.
#pragma once

#include <string>

#include "hasten/flight/diagnose.h"
#include "hasten/flight/snapshot.h"

namespace hasten::flight {

/// Returns the box, each line with its newline.
std::string hang_report(const Snapshot& snapshot, const Diagnosis& found);

/// "ranks 1-3 wait for rank 0 in barrier 12 of 'world' for 5 s; it computes in evaluate (eval.cpp:12)".
std::string hang_line(const Snapshot& snapshot, const Diagnosis& found);

/// The run in a word or two: "running", "rank 1 stopped", "rank 2 has failed", "ending; rank 0 has left".
std::string run_state(const Snapshot& snapshot);

/// The rank's place: "waits in all_reduce 1204", "backward; its last was all_reduce 1203".
std::string place_of(const RankState& rank);

/// "sleeping", "computing", "stopped": the process in a word or two.
std::string process_word(const RankState& rank);

}  // namespace hasten::flight
