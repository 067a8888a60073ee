// The copy of a rank's share of a save, during which training waits.
#pragma once

#include "checkpoint/save/capture.h"
#include "checkpoint/checkpoints_state.h"
#include "checkpoint/save/save_job.h"

namespace hasten::checkpoint {

/// Copies this rank's files, as they will lie on disk, into held memory. Here ends the pause.
/// Collective: with cut parameters, which their ranks gather for the writer. Blocks: then. Throws: std::bad_alloc,
/// after this rank has taken part; CommError.
void take_snapshot(Checkpoints::Impl& own, const Capture& capture, SaveJob& job, bool check_replicas);

}  // namespace hasten::checkpoint
