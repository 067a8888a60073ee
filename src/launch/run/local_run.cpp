// A run's part on one machine; see local_run.h.
#include "hasten/launch/run/local_run.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <map>
#include <numeric>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/file.h"
#include "hasten/core/hmac.h"
#include "hasten/launch/base/port.h"
#include "hasten/launch/base/signals.h"
#include "hasten/launch/workers/supervisor.h"
#include "launch/base/endpoint.h"
#include "launch/base/print_notice.h"
#include "launch/output/output.h"
#include "launch/rendezvous/static_rendezvous.h"
#include "launch/run/elastic_rounds.h"
#include "launch/workers/error_file.h"
#include "launch/workers/failure_report.h"
#include "launch/workers/local_processes.h"
#include "launch/workers/memory_events.h"
#include "launch/workers/replacement.h"
#include "launch/workers/root_cause.h"
#include "launch/workers/worker_page.h"

namespace hasten::launcher {
namespace {

constexpr double kDefaultShutdownTimeoutS = 30;  // torchrun's
constexpr const char* kEndedByWatch =
    "the watch has ended it because of a hang, as --on_hang kill asks for; the report above that begins with 'no "
    "progress' says what it was in";

// Absolute: workers that change their folder find it, too.
std::string temporary_folder(const Environment& environment) {
  return std::filesystem::absolute(environment.text("TMPDIR").value_or("/tmp"));
}

// A folder that only this user can read, removed with all its contents.
class RunDirectory {
 public:
  explicit RunDirectory(const Environment& environment) : path_(temporary_folder(environment) + "/hasten_XXXXXX") {
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

  // Files of an earlier attempt would be taken for this one's. During a long run the folder may have been removed.
  void clear() const {
    std::error_code missing, ignored;
    for (const auto& entry : std::filesystem::directory_iterator(path_, missing))
      std::filesystem::remove(entry.path(), ignored);
    if (missing && mkdir(path_.c_str(), 0700) != 0) {
      throw UsageError({"launch"}, "the folder '", path_,
                       "' of this run has gone and cannot be made again: ", std::strerror(errno),
                       ". Set TMPDIR to a folder that nobody tidies.");
    }
  }

  const std::string& path() const { return path_; }
  std::string error_file(int rank) const { return text(path_, "/rank_", rank, "_error.json"); }

 private:
  std::string path_;
};

int choose_port(int requested) {
  if (requested == 0) return free_port();
  if (requested < 0 || requested > 65535) {
    throw UsageError({"launch"}, "master_port ", requested, " is no port; expected 1 to 65535, or 0 for a free one.");
  }
  if (!port_is_free(requested)) {
    throw UsageError({"launch"}, "master_port ", requested,
                     " is in use on this machine. Give another, or leave it out: ", "hasten then takes a free one.");
  }
  return requested;
}

std::chrono::duration<double> shutdown_timeout(const LaunchOptions& options, const Environment& environment) {
  const double seconds = options.shutdown_timeout_s
                             ? *options.shutdown_timeout_s
                             : environment.real("TORCH_ELASTIC_SHUTDOWN_TIMEOUT").value_or(kDefaultShutdownTimeoutS);
  if (!(seconds >= 0 && seconds <= 1e9)) {
    throw UsageError({"launch"}, "a shutdown timeout of ", seconds, " s makes no sense; expected 0 to 1e9 seconds.");
  }
  return std::chrono::duration<double>(seconds);
}

// How many workers the first `num_machines` machines have.
int workers_of_first(int num_machines, int num_workers, const LaunchOptions& options) {
  const std::vector<int>& each = options.workers_of_machines;
  return each.empty() ? num_machines * num_workers : std::accumulate(each.begin(), each.begin() + num_machines, 0);
}

// Ranks count machine by machine.
std::vector<WorkerPlace> places_on_this_machine(int num_workers, const LaunchOptions& options) {
  std::vector<WorkerPlace> places;
  const int first_rank = workers_of_first(options.machine_rank, num_workers, options);
  const int world_size = workers_of_first(options.num_machines, num_workers, options);
  for (int local_rank = 0; local_rank < num_workers; ++local_rank) {
    places.push_back({.rank = first_rank + local_rank,
                      .local_rank = local_rank,
                      .world_size = world_size,
                      .local_world_size = num_workers,
                      .node_rank = options.machine_rank,
                      .num_nodes = options.num_machines});
  }
  return places;
}

void check(int num_workers, const LaunchOptions& options) {
  if (num_workers < 1) {
    throw UsageError({"launch"}, count_text(num_workers, "process"),
                     " make no run; expected at least 1 (hasten launch -n 2 …).");
  }
  if (options.run.max_restarts < 0) {
    throw UsageError({"launch"}, "max_restarts is ", options.run.max_restarts, "; expected 0 or more.");
  }
  if (options.run.survive < 0 || (options.run.survive > 0 && num_workers == 1 && options.num_machines == 1)) {
    throw UsageError({"launch"}, "survive is ", options.run.survive, " for ", count_text(num_workers, "process"),
                     "; expected 0 or more, and at least 2 processes, since a rank that is replaced takes the "
                     "state of another.");
  }
  if (options.machine_rank < 0 || options.machine_rank >= options.num_machines) {
    throw UsageError({"launch"}, "machine_rank is ", options.machine_rank, ", but there are ",
                     count_text(options.num_machines, "machine"), ", counted from 0.");
  }
  const std::vector<int>& each = options.workers_of_machines;
  if (!each.empty() && (each.size() != static_cast<size_t>(options.num_machines) ||
                        each[static_cast<size_t>(options.machine_rank)] != num_workers)) {
    throw UsageError({"launch"}, "workers_of_machines is [", join(each), "], but there are ",
                     count_text(options.num_machines, "machine"), ", and machine ", options.machine_rank, " starts ",
                     count_text(num_workers, "worker"), ".");
  }
  if (options.num_machines > 1 && (options.run.master_port < 1 || options.run.master_port > 65535)) {
    throw UsageError({"launch"}, "several machines need a port on the first that all know; master_port is ",
                     options.run.master_port, ", expected 1 to 65535.");
  }
  if (!(options.join_timeout_s > 0 && options.join_timeout_s <= 1e9)) {
    throw UsageError({"launch"}, "join_timeout_s is ", options.join_timeout_s,
                     " s; expected the time to wait for the other machines, above 0 and up to 1e9. Leave it out for "
                     "600.");
  }
  if (!(options.monitor_interval_s >= 0 && options.monitor_interval_s <= 1e9)) {
    throw UsageError({"launch"}, "a monitor interval of ", options.monitor_interval_s,
                     " s makes no sense; expected 0 to 1e9 seconds.");
  }
}

bool colour_for(int descriptor, const Environment& environment) {
  return isatty(descriptor) == 1 && !environment.has("NO_COLOR") && environment.text("TERM") != "dumb";
}

OutputOptions output_options(const LaunchOptions& options, const Environment& environment) {
  return {.log_dir = options.log_dir,
          .redirects = options.redirects,
          .tee = options.tee,
          .duplicate_stdout_filters = options.duplicate_stdout_filters,
          .duplicate_stderr_filters = options.duplicate_stderr_filters,
          .local_ranks_filter = options.local_ranks_filter,
          .prefix_ranks = options.prefix_ranks,
          .colour_out = colour_for(STDOUT_FILENO, environment),
          .colour_err = colour_for(STDERR_FILENO, environment),
          .role = options.run.role};
}

// "2026-11-21 18:04:55", `ago` before now.
std::string wall_time(std::chrono::steady_clock::duration ago) {
  const auto then =
      std::chrono::system_clock::now() - std::chrono::duration_cast<std::chrono::system_clock::duration>(ago);
  const std::time_t seconds = std::chrono::system_clock::to_time_t(then);
  std::tm local = {};
  char buffer[32];
  return std::string(buffer, std::strftime(buffer, sizeof buffer, "%F %T", localtime_r(&seconds, &local)));
}

// Returns true if a waiting signal requests the end of the launcher. The supervisor takes it.
bool asked_to_end() {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGINT) + sigismember(&pending, SIGTERM) + sigismember(&pending, SIGHUP) +
             sigismember(&pending, SIGQUIT) >
         0;
}

void meet_the_others(int num_workers, const LaunchOptions& options, int attempt,
                     const std::function<bool()>& interrupted) {
  const MachineFacts mine{.machine_rank = options.machine_rank,
                          .num_machines = options.num_machines,
                          .num_processes = workers_of_first(options.num_machines, num_workers, options),
                          .num_local_processes = num_workers,
                          .processes_of_machines = options.workers_of_machines,
                          .run_id = options.run.run_id,
                          .attempt = attempt,
                          .host = host_name()};
  join_static(mine, {.address = options.run.master_addr,
                     .port = options.run.master_port,
                     .timeout = std::chrono::duration<double>(options.join_timeout_s),
                     .notice = print_notice,
                     .interrupted = interrupted});
}

bool is_stopped(pid_t pid) {
  const auto stat = core::read_file(text("/proc/", pid, "/stat"));
  const size_t name_end = stat ? stat->rfind(") ") : std::string::npos;  // the name may hold anything
  return name_end != std::string::npos && name_end + 2 < stat->size() && (*stat)[name_end + 2] == 'T';
}

class LocalRun {
 public:
  LocalRun(int num_workers, const LaunchOptions& options, const EnvironmentPlan& environment, const WorkerBody& body)
      : options_(options),
        environment_(environment),
        body_(body),
        places_(places_on_this_machine(num_workers, options)),
        output_(output_options(options, environment.inherited)),
        directory_(environment.inherited) {
    environment_.run = options.run;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    environment_.run.started_us = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
    // Launchers of several machines have no secret in common here; there the processes use the store's.
    if (options.num_machines == 1) environment_.run.run_key = hex(random_bytes());
    if (options.num_machines > 1 && !is_loopback(options.run.master_addr))
      environment_.network_interface = interface_towards(options.run.master_addr);
    if (!options.signals_to_handle.empty()) environment_.run.signals = signal_names(options.signals_to_handle);
    for (const WorkerPlace& place : places_) plan_output(output_, place, "");  // mistakes are reported now
  }

