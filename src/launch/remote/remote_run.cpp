// See remote_run.h. Through ssh and pdsh each machine is to the supervisor as a worker is on one machine. Its "worker"
// is the command that reaches it, or holds the session (remote_session.h) to the launcher there.
#include "hasten/launch/remote/remote_run.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <iostream>

#include "hasten/core/error.h"
#include "hasten/launch/workers/program.h"
#include "hasten/launch/workers/supervisor.h"
#include "launch/base/endpoint.h"
#include "launch/base/print_notice.h"
#include "launch/remote/remote_session.h"
#include "launch/workers/local_processes.h"

namespace hasten::launcher {
namespace {

// Time of a machine's launcher beyond its own shutdown timeout, to report its end.
constexpr std::chrono::duration<double> kAnswerTime = std::chrono::seconds(5);
constexpr int kSshFailed = 255;

int become(const std::vector<std::string>& command, const Environment& environment) {
  return execute({command.front(), command}, environment);
}

class RemoteRun {
 public:
  RemoteRun(const RemotePlan& plan, const std::string& hasten, const Environment& environment)
      : plan_(plan), hasten_(hasten), environment_(environment), folder_(std::filesystem::current_path()) {}

  int run(std::chrono::duration<double> shutdown_timeout) {
    const SupervisorOptions options{
        .num_workers = num_machines(), .shutdown_timeout = shutdown_timeout + kAnswerTime, .notice = print_notice};
    LocalProcesses processes([this](int machine) { return start_on(machine); },
                             {.spill_folder = environment_.text("TMPDIR").value_or("/tmp")});
    const Outcome outcome = supervise(processes, options);
    processes.finish_output(options.shutdown_timeout);
    if (outcome.root_cause) report(*outcome.root_cause);
    return outcome.exit_code;
  }

 private:
  int num_machines() const { return static_cast<int>(plan_.hosts.size()); }
  const std::string& name(int machine) const { return plan_.hosts[static_cast<size_t>(machine)].name; }

  int start_on(int machine) const {
    const auto command = command_for_one(plan_, machine, hasten_, folder_);
    const bool here = is_this_machine(name(machine));
    if (plan_.launcher == RemoteLauncher::kPdsh && !here) return become(command, environment_);
    const std::vector<std::string> directly = {hasten_, "remote", "follow"};
    return hold_lifeline(here ? directly : command, to_text(task_for(plan_, machine, folder_)));
  }

  void report(const WorkerEnd& first) const {
    const bool lost = exit_code_of(first.status) == kSshFailed;
    print_notice(text("machine ", first.local_rank, " of ", plan_.hosts.size(), " (", name(first.local_rank),
                      ") ended first: ", describe_end(first.status),
                      lost ? "; ssh did not reach it, or lost it. Does 'ssh " + name(first.local_rank) +
                                 " true' work without a question?"
                           : ""));
  }

  const RemotePlan& plan_;
  const std::string& hasten_;
  const Environment& environment_;
  const std::string folder_;
};

int do_task(const RemoteTask& task, const std::function<int(const RemoteTask&)>& launch) {
  std::error_code error;
  std::filesystem::current_path(task.folder, error);
  if (error) {
    throw UsageError({"launch"}, "the folder '", task.folder, "' of this run is not on this machine: ", error.message(),
                     ". Start from one that all machines have.");
  }
  Environment::of(task.variables).apply();
  return launch(task);
}

// In a process without a handler for exceptions.
int do_task_and_report(const std::string& line, const std::function<int(const RemoteTask&)>& launch) {
  try {
    return do_task(task_in(line), launch);
  } catch (const UsageError& error) {
    std::cerr << std::string(error.what()) + "\n" << std::flush;
    return 2;
  } catch (const std::exception& error) {
    print_notice(error.what());
    return 1;
  }
}

}  // namespace

int run_remote(const RemotePlan& plan, const std::string& hasten, const Environment& environment,
               std::chrono::duration<double> shutdown_timeout) {
  if (plan.launcher == RemoteLauncher::kOpenMpi || plan.launcher == RemoteLauncher::kSlurm)
    return become(command_for_all(plan, hasten, std::filesystem::current_path()), environment);
  return RemoteRun(plan, hasten, environment).run(shutdown_timeout);
}

int serve_remote(const std::string& kind, const std::string& task,
                 const std::function<int(const RemoteTask&)>& launch) {
  const auto work = [&](const std::string& line) { return do_task_and_report(line, launch); };
  if (kind == "follow") return follow_session(RemoteSession::kFollowed, "", work);
  if (kind == "watch-stdin") return follow_session(RemoteSession::kWatched, task, work);
  if (kind != "watch-parent")
    throw UsageError({"remote"}, "'", kind, "' is none of follow, watch-stdin, watch-parent.");
  // mpirun's and Slurm's daemons end what they started, but not always when they are killed.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  return work(task);
}

}  // namespace hasten::launcher
