// SavedRun: a saved state of any form, as a load reads it. LoadTarget: the run that it is loaded into.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/save/capture.h"
#include "checkpoint/checkpoints_state.h"
#include "checkpoint/run_reader.h"
#include "checkpoint/source_reader.h"
#include "hasten/checkpoint/weights.h"

namespace hasten::checkpoint {

class SavedRun {
 public:
  explicit SavedRun(std::string folder) : path(std::move(folder)) {}
  virtual ~SavedRun() = default;

  /// The tensors of a model; null if there are none.
  struct Weights {
    files::TensorSourcePtr source = {};
    std::vector<std::string> names = {};
    /// Names are the module's; false: the manifest's, with "model_1/" before them.
    bool plain = false;
  };
  virtual Weights weights(size_t model) const = 0;
  /// Collects the boxes that load_optimizer, load_object and load_masters read, and lasts as long as this. The caller
  /// adds the weights, and then reads. Null for a form without a manifest. Throws:
  /// DataError.
  virtual RunReader* reader(Checkpoints::Impl& own, const std::vector<ModelEntry>& models, const LoadOptions& options);
  virtual bool has(const training::Registered& object) const = 0;
  /// "; it has ema, teacher", for messages.
  virtual std::string others(training::StateKind kind) const = 0;
  /// A part of the folder, by its name there.
  struct Part {
    training::StateKind kind = training::StateKind::kCustom;
    std::string name = {};
  };
  /// Objects of the folder that this run lacks.
  virtual std::vector<Part> without_object(const training::StateRegistry& registry) const = 0;
  /// Models of the folder from number `first` on, by their names there.
  virtual std::vector<std::string> models_from(size_t first) const = 0;
  /// Returns the class of an optimizer; "" if the form lacks it.
  virtual std::string optimizer_type(const std::string& name) const = 0;
  virtual void load_optimizer(Checkpoints::Impl& own, const std::string& name, torch::optim::Optimizer& optimizer,
                              const ParameterNames& name_of) const = 0;
  virtual void load_object(Checkpoints::Impl& own, const training::Registered& object) const = 0;
  virtual void load_masters(Checkpoints::Impl& own, const std::vector<ModelEntry>& models) const;
  virtual void load_gradients(Checkpoints::Impl& own, const std::vector<ModelEntry>& models) const;
  virtual void load_random(Checkpoints::Impl& own) const = 0;
  virtual bool has_component(const std::string&) const { return false; }
  virtual void load_component(const training::NamedStateful&) const {}

  std::string path;
  int64_t step = 0, iteration = 0, accumulation_step = 0;
  std::vector<std::string> unknown = {};
};

/// Finds out the form by content. Blocks: on the files. Throws: UsageError if it is none; DataError.
std::unique_ptr<SavedRun> open_saved_run(const Checkpoints::Impl& own, const std::string& path);
/// hasten's own form, and Accelerate's with FSDP's, DCP's and DeepSpeed's.
std::unique_ptr<SavedRun> open_hasten_run(const Checkpoints::Impl& own, const std::string& path);
std::unique_ptr<SavedRun> open_accelerate_run(const Checkpoints::Impl& own, const std::string& path);

/// Reports once if a scheduler's options differ from the saved ones. This program's stay.
void warn_of_options(const Checkpoints::Impl& own, const training::Registered& scheduler, const core::Value& saved);

class LoadTarget {
 public:
  explicit LoadTarget(std::vector<ModelEntry> models) : models_(std::move(models)) {}
  std::vector<ModelEntry>& models() noexcept { return models_; }
  /// Everything that can be refused. Throws: UsageError with all of it.
  void check(const Checkpoints::Impl& own, const SavedRun& saved, const LoadOptions& options, Loaded& loaded);
  /// Warns once of models and objects that a strict load leaves in the folder.
  void warn_of_rest(const Checkpoints::Impl& own, const SavedRun& saved) const;
  /// Notes what is to be read, and returns a digest of what all ranks read alike. Throws: DataError.
  std::string collect(Checkpoints::Impl& own, SavedRun& saved, const LoadOptions& options);
  /// Fills weights, and the tensors that apply() returns. Collective: over `share`. Throws: DataError.
  void read(const comm::Group* share, Loaded& loaded);
  void apply(Checkpoints::Impl& own, const SavedRun& saved, const LoadOptions& options);

 private:
  struct Weights {
    std::vector<WantedTensor> requested;
    WeightMatch match;
    files::TensorSourcePtr source;
  };
  void check_optimizers(const Checkpoints::Impl& own, const SavedRun& saved);
  void note_rest(const Checkpoints::Impl& own, const SavedRun& saved, const LoadOptions& options, Loaded& loaded);
  void note_optimizer_state();
  std::vector<ModelEntry> models_;
  std::vector<Weights> weights_ = {};
  // Reads a saved state with a manifest of ours, which owns it; null where `sources_` read.
  RunReader* reader_ = nullptr;
  std::list<SourceReader> sources_ = {};
  std::vector<std::string> errors_ = {};
  std::vector<std::string> rest_ = {};
};

}  // namespace hasten::checkpoint
