// What hasten verify needs of an Accelerator: its recorder, and the process that loaders see where one process computes
// the shares of several ranks.
#pragma once

#include <memory>

#include "hasten/core/env.h"
#include "hasten/parallel/ddp/distributed_models.h"
#include "hasten/parallel/join/join.h"
#include "hasten/parallel/layout/layout.h"
#include "hasten/parallel/shard/sharding.h"
#include "hasten/process/process.h"
#include "hasten/training/verify_recorder.h"

namespace hasten {

class MixedPrecision;

/// The components of an Accelerator that its recorder looks at. They outlive the recorder's part in them.
struct VerifiedLoop {
  process::Process process;
  const parallel::Layout* layout = nullptr;
  const parallel::DdpOptions* ddp = nullptr;
  const parallel::DistributedModels* models = nullptr;
  const parallel::OptimizerRegistry* registry = nullptr;
  std::shared_ptr<parallel::Sharding> sharding = {};
  std::shared_ptr<MixedPrecision> precision = {};
  std::shared_ptr<training::GradientState> gradients = {};
  training::BackwardObservers* observers = nullptr;
};

/// Returns the options. Called before a layout is made of them, which would have to fit the one process of the first
/// run. Throws: UsageError in a run of hasten verify whose ranks would hold parts of a model.
const ParallelOptions& comparable_layout(const Environment& environment, const process::Process& process,
                                         const ParallelOptions& options);

/// Returns the recorder that HASTEN_VERIFY describes, null without it.
/// Throws: UsageError for shares of several ranks in a world of several.
std::shared_ptr<training::VerifyRecorder> open_verify(const Environment& environment, const process::Process& process);

/// Returns the process that loaders see: rank 0 of as many ranks as the recorder has shares, `process` without any.
process::Process share_process(const training::VerifyRecorder* recorder, const process::Process& process);

/// Attaches the recorder to an Accelerator's loop, until the result ends. Null without a recorder.
/// Throws: UsageError for options that make N processes differ from one by design.
std::shared_ptr<void> attach_verify(const std::shared_ptr<training::VerifyRecorder>& recorder,
                                    const VerifiedLoop& loop);

}  // namespace hasten
