// Tracking, TensorBoard and ShowGraph: losses, hyper-parameters, metrics and predictions of a fit go to where runs are
// shown.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hasten/learner/callback.h"

namespace hasten::tracking {
class Trackers;
}

namespace hasten::learner {

/// Names with values, at a step.
using TrackedValues = std::vector<std::pair<std::string, double>>;
using TrackingSink = std::function<void(const TrackedValues& values, int64_t step)>;

struct TrackingOptions {
  /// Number of batches between two rows of training losses and hyper-parameters; 0: epochs only.
  int64_t every = 1;
  bool hypers = true;
};

/// Logs train_loss and each hyper-parameter as NAME_GROUP by batch, and the columns of the table by epoch. It does so
/// on the main process. Steps count training batches over all fits. They go to the log of the Accelerator that the fit
/// runs on, whose init_trackers has been called. Otherwise they go to a function:
/// `learn.add(Tracking([&](const auto& values, int64_t step) { … }))`.
struct Tracking : Callback {
  explicit Tracking(TrackingOptions given = {}) : options(given) {}
  explicit Tracking(TrackingSink to, TrackingOptions given = {}) : sink(std::move(to)), options(given) {}
  std::string_view name() const override { return "tracking"; }
  int order() const override { return 55; }
  PassSet passes() const override { return passes_of(PassKind::kFit); }
  bool removed_for_predictions() const override { return true; }
  void before_fit(Learner& learn) override;
  void before_train(Learner& learn) override;
  void after_batch(Learner& learn) override;
  void after_epoch(Learner& learn) override;
  core::Value state() const override { return core::Value::map({{"step", step}}); }
  void load_state(const core::Value& state) override { step = state.at("step").as_int(); }

  TrackingSink sink = {};
  TrackingOptions options;
  int64_t step = 0;

 protected:
  virtual void send(Learner& learn, const TrackedValues& values);

 private:
  bool trained_ = false;
};

struct TensorBoardOptions {
  /// Folder of the event files. Empty: the trackers of the fit's Accelerator, whatever they are.
  std::filesystem::path log_dir = {};
  /// The model's modules as a graph, once.
  bool trace_model = true;
  /// Predictions of the first validation batch, each epoch: targets and predictions as a table, and the inputs
  /// if they are images.
  bool log_preds = true;
  int64_t n_preds = 9;
  /// At the end of the fit: the last validation's predictions as vectors of TensorBoard's projector, in log_dir.
  bool projector = false;
};

/// Sends Tracking's values to TensorBoard, and predictions. It works with mixed precision, too.
struct TensorBoard : Tracking {
  explicit TensorBoard(TensorBoardOptions given = {}) : board(std::move(given)) {}
  std::string_view name() const override { return "tensor_board"; }
  int order() const override { return 51; }
  void before_fit(Learner& learn) override;
  void before_validate(Learner& learn) override;
  void after_batch(Learner& learn) override;
  void after_epoch(Learner& learn) override;
  void after_fit(Learner& learn) override;

  TensorBoardOptions board;

 protected:
  void send(Learner& learn, const TrackedValues& values) override;

 private:
  tracking::Trackers& trackers(Learner& learn) const;
  void show_predictions(Learner& learn);
  void write_projector(const Learner& learn) const;
  std::shared_ptr<tracking::Trackers> own_ = {};
  bool traced_ = false;
  std::vector<at::Tensor> inputs_ = {}, targets_ = {}, predictions_ = {};
};

/// The smoothed training loss by batch and the validation loss by epoch in one chart, "graph" (fastai draws it below
/// the table).
struct ShowGraph : Callback {
  /// `batches`: batches between two points of the training loss.
  /// Throws: UsageError below 1.
  explicit ShowGraph(int64_t batches = 10);
  std::string_view name() const override { return "show_graph"; }
  int order() const override { return 65; }
  PassSet passes() const override { return passes_of(PassKind::kFit); }
  bool removed_for_predictions() const override { return true; }
  void after_batch(Learner& learn) override;
  void after_epoch(Learner& learn) override;
  core::Value state() const override { return core::Value::map({{"step", step}}); }
  void load_state(const core::Value& state) override { step = state.at("step").as_int(); }
  int64_t every, step = 0;
};

}  // namespace hasten::learner
