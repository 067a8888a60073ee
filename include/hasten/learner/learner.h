// Learner: fastai's training loop over an Accelerator.
//
// It nests fit, epoch, train, validate and batch (loop.h), calls callbacks at their events and trains through the
// Accelerator only: prepare, backward, prepared optimizers. A value handle; copies are the same Learner. A single fit
// runs at a time.
#pragma once

#include <array>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/accelerator.h"
#include "hasten/learner/batch.h"
#include "hasten/learner/callback.h"
#include "hasten/learner/groups.h"
#include "hasten/learner/hypers.h"
#include "hasten/learner/learner_options.h"
#include "hasten/learner/loaders.h"
#include "hasten/learner/loss.h"
#include "hasten/learner/metric.h"
#include "hasten/learner/model.h"
#include "hasten/learner/predictions.h"
#include "hasten/learner/schedule.h"
#include "hasten/learner/suggest.h"

namespace hasten::learner {

class Recorder;
enum class AmpMode;

class Learner {
 public:
  /// Calls after_create. Throws: UsageError without a model or a loss, for a splitter that
  /// does not give each parameter once, or for two callbacks of one name.
  Learner(Loaders loaders, AnyModel model, LearnerOptions options = {});

  // ---- Training. lr: a number, slice(…), one value a group; unset: LearnerOptions::lr.
  // Collective: yes, inside a distributed context. Blocks: until done. Throws: what callbacks and the model throw, with
  // the callback and the event in front, behind the after_… events; UsageError for options that do not fit.
  void fit(int64_t num_epochs, std::optional<HyperValue> lr = {}, const FitOptions& options = {}) const;
  /// lr by cosines lr_max / div -> lr_max -> lr_max / div_final, momentum over moms (Smith, 2018).
  void fit_one_cycle(int64_t num_epochs, std::optional<HyperValue> lr_max = {},
                     const OneCycleOptions& options = {}) const;
  /// Constant lr, from pct_start on a cosine to lr / div_final.
  void fit_flat_cos(int64_t num_epochs, std::optional<HyperValue> lr = {}, const FlatCosOptions& options = {}) const;
  /// Cosines from lr_max to 0, one a cycle, each cycle_mult times as long as the one before (Loshchilov, 2016).
  void fit_sgdr(int64_t num_cycles, int64_t cycle_len, std::optional<HyperValue> lr_max = {},
                const SgdrOptions& options = {}) const;
  /// Frozen one-cycle epochs for the last group, then all groups with smaller rates.
  void fine_tune(int64_t num_epochs, double base_lr = 2e-3, const FineTuneOptions& options = {}) const;
  /// Runs the LR range test; its curve also goes to the trackers of a running run. Weights, buffers, optimizer, random
  /// state and loader position are as before when it returns.
  LrFindResult lr_find(const LrFindOptions& options = {}) const;

  /// Groups before n no longer train, except norm layers; negative n counts from the end. Optimizer state is cleared.
  /// Throws: UsageError beyond the groups, naming them.
  void freeze_to(int64_t n) const;
  void freeze() const { freeze_to(-1); }
  void unfreeze() const { freeze_to(0); }
  size_t frozen_groups() const;

  // ---- Evaluation. Collective: yes, inside a distributed context.
  /// [loss, metrics…] of the validation data, or of `loader`.
  std::vector<double> validate(const ValidateOptions& options = {}) const;
  /// In the dataset's order, on every rank.
  Predictions get_preds(const PredsOptions& options = {}) const;
  /// Takes a sample: its inputs without the batch dimension.
  Prediction predict(const std::vector<at::Tensor>& inputs) const;
  /// lerp(mean of `n` augmented passes, the plain pass, beta), or the larger of them.
  Predictions tta(const TtaOptions& options = {}) const;
  /// Returns a table of the first samples' targets and predictions. Rank 0 writes it to standard output, and to the
  /// trackers of a running run, there with the inputs if they are images.
  std::string show_results(int64_t num_samples = 9) const;

  // ---- Files, written by rank 0 into path / model_dir.
  /// NAME.safetensors, with with_opt NAME.optimizer.pt, and NAME.json. Gives the first file's name.
  /// Collective: yes in a distributed context. Blocks: yes. Throws: DataError.
  std::filesystem::path save(const std::string& name, bool with_opt = true) const;
  /// Throws: DataError for a missing file; UsageError, with strict, naming keys that do not
  /// fit.
  void load(const std::string& name, const LoadOptions& options = {}) const;
  /// Writes a folder with the weights, the options as JSON and the names of callbacks and classes. load_learner reads
  /// it.
  void export_to(const std::filesystem::path& folder) const;
  /// All that a fit needs to go on: weights, optimizer, callbacks, schedule, loader, random state.
  /// Collective: yes in a distributed context. Blocks: yes. Throws: DataError; UsageError where gradients_wait().
  void save_checkpoint(const std::filesystem::path& folder) const;

