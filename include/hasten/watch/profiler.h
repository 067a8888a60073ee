// Profiler: what libtorch does in some steps, as traces and tables. libtorch's Kineto without Python.
//
// profile_options.h has what is recorded and when, profile_table.h the averages. Names and meanings are those of
// torch.profiler.profile and Accelerate's ProfileKwargs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hasten/process/process.h"
#include "hasten/watch/profile_options.h"
#include "hasten/watch/profile_table.h"

namespace hasten::watch {

class Profiler {
 public:
  /// Begins step 0. One profiler a process; `process` gives the rank for names of files.
  /// Throws: UsageError for options that this libtorch or hasten lacks, naming them, or if
  /// another profiler is on; DataError for a folder that cannot be made.
  Profiler(const process::Process& process, ProfileOptions options);
  /// As stop(), without on_trace_ready's or the disk's exceptions.
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// The step ends, and the next begins. On the thread that made the profiler.
  /// Blocks: at the end of a cycle, until its trace is saved. Throws: DataError if that fails.
  void step();
  int64_t step_num() const noexcept;
  /// Ends the cycle under way, which is saved. Nothing if it has ended. Blocks: as step. Throws: as
  /// step.
  void stop();

  /// Returns the events of the last cycle that has ended; empty before.
  const std::vector<ProfileEvent>& events() const noexcept;
  /// Returns the averages of events() by name, or by name and shapes.
  ProfileAverages key_averages(bool group_by_input_shapes = false) const;
  /// Writes the last cycle's trace, for Perfetto, chrome://tracing and HTA.
  /// Blocks: on the disk. Throws: UsageError before the end of a cycle, or for a name that ends in .gz;
  /// DataError if it cannot be written.
  void export_chrome_trace(const std::string& path);
  /// Writes a value, or JSON text, into the trace of the cycle under way. Nothing outside of one.
  void add_metadata(const std::string& key, const std::string& value);
  void add_metadata_json(const std::string& key, const std::string& json);
  /// Stops recording for a while, or goes on. With `all_threads = false` alone.
  /// Throws: UsageError with all threads, or outside of a cycle.
  void toggle_collection(bool enabled);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Runs `fn` under a profiler, whose step() it calls once a step. The profiler ends with it, also by an exception.
/// Blocks: as fn and step. Throws: as Profiler, and the exceptions of fn.
void profile(const process::Process& process, ProfileOptions options, const std::function<void(Profiler&)>& fn);

}  // namespace hasten::watch
