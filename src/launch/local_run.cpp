// One run on one machine; see local_run.h.
#include "hasten/launch/local_run.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "hasten/core/error.h"
#include "hasten/launch/error_file.h"
#include "hasten/launch/failure_report.h"
#include "hasten/launch/local_processes.h"
#include "hasten/launch/port.h"
#include "hasten/launch/supervisor.h"
#include "hasten/launch/worker_environment.h"

namespace hasten::launcher {
namespace {

constexpr double kDefaultShutdownTimeoutS = 30;  // torchrun's

// A folder that only this user can look into, removed with all it holds.
class RunDirectory {
 public:
  explicit RunDirectory(const Environment& environment)
      : path_(environment.text("TMPDIR").value_or("/tmp") + "/hasten_XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) {
      throw UsageError({"launch"}, "cannot make a folder like '", path_, "': ", std::strerror(errno),
                       ". Set TMPDIR to a folder that can be written to.");
    }
  }
  ~RunDirectory() { remove(); }
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  void remove() const {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  std::string error_file(int rank) const { return text(path_, "/rank_", rank, "_error.json"); }

 private:
  std::string path_;
};

int choose_port(int wanted) {
  if (wanted == 0) return free_port();
  if (wanted < 0 || wanted > 65535) {
    throw UsageError({"launch"}, "master_port ", wanted,
                     " is no port; expected 1 to 65535, or 0 for a free one.");
  }
  if (!port_is_free(wanted)) {
    throw UsageError(
        {"launch"}, "master_port ", wanted,
        " is in use on this machine. Give another, or leave it out: ", "hasten then takes a free one.");
  }
  return wanted;
}

std::chrono::duration<double> shutdown_timeout(const LaunchOptions& options, const Environment& environment) {
  const double seconds =
      options.shutdown_timeout_s
          ? *options.shutdown_timeout_s
          : environment.real("TORCH_ELASTIC_SHUTDOWN_TIMEOUT").value_or(kDefaultShutdownTimeoutS);
  if (!(seconds >= 0 && seconds <= 1e9)) {
    throw UsageError({"launch"}, "a shutdown timeout of ", seconds,
                     " s makes no sense; expected 0 to 1e9 seconds.");
  }
  return std::chrono::duration<double>(seconds);
}

std::vector<WorkerPlace> places_on_one_machine(int num_workers) {
  std::vector<WorkerPlace> places;
  for (int rank = 0; rank < num_workers; ++rank) {
    places.push_back(
        {.rank = rank, .local_rank = rank, .world_size = num_workers, .local_world_size = num_workers});
  }
  return places;
}

}  // namespace

int run_local(int num_workers, const LaunchOptions& options, const Environment& inherited,
              const WorkerBody& body) {
  if (num_workers < 1) {
    throw UsageError({"launch"}, num_workers,
                     " processes make no run; expected at least 1 (hasten launch -n 2 …).");
  }
  const std::vector<WorkerPlace> places = places_on_one_machine(num_workers);
  const RunSettings settings{.master_addr = options.master_addr,
                             .master_port = choose_port(options.master_port)};
  const SupervisorOptions supervisor{
      .num_workers = num_workers,
      .shutdown_timeout = shutdown_timeout(options, inherited),
      .notice = [](const std::string& line) { std::cerr << "hasten: " << line << std::endl; }};
  const RunDirectory directory(inherited);
  const auto work = [&](int local_rank) {
    const WorkerPlace& place = places[static_cast<size_t>(local_rank)];
    return body(worker_environment(inherited, settings, place, directory.error_file(place.rank)));
  };
  LocalProcesses processes(work, [&] { directory.remove(); });
  const Outcome outcome = supervise(processes, supervisor);
  if (outcome.root_cause) {
    const int rank = places[static_cast<size_t>(outcome.root_cause->local_rank)].rank;
    std::cerr << failure_report(outcome, places, read_error_message(directory.error_file(rank)))
              << std::flush;
  }
  return outcome.exit_code;
}

}  // namespace hasten::launcher
