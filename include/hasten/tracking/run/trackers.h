// Trackers: the part of an Accelerator that shows its runs. Every logged value becomes a line of the run's journal. The
// trackers follow the journal in another process (follower.h), so a step waits for none of them.
//
// The main process logs. Every rank that has a journal adds its own speed and memory to it once a second.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hasten/core/env.h"
#include "hasten/core/log.h"
#include "hasten/tracking/follower/tracking_options.h"

namespace hasten::tracking {

/// Returns a new id of a run, made from the time and chance: "20260131-120000-a1b2c3".
std::string make_run_id();

class TrackerHandle;

/// A value handle; copies share one run. Its functions are called from one thread at a time, `note` from any.
class Trackers {
 public:
  /// Makes the trackers of a program that tracks nothing: init throws.
  Trackers();
  /// Throws: UsageError for a name that the registry lacks.
  explicit Trackers(TrackersSetup setup);

  /// Starts the run on the main process; other ranks start their own journals. `init_kwargs` has a map a tracker.
  /// Blocks: for the start of a process, and of Python if a Python client is requested. Throws:
  /// UsageError for wrong names and options, a missing client or a second call; DataError if the journal cannot be
  /// written.
  void init(const std::string& project, const Config& config = {}, const Config& init_kwargs = {});

  /// Logs values. `step`: unset means the number of calls without a step so far. `kwargs` has a map a tracker.
  /// Blocks: for one write to the page cache. Throws: UsageError before init, for an empty or overlong
  /// key, two equal keys, or a negative step.
  void log(const Values& values, std::optional<int64_t> step = {}, const Config& kwargs = {});
  /// Copies the pixels; a thread writes PNGs to the run's media/. Throws: as log.
  void log_images(const ImageValues& images, std::optional<int64_t> step = {}, const Config& kwargs = {});
  void log_table(const std::string& key, const Table& table, std::optional<int64_t> step = {},
                 const Config& kwargs = {});
  void log_histogram(const std::string& key, const Histogram& histogram, std::optional<int64_t> step = {});
  /// Shows a figure that a plotting library has written: a PNG among the images, any other file as an artifact.
  void log_figure(const std::string& key, const std::filesystem::path& file, std::optional<int64_t> step = {});
  /// Hands a file over, which stays where it is and must be there until the run has ended. Throws: DataError if it is
  /// not there.
  void log_artifact(const std::filesystem::path& file, const std::string& artifact_path = "");
  /// All files below a folder.
  void log_artifacts(const std::filesystem::path& folder, const std::string& artifact_path = "");
  /// Shows a graph. graph_of (training/graph_values.h) makes one of a module, or of the computation of a loss.
  void log_graph(const std::vector<GraphNode>& graph);
  /// Shows points of many dimensions; a thread writes them to the run's media/. Throws: as log; UsageError if sizes do
  /// not fit.
  void log_embedding(const std::string& key, Embedding embedding, std::optional<int64_t> step = {});
  /// Puts a line on the run's time line. Does nothing outside a run.
  void note(const std::string& text, const std::string& level = "info") noexcept;

  /// Returns a tracker in use. Throws: UsageError with those in use for any other.
  TrackerHandle tracker(const std::string& name) const;
  /// Returns the first tracker of type T that was given as an object; null if there is none.
  template <class T>
  std::shared_ptr<T> tracker() const {
    for (const auto& one : objects()) {
      if (auto found = std::dynamic_pointer_cast<T>(one)) return found;
    }
    return nullptr;
  }
  std::vector<std::string> names() const;

  /// Ends the run and waits for its trackers. Names the command that completes records which have not arrived. The
  /// second call does nothing.
  /// Blocks: at most finish_timeout_s.
  void finish(RunEnd end = RunEnd::kFinished) noexcept;

  /// Returns true between init and finish on a rank that has a journal.
  bool is_running() const noexcept;
  /// Returns true if log_with names something.
  bool is_used() const noexcept;
  const std::string& run_id() const noexcept;
  /// Returns the folder of the journal; empty before init.
  const std::filesystem::path& run_folder() const noexcept;

  /// Run id and last step, for a checkpoint.
  core::Value state() const;
  /// Goes on with the run of a checkpoint. Before init: init takes up that run's folder. After it: the run notes from
  /// where it goes on. Trackers drop what was logged behind the checkpoint's step where they can.
  /// Throws: UsageError for a state without a run.
  void load_state(const core::Value& state);

  /// Counts a step of the training loop and its samples, for the metrics of each rank. From any thread.
  void count_step(int64_t num_samples = 0) noexcept;
  /// Counts time that the loop waited for data.
  void count_data_wait(double seconds) noexcept;
  /// Adds to each rank's metrics what `read` returns; called on a thread of the trackers'.
  void add_metrics(std::function<Values()> read);

 private:
  friend class TrackerHandle;
  std::vector<std::shared_ptr<Tracker>> objects() const;
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

/// A tracker of a run: values logged here reach it alone. On ranks without a journal its functions do nothing.
class TrackerHandle {
 public:
  const std::string& name() const noexcept { return name_; }
  const std::string& run_id() const noexcept { return trackers_.run_id(); }
  void log(const Values& values, std::optional<int64_t> step = {}, const Config& kwargs = {});
  /// Calls a function of the Python client's run object, or of a native tracker (TensorBoard: add_summary).
  /// Throws: UsageError for a name that begins with "_".
  void call(const std::string& function, const Config& arguments = core::Value::list(),
            const Config& keywords = core::Value::map());

 private:
  friend class Trackers;
  TrackerHandle(Trackers trackers, std::string name) : trackers_(std::move(trackers)), name_(std::move(name)) {}
  Trackers trackers_;
  std::string name_;
};

}  // namespace hasten::tracking
