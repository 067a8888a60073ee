// Accelerate's state folder, as save_state writes it with Layout::kAccelerate.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoints_state.h"
#include "checkpoint/save/save_job.h"

namespace hasten::checkpoint {

/// Fills the job with Accelerate's files: rank 0's models, optimizers, schedulers, scaler and objects, each rank's
/// random states, and hasten.json. Collective: where optimizer state is split. Blocks: then. Throws: UsageError,
/// CommError.
void fill_accelerate_job(Checkpoints::Impl& own, const std::vector<ModelEntry>& models, const SaveOptions& options,
                         SaveJob& job);

/// "optimizer.bin", "optimizer_1.bin" …
std::string numbered(const std::string& stem, size_t index, const std::string& suffix);

/// Returns the whole state of an optimizer, split or not. Collective: where it is split. Throws: UsageError, CommError.
OptimizerState whole_optimizer_state(const RunParts& run, const torch::optim::Optimizer& optimizer,
                                     const ParameterNames& name_of);

}  // namespace hasten::checkpoint
