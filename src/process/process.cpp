// A process from the environment or from given parts; see process.h.
#include "hasten/process/process.h"

#include <unistd.h>

#include <charconv>
#include <map>
#include <mutex>
#include <source_location>
#include <utility>

#include "hasten/comm/types/purpose.h"
#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/timeout.h"
#include "hasten/flight/recorder.h"
#include "process/failure_reporter.h"
#include "process/process_parts.h"
#include "process/run_watch.h"

namespace hasten::process {

struct Process::Impl {
  RankInfo identity;
  comm::Group group;
  c10::Device device;
  std::string run_key = {};
  /// Null for given groups. The handler of uncaught exceptions lives as long as it.
  std::shared_ptr<const FailureReporter> last_words = nullptr;
  /// Null where nothing is watched. Ends before the group.
  std::shared_ptr<const RunWatch> watch = nullptr;
};

namespace {

/// The connections of this program to the other ranks, by its identity there. They last to its end. A further Process
/// (one Accelerator after another, or beside it) could not open rank 0's port again. So it uses the same place, under a
/// number of its own. Ranks make theirs in the same order.
class StoreRegistry {
 public:
  static StoreRegistry& all() {
    static auto* const places = new StoreRegistry;  // never destroyed: others may use it at the very end
    static const End end(*places);
    return *places;
  }

  /// Returns the store, and how many have met there; makes it if this is the first.
  std::pair<comm::Store, int> find(const RankInfo& identity, std::chrono::milliseconds timeout) {
    if (const auto known = look(identity)) return *known;
    auto store = comm::Store::tcp({.host = identity.master_addr,
                                   .port = identity.master_port,
                                   .server = identity.rank == 0 && !identity.agent_store,
                                   .timeout = timeout});
    const std::lock_guard lock(mutex_);
    return places_.try_emplace(key_of(identity), std::move(store), 0).first->second;
  }

  void have_met(const RankInfo& identity) {
    const std::lock_guard lock(mutex_);
    ++places_.at(key_of(identity)).second;
  }

 private:
  // A child of fork() does not share its parent's connection.
  static std::string key_of(const RankInfo& identity) {
    return text(getpid(), ' ', identity.master_addr, ' ', identity.master_port, ' ', identity.rank, ' ',
                identity.world_size, ' ', identity.restart_count);
  }
  std::optional<std::pair<comm::Store, int>> look(const RankInfo& identity) {
    const std::lock_guard lock(mutex_);
    const auto found = places_.find(key_of(identity));
    return found == places_.end() ? std::nullopt : std::optional(found->second);
  }

  // Ends the stores' threads before libtorch's own state ends. A child of fork() has none of these threads.
  class End {
   public:
    explicit End(StoreRegistry& places) : places_(places) {}
    ~End() {
      if (getpid() != owner_) return;
      const std::lock_guard lock(places_.mutex_);
      places_.places_.clear();
    }
    End(const End&) = delete;
    End& operator=(const End&) = delete;

   private:
    StoreRegistry& places_;
    const pid_t owner_ = getpid();
  };

  std::mutex mutex_;
  std::map<std::string, std::pair<comm::Store, int>> places_;
};

// 64 hexadecimal digits. A key of another form is an error: without it the run would be less safe than requested.
std::string bytes_of_key(const std::string& digits) {
  std::string bytes;
  for (size_t i = 0; i + 1 < digits.size(); i += 2) {
    unsigned value = 0;
    const auto [end, error] = std::from_chars(digits.data() + i, digits.data() + i + 2, value, 16);
    if (error == std::errc() && end == digits.data() + i + 2) bytes += static_cast<char>(value);
  }
  if (digits.size() != 64 || bytes.size() != 32) {
    throw UsageError({"process"}, "HASTEN_RUN_KEY has ", count_text(digits.size(), "character"),
                     "; expected 64 hexadecimal digits. Let hasten launch set it, or unset it.");
  }
  return bytes;
}

/// Returns the key of the run. It leaves the environment at the first use, and further Process objects have it from
/// here.
std::string take_run_key(const Environment& environment) {
  static std::mutex mutex;
  static auto* const key = new std::string;  // never destroyed
  const std::lock_guard lock(mutex);
  if (const auto digits = environment.text("HASTEN_RUN_KEY")) {
    Environment::take("HASTEN_RUN_KEY");
    const std::string bytes = bytes_of_key(*digits);
    *key = bytes;
  }
  return *key;
}

/// Connects to the other ranks at the master's address. Returns the watch over this rank, which begins before.
std::shared_ptr<const RunWatch> connect(FailureReporter& process, const ProcessOptions& options,
                                        std::optional<flight::WatchOptions> watched, const Environment& environment) {
  const RankInfo& identity = process.identity;
  const auto [store, number] = StoreRegistry::all().find(identity, options.timeout);
  process.store = store.scoped(text("hasten/attempt/", identity.restart_count, "/process/", number));
  auto watch = RunWatch::start(identity, number, std::move(watched), environment);
  const flight::PhaseScope phase("start");
  process.group =
      comm::Group::connect(*process.store, identity.rank, identity.world_size, group_options(identity, options));
  StoreRegistry::all().have_met(identity);
  return watch;
}

/// A call in the page of this rank while it waits for the run's store, which no group records. Rank 0 serves the store,
/// so the others wait here while it is stopped.
class StoreCall {
 public:
  /// Records nothing without a recorder.
  StoreCall(std::shared_ptr<flight::Recorder> recorder, const RankInfo& identity, std::chrono::milliseconds timeout)
      : recorder_(std::move(recorder)), call_(recorder_.get(), facts(identity, timeout)) {}

