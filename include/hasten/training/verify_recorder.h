// VerifyRecorder: writes down what each optimizer step of a run computes, for hasten verify (docs/verify.md).
//
// Loaders report batches, the front door backwards and norms. The recorder is a policy of the optimizers' steps. Each
// rank writes a file of its own, a line of JSON an event (docs/formats/verify.md). So recording adds no collective. One
// process may compute the shares of several ranks in turn. Then each batch of a loader is a share, and the window of
// accumulation is as many times longer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/core/env.h"
#include "hasten/core/value.h"
#include "hasten/training/backward_observers.h"
#include "hasten/training/counted_optimizer.h"
#include "hasten/training/gradient_state.h"
#include "hasten/training/step_policy.h"
#include "hasten/training/tensor_digest.h"

namespace hasten::training {

/// HASTEN_VERIFY, a map in JSON that `hasten verify` writes.
struct VerifyOptions {
  /// Each rank's file is this with ".rank" and its number behind.
  std::string path = {};
  /// Number of steps of the first optimizer after which the program ends, with exit code 0.
  int64_t num_steps = 20;
  /// Ranks whose batches this process computes, one after the other. 1: its own.
  int num_shares = 1;
  /// The batches of all shares are put together.
  bool whole = false;
  uint64_t seed = 0;

  /// Returns nothing if HASTEN_VERIFY is not set. Throws: UsageError for another text than `hasten verify` writes.
  static std::optional<VerifyOptions> of(const Environment& environment);
};

/// A batch that a loader hands to the loop.
struct VerifyBatch {
  /// The rank whose batch it is.
  int share = 0;
  /// No share of this step follows.
  bool ends_step = true;
  /// No step follows in this pass.
  bool ends_pass = false;
  /// The loader was prepared.
  bool is_prepared = true;
  /// Numbers of the samples; empty if not known.
  std::vector<size_t> positions = {};
  /// Hash of the tensors; 0 if not known.
  uint64_t bytes = 0;
};

/// A tensor of the program, by its name in the models.
struct VerifyTensor {
  std::string name;
  at::Tensor tensor;
  /// It belongs to a prepared model.
  bool is_prepared = true;
};

/// The recorder's view of a training loop.
struct VerifySources {
  /// Parameters of the models and of these optimizers, and the models' buffers.
  std::function<std::vector<VerifyTensor>()> parameters = {};
  std::function<std::vector<VerifyTensor>()> buffers = {};
  /// Returns the whole gradient of a parameter; undefined if it has none.
  std::function<at::Tensor(const at::Tensor& parameter)> gradient = {};
  /// Returns an object while which parameters are whole; null where they are so anyway.
  std::function<std::shared_ptr<void>()> summon = {};
  /// Returns the scale of losses, 1 without one.
  std::function<double()> scale = {};
  /// Returns facts of the program for the comparison: precision, sharding.
  std::function<core::Value()> facts = {};
  /// Waits for the other ranks before the process ends.
  std::function<void()> meet = {};
  std::shared_ptr<GradientState> gradients = {};
};

/// Buffers of the shares of one window. Each share goes on from its own; at the window's end all get those of share 0.
class ShareBuffers {
 public:
  using Read = std::function<std::vector<VerifyTensor>()>;
  /// A share's forward is about to begin.
  void enter(int share, const Read& buffers);
  /// The window ends, within a share.
  void end_window(const Read& buffers);

 private:
  void leave(const Read& buffers);
  int current_ = -1;
  std::vector<at::Tensor> base_ = {};
  std::vector<std::vector<at::Tensor>> of_share_ = {};
};

/// From the loop's thread alone.
class VerifyRecorder : public StepPolicy, public BackwardObserver {
 public:
  /// Throws: UsageError if the file cannot be written.
  VerifyRecorder(VerifyOptions options, int rank, int world_size);

  const VerifyOptions& options() const noexcept { return options_; }
  int num_shares() const noexcept { return options_.num_shares; }
  /// Returns true if batches of one step come one after the other.
  bool takes_turns() const noexcept { return num_shares() > 1 && !options_.whole; }
  /// Batches of a step that the loop makes one backward each for.
  int num_turns() const noexcept { return takes_turns() ? num_shares() : 1; }
  /// Returns the file or folder to use in the place of the program's: nothing is saved there that the program keeps.
  std::string scratch(const std::string& name) const { return options_.path + ".scratch/" + name; }

  /// The loop that steps from now on.
  void attach(VerifySources sources) { sources_ = std::move(sources); }
  /// The loop of these gradients has ended.
  void detach(const std::shared_ptr<GradientState>& gradients) {
    if (sources_.gradients == gradients) sources_ = {};
  }

  /// A pass over a loader begins. Seeds the generators anew from the seed and the number of the pass.
  void begin_pass();
  /// A batch is handed to the loop. Seeds the generators anew from the seed, the number of the batch and its share.
  void note_batch(const VerifyBatch& batch);
  /// Stands for Accumulation::next where shares take turns. `count` counts a batch of all shares, of which it is given
  /// whether it is the last of its pass. It returns whether the batch ends the window.
  void accumulate(const std::function<bool(bool ends_pass)>& count);
  /// clip_grad_norm_ has found this norm.
  void note_norm(double norm) { norm_ = norm; }

  /// Throw: UsageError for loops whose shares cannot be computed one after the other.
  void before_backward(const BackwardFacts& facts) override;
  void after_backward(const BackwardFacts& facts) override;
  /// Writes the step, and ends the process after the last.
  void after_step(StepContext& context) override;

 private:
  void write(core::Value event);
  void write_start();
  void seed(uint64_t number, uint64_t share);
  core::Value digests(const std::vector<VerifyTensor>& tensors) const;
  core::Value gradient_digests() const;
  int64_t number_of(const torch::optim::Optimizer& optimizer, bool counts);
  core::Value rates_of(const torch::optim::Optimizer& optimizer) const;
  [[noreturn]] void end_process();

  const VerifyOptions options_;
  const int rank_;
  std::ofstream file_;
  VerifySources sources_ = {};
  ShareBuffers buffers_ = {};
  std::optional<VerifyBatch> batch_ = {};
  bool started_ = false;
  bool outer_ends_window_ = true;
  bool stepped_in_batch_ = false;
  /// Hash of the generator's state behind its seeding; empty before.
  std::optional<uint64_t> seeded_ = {};
  std::vector<uint64_t> num_batches_ = {};
  uint64_t num_passes_ = 0;
  int64_t num_steps_ = 0;
  CountedOptimizer counted_ = {};
  /// Those that do not count.
  std::vector<const torch::optim::Optimizer*> others_ = {};
  // Facts of the step under way.
  core::Value batches_ = core::Value::list();
  core::Value losses_ = core::Value::list();
  core::Value before_ = core::Value::map();
  core::Value gradients_ = core::Value::map();
  std::optional<double> norm_ = {};
  std::optional<core::Value> held_ = {};
  bool changed_ = false;
  bool wrote_ = false;
};

/// The recorder of this process. Returns null if HASTEN_VERIFY is not set, which costs one load.
VerifyRecorder* verify_recorder() noexcept;
/// Returns the recorder that `options` describe, made at the first call.
/// Throws: as VerifyRecorder's constructor.
std::shared_ptr<VerifyRecorder> open_verify_recorder(const VerifyOptions& options, int rank, int world_size);

}  // namespace hasten::training