  int run() {
    const MemoryEvents memory_before = read_memory_events();
    const SupervisorOptions supervisor{
        .num_workers = num_workers(),
        .shutdown_timeout = shutdown_timeout(options_, environment_.inherited),
        .max_restarts = options_.run.max_restarts,
        .restart_delay = std::chrono::duration<double>(options_.monitor_interval_s),
        .notice = print_notice,
        .left_at = [this](int local_rank) { return left_at(local_rank); },
        .is_stopped = is_stopped,
        .before_attempt = [this](int attempt) { prepare(attempt); },
        .replaces = [this](const WorkerEnd& end, bool any_has_ended) { return replaces(end, any_has_ended); }};
    LocalProcesses processes([this](int local_rank) { return run_body(local_rank); }, processes_options());
    const Outcome outcome = with_cause(supervise(processes, supervisor), places_, messages());
    processes.finish_output(supervisor.shutdown_timeout);
    if (outcome.root_cause) {
      const FailureFacts facts = facts_about(outcome, processes, memory_before);
      std::cerr << failure_report(outcome, places_, facts, options_.run) << std::flush;
    }
    return outcome.exit_code;
  }

  // As above, as often as `rounds` requires.
  int run(ElasticRounds& rounds) {
    const MemoryEvents memory_before = read_memory_events();
    const SupervisorOptions supervisor{.num_workers = num_workers(),
                                       .shutdown_timeout = shutdown_timeout(options_, environment_.inherited),
                                       .notice = print_notice,
                                       .left_at = [this](int local_rank) { return left_at(local_rank); },
                                       .is_stopped = is_stopped};
    LocalProcessesOptions requested = processes_options();
    requested.add_sources = [&](std::vector<pollfd>& sources) { rounds.add_sources(sources); };
    LocalProcesses processes([this](int local_rank) { return run_body(local_rank); }, requested);
    while (const std::optional<Assignment> round = rounds.next(processes)) {
      prepare(*round);
      Outcome outcome = with_cause(supervise(rounds.supervised(processes), supervisor), places_, messages());
      outcome.attempt = round->restart_count;
      std::string report;
      if (outcome.root_cause)
        report = failure_report(outcome, places_, facts_about(outcome, processes, memory_before), options_.run);
      rounds.ended(outcome, report);
    }
    processes.finish_output(supervisor.shutdown_timeout);
    std::cerr << rounds.report() << std::flush;
    return rounds.exit_code();
  }

