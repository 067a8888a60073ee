// Callbacks of the loop itself: modes, NaN, short epochs, frozen statistics, clipping, accumulation, skipped epochs.
//
// Names and orders are fastai's without "Callback".
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hasten/learner/callback.h"
#include "hasten/learner/schedule.h"
#include "hasten/parallel/ddp/no_sync.h"

namespace hasten::learner {

/// Modes and counters; the first of all.
struct TrainEval : Callback {
  std::string_view name() const override { return "train_eval"; }
  int order() const override { return -10; }
  Phases phases() const override { return Phases::kTrain; }
  void after_create(Learner& learn) override;
  void before_fit(Learner& learn) override;
  void before_train(Learner& learn) override;
  void before_validate(Learner& learn) override;
  void after_batch(Learner& learn) override;
};

/// Cancels the fit at a loss that is not finite, on all ranks at the same batch.
struct TerminateOnNaN : Callback {
  std::string_view name() const override { return "terminate_on_nan"; }
  int order() const override { return -9; }
  void after_batch(Learner& learn) override;
};

/// Ends training (and validation) when this part of the batches is done.
struct ShortEpoch : Callback {
  explicit ShortEpoch(double part = 0.01, bool short_validation = true) : pct(part), short_valid(short_validation) {}
  std::string_view name() const override { return "short_epoch"; }
  void after_batch(Learner& learn) override;
  double pct;
  bool short_valid;
};

/// BatchNorm layers whose parameters are frozen do not move their running statistics either.
struct BnFreeze : Callback {
  std::string_view name() const override { return "bn_freeze"; }
  void before_train(Learner& learn) override;
};

/// Dropout stays on in validation (Gal, 2016).
struct MCDropout : Callback {
  std::string_view name() const override { return "mc_dropout"; }
  void before_validate(Learner& learn) override;
};

/// Cuts the gradient's norm before each step.
struct GradientClip : Callback {
  explicit GradientClip(double max = 1.0, double type = 2.0) : max_norm(max), norm_type(type) {}
  std::string_view name() const override { return "gradient_clip"; }
  int order() const override { return 11; }
  void before_step(Learner& learn) override;
  double max_norm, norm_type;
};

struct GradientAccumulationOptions {
  /// Samples of one step, on each rank.
  int64_t n_acc = 32;
  /// fastai's form: losses are divided by n_acc for any number of samples, and an epoch's tail stays in the gradients.
  bool as_fastai = false;
};
/// Steps when n_acc samples are reached, and at the end of an epoch. Gradients are the mean over these samples. Ranks
/// exchange gradients at steps only. An Accelerator with gradient_accumulation_steps does the same by batches: one of
/// the two.
struct GradientAccumulation : Callback {
  explicit GradientAccumulation(GradientAccumulationOptions given = {}) : options(given) {}
  explicit GradientAccumulation(int64_t n_acc) : options{.n_acc = n_acc} {}
  std::string_view name() const override { return "gradient_accumulation"; }
  int order() const override { return 6; }
  Phases phases() const override { return Phases::kTrain; }
  void before_fit(Learner& learn) override;
  void before_train(Learner& learn) override;
  void after_loss(Learner& learn) override;
  void after_backward(Learner& learn) override;
  void before_step(Learner& learn) override;
  void after_fit(Learner& learn) override;
  core::Value state() const override { return core::Value::map({{"count", count}}); }
  void load_state(const core::Value& state) override { count = state.at("count").as_int(); }

  GradientAccumulationOptions options;
  int64_t count = 0;

 private:
  bool steps_now(const Learner& learn) const;
  std::shared_ptr<parallel::NoSync> no_sync_ = {};
};

/// Schedules by hyper-parameter, a function of pct_train each. `hps` are the values behind each batch.
struct ParamScheduler : Callback {
  explicit ParamScheduler(Schedules given) : schedules(std::move(given)) {}
  std::string_view name() const override { return "param_scheduler"; }
  int order() const override { return 60; }
  PassSet passes() const override { return passes_of(PassKind::kFit); }
  Phases phases() const override { return Phases::kTrain; }
  void before_fit(Learner& learn) override;
  void before_batch(Learner& learn) override;
  void after_batch(Learner& learn) override;
  Schedules schedules;
  std::map<std::string, std::vector<double>> hps = {};
};

/// Cancels epochs before `start_epoch`, with their events.
struct SkipToEpoch : Callback {
  explicit SkipToEpoch(int64_t epoch) : start_epoch(epoch) {}
  std::string_view name() const override { return "skip_to_epoch"; }
  int order() const override { return 70; }
  PassSet passes() const override { return passes_of(PassKind::kFit); }
  void before_epoch(Learner& learn) override;
  int64_t start_epoch;
};

struct StopOnSignalOptions {
  /// Batches between two comparisons of the ranks, which also compare at the end of a pass and of an epoch.
  int64_t every = 10;
  /// Folder for a checkpoint of the batch where the fit stops; empty: none.
  std::filesystem::path checkpoint = {};
};
/// Ends the fit at the batch's end on all ranks when SIGINT or SIGTERM has come to any rank. after_fit runs. `stopped`
/// is then true, and `exit_code` 130 or 143, for the program's end. With a checkpoint it waits for the step that
/// gradients wait for, and in validation for the epoch's end.
struct StopOnSignal : Callback {
  /// Throws: UsageError for `every` below 1.
  explicit StopOnSignal(StopOnSignalOptions given = {});
  explicit StopOnSignal(int64_t batches) : StopOnSignal(StopOnSignalOptions{.every = batches}) {}
  std::string_view name() const override { return "stop_on_signal"; }
  int order() const override { return 90; }
  void before_fit(Learner& learn) override;
  void after_batch(Learner& learn) override;
  void after_epoch(Learner& learn) override;
  void after_fit(Learner& learn) override;
  StopOnSignalOptions options;
  bool stopped = false;
  int exit_code = 0;

 private:
  int64_t code_of_all(Learner& learn) const;
  bool saves(const Learner& learn) const;
  void stop(Learner& learn);
  std::shared_ptr<void> interrupt_ = {}, terminate_ = {};
  /// A signal has come, the same on all ranks; 0: none.
  int64_t code_ = 0;
};

struct CheckpointEveryOptions {
  /// Training batches, over the whole fit; 0: not by batches.
  int64_t steps = 0;
  /// 0: not by epochs.
  int64_t epochs = 0;
  /// The checkpoint's folder, replaced in one step each time. `{.resume = dir}` of a fit goes on from it.
  std::filesystem::path dir = {};
};
/// Calls Learner::save_checkpoint every `steps` batches or `epochs` epochs; where gradients wait for a step, behind
/// that.
struct CheckpointEvery : Callback {
  /// Throws: UsageError without a folder, or without steps and epochs.
  explicit CheckpointEvery(CheckpointEveryOptions given);
  std::string_view name() const override { return "checkpoint_every"; }
  int order() const override { return 95; }
  PassSet passes() const override { return passes_of(PassKind::kFit); }
  bool removed_for_predictions() const override { return true; }
  void before_fit(Learner& learn) override;
  void after_batch(Learner& learn) override;
  void after_epoch(Learner& learn) override;
  CheckpointEveryOptions options;

 private:
  void save(Learner& learn);
  bool due_ = false;
};
/// `learn.add(checkpoint_every({.steps = 500, .dir = "fit"}))`. Throws: as CheckpointEvery.
inline CheckpointEvery checkpoint_every(CheckpointEveryOptions options) {
  return CheckpointEvery(std::move(options));
}

}  // namespace hasten::learner