 private:
  flight::CallFacts facts(const RankInfo& identity, std::chrono::milliseconds timeout) const {
    const int group =
        recorder_ ? recorder_->open_group("start", identity.rank, identity.world_size, timeout.count()) : -1;
    const auto site = std::source_location::current();
    return {.kind = flight::CallKind::kMeeting,
            .group = group,
            .label = {.operation = "connect"},
            .rule = flight::SizesRule::kNone,
            .file = site.file_name(),
            .line = site.line()};
  }

  const std::shared_ptr<flight::Recorder> recorder_;
  const flight::Call call_;
};

}  // namespace

Process::Process(RankInfo identity, comm::Group group, c10::Device device)
    : impl_(std::make_shared<Impl>(Impl{std::move(identity), std::move(group), with_index(device)})) {}

Process Process::with_group(comm::Group group) const {
  Process process = *this;
  process.impl_ = std::make_shared<Impl>(*impl_);
  process.impl_->group = std::move(group);
  return process;
}

std::shared_ptr<Process::Impl> Process::from_environment(const ProcessOptions& options,
                                                         const Environment& environment) {
  // From the first line on, so that a half-set environment or a busy port ends in a message and exit code 2
  // too.
  const std::string error_file = environment.text("TORCHELASTIC_ERROR_FILE").value_or("");
  auto words = std::make_shared<FailureReporter>(FailureReporter{.error_file = error_file});
  const auto install = [&](const auto& reporter) {
    if (options.change_process) install_terminate_handler(reporter);
  };
  install(words);
  require_timeout({"process"}, options.timeout);
  if (options.change_process) limit_threads(environment);
  const RankInfo identity = read_rank_info(environment);
  // Wrong variables end the ranks before any of them serves the store that the others would look for.
  const auto watched = options.change_process ? RunWatch::read_options(environment) : std::nullopt;
  const std::string run_key = take_run_key(environment);
  if (identity.world_size == 1) {
    words = std::make_shared<FailureReporter>(FailureReporter{.identity = identity, .error_file = error_file});
    install(words);
    auto watch = RunWatch::start_alone(identity, watched, environment);
    return std::make_shared<Impl>(Impl{identity, comm::Group(), take_device(identity, options.cpu, environment),
                                       run_key, words, std::move(watch)});
  }
  words = std::make_shared<FailureReporter>(FailureReporter{.identity = identity, .error_file = error_file});
  install(words);
  require_none_replaced(identity, environment);
  auto connected = std::make_shared<FailureReporter>(*words);
  auto watch = connect(*connected, options, watched, environment);
  install(connected);
  const auto device = [&] {
    const flight::PhaseScope phase("start");
    const StoreCall call(watch ? flight::process_recorder() : nullptr, identity, options.timeout);
    return take_device(identity, options.cpu, environment, &*connected->store, options.timeout);
  };
  return std::make_shared<Impl>(Impl{identity, *connected->group, device(), run_key, connected, std::move(watch)});
}

Process::Process(const ProcessOptions& options, const Environment& environment)
    : impl_(from_environment(options, environment)) {}

const std::string& Process::run_key() const noexcept {
  return impl_->run_key;
}
const RankInfo& Process::identity() const noexcept {
  return impl_->identity;
}
c10::Device Process::device() const noexcept {
  return impl_->device;
}
const comm::Group& Process::group() const noexcept {
  return impl_->group;
}

void Process::on_main_process(const std::function<void()>& fn) const {
  if (is_main_process()) fn();
}

void Process::on_local_main_process(const std::function<void()>& fn) const {
  if (is_local_main_process()) fn();
}

void Process::on_last_process(const std::function<void()>& fn) const {
  if (is_last_process()) fn();
}

void Process::on_process(int chosen, const std::function<void()>& fn) const {
  if (chosen < 0 || chosen >= world_size()) {
    throw UsageError({"state", rank(), world_size()}, "on_process: rank ", chosen, " in a world of ", world_size(),
                     "; ranks go from 0 to ", world_size() - 1, ". Nobody would run it.");
  }
  if (chosen == rank()) fn();
}

void Process::on_local_process(int chosen, const std::function<void()>& fn) const {
  if (chosen < 0 || chosen >= local_world_size()) {
    throw UsageError({"state", rank(), world_size()}, "on_local_process: local rank ", chosen, " on a machine of ",
                     local_world_size(), "; local ranks go from 0 to ", local_world_size() - 1,
                     ". Nobody would run it.");
  }
  if (chosen == local_rank()) fn();
}

void Process::wait_for_everyone() const {
  const comm::Purpose purpose("wait_for_everyone");
  group().barrier();
}

Logger Process::logger(const std::string& name) const {
  return Logger(name, {rank(), world_size(), [group = group()] {
                         const comm::Purpose purpose("lines of all ranks in order");
                         group.barrier();
                       }});
}

}  // namespace hasten::process
