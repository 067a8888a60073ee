// Checkpoints: saving and loading the state of a run, on any number of processes and under any strategy.
//
// A saved state is a folder that appears by rename or not at all. It is described by names, shapes and boxes, so any
// number of ranks loads it. Training waits for one copy of the rank's own share; files are written by a thread. An
// Accelerator has one Checkpoints; its methods are Accelerate's. The form is docs/formats/hasten.md's, the plan
// save_plan.h's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/checkpoint/options.h"
#include "hasten/checkpoint/state_dict.h"
#include "hasten/core/log.h"
#include "hasten/process/process.h"
#include "hasten/training/named_state.h"
#include "hasten/training/stateful.h"

namespace hasten::optim {
class LowWeights;
}
namespace hasten::parallel {
class DistributedModels;
class Layout;
class Sharding;
}  // namespace hasten::parallel
namespace hasten::training {
class Accumulation;
class GradientState;
}  // namespace hasten::training
namespace torch::nn {
class Module;
}

namespace hasten::checkpoint {

/// The parts of a run. Pointers stay valid as long as the Checkpoints is used.
struct RunParts {
  process::Process process;
  Logger log;
  const parallel::DistributedModels* models = nullptr;
  training::StateRegistry* registry = nullptr;
  std::shared_ptr<training::GradientState> gradients = {};
  training::Accumulation* accumulation = nullptr;
  std::shared_ptr<parallel::Sharding> sharding = {};
  /// The axes of the ranks; null where all of them are data parallel.
  const parallel::Layout* layout = nullptr;
  const std::shared_ptr<optim::LowWeights>* low_weights = nullptr;
  /// The user's folder, for paths that begin with "~".
  std::string home = {};
  /// Components that hand over state by boxes (tensor and pipeline parallelism, offload).
  std::shared_ptr<std::vector<training::NamedStateful>> components =
      std::make_shared<std::vector<training::NamedStateful>>();
};

/// Takes a hook off again at remove() or at its end.
class [[nodiscard]] HookHandle {
 public:
  HookHandle() = default;
  explicit HookHandle(std::function<void()> remove) : remove_(std::move(remove)) {}
  HookHandle(HookHandle&& other) noexcept : remove_(std::exchange(other.remove_, {})) {}
  HookHandle& operator=(HookHandle&& other) noexcept {
    remove();
    remove_ = std::exchange(other.remove_, {});
    return *this;
  }
  ~HookHandle() { remove(); }
  void remove() noexcept {
    if (const auto own = std::exchange(remove_, {})) own();
  }

 private:
  std::function<void()> remove_;
};

/// A model on its way into or out of a folder. If a hook erases its entry, the save or load leaves the model out.
struct ModelEntry {
  torch::nn::Module* module = nullptr;
  /// Its number among the prepared models, from 0.
  size_t index = 0;
  /// The tensors that a save writes, which a hook may replace. Empty in a load. Parameters that are cut over
  /// ranks are this rank's parts, and whole in Accelerate's layout.
  StateDict weights = {};
};

class Checkpoints {
 public:
  /// `folder`: under construction in a save, where files may be put, which become part of the save.
  using Hook = std::function<void(std::vector<ModelEntry>& models, const std::string& folder)>;

  Checkpoints(RunParts parts, ProjectConfiguration project);
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  /// Saves models, optimizers, schedulers, loaders' positions, the scaler, random streams and registered objects.
  /// Without a path: project_dir/checkpoints/checkpoint_{n}. A folder that is there is replaced in one step; files of
  /// others in it stay.
  /// Collective: yes. Blocks: until the state is copied (background), else until it is on disk. Throws: UsageError
  /// without a path where naming is not automatic, if ranks name different paths, or for a path that is a file;
  /// DataError with the failing rank's words; CommError. In background, the DataError comes out of Save::wait, end()
  /// and the third save in a row.
  Save save_state(const std::string& path = {}, const SaveOptions& options = {});

  /// Loads a folder that save_state wrote, or one of Accelerate, DCP, FSDP or DeepSpeed. Without a path it takes the
  /// complete checkpoint of the highest number. Nothing is changed unless everything fits.
  /// Collective: yes. Blocks: until all ranks have loaded. Throws: UsageError listing all that is missing, unexpected
  /// or mismatched; UsageError naming the complete checkpoints beside a path that is none; DataError for damaged files;
  /// CommError.
  Loaded load_state(const std::string& path = {}, const LoadOptions& options = {});

  /// save_state to dir/tag, and then the tag to the file dir/latest, by DeepSpeed's names. Without a tag it is
  /// global_step{n} of step(). If ranks name different tags, ProjectConfiguration::tag_validation says what happens.
  /// Returns the tag.
  /// Collective: yes. Blocks: until the folder is complete on disk. Throws: as save_state; UsageError with both tags
  /// where they are compared, or for a tag that is no name of a folder.
  std::string save_checkpoint(const std::string& dir, const std::string& tag = {}, const SaveOptions& options = {});
  /// load_state of dir/tag; without a tag, of the one that dir/latest names. DeepSpeed's own folders are read as well.
  /// Collective: yes. Blocks: as load_state. Throws: as load_state; UsageError if dir has no latest.
  Loaded load_checkpoint(const std::string& dir, const std::string& tag = {}, const LoadOptions& options = {});

  /// load_state of the newest complete checkpoint, or of a step's; nothing if there is none. A damaged one is skipped
  /// with a warning. Collective: yes. Blocks: as load_state. Throws: as load_state.
  std::optional<Loaded> resume(const ResumeOptions& options = {});

  /// Weights, options and state of an object: it is saved and loaded under its name. Lvalues are borrowed.
  /// Throws: UsageError for a name that is taken.
  template <training::Stateful T>
  void register_object(const std::string& name, const std::shared_ptr<T>& object) {
    registry().add(training::StateKind::kCustom, object, name);
  }
  template <training::Stateful T>
  void register_object(const std::string& name, T& object) {
    registry().add(training::StateKind::kCustom, std::shared_ptr<T>(std::make_shared<std::byte>(), &object), name);
  }

  /// Registers a component whose state is split over the ranks in boxes of its own. Pieces are saved under the
  /// component's name. Its load_state gets the boxes that its state() asks for then.
  /// Throws: UsageError for a name that is taken.
  void add_component(training::NamedStateful component);

  /// Hooks run in the order in which they came, on all ranks.
  HookHandle add_save_hook(Hook hook);
  HookHandle add_load_hook(Hook hook);

  /// Returns the number of the next checkpoint (ProjectConfiguration::iteration, grown by saves).
  int64_t save_iteration() const noexcept;
  /// Steps of prepared optimizers so far, skipped ones apart; what resume({.step}) and `hasten checkpoint list` show.
  int64_t step() const noexcept;
  const ProjectConfiguration& project() const noexcept;

  /// Waits for a save under way. Blocks: until it has ended. Throws: DataError with what went wrong.
  void end();

  struct Impl;

 private:
  training::StateRegistry& registry() const noexcept;
  std::shared_ptr<Impl> impl_;
};

}  // namespace hasten::checkpoint