 private:
  int num_workers() const { return static_cast<int>(places_.size()); }

  LocalProcessesOptions processes_options() const {
    LocalProcessesOptions result{
        .output = [this](int local_rank) { return plan_of(local_rank); },
        .orphaned = [this] { directory_.remove(); },
        .notice = [this](int local_rank,
                         const std::string& line) { print_notice(text("rank ", place(local_rank).rank, ": ", line)); },
        .spill_folder = directory_.path()};
    if (!options_.signals_to_handle.empty()) result.signals = options_.signals_to_handle;
    return result;
  }

  // Leaves the worker's place as its successor finds it.
  Replacing replaces(const WorkerEnd& end, bool any_has_ended) {
    const auto local_rank = static_cast<size_t>(end.local_rank);
    const WorkerDeath death{end.status, local_rank < pages_.size() ? pages_[local_rank].step() : 0};
    std::vector<WorkerDeath>& earlier = deaths_[end.local_rank];
    const Replacement decision = decide_replacement(death, {.earlier = earlier,
                                                            .num_replaced = num_replaced_,
                                                            .limit = options_.run.survive,
                                                            .any_has_ended = any_has_ended});
    earlier.push_back(death);
    const std::string who = text("rank ", place(end.local_rank).rank, " has ended (", describe_end(end.status),
                                 ended_by_watch(end) ? " of the watch, because of a hang" : "", ')',
                                 death.step > 0 ? text(" behind step ", death.step) : "", " and is ");
    if (!decision.is_due) return {false, decision.reason.empty() ? "" : who + "not replaced: " + decision.reason};
    // Before the first step a worker that begins anew has what the others have.
    has_begun_ = has_begun_ || pages_.empty() ||
                 std::any_of(pages_.begin(), pages_.end(), [](const WorkerPage& page) { return page.step() > 0; });
    ++num_replaced_;
    std::error_code ignored;
    std::filesystem::remove(place(end.local_rank).error_file, ignored);
    return {true, text(who, "replaced, ", num_replaced_, " of ", options_.run.survive)};
  }

