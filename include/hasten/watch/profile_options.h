// The contents of a profile, and its steps: ProfileKwargs of Accelerate and torch.profiler.schedule.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace hasten::watch {

class Profiler;

/// The work of a profiler in a step.
enum class ProfilerAction { kNone, kWarmup, kRecord, kRecordAndSave };

/// Cycles of steps: `wait` without anything, `warmup` with what the profiler costs but no result, `active` recorded.
/// Accelerate's schedule_option.
struct ProfileSchedule {
  int64_t wait = 0;
  int64_t warmup = 0;
  int64_t active = 1;
  /// Cycles; 0: to the end.
  int64_t repeat = 0;
  int64_t skip_first = 0;
  /// The first cycle does not wait.
  bool skip_first_wait = false;
};

/// Returns what is done in step `step`, counted from 0. Throws: UsageError for a negative
/// number, or an `active` below 1.
ProfilerAction action(const ProfileSchedule& schedule, int64_t step);

/// Accelerate's ProfileKwargs.
struct ProfileOptions {
  /// "cpu", "cuda", "xpu", "mtia", "hpu". Empty: the CPU, and CUDA where it is there.
  std::vector<std::string> activities = {};
  /// Unset: everything from begin to end is one cycle.
  std::optional<ProfileSchedule> schedule = {};
  /// Called on the profiling thread after each cycle.
  std::function<void(Profiler&)> on_trace_ready = {};
  /// The shapes of operators' inputs.
  bool record_shapes = false;
  /// Memory that operators take and free. Implies `all_threads = false`, since libtorch has no such events otherwise.
  bool profile_memory = false;
  /// Python's stacks; refused.
  bool with_stack = false;
  /// Operations of matrix products and convolutions. Implies record_shapes.
  bool with_flops = false;
  /// TorchScript's modules; refused.
  bool with_modules = false;
  /// Each cycle is saved there as profile_{rank}.json; an earlier cycle's file becomes profile_{rank}.{cycle}.json.
  /// Empty: nothing is saved.
  std::string output_trace_dir = {};
  /// Operators of all threads, as loaders' workers. False: of this thread, and of backward.
  bool all_threads = true;
  /// Keys with JSON texts that are written into traces.
  std::vector<std::pair<std::string, std::string>> metadata = {};
};

}  // namespace hasten::watch
