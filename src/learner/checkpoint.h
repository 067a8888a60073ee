// Checkpoints of a fit in mid-epoch, and the files of weights and optimizers.
#pragma once

#include <filesystem>
#include <string>

#include "hasten/learner/learner.h"

namespace hasten::learner {

/// Returns the optimizer's state and options as bytes of a libtorch archive.
std::string save_optimizer(const torch::optim::Optimizer& optimizer);
/// Throws: DataError (path) for bytes of another optimizer.
void load_optimizer(torch::optim::Optimizer& optimizer, const std::string& bytes, const std::string& path = "memory");

/// Writes a file whole or not at all: a temporary name, fsync, rename. Throws: DataError.
void write_file(const std::filesystem::path& path, const std::string& bytes);
std::string read_file(const std::filesystem::path& path);

/// A module's state_dict as a safetensors file, which appears by rename. Throws: DataError.
void write_weights(const std::filesystem::path& path, const torch::nn::Module& module);

/// A folder of Learner::save_checkpoint.
class CheckpointReader {
 public:
  /// Throws: DataError if the folder is none.
  explicit CheckpointReader(const std::filesystem::path& folder);
  /// Returns the epoch to go on in. Throws: UsageError if the fit has another number of epochs.
  int64_t epoch(int64_t num_epochs) const;
  /// Behind before_fit: weights, optimizer, callbacks, random state, loader. Throws: UsageError naming what differs.
  void restore(Learner& learn) const;
  /// The position of training: the loader is given its position.
  bool in_training() const;

 private:
  std::filesystem::path folder_;
  core::Value state_;
};

/// Puts the state of a checkpoint in place when all callbacks have begun the fit.
struct ResumeCallback : Callback {
  explicit ResumeCallback(const CheckpointReader& from) : reader(from) {}
  std::string_view name() const override { return "resume"; }
  int order() const override { return 1000; }
  void before_fit(Learner& learn) override { reader.restore(learn); }
  void before_train(Learner& learn) override;
  CheckpointReader reader;
  bool started = false;
};

}  // namespace hasten::learner