  void prepare(int attempt) {
    deaths_.clear();
    has_begun_ = false;
    environment_.run.restart_count = attempt;
    if (attempt > 0) meet_the_others(num_workers(), options_, attempt, asked_to_end);
    if (options_.num_machines == 1) {
      choose_new_port();
    } else {
      environment_.run.master_port = options_.run.master_port;  // on machine 0 it was free at the meeting
    }
    prepare_files(attempt);
  }

  void prepare(const Assignment& round) {
    for (WorkerPlace& place : places_) {
      place.rank = round.first_rank + place.local_rank;
      place.world_size = round.world_size;
      place.node_rank = round.node_rank;
      place.num_nodes = round.num_nodes;
    }
    environment_.run.restart_count = round.restart_count;
    environment_.run.master_addr = round.master_addr;
    environment_.run.master_port = round.master_port;
    environment_.network_interface = is_loopback(round.master_addr) ? "" : interface_towards(round.master_addr);
    prepare_files(round.round - 1);
  }

  void prepare_files(int attempt) {
    if (wants_files(output_)) {
      if (!logs_) make_log_folders();
      attempt_folder_ = logs_->make_attempt(attempt, num_workers());
    } else {
      directory_.clear();
    }
    for (WorkerPlace& place : places_) place.error_file = error_file(place);
    pages_ = make_worker_pages(num_workers(), environment_.inherited);
  }

  void choose_new_port() {
    // The port of the attempt before may still be in use by a process that will try it.
    const int before = environment_.run.master_port;
    do {
      environment_.run.master_port = choose_port(options_.run.master_port);
    } while (options_.run.master_port == 0 && environment_.run.master_port == before);
  }

  void make_log_folders() {
    const bool temporary = options_.log_dir.empty();
    // Not in one folder for all: on a machine of several users it would be the first one's.
    logs_.emplace(temporary ? temporary_folder(environment_.inherited) : options_.log_dir,
                  temporary ? "hasten_logs_" + environment_.run.run_id : environment_.run.run_id);
    if (temporary) print_notice("log files are in " + logs_->path());
  }

  const WorkerPlace& place(int local_rank) const { return places_[static_cast<size_t>(local_rank)]; }

