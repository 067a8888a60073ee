// Recorder: losses, rates and the rows of the table.
//
// The training loss is smoothed as fastai does: debiased lerp(loss, old, beta), in float32. On an accelerator losses
// stay on the device until a row is written, so that no batch waits for them. Metrics are summed over the ranks once an
// epoch.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "hasten/learner/callback.h"
#include "hasten/learner/metric.h"

namespace hasten::learner {

struct RecorderOptions {
  bool add_time = true;
  /// Metrics of the training batches as well; names get train_ and valid_ in front.
  bool train_metrics = false;
  bool valid_metrics = true;
  double beta = 0.98;
};

/// A debiased, exponentially smoothed loss.
class SmoothLoss {
 public:
  explicit SmoothLoss(double beta = 0.98) : beta_(beta) {}
  void reset();
  void update(const at::Tensor& loss);
  /// Blocks: for the device. NaN before the first update.
  double value() const;
  /// Returns the value after each update since reset. Blocks: for the device.
  const std::vector<double>& history() const;
  /// For checkpoints.
  core::Value state() const;
  void load_state(const core::Value& state);

 private:
  double debiased(double value, int64_t count) const;
  double beta_;
  float value_ = 0;
  at::Tensor device_value_ = {};
  int64_t count_ = 0;
  mutable std::vector<double> history_ = {};
  mutable std::vector<at::Tensor> pending_ = {};
};

class Recorder : public Callback {
 public:
  explicit Recorder(RecorderOptions options = {}) : options_(options), smooth_(options.beta) {}

  std::string_view name() const override { return "recorder"; }
  int order() const override { return 50; }
  bool removed_for_predictions() const override { return true; }
  void before_fit(Learner& learn) override;
  void before_epoch(Learner& learn) override;
  void before_train(Learner& learn) override;
  void before_validate(Learner& learn) override;
  void after_batch(Learner& learn) override;
  void after_train(Learner& learn) override;
  void after_validate(Learner& learn) override;
  void after_epoch(Learner& learn) override;
  core::Value state() const override;
  void load_state(const core::Value& state) override;

  RecorderOptions& options() noexcept { return options_; }
  /// "epoch", "train_loss", "valid_loss", metrics…, "time".
  const std::vector<std::string>& metric_names() const noexcept { return names_; }
  /// Returns a row for each epoch: all columns but epoch and time.
  const std::vector<std::vector<double>>& values() const noexcept { return values_; }
  /// Returns the last row.
  const std::vector<double>& final_record() const noexcept { return row_; }
  /// Returns the last group's rate of each training batch, and the smoothed loss behind it.
  const std::vector<double>& lrs() const noexcept { return lrs_; }
  const std::vector<double>& losses() const { return smooth_.history(); }
  /// Returns the seconds of the epoch so far.
  double epoch_seconds() const;
  double smooth_loss() const { return smooth_.value(); }
  /// Training batches at the end of each epoch.
  const std::vector<int64_t>& iters() const noexcept { return iters_; }
  /// Returns the value of a column in the last row. Throws: UsageError for an unknown name, with the known ones.
  double value_of(std::string_view name) const;
  /// Returns the columns that can be monitored.
  std::vector<std::string> columns() const;

 private:
  void add_values(Learner& learn, const std::vector<Metric>& metrics, MetricValues& values);
  void accumulate(Learner& learn, const std::vector<Metric>& metrics) const;
  void warn_of_nan(Learner& learn);

  RecorderOptions options_;
  SmoothLoss smooth_;
  std::vector<Metric> train_, valid_;
  /// mutable: a checkpoint in training has the sums so far, over all ranks.
  mutable MetricValues train_sums_;
  MetricValues valid_sums_;
  comm::Group group_;
  bool in_training_ = false, resumed_ = false;
  std::vector<std::string> names_;
  std::vector<double> row_, lrs_;
  std::vector<std::vector<double>> values_;
  std::vector<int64_t> iters_;
  bool warned_ = false;
  int64_t first_of_epoch_ = 0;
  std::chrono::steady_clock::time_point start_ = {};
};

}  // namespace hasten::learner
