// See rejoining.h.
#include "hasten/process/rejoining.h"

#include <atomic>
#include <climits>
#include <utility>

#include "hasten/comm/group/rejoin.h"
#include "hasten/core/error.h"
#include "process/failure_reporter.h"
#include "process/process_parts.h"
#include "process/run_watch.h"

namespace hasten::process {
namespace {

comm::Store open_store(const RankInfo& identity, std::chrono::milliseconds timeout) {
  const auto store = comm::Store::tcp({.host = identity.master_addr,
                                       .port = identity.master_port,
                                       .server = identity.rank == 0 && !identity.agent_store,
                                       .timeout = timeout});
  return store.scoped(text("hasten/attempt/", identity.restart_count, "/survive"));
}

// Its parts end in this order: the page first.
struct Watch {
  std::shared_ptr<const FailureReporter> last_words;
  std::shared_ptr<const RunWatch> page;
};

}  // namespace

std::optional<RejoiningProcess> make_rejoining(const ProcessOptions& options, const Environment& environment) {
  static std::atomic<bool> is_taken = false;
  if (environment.integer("HASTEN_SURVIVE", 0, INT_MAX).value_or(0) == 0) return std::nullopt;
  const RankInfo identity = read_rank_info(environment);
  if (!asks_for_replacements(identity, environment)) return std::nullopt;
  auto words = std::make_shared<FailureReporter>(
      FailureReporter{.identity = identity, .error_file = environment.text("TORCHELASTIC_ERROR_FILE").value_or("")});
  if (options.change_process) install_terminate_handler(words);
  if (is_taken.exchange(true)) {
    throw UsageError(
        Origin{"process", identity.rank, identity.world_size},
        "a second Accelerator under hasten launch --survive, where the first brings replaced ranks back in. "
        "Make one for the whole program, or start it without --survive.");
  }
  if (options.change_process) limit_threads(environment);
  const auto watched = options.change_process ? RunWatch::read_options(environment) : std::nullopt;
  const auto watch = std::make_shared<Watch>(Watch{words, RunWatch::start(identity, 0, watched, environment)});
  const auto open = [identity](std::chrono::milliseconds timeout) { return open_store(identity, timeout); };
  const bool replaces = environment.flag("HASTEN_REPLACES").value_or(false);
  const auto group = comm::stand_in(identity.rank, identity.world_size, group_options(identity, options),
                                    std::make_shared<comm::Meetings>(open, identity.rank, replaces));
  return RejoiningProcess{Process(identity, group, take_device(identity, options.cpu, environment)), watch};
}

}  // namespace hasten::process
