// Options and results of saving and loading a run's state.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace hasten::checkpoint {

/// What happens if ranks name different tags in save_checkpoint (DeepSpeed's checkpoint.tag_validation). Rank 0's
/// counts.
enum class TagValidation { kIgnore, kWarn, kFail };

/// Accelerate's ProjectConfiguration: where a run's files go.
struct ProjectConfiguration {
  /// The run's folder; made when it is first needed.
  std::filesystem::path project_dir = {};
  /// For trackers; empty: project_dir.
  std::filesystem::path logging_dir = {};
  /// save_state() without a path writes project_dir/checkpoints/checkpoint_{n}, in the background.
  bool automatic_checkpoint_naming = false;
  /// Number of checkpoints that stay with automatic naming; older ones are removed once the new one is complete.
  std::optional<int64_t> total_limit = {};
  /// Keeps each checkpoint whose number is a multiple of this, beyond the limit.
  std::optional<int64_t> keep_every = {};
  /// The number of the next checkpoint, if no higher one is there.
  int64_t iteration = 0;
  /// save() writes on the first process of each host instead of the first of all.
  bool save_on_each_node = false;
  TagValidation tag_validation = TagValidation::kWarn;
  /// How long rank 0 waits for the other ranks' files.
  std::chrono::seconds save_timeout = std::chrono::minutes(30);
  /// How long other hosts wait for a folder that rank 0 has made, before each host saves into its own.
  std::chrono::milliseconds shared_folder_timeout = std::chrono::seconds(10);

  /// Sets project_dir, and logging_dir if it is empty.
  void set_directories(const std::filesystem::path& folder) {
    project_dir = folder;
    if (logging_dir.empty()) logging_dir = folder;
  }
};

/// The form of a saved state.
enum class Layout {
  /// manifest.json and safetensors files, for any number of processes.
  kHasten,
  /// Accelerate's files, which its load_state reads, and hasten.json beside them.
  kAccelerate,
};

struct SaveOptions {
  /// Returns once the state is copied; false: once it is on disk. Unset: as automatic naming is.
  std::optional<bool> background = {};
  Layout layout = Layout::kHasten;
  /// kAccelerate: model.safetensors; false: pytorch_model.bin.
  bool safe_serialization = true;
  /// If a save is still under way, this one is left out instead of waiting for it.
  bool skip_if_busy = false;
  /// Compares the ranks' copies of replicated parameters and optimizer state. If copies differ, the save fails and
  /// names the rank and the tensor; the checkpoint before it stays. Costs the time of hashing the replicated state
  /// (about 7 GB/s), in the pause. kHasten only.
  bool check_replicas = false;
};

enum class OptimizerLoad { kLoad, kSkip };

/// Number of ranks that read data which all of them need.
enum class ReadFiles {
  /// Each rank reads everything.
  kEachRank,
  /// The ranks of a host read a part each, and hand the parts around.
  kOncePerHost,
  /// As kOncePerHost, over all ranks: for file systems that are slower than the network.
  kOnce,
};

struct LoadOptions {
  /// If true, names and shapes must be the same, and each registered object must be in the folder. If false, the
  /// entries that fit are loaded.
  bool strict = true;
  OptimizerLoad optimizer = OptimizerLoad::kLoad;
  /// Random streams go on where they stood.
  bool random = true;
  /// Prefixes of names in the folder, and their replacements here.
  std::vector<std::pair<std::string, std::string>> rename = {};
  ReadFiles read = ReadFiles::kOncePerHost;
  /// Compares the hash of each piece that is read whole with the manifest's (hasten's own form).
  bool verify = true;
};

struct ResumeOptions {
  /// The checkpoint of this step; unset: the newest complete one.
  std::optional<int64_t> step = {};
  LoadOptions load = {};
};

/// The result of a load.
struct Loaded {
  std::string path = {};
  int64_t step = 0;
  int64_t iteration = 0;
  /// Tensors and objects that the run has and the folder lacks; the opposite; and files that are not known.
  std::vector<std::string> missing = {};
  std::vector<std::string> unexpected = {};
  std::vector<std::string> unknown = {};
  /// Bytes of tensors that this rank has read from files; the rest came from other ranks.
  uint64_t bytes_read = 0;
};

/// A save, under way or done. A value handle; its end waits for nothing.
class Save {
 public:
  struct State;
  Save() = default;
  explicit Save(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// Returns the folder that appears when the save is complete. Empty for a save that was left out (skip_if_busy).
  const std::string& path() const noexcept;
  /// True if it is complete or has failed.
  bool done() const noexcept;
  /// Blocks: until the folder is complete on disk. Throws: DataError with the words of the rank that
  /// failed.
  void wait() const;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace hasten::checkpoint
