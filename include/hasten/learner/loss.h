// Losses as fastai has them: flattened, with the activation and the decoding that belong to them.
//
// Class axes are flattened, integer targets become long, float targets float where the formula needs it. A Loss is a
// value handle; any function of (prediction, target) makes one.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace hasten::learner {

enum class Reduction { kMean, kSum, kNone };

class Loss {
 public:
  using Function = std::function<at::Tensor(const at::Tensor& prediction, const at::Tensor& target)>;
  /// With kNone: a value a sample (or pixel).
  using Reducible =
      std::function<at::Tensor(const at::Tensor& prediction, const at::Tensor& target, Reduction reduction)>;
  using Map = std::function<at::Tensor(const at::Tensor&)>;
  struct Parts {
    std::string name = "loss";
    Reducible compute = {};
    Reduction reduction = Reduction::kMean;
    /// From outputs to probabilities; empty: as they are.
    Map activation = {};
    /// From probabilities to predicted classes or values; empty: as they are.
    Map decodes = {};
    /// Targets are classes, so MixUp mixes losses and not targets (fastai's y_int).
    bool class_targets = false;
  };

  Loss() = default;
  explicit Loss(Parts parts);
  /// A function that gives a scalar; it cannot be taken apart for MixUp of class targets.
  Loss(Function function);  // NOLINT: implicit, so that a lambda is a loss
  template <class F>
    requires(std::is_invocable_r_v<at::Tensor, F, const at::Tensor&, const at::Tensor&> &&
             !std::is_same_v<std::decay_t<F>, Loss>)
  Loss(F function) : Loss(Function(std::move(function))) {}  // NOLINT: as above

  explicit operator bool() const noexcept { return parts_ != nullptr; }
  /// Throws: the exceptions of the formula.
  at::Tensor operator()(const at::Tensor& prediction, const at::Tensor& target) const;
  /// Throws: UsageError for kNone of a loss made from a plain function.
  at::Tensor compute(const at::Tensor& prediction, const at::Tensor& target, Reduction reduction) const;
  at::Tensor activation(const at::Tensor& outputs) const;
  at::Tensor decodes(const at::Tensor& activated) const;
  Reduction reduction() const;
  bool class_targets() const;
  const std::string& name() const;

 private:
  std::shared_ptr<const Parts> parts_;
};

/// Reduces values as a loss does.
at::Tensor reduce_values(const at::Tensor& values, Reduction reduction);

struct ClassLossOptions {
  /// Dimension of the classes.
  int64_t axis = -1;
  /// A weight for each class; undefined: all alike.
  at::Tensor weight = {};
  int64_t ignore_index = -100;
  Reduction reduction = Reduction::kMean;
};
Loss cross_entropy(const ClassLossOptions& options = {});
/// (1 - e^-ce)^gamma * ce (Lin et al., 2017).
Loss focal(double gamma = 2.0, const ClassLossOptions& options = {});
/// eps / c * (-sum of log p) + (1 - eps) * nll.
Loss label_smoothing(double eps = 0.1, const ClassLossOptions& options = {});

struct BinaryLossOptions {
  /// Weights of each element, and of the positive class.
  at::Tensor weight = {};
  at::Tensor pos_weight = {};
  /// On the probability, for decodes.
  double thresh = 0.5;
  Reduction reduction = Reduction::kMean;
};
Loss bce_with_logits(const BinaryLossOptions& options = {});
Loss bce(const BinaryLossOptions& options = {});
Loss mse(Reduction reduction = Reduction::kMean);
Loss l1(Reduction reduction = Reduction::kMean);

struct DiceLossOptions {
  int64_t axis = 1;
  double smooth = 1e-6;
  bool square_in_union = false;
  /// Over samples and classes.
  Reduction reduction = Reduction::kSum;
};
/// 1 - (2 * sum of p t + smooth) / (sum of p + t + smooth) for each sample and class, p = softmax (p^2 below the line
/// with square_in_union).
Loss dice(const DiceLossOptions& options = {});
/// BCE with logits plus 1 - Dice of the sigmoid over the whole batch.
Loss bce_dice(double smooth = 1e-6);

}  // namespace hasten::learner
