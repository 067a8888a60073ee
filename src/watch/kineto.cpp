// See kineto.h.
#include "watch/kineto.h"

#include <ATen/Context.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/process/device.h"

namespace torch::autograd::profiler {
// Declared by a header of libtorch that needs Kineto's own headers.
TORCH_API void addMetadataJson(const std::string& key, const std::string& value);
}  // namespace torch::autograd::profiler

namespace hasten::watch {
namespace {

namespace impl = torch::profiler::impl;
namespace profiler = torch::autograd::profiler;
using impl::ActivityType;

constexpr const char* kMemoryEvent = "[memory]";

struct Activity {
  const char* name;
  ActivityType type;
  bool is_there;
};

std::vector<Activity> known_activities() {
  return {{"cpu", ActivityType::CPU, true},
          {"cuda", ActivityType::CUDA, at::globalContext().hasCUDA() && process::num_cuda_devices() > 0},
          {"xpu", ActivityType::XPU, at::globalContext().hasXPU()},
          {"mtia", ActivityType::MTIA, at::globalContext().hasMTIA()},
          {"hpu", ActivityType::HPU, at::globalContext().hasHPU()}};
}

// Whether a profiler of this thread or of all is on.
bool is_any_on() {
  return impl::ProfilerStateBase::get() != nullptr;
}

// exit() while the profiler is on ends in a signal.
void end_at_exit() {
  static const bool registered = std::atexit([] {
                                   if (is_any_on()) (void)profiler::disableProfiler();
                                 }) == 0;
  (void)registered;
}

bool is_hidden(const std::string& name) {
  static const auto* const names = new std::set<std::string>{"profiler::_record_function_enter",
                                                             "profiler::_record_function_enter_new",
                                                             "profiler::_record_function_exit",
                                                             "aten::is_leaf",
                                                             "aten::output_nr",
                                                             "aten::_version",
                                                             kMemoryEvent,
                                                             "[OutOfMemory]"};
  return names->contains(name);
}

std::string device_name(c10::DeviceType type) {
  return c10::DeviceTypeName(type, /*lower_case=*/true);
}

/// Bytes taken and freed, by the moment.
class MemoryRecords {
 public:
  void add(const profiler::KinetoEvent& event, int64_t begin_ns) {
    const bool is_cpu = event.deviceType() == c10::DeviceType::CPU;
    records_.push_back(
        {static_cast<int64_t>(event.startNs()) - begin_ns, is_cpu ? event.nBytes() : 0, is_cpu ? 0 : event.nBytes()});
  }
  void sort() {
    std::sort(records_.begin(), records_.end(), [](const auto& a, const auto& b) { return a.time_ns < b.time_ns; });
  }
  void add_up(ProfileEvent& event) const {
    auto record = std::lower_bound(records_.begin(), records_.end(), event.start_ns,
                                   [](const Record& one, int64_t time) { return one.time_ns < time; });
    for (; record != records_.end() && record->time_ns <= event.end_ns; ++record) {
      event.cpu_bytes += record->cpu;
      event.device_bytes += record->device;
    }
  }

