// See profiler.h; kineto.h calls libtorch.
#include "hasten/watch/profiler.h"

#include <ATen/record_function.h>

#include <exception>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/core/log.h"
#include "hasten/core/value.h"
#include "watch/kineto.h"

namespace hasten::watch {
namespace {

namespace fs = std::filesystem;

ProfileOptions checked(ProfileOptions options) {
  if (options.with_stack || options.with_modules) {
    throw UsageError({"watch"}, options.with_stack ? "with_stack" : "with_modules", " records ",
                     options.with_stack ? "Python's stacks" : "TorchScript's modules",
                     ", which this program has none of. Leave it out; forwards, phases and collectives are scopes in "
                     "the trace.");
  }
  options.activities = choose_activities(options.activities);
  if (options.schedule) (void)action(*options.schedule, 0);
  return options;
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  if (folder.empty()) return;
  fs::create_directories(folder, error);
  if (error) {
    throw DataError({"watch"}, folder, "the folder ", folder, " for traces cannot be made: ", error.message(), ".");
  }
}

}  // namespace

struct Profiler::Impl {
  Impl(const process::Process& process, ProfileOptions given)
      : rank(process.rank()), world_size(process.world_size()), options(checked(std::move(given))), kineto(options) {}

  ProfilerAction action_now() const {
    return options.schedule ? action(*options.schedule, step) : ProfilerAction::kRecord;
  }

  void enter(ProfilerAction next) {
    if (next == ProfilerAction::kWarmup) kineto.prepare();
    const bool records = next == ProfilerAction::kRecord || next == ProfilerAction::kRecordAndSave;
    if (records && !kineto.is_on()) {
      kineto.start();
      write_metadata();
    }
    now = next;
    // Averages call them ProfilerStep*.
    step_scope.reset();
    if (records && options.schedule) {
      step_scope.emplace(at::RecordScope::USER_SCOPE);
      if (step_scope->isActive()) step_scope->before(text("ProfilerStep#", step));
    }
  }

  // Tools for several ranks look for it. HTA finds a rank by its letters, with a space behind the colon.
  void write_metadata() {
    kineto.add_metadata("distributedInfo",
                        text(R"({"backend": "hasten", "rank": )", rank, R"(, "world_size": )", world_size, '}'));
    for (const auto& [key, json] : options.metadata) kineto.add_metadata(key, json);
  }

  void end_cycle(Profiler& self) {
    step_scope.reset();
    if (!kineto.is_on()) return;
    last = kineto.stop();
    has_cycle = true;
    if (!options.output_trace_dir.empty()) save();
    ++cycle;
    if (options.on_trace_ready) options.on_trace_ready(self);
  }

  void save() {
    make_folder(options.output_trace_dir);
    const fs::path folder = options.output_trace_dir;
    const fs::path file = folder / text("profile_", rank, ".json");
    std::error_code error;
    if (cycle > 0) fs::rename(file, folder / text("profile_", rank, '.', cycle - 1, ".json"), error);
    kineto.save(file.string());
  }

  const int rank, world_size;
  const ProfileOptions options;
  Kineto kineto;
  ProfilerAction now = ProfilerAction::kNone;
  int64_t step = 0;
  int64_t cycle = 0;
  bool has_cycle = false;
  bool has_ended = false;
  std::vector<ProfileEvent> last;
  std::optional<at::RecordFunction> step_scope;
};

Profiler::Profiler(const process::Process& process, ProfileOptions options)
    : impl_(std::make_unique<Impl>(process, std::move(options))) {
  const auto& schedule = impl_->options.schedule;
  if (schedule && schedule->warmup == 0) {
    Logger("watch", {impl_->rank, impl_->world_size})
        .warning("a profile without warmup holds what its own begin costs; give the schedule a warmup of 1.");
  }
  if (!impl_->options.output_trace_dir.empty()) make_folder(impl_->options.output_trace_dir);
  impl_->enter(impl_->action_now());
}

Profiler::~Profiler() {
  if (impl_->has_ended || !impl_->kineto.is_on()) return;
  try {
    stop();
  } catch (const std::exception& error) {
    Logger("watch", {impl_->rank, impl_->world_size}).error(error.what(), {.main_process_only = false});
  }
}

void Profiler::step() {
  Impl& own = *impl_;
  if (own.has_ended) return;
  const ProfilerAction before = own.now;
  ++own.step;
  const ProfilerAction next = own.action_now();
  const bool was_on = before == ProfilerAction::kRecord || before == ProfilerAction::kRecordAndSave;
  const bool goes_on =
      before == ProfilerAction::kRecord && (next == ProfilerAction::kRecord || next == ProfilerAction::kRecordAndSave);
  if (was_on && !goes_on) own.end_cycle(*this);
  own.enter(next);
}

int64_t Profiler::step_num() const noexcept {
  return impl_->step;
}

void Profiler::stop() {
  if (std::exchange(impl_->has_ended, true)) return;
  impl_->end_cycle(*this);
}

const std::vector<ProfileEvent>& Profiler::events() const noexcept {
  return impl_->last;
}

ProfileAverages Profiler::key_averages(bool group_by_input_shapes) const {
  return average(impl_->last, group_by_input_shapes, impl_->options.profile_memory, impl_->options.with_flops);
}

void Profiler::export_chrome_trace(const std::string& path) {
  if (!impl_->has_cycle) {
    throw UsageError({"watch", impl_->rank, impl_->world_size},
                     "export_chrome_trace before the end of a cycle: there is no trace yet. Call it in "
                     "on_trace_ready, or after stop().");
  }
  if (path.ends_with(".gz")) {
    throw UsageError({"watch", impl_->rank, impl_->world_size}, "export_chrome_trace to '", path,
                     "': libtorch would write it uncompressed. Leave the .gz out, and compress the file.");
  }
  make_folder(fs::path(path).parent_path());
  impl_->kineto.save(path);
}

void Profiler::add_metadata(const std::string& key, const std::string& value) {
  add_metadata_json(key, core::Value(value).to_json());
}

void Profiler::add_metadata_json(const std::string& key, const std::string& json) {
  if (impl_->kineto.is_on()) impl_->kineto.add_metadata(key, json);
}

void Profiler::toggle_collection(bool enabled) {
  const bool one_thread = !impl_->options.all_threads || impl_->options.profile_memory;
  if (!one_thread || !impl_->kineto.is_on()) {
    throw UsageError({"watch", impl_->rank, impl_->world_size}, "toggle_collection ",
                     one_thread ? "outside of a cycle. Call it in a step that is recorded."
                                : "with all threads, which libtorch cannot do. Set all_threads = false.");
  }
  impl_->kineto.toggle(enabled);
}

void profile(const process::Process& process, ProfileOptions options, const std::function<void(Profiler&)>& fn) {
  Profiler profiler(process, std::move(options));
  fn(profiler);
  profiler.stop();
}

}  // namespace hasten::watch
