// Recorded operators, their averages and the table of them, with the texts of torch.profiler.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace hasten::watch {

/// An operator, a scope or a kernel as it was recorded.
struct ProfileEvent {
  std::string name = {};
  uint64_t thread = 0;
  /// Since the begin of its cycle.
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  /// "cpu", "cuda" and so on.
  std::string device = "cpu";
  /// It began on one thread and ended on another.
  bool is_async = false;
  /// A scope of the program's, shown on a device; its time is its kernels'.
  bool is_annotation = false;
  /// Shapes of its inputs; empty unless they are recorded.
  std::vector<std::vector<int64_t>> input_shapes = {};
  uint64_t flops = 0;
  /// Bytes of the CPU taken and freed between its begin and end; of a device.
  int64_t cpu_bytes = 0;
  int64_t device_bytes = 0;
  /// Time of the kernels that it has started.
  int64_t kernels_ns = 0;
};

/// All events of a name. Times are in microseconds.
struct ProfileAverage {
  std::string key = {};
  int64_t count = 0;
  double cpu_time_total = 0;
  double self_cpu_time_total = 0;
  double device_time_total = 0;
  double self_device_time_total = 0;
  int64_t cpu_memory_usage = 0;
  int64_t self_cpu_memory_usage = 0;
  int64_t device_memory_usage = 0;
  int64_t self_device_memory_usage = 0;
  uint64_t flops = 0;
  std::string device = "cpu";
  bool is_async = false;
  bool is_annotation = false;
  std::vector<std::vector<int64_t>> input_shapes = {};
};

struct ProfileTableOptions {
  /// A field of ProfileAverage: "self_cpu_time_total", "cpu_time_total", "cpu_time", "device_time_total", "count", …;
  /// "cuda" in it means "device". Empty: in the order in which they came.
  std::string sort_by = {};
  int64_t row_limit = 100;
  std::string header = {};
  size_t max_name_column_width = 55;
  size_t max_shapes_column_width = 80;
  /// "s", "ms" or "us"; empty: as fits each time.
  std::string time_unit = {};
};

/// Averages in the order of their first events.
class ProfileAverages {
 public:
  ProfileAverages() = default;
  /// `with_memory`, `with_flops`: whether they were recorded, and so are shown.
  ProfileAverages(std::vector<ProfileAverage> averages, bool with_memory, bool with_flops)
      : averages_(std::move(averages)), with_memory_(with_memory), with_flops_(with_flops) {}

  const std::vector<ProfileAverage>& all() const noexcept { return averages_; }
  /// Returns the text that torch's key_averages().table gives.
  /// Throws: UsageError for an unknown sort_by or time_unit.
  std::string table(const ProfileTableOptions& options = {}) const;

 private:
  std::vector<ProfileAverage> averages_ = {};
  bool with_memory_ = false;
  bool with_flops_ = false;
};

/// Returns the averages of events by name, or by name and shapes of inputs. An event inside of another of its thread
/// counts for the outer one's total and not for its self time.
ProfileAverages average(std::vector<ProfileEvent> events, bool group_by_input_shapes, bool with_memory,
                        bool with_flops);

}  // namespace hasten::watch
