// A process's place in a run, read from the environment by a pure function.
//
// torchrun's names come first (hasten launch and accelerate launch set them too). If those are absent, OpenMPI's mpirun
// and a step of Slurm's srun with more than one task are understood. A batch or interactive Slurm shell, and a program
// started by hand, is a world of one. A half-set environment is an error, never a guess: N separate trainings that were
// meant to be one are the worst outcome.
#pragma once

#include <string>

#include "hasten/core/env.h"

namespace hasten::process {

struct RankInfo {
  int rank = 0;
  int local_rank = 0;
  /// Number of the machine, 0…
  int node_rank = 0;
  int world_size = 1;
  /// Ranks on this machine.
  int local_world_size = 1;
  /// The rendezvous of the ranks: the store's host and port. Unused in a world of one.
  std::string master_addr = "127.0.0.1";
  int master_port = 29500;
  /// A launcher already serves the store at that address (TORCHELASTIC_USE_AGENT_STORE); otherwise rank 0
  /// does.
  bool agent_store = false;
  /// How often the launcher has restarted the run (TORCHELASTIC_RESTART_COUNT); the keys of each attempt
  /// are apart.
  int restart_count = 0;
  /// The worker's role and its place among the workers of that role: ROLE_NAME, ROLE_RANK, ROLE_WORLD_SIZE of torchrun
  /// and `hasten launch --roles`.
  std::string role = "default";
  int role_rank = 0;
  int role_world_size = 1;
  /// The source of the ranks: "none" (started by hand), "torchrun" (its variables), "openmpi", "slurm".
  std::string source = "none";
};

/// Reads, in this order, the first that is there:
/// - RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT (GROUP_RANK if there). With a loopback
///   address neither of the LOCAL_ two is needed. A world of one needs no MASTER_ either.
/// - OMPI_COMM_WORLD_RANK, …_SIZE, …_LOCAL_RANK, …_LOCAL_SIZE: meets at MASTER_ADDR, or 127.0.0.1 if all
///   ranks are on one machine.
/// - SLURM_STEP_ID of a step with SLURM_STEP_NUM_TASKS > 1, with SLURM_PROCID, SLURM_LOCALID, SLURM_NODEID,
///   SLURM_STEP_TASKS_PER_NODE: meets at MASTER_ADDR, or the first host of SLURM_STEP_NODELIST. If MASTER_PORT is not
///   set, Slurm's is 15000 + (31 * SLURM_JOB_ID + SLURM_STEP_ID) % 15000. OpenMPI's is 15000 + h % 15000. h is the
///   64-bit FNV-1a hash of the job's name (PMIX_NAMESPACE, else OMPI_MCA_ess_base_jobid).
/// Throws: UsageError that lists the missing variables of a half-set environment, or
///   names the contradiction with its numbers (RANK=4 in a world of 2).
RankInfo read_rank_info(const Environment& environment);

/// Returns true if an address reaches this machine only: localhost, 127.…, ::1.
bool is_loopback(const std::string& address);

}  // namespace hasten::process