 private:
  struct Record {
    int64_t time_ns, cpu, device;
  };
  std::vector<Record> records_;
};

ProfileEvent event_of(const profiler::KinetoEvent& event, int64_t begin_ns) {
  ProfileEvent own{.name = event.name(),
                   .thread = event.startThreadId(),
                   .start_ns = static_cast<int64_t>(event.startNs()) - begin_ns,
                   .end_ns = static_cast<int64_t>(event.endNs()) - begin_ns,
                   .device = device_name(event.deviceType()),
                   .is_async = event.isAsync() || event.startThreadId() != event.endThreadId(),
                   .flops = event.flops()};
  if (event.hasShapes()) own.input_shapes = event.shapes().vec();
  return own;
}

std::vector<ProfileEvent> events_of(const std::vector<profiler::KinetoEvent>& events, int64_t begin_ns) {
  std::vector<ProfileEvent> all;
  std::map<uint64_t, size_t> by_correlation;
  MemoryRecords memory;
  for (const auto& event : events) {
    if (event.name() == kMemoryEvent) memory.add(event, begin_ns);
  }
  memory.sort();
  for (const auto& event : events) {
    if (is_hidden(event.name())) continue;
    if (event.linkedCorrelationId() == 0) by_correlation[event.correlationId()] = all.size();
    all.push_back(event_of(event, begin_ns));
    if (event.deviceType() == c10::DeviceType::CPU) memory.add_up(all.back());
  }
  // Kernels count for the operators that have started them.
  for (const auto& event : events) {
    const auto owner = by_correlation.find(event.linkedCorrelationId());
    if (event.linkedCorrelationId() == 0 || owner == by_correlation.end()) continue;
    if (event.deviceType() == c10::DeviceType::CPU) continue;
    all[owner->second].kernels_ns += static_cast<int64_t>(event.durationNs());
  }
  std::sort(all.begin(), all.end(), [](const ProfileEvent& a, const ProfileEvent& b) {
    return std::pair(a.start_ns, -a.end_ns) < std::pair(b.start_ns, -b.end_ns);
  });
  return all;
}

impl::ProfilerConfig config_of(const ProfileOptions& options) {
  impl::ExperimentalConfig experimental;
  experimental.profile_all_threads = options.all_threads && !options.profile_memory;
  return impl::ProfilerConfig(impl::ProfilerState::KINETO, options.record_shapes || options.with_flops,
                              options.profile_memory, /*with_stack=*/false, options.with_flops, /*with_modules=*/false,
                              experimental);
}

}  // namespace

std::vector<std::string> choose_activities(const std::vector<std::string>& names) {
  const auto known = known_activities();
  if (names.empty()) {
    std::vector<std::string> there;
    for (const Activity& one : known) {
      if (one.is_there && (one.type == ActivityType::CPU || one.type == ActivityType::CUDA)) there.push_back(one.name);
    }
    return there;
  }
  std::vector<std::string> all;
  for (const Activity& one : known) all.push_back(one.name);
  for (const std::string& name : names) {
    const auto found = std::find_if(known.begin(), known.end(), [&](const Activity& one) { return one.name == name; });
    if (found == known.end()) {
      throw UsageError({"watch"}, "there is no activity '", name, "'", guess_end(name, all), " Expected ", join(all),
                       ".");
    }
    if (!found->is_there) {
      throw UsageError({"watch"}, "this libtorch or machine has no ", name,
                       ", so a profile of it would be empty. Leave it out of activities.");
    }
  }
  return names;
}

struct Kineto::Impl {
  explicit Impl(const ProfileOptions& options) : config(config_of(options)) {
    for (const Activity& one : known_activities()) {
      if (std::find(options.activities.begin(), options.activities.end(), one.name) != options.activities.end()) {
        activities.insert(one.type);
      }
    }
  }
  const impl::ProfilerConfig config;
  std::set<ActivityType> activities;
  bool is_ready = false;
  bool is_on = false;
  std::unique_ptr<profiler::ProfilerResult> result;
  std::string saved;
};

Kineto::Kineto(const ProfileOptions& options) : impl_(std::make_unique<Impl>(options)) {}

Kineto::~Kineto() {
  if (!impl_->is_on) return;
  try {
    stop();
  } catch (const std::exception&) {
    // Nothing is lost but the trace.
  }
}

void Kineto::prepare() {
  if (is_any_on()) {
    throw UsageError({"watch"}, "another profiler is on in this process; libtorch has one. End it first.");
  }
  if (std::exchange(impl_->is_ready, true)) return;
  profiler::prepareProfiler(impl_->config, impl_->activities);
}

void Kineto::start() {
  prepare();
  end_at_exit();
  profiler::enableProfiler(impl_->config, impl_->activities);
  impl_->is_on = true;
  impl_->saved.clear();
}

bool Kineto::is_on() const noexcept {
  return impl_->is_on;
}

std::vector<ProfileEvent> Kineto::stop() {
  impl_->is_on = false;
  impl_->is_ready = false;
  impl_->result = profiler::disableProfiler();
  return events_of(impl_->result->events(), static_cast<int64_t>(impl_->result->trace_start_ns()));
}

void Kineto::save(const std::string& path) {
  std::error_code error;
  if (!impl_->saved.empty()) {
    std::filesystem::copy_file(impl_->saved, path, std::filesystem::copy_options::overwrite_existing, error);
    if (error) throw DataError({"watch"}, path, "the trace cannot be copied to ", path, ": ", error.message(), ".");
    return;
  }
  // libtorch is silent about a file that cannot be made.
  std::filesystem::remove(path, error);
  impl_->result->save(path);
  if (!std::filesystem::exists(path, error)) {
    throw DataError({"watch"}, path, "the trace cannot be written to ", path,
                    ". Look at its folder and the space on its disk.");
  }
  impl_->saved = path;
}

void Kineto::add_metadata(const std::string& key, const std::string& json) {
  profiler::addMetadataJson(key, json);
}

void Kineto::toggle(bool enabled) {
  profiler::toggleCollectionDynamic(enabled, impl_->activities);
}

}  // namespace hasten::watch
