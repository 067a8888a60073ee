// Metric: a number of a validation, accumulated batch by batch and summed over the ranks once.
//
// Each rank counts its own samples without padding. Counts are integers and sums exact, so that the number of ranks
// does not matter. metrics.h has fastai's metrics; the functions here make one's own.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hasten/comm/group/group.h"

namespace hasten::learner {

/// A batch as metrics see it: without padding, on the model's device.
struct MetricInput {
  at::Tensor prediction = {};
  at::Tensor target = {};
  /// The batch's loss, a scalar; undefined without targets.
  at::Tensor loss = {};
  int64_t size = 0;
};

/// A value handle; copies share their counts.
class Metric {
 public:
  class Impl {
   public:
    virtual ~Impl() = default;
    virtual std::string name() const = 0;
    virtual void reset() = 0;
    virtual void accumulate(const MetricInput& input) = 0;
    /// Counts that the ranks add up, int64 [k], the same k in every pass. Undefined without samples; unset if counts do
    /// not make the value.
    virtual std::optional<at::Tensor> counts() const { return {}; }
    /// Returns the value of such sums; NaN without samples (an undefined tensor).
    virtual double value_of(const at::Tensor& counts) const;
    /// Over all ranks; NaN without samples. Collective. By default from counts.
    virtual double value(const comm::Group& group) const;
    virtual bool needs_targets() const { return true; }
  };

  explicit Metric(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::string name() const { return name_.empty() ? impl_->name() : name_; }
  /// Returns the same metric under another name in tables.
  Metric named(std::string name) const;
  void reset() const { impl_->reset(); }
  /// Blocks: for the device. Throws: UsageError for shapes that do not fit.
  void accumulate(const MetricInput& input) const {
    if (!impl_->needs_targets() || input.target.defined()) impl_->accumulate(input);
  }
  /// Collective: yes. Blocks: yes. Throws: CommError.
  double value(const comm::Group& group = {}) const { return impl_->value(group); }
  /// See Impl.
  std::optional<at::Tensor> counts() const { return impl_->counts(); }
  double value_of(const at::Tensor& counts) const { return impl_->value_of(counts); }

 private:
  std::shared_ptr<Impl> impl_;
  std::string name_;
};

/// Values of several metrics over all ranks: the counts of all of them in one reduction, then those that gather. The
/// first call also sends the number of counts to ranks without samples.
class MetricValues {
 public:
  /// Collective: yes. Blocks: yes. Throws: CommError; UsageError for another number of counts than before.
  std::vector<double> operator()(const std::vector<Metric>& metrics, const comm::Group& group);
  /// Returns each metric's counts over all ranks, for a checkpoint; undefined without samples, or where counts do not
  /// make the value. Collective: yes. Blocks: yes. Throws: as above.
  std::vector<at::Tensor> sums(const std::vector<Metric>& metrics, const comm::Group& group);
  /// Counts of all ranks that the next values begin with: those of a checkpoint.
  void set_earlier(std::vector<at::Tensor> counts) { earlier_ = std::move(counts); }
  void reset() { sizes_.clear(); }

 private:
  std::vector<int64_t> sizes_;
  std::vector<at::Tensor> earlier_;
};

using MetricFunction = std::function<at::Tensor(const at::Tensor& prediction, const at::Tensor& target)>;

/// Returns the mean of a function's batch means, by samples (fastai's AvgMetric).
Metric avg_metric(std::string name, MetricFunction function);
/// Returns the mean of the losses, by samples.
Metric avg_loss(std::string name = "loss");
/// Returns a number that something else computes, such as a callback (fastai's ValueMetric).
Metric value_metric(std::string name, std::function<double()> value);
/// Returns the mean of a part of the loss, by samples: `part` gives it after each batch (fastai's LossMetric).
Metric loss_metric(std::string name, std::function<at::Tensor()> part);
/// Returns a function of all predictions and targets, gathered once at the end (fastai's AccumMetric). `prepare` is
/// applied to each batch's prediction first.
Metric accum_metric(std::string name,
                    std::function<double(const at::Tensor& predictions, const at::Tensor& targets)> function,
                    std::function<at::Tensor(const at::Tensor&)> prepare = {});

/// Returns a function of integer counts, which `count` gives for each batch as an int64 tensor [k]. k is the same in
/// every batch.
Metric counted_metric(std::string name, MetricFunction count, std::function<double(const at::Tensor& counts)> finish);
/// Returns a function of the means of several elementwise values: `values` gives tensors whose elements are averaged
/// one by one.
Metric mean_metric(
    std::string name,
    std::function<std::vector<at::Tensor>(const at::Tensor& prediction, const at::Tensor& target)> values,
    std::function<double(const std::vector<double>& means)> finish);

/// Returns the rows of all ranks, one rank after the other. Ranks may have different numbers of rows, or none (an
/// undefined tensor).
/// Collective: yes. Blocks: yes. Throws: CommError.
at::Tensor gather_rows(const comm::Group& group, const at::Tensor& rows);

}  // namespace hasten::learner
