// A process's place in a run, read from the environment by a pure function.
//
// torchrun's names come first (hasten launch and accelerate launch set them too); a step of Slurm's srun with
// more than one task and OpenMPI's mpirun are understood when those are absent. A batch or interactive Slurm
// shell, and a program started by hand, is a world of one. A half-set environment is an error, never a guess:
// N separate trainings that were meant to be one are the worst outcome.
#pragma once

#include <string>

#include "hasten/core/env.h"

namespace hasten::state {

struct Identity {
  int rank = 0;
  int local_rank = 0;
  /// Number of the machine, 0…
  int node_rank = 0;
  int world_size = 1;
  /// Ranks on this machine.
  int local_world_size = 1;
  /// Where the ranks meet: the store's host and port. Unused in a world of one.
  std::string master_addr = "127.0.0.1";
  int master_port = 29500;
  /// A launcher already serves the store at that address (TORCHELASTIC_USE_AGENT_STORE); otherwise rank 0
  /// does.
  bool agent_store = false;
  /// Who told: "none" (started by hand), "torchrun" (its variables), "slurm", "openmpi".
  std::string source = "none";
};

/// Collective: no. Blocks: no. Throws: UsageError that lists the missing variables of a half-set environment,
/// or names the contradiction with its numbers (RANK 4 in a world of 2).
Identity identify(const Environment& environment);

}  // namespace hasten::state