  // ---- Callbacks.
  /// Throws: UsageError if the name is taken.
  template <class... T>
  const Learner& add(T&&... callbacks) const {
    (add_entry(entry_of(std::forward<T>(callbacks))), ...);
    return *this;
  }
  void add_cbs(const Callbacks& callbacks) const {
    for (const auto& one : callbacks) add_entry(one);
  }
  /// Throws: UsageError if there is none of this name.
  void remove_cb(std::string_view name) const;
  /// `fn` with these callbacks added, or removed; they are as before on every way out.
  void added_cbs(const Callbacks& callbacks, const std::function<void()>& fn) const;
  void removed_cbs(const std::vector<std::string>& names, const std::function<void()>& fn) const;
  /// In the order of calls.
  std::vector<std::shared_ptr<Callback>> ordered_cbs(Event event) const;
  const Callbacks& cbs() const;
  /// Returns the callback of this type; null if there is none.
  template <class T>
  T* find() const {
    for (const auto& one : cbs()) {
      if (auto* found = dynamic_cast<T*>(one.callback.get())) return found;
    }
    return nullptr;
  }
  /// Returns the loop with the callbacks of each event, as text.
  std::string show_training_loop() const;
  /// `fn` without progress bars, or without tables.
  void no_bar(const std::function<void()>& fn) const;
  void no_logging(const std::function<void()>& fn) const;
  /// `fn` between the events of a fit and an epoch.
  void with_events(const std::function<void()>& fn) const;

  // ---- For callbacks.
  /// Ends a scope: the rest of the event's callbacks and of the scope is left out.
  /// Collective: no, but all ranks cancel alike. Throws: UsageError if the scope is not open.
  void cancel(Scope scope) const;
  bool is_unwinding() const;
  int64_t epoch() const;
  int64_t n_epoch() const;
  int64_t iter() const;
  int64_t n_iter() const;
  int64_t train_iter() const;
  double pct_train() const;
  bool training() const;
  std::vector<at::Tensor>& inputs() const;
  std::vector<at::Tensor>& targets() const;
  /// Returns all outputs of the model; the first is the prediction.
  std::vector<at::Tensor>& predictions() const;
  at::Tensor& loss() const;
  /// Returns the loss that backward starts from.
  at::Tensor& loss_grad() const;
  bool loss_is_finite() const;
  /// Returns true if gradients of earlier batches wait for a later one's step (GradientAccumulation, or an Accelerator
  /// that accumulates).
  bool gradients_wait() const noexcept;
  torch::optim::Optimizer& opt() const;
  void create_opt() const;
  Hypers& hypers() const;
  Recorder& recorder() const;
  const Accelerator& accelerator() const;
  const AnyModel& model() const;
  const Loaders& loaders() const;
  /// Other data from the next pass on, such as larger images. Orders of epochs begin anew.
  /// Collective: no, but all ranks call it alike. Throws: UsageError inside a pass over batches.
  void set_loaders(Loaders loaders) const;
  const Loss& loss_func() const;
  const LearnerOptions& options() const;
  const std::vector<LayerGroup>& groups() const;
  std::filesystem::path model_path(const std::string& name) const;

  /// Writes a line of the table, unless logging is off or this is not the main process.
  void log(const std::string& line) const;
  bool logs() const;
  bool shows_bar() const;

  // ---- Precision and memory format; see learner/callbacks/precision.h.
  const Learner& to_fp16(const precision::GradScalerOptions& scaler = {}) const;
  const Learner& to_bf16() const;
  const Learner& to_fp32() const;
  const Learner& to_non_native_fp16() const;
  const Learner& to_non_native_fp32() const;
  /// Channels-last memory and, with `use_amp`, mixed precision; callbacks that are there stay. fastai's default is
  /// float16.
  const Learner& to_channelslast(bool use_amp = true) const;
  const Learner& to_channelslast(bool use_amp, AmpMode mode) const;
  /// Restores the default memory format; with `to_fp32` the callback of mixed precision goes as well.
  const Learner& to_contiguous(bool to_fp32 = false) const;
  /// Layers with the shapes and number of their parameters, and whether they train.
  std::string summary() const;
  /// Seeds all generators; reproducible: cuDNN also takes deterministic algorithms, and none by measuring, in the
  /// whole process.
  void set_seed(uint64_t seed, bool reproducible = false) const;

  // ---- fastai.distributed; see distributed.h.
  const Learner& to_parallel(std::vector<c10::Device> devices = {}) const;
  const Learner& detach_parallel() const;
  void parallel_ctx(std::vector<c10::Device> devices, const std::function<void()>& fn) const;
  const Learner& to_distributed(const Accelerator& accelerator, const DistributedOptions& options = {}) const;
  const Learner& detach_distributed() const;
  void distrib_ctx(const Accelerator& accelerator, const DistributedOptions& options,
                   const std::function<void()>& fn) const;
  void distrib_ctx(const Accelerator& accelerator, const std::function<void()>& fn) const {
    distrib_ctx(accelerator, {}, fn);
  }

  struct Impl;
  /// For the room's own sources.
  Impl& impl() const noexcept { return *impl_; }

 private:
  friend struct Impl;
  Learner() = default;
  void add_entry(CallbackEntry entry) const;
  std::shared_ptr<Impl> impl_;
};

}  // namespace hasten::learner