  OutputPlan plan_of(int local_rank) const { return plan_output(output_, place(local_rank), attempt_folder_); }

  std::string error_file(const WorkerPlace& place) const {
    return attempt_folder_.empty() ? directory_.error_file(place.rank)
                                   : text(attempt_folder_, "/", place.local_rank, "/error.json");
  }

  // Runs in the worker's process.
  int run_body(int local_rank) const {
    Environment environment = compose_environment(environment_, place(local_rank));
    if (has_begun_ && deaths_.contains(local_rank)) {
      auto variables = environment.variables();
      variables["HASTEN_REPLACES"] = "1";
      environment = Environment::of(std::move(variables));
    }
    if (static_cast<size_t>(local_rank) < pages_.size()) {
      environment = pages_[static_cast<size_t>(local_rank)].hand_over(place(local_rank), environment);
    }
    return body_(place(local_rank), environment);
  }

  MessageOf messages() const {
    return [this](int local_rank) { return read_error_message(place(local_rank).error_file); };
  }

  std::vector<EarlyEnd> left_early(const Outcome& outcome) const {
    std::vector<EarlyEnd> early;
    for (const WorkerEnd& end : workers_that_left(outcome)) {
      const auto local_rank = static_cast<size_t>(end.local_rank);
      early.push_back({place(end.local_rank).rank, local_rank < pages_.size() ? pages_[local_rank].step() : 0});
    }
    return early;
  }

  std::optional<TimePoint> left_at(int local_rank) const {
    const auto place = static_cast<size_t>(local_rank);
    return place < pages_.size() ? pages_[place].left_at() : std::nullopt;
  }

  bool ended_by_watch(const WorkerEnd& end) const {
    const auto local_rank = static_cast<size_t>(end.local_rank);
    return local_rank < pages_.size() && pages_[local_rank].ended_by_watch();
  }

  FailureFacts facts_about(const Outcome& outcome, const LocalProcesses& processes,
                           const MemoryEvents& memory_before) const {
    const WorkerEnd& end = *outcome.root_cause;
    const OutputPlan plan = plan_of(end.local_rank);
    const bool killed = exit_code_of(end.status) == 128 + SIGKILL && outcome.exit_code == 128 + SIGKILL;
    const std::string watched = killed && ended_by_watch(end) ? kEndedByWatch : "";
    return {.message = read_error_message(place(end.local_rank).error_file),
            .left_early = left_early(outcome),
            .hint = !watched.empty() ? watched
                    : killed         ? explain_kill(memory_before, read_memory_events())
                                     : hint_for(end.status),
            .host = host_name(),
            .time = wall_time(processes.now() - end.time),
            .where = static_cast<size_t>(end.local_rank) < pages_.size()
                         ? pages_[static_cast<size_t>(end.local_rank)].where()
                         : "",
            .error_tail = processes.error_tail(end.local_rank),
            .log_file = plan.err.file.empty() ? plan.out.file : plan.err.file};
  }

  const LaunchOptions& options_;
  EnvironmentPlan environment_;
  const WorkerBody& body_;
  std::vector<WorkerPlace> places_;
  const OutputOptions output_;
  const RunDirectory directory_;
  std::optional<LogFolders> logs_;
  std::string attempt_folder_;                      // of the log files; "" if there are none
  std::map<int, std::vector<WorkerDeath>> deaths_;  // by local rank, of workers that were replaced in this attempt
  int num_replaced_ = 0;                            // in all attempts
  bool has_begun_ = false;                          // some step of this attempt has been made
  std::vector<WorkerPage> pages_;                   // by local rank, of this attempt; empty without the watch
};

}  // namespace

int run_local(int num_workers, const LaunchOptions& options, const EnvironmentPlan& environment,
              const WorkerBody& body) {
  check(num_workers, options);
  // Before there is anything to clean up: a signal may simply end the waiting.
  meet_the_others(num_workers, options, 0, [] { return false; });
  return LocalRun(num_workers, options, environment, body).run();
}

int run_in_rounds(int num_workers, const LaunchOptions& options, const EnvironmentPlan& environment,
                  const WorkerBody& body, ElasticRounds& rounds) {
  check(num_workers, options);
  return LocalRun(num_workers, options, environment, body).run(rounds);
}

}  // namespace hasten::launcher
