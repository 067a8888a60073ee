// Metrics that add up over batches and ranks: accuracy, top-k accuracy, mean, confusion matrix with IoU, dice
// and F1.
//
// Each rank counts its own samples, and only the counts travel, once, in compute: nothing is gathered. Counts
// are integers and sums are exact (exact_sum.h), so the result depends neither on the number of ranks nor on
// the order of the samples. Rows that a loader gave once more to even out the last step do not count:
// leave them out with without_padding (metrics.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "hasten/comm/group/group.h"

namespace hasten::data {

struct AccuracyOptions {
  /// A sample counts if its class is among the k highest scores.
  int64_t top_k = 1;
  /// Samples of this class are left out.
  std::optional<int64_t> ignore_index = {};
};

/// The part of samples whose class was found.
class Accuracy {
 public:
  explicit Accuracy(const AccuracyOptions& options = {});

  /// `scores` [samples, classes, …] with `targets` [samples, …] of classes. For top_k 1, `scores` may be predicted
  /// classes of the targets' shape. Blocks: for the device. Throws: UsageError for shapes that do not
  /// fit, or fewer than k classes.
  void update(const at::Tensor& scores, const at::Tensor& targets);
  /// Over all ranks of the group, the same on each; NaN without samples.
  /// Collective: yes. Blocks: yes. Throws: CommError.
  double compute(const comm::Group& group = {}) const;
  void reset() { correct_ = total_ = 0; }

 private:
  AccuracyOptions options_;
  int64_t correct_ = 0, total_ = 0;
};

/// The mean of numbers, such as losses, each with a weight.
class Mean {
 public:
  Mean();
  Mean(Mean&&) noexcept;
  Mean& operator=(Mean&&) noexcept;
  ~Mean();

  /// Every element of `values`, of any shape, with the same weight. A batch's mean loss counts as its samples
  /// do with their number as the weight.
  /// Blocks: for the device. Throws: UsageError for complex values, and for a weight below 0.
  void update(const at::Tensor& values, double weight = 1.0);
  void update(double value, double weight = 1.0);
  /// Over all ranks of the group, rounded once; NaN without weight.
  /// Collective: yes. Blocks: yes. Throws: CommError.
  double compute(const comm::Group& group = {}) const;
  void reset();

  /// The numbers that compute adds up over the ranks, int64 [kNumCounts], and the mean of such a sum. They allow
  /// several means in one reduction. Throws: UsageError for another size.
  static constexpr int64_t kNumCounts = 142;
  at::Tensor counts() const;
  static double value_of(const at::Tensor& counts);

 private:
  struct Sums;
  std::unique_ptr<Sums> sums_;
};

/// Counts of pairs of class and predicted class, and their metrics. Values by class are double [classes], NaN if there
/// is nothing to divide by (a class that neither occurs nor was predicted). Means leave those out.
struct Confusion {
  /// int64 [classes, classes]; counts[i][j] samples of class i were taken for class j.
  at::Tensor counts;

  double accuracy() const;
  /// tp / (tp + fp), tp / (tp + fn).
  at::Tensor precision() const;
  at::Tensor recall() const;
  /// tp / (tp + fp + fn): intersection over union, the Jaccard index.
  at::Tensor iou() const;
  /// 2 tp / (2 tp + fp + fn): the Dice coefficient of a segmentation, the F1 score of a classification.
  at::Tensor dice() const;
  at::Tensor f1() const { return dice(); }
  double mean_iou() const;
  double mean_dice() const;
  /// Returns the mean over classes ("macro"). Over samples ("micro") it is accuracy().
  double macro_f1() const { return mean_dice(); }
};

struct ConfusionMatrixOptions {
  /// Required.
  int64_t num_classes = 0;
  /// Samples (pixels) of this class are left out.
  std::optional<int64_t> ignore_index = {};
};

class ConfusionMatrix {
 public:
  /// Throws: UsageError if num_classes is below 1.
  explicit ConfusionMatrix(const ConfusionMatrixOptions& options);

  /// Predicted classes of the targets' shape, or `predictions` [samples, classes, …] of scores with `targets`
  /// [samples, …].
  /// Blocks: for the device. Throws: UsageError for shapes that do not fit, and for a class
  /// outside [0, num_classes) that is not ignored.
  void update(const at::Tensor& predictions, const at::Tensor& targets);
  /// Over all ranks of the group, the same on each.
  /// Collective: yes. Blocks: yes. Throws: CommError.
  Confusion compute(const comm::Group& group = {}) const;
  void reset();

 private:
  ConfusionMatrixOptions options_;
  at::Tensor counts_;
};

}  // namespace hasten::data
