// How a run starts itself on several machines: on which, through what, and with which task for each.
//
// Pure; carrying it out is remote_run.h's. Each machine gets a command line of `hasten launch` with its number, as a
// user would type it there. Everything else is a static run (docs/clusters/static.md).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hasten/core/env.h"
#include "hasten/launch/discovery/cluster.h"
#include "hasten/launch/discovery/hostfile.h"
#include "hasten/launch/plan/settings.h"

namespace hasten::launcher {

/// The program that starts a launcher on each machine.
enum class RemoteLauncher { kSsh, kPdsh, kOpenMpi, kSlurm };

struct RemotePlan {
  RemoteLauncher launcher = RemoteLauncher::kSsh;
  /// Words for it, before all others of its own.
  std::vector<std::string> launcher_arguments = {};
  std::vector<ChosenHost> hosts = {};
  /// Words after `hasten launch` on every machine; the number of the machine comes in front.
  std::vector<std::string> words = {};
  /// Those of the words' options that a configuration file set. They are dropped where an option would contradict them.
  std::vector<std::string> from_file = {};
  /// Variables of this machine that are set on all.
  std::map<std::string, std::string> variables = {};
};

/// Returns the plan, if the settings ask for one. They do with a hostfile. They also do in a job of several machines,
/// if more than one or a launcher is requested and this machine has no number. `program` is the program and its
/// arguments. Throws: UsageError if the hostfile or a filter is wrong, if its launcher is unknown, or if a machine's
/// number of processes is not given.
std::optional<RemotePlan> plan_remote(const LaunchSettings& settings, const Cluster& cluster,
                                      const std::vector<std::string>& program, const Environment& environment,
                                      const FileReader& read_file);

/// Returns the variables of `environment` that matter to a run elsewhere. These are the variables of the libraries and
/// of Python, and the search paths of programs and libraries. Variables of a session or a job, and of visible GPUs, are
/// left out.
std::map<std::string, std::string> forwarded(const Environment& environment);

/// The task of a machine: its folder, variables and words for `hasten launch`, and which of its options come
/// from a configuration file. None of it need be UTF-8.
struct RemoteTask {
  std::string folder = {};
  std::map<std::string, std::string> variables = {};
  std::vector<std::string> words = {};
  std::vector<std::string> from_file = {};
};

/// Returns the task of machine `rank`; without one, that of any machine that gets its number otherwise.
RemoteTask task_for(const RemotePlan& plan, std::optional<int> rank, const std::string& folder);

/// Converts a task to one line of text without blanks or quotes, and back. Throws: UsageError if it is none.
std::string to_text(const RemoteTask& task);
RemoteTask task_in(const std::string& line);

/// Returns the words that start it on all machines at once, through OpenMPI or Slurm. `hasten` is this command's path.
std::vector<std::string> command_for_all(const RemotePlan& plan, const std::string& hasten, const std::string& folder);

/// Returns the words that start it on machine `rank`, through ssh (which needs a lifeline that carries the task) or
/// pdsh.
std::vector<std::string> command_for_one(const RemotePlan& plan, int rank, const std::string& hasten,
                                         const std::string& folder);

}  // namespace hasten::launcher
