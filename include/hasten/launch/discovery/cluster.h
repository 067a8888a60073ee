// Facts about the run's machines from the scheduler or the MPI that started this launcher.
//
// A pure function of environment variables and of the files that they name. There are two cases. In the first, each of
// several machines starts the launcher (srun, mpirun). Number, place and meeting point are then settings, weaker than
// all of the user's settings. In the second, the launcher runs once in a job that has several machines (a batch
// script). That is a run on one machine unless the user asks for more (hostfile.h, remote_run.h).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hasten/core/env.h"
#include "hasten/launch/discovery/node_list.h"

namespace hasten::launcher {

/// A value for an option, and where it was found ("SLURM_NODEID").
struct FoundValue {
  std::string option = {};
  std::string value = {};
  std::string origin = {};
};

struct Cluster {
  /// "Slurm", "OpenMPI", "PMI", "MVAPICH", "PBS", "LSF"; "" without any.
  std::string name = {};
  /// A launcher runs on each of several machines.
  bool started_on_each = false;
  /// Then: nnodes, node_rank, and master_addr and master_port as far as they are known.
  std::vector<FoundValue> values = {};
  /// The machines of the job, if the scheduler lists them; the first is machine 0.
  std::vector<Host> hosts = {};
  /// Where they were found: "SLURM_JOB_NODELIST".
  std::string hosts_origin = {};
  /// A port derived from the job's number, so that two jobs on a machine have different ones; 0 without a job.
  int port = 0;
  /// The problem of several launchers on one machine, as a sentence without its full stop.
  std::string problem = {};
};

/// The whole file, nothing if it cannot be read; core::read_file reads real ones.
using FileReader = std::function<std::optional<std::string>(const std::string& path)>;

/// Throws: UsageError if a variable or file is there and cannot be understood.
Cluster find_cluster(const Environment& environment, const FileReader& read_file);

/// As above, with the real files.
Cluster find_cluster(const Environment& environment);

}  // namespace hasten::launcher
