// Tracker: the interface of everything that shows runs (TensorBoard, MLflow, a program's own).
//
// A follower of the journal calls its functions on one thread, in the order of the log calls, and never on the training
// thread. They may take as long as they need and may throw; the call is then repeated.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/tracking/journal/value.h"

namespace hasten::tracking {

struct TrackerTraits {
  std::string name = {};
  bool requires_logging_directory = false;
  /// false: each rank has one of its own.
  bool main_process_only = true;
};

struct RunInfo {
  std::string project = {};
  std::string run_id = {};
  /// The run's folder in the logging directory, `<logging_dir>/<project>/<run_id>`; empty without one.
  std::filesystem::path folder = {};
  int rank = 0;
  int world_size = 1;
  int64_t pid = 0;  ///< of the training process
  double start_time_s = 0;
  /// The step behind which a run goes on that had started before.
  std::optional<int64_t> resumed_at = {};
};

/// How a run ended: by end_training, by an exception, without a message (killed), by a signal that requested the end.
enum class RunEnd { kFinished, kFailed, kCrashed, kInterrupted };

/// A key and the PNG files of its images.
using ImageFiles = std::vector<std::pair<std::string, std::vector<std::filesystem::path>>>;

/// The folder of an embedding: tensors.tsv, and metadata.tsv and sprite.png where they were given.
struct EmbeddingFiles {
  std::filesystem::path folder = {};
  bool has_metadata = false;
  /// Width and height of one picture in sprite.png; 0 without one.
  int image_width = 0, image_height = 0;
};

class Tracker {
 public:
  virtual ~Tracker() = default;
  virtual const TrackerTraits& traits() const noexcept = 0;

  /// Starts a run, or goes on with one (RunInfo::resumed_at, or resume() before it).
  virtual void start(const RunInfo& run) { (void)run; }
  virtual void store_init_configuration(const core::Value& config) { (void)config; }
  /// Shows values (Pending ones are numbers by now). `kwargs`: what log was given for this tracker; null: nothing.
  virtual void log(const Values& values, int64_t step, const core::Value& kwargs) = 0;

  /// Return false if the tracker cannot show this kind, which is reported once.
  virtual bool log_images(const ImageFiles& images, int64_t step, const core::Value& kwargs);
  virtual bool log_table(const std::string& key, const Table& table, int64_t step, const core::Value& kwargs);
  virtual bool log_histogram(const std::string& key, const Histogram& histogram, int64_t step);
  virtual bool log_artifact(const std::filesystem::path& path, const std::string& artifact_path);
  virtual bool log_embedding(const std::string& key, const EmbeddingFiles& files, int64_t step);
  virtual bool log_graph(const std::vector<GraphNode>& graph);
  /// Calls a function of the tracker's own: `accelerator.tracker("wandb").call("define_metric", {"loss"})`.
  virtual bool call(const std::string& function, const core::Value& arguments, const core::Value& keywords);
  /// Takes a line that a program wrote as a warning, or a message of hasten about the run.
  virtual bool note(const std::string& text) { return (void)text, false; }
  /// Goes on behind `step`, although later steps have been logged (a checkpoint has been loaded).
  virtual bool rewind(int64_t step) { return (void)step, false; }

  /// Makes all calls so far last (on disk, on the server), and returns what resume() needs to go on behind them.
  virtual core::Value flush() { return {}; }
  /// Called before start() in a follower that goes on where an earlier one stopped, with the last flush()'s value.
  virtual void resume(const core::Value& state) { (void)state; }
  virtual void finish(RunEnd end) { (void)end; }

  /// Unix time of the record that is being passed on, which may have been written long ago.
  double time_s() const noexcept { return time_s_; }
  void set_time_s(double time_s) noexcept { time_s_ = time_s; }
  /// Returns what warn() was given since the last call.
  std::vector<std::string> take_warnings() { return std::exchange(warnings_, {}); }

 protected:
  /// Writes a line for the user, without failing.
  void warn(std::string line) { warnings_.push_back(std::move(line)); }

 private:
  std::vector<std::string> warnings_;
  double time_s_ = 0;
};

}  // namespace hasten::tracking
