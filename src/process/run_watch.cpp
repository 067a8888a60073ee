// See run_watch.h.
#include "process/run_watch.h"

#include <unistd.h>

#include <climits>
#include <csignal>
#include <exception>
#include <mutex>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/core/log.h"
#include "hasten/flight/pages.h"
#include "hasten/flight/stacks.h"
#include "process/host_link.h"

namespace hasten::process {
namespace {

constexpr double kMostSeconds = 1e9;

flight::PageIdentity page_identity(const RankInfo& identity, int number, const Environment& environment) {
  const std::string run_id = environment.text("TORCHELASTIC_RUN_ID").value_or("none");
  // Two runs of one process may have the same address and port, since neither is opened.
  return {.run = identity.world_size == 1 ? flight::run_name("process", getpid(), identity.restart_count)
                                          : flight::run_name(identity.master_addr, identity.master_port,
                                                             identity.restart_count, number),
          .run_id = run_id == "none" ? "" : run_id,
          .rank = identity.rank,
          .world_size = identity.world_size,
          .local_rank = identity.local_rank,
          .local_world_size = identity.local_world_size,
          .node_rank = identity.node_rank,
          .restart_count = identity.restart_count};
}

// False if another process writes to it: a program that this rank's program has started, or the one that started it.
bool is_free(int file) {
  const flight::RankState state = flight::PageView(file).read();
  return state.state != flight::PageState::kRunning || state.life == flight::Life::kEnded || state.pid == getpid();
}

// The page that the launcher has made, if it is one. Only the first Process of a program takes it.
std::shared_ptr<flight::Recorder> make_recorder(const flight::PageIdentity& page, int number,
                                                const Environment& environment) {
  const auto given = environment.integer("HASTEN_FLIGHT_FD", 0, INT_MAX);
  if (given && number == 0) {
    const int file = dup(static_cast<int>(*given));
    try {
      if (file >= 0 && is_free(file)) return std::make_shared<flight::Recorder>(page, file);
    } catch (const std::exception&) {
      // A program between the launcher and this one has closed or replaced it.
    }
    if (file >= 0) close(file);
  }
  return std::make_shared<flight::Recorder>(page);
}

}  // namespace

std::optional<flight::WatchOptions> RunWatch::read_options(const Environment& environment) {
  flight::WatchOptions options;
  options.limits.after_s = environment.real("HASTEN_HANG_AFTER").value_or(0);
  if (options.limits.after_s < 0 || options.limits.after_s > kMostSeconds) {
    throw UsageError({"process"}, "HASTEN_HANG_AFTER=", options.limits.after_s,
                     " is no time; expected seconds, or 0 for 10 steps of the run.");
  }
  options.kill = environment.choice("HASTEN_ON_HANG", {"report", "kill"}) == "kill";
  options.stack_signal = static_cast<int>(
      environment.integer("HASTEN_STACK_SIGNAL", 0, NSIG - 1).value_or(flight::default_stack_signal()));
  if (!environment.flag("HASTEN_WATCH").value_or(true)) return std::nullopt;
  return options;
}

std::shared_ptr<const RunWatch> RunWatch::start(const RankInfo& identity, int number,
                                                std::optional<flight::WatchOptions> options,
                                                const Environment& environment) {
  if (!options) return nullptr;
  try {
    options->connect_hosts = [identity, number] { return make_host_link(identity, number); };
    return std::make_shared<const RunWatch>(
        make_recorder(page_identity(identity, number, environment), number, environment), *std::move(options));
  } catch (const std::exception& error) {
    Logger("process", {identity.rank, identity.world_size})
        .warning(text("this rank is not watched: ", error.what(), ". HASTEN_WATCH=0 switches the watch off."),
                 {.main_process_only = false});
    return nullptr;
  }
}

std::shared_ptr<const RunWatch> RunWatch::start_alone(const RankInfo& identity,
                                                      std::optional<flight::WatchOptions> options,
                                                      const Environment& environment) {
  if (!environment.has("HASTEN_FLIGHT_FD")) return nullptr;
  static auto* const mutex = new std::mutex;  // never destroyed: others may use it at the very end
  static auto* const current = new std::weak_ptr<const RunWatch>;
  const std::lock_guard lock(*mutex);
  if (auto running = current->lock()) return running;
  auto watch = start(identity, 0, std::move(options), environment);
  *current = watch;
  return watch;
}

RunWatch::RunWatch(std::shared_ptr<flight::Recorder> recorder, flight::WatchOptions options)
    : recorder_(std::move(recorder)), watcher_(recorder_, std::move(options)) {
  flight::set_process_recorder(recorder_);
}

RunWatch::~RunWatch() {
  recorder_->set_state(flight::PageState::kLeft);
  if (flight::process_recorder() == recorder_) flight::set_process_recorder(nullptr);
}

}  // namespace hasten::process
