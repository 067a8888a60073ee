// ReduceLROnPlateau: the rate falls when a metric has stopped getting better.
//
// Options and rules are PyTorch's. Its step takes the metric, so it is no Scheduler and cannot be a part of a composed
// one. PyTorch refuses that when it runs; here it does not compile. On several ranks every rank has to give the same
// metric, or rates part ways: reduce it first.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <vector>

#include "hasten/core/value.h"
#include "hasten/optim/per_group.h"

namespace hasten::optim {

/// Whether a better metric is a smaller or a larger one.
enum class PlateauMode { kMin, kMax };
/// Whether threshold is a part of the best value, or a difference from it.
enum class ThresholdMode { kRel, kAbs };

struct ReduceLROnPlateauOptions {
  PlateauMode mode = PlateauMode::kMin;
  /// The rate is multiplied by it; above 0, below 1.
  double factor = 0.1;
  /// Number of steps without improvement before the next one reduces the rate.
  int64_t patience = 10;
  double threshold = 1e-4;
  ThresholdMode threshold_mode = ThresholdMode::kRel;
  /// Steps after a reduction that do not count as bad.
  int64_t cooldown = 0;
  PerGroup<double> min_lr = 0.0;
  /// A smaller change of a rate is not made.
  double eps = 1e-8;
};

/// Borrows the optimizer, which must outlive it. Movable, not copyable.
class ReduceLROnPlateau {
 public:
  using Options = ReduceLROnPlateauOptions;
  /// Throws: UsageError if factor is not in (0, 1), patience, cooldown, threshold
  /// or eps is negative, or min_lr is not one for each group.
  ReduceLROnPlateau(torch::optim::Optimizer& optimizer, const Options& options);
  ReduceLROnPlateau(ReduceLROnPlateau&&) = default;
  ReduceLROnPlateau& operator=(ReduceLROnPlateau&&) = default;

  /// Takes a step, with the metric of the step or epoch; nan counts as no better.
  /// Throws: UsageError if the optimizer has other parameter groups than at construction.
  void step(double metric);

  /// Returns the optimizer's rates after the last step, one for each parameter group.
  const std::vector<double>& rates() const noexcept { return rates_; }
  int64_t last_epoch() const noexcept { return last_epoch_; }
  /// Returns the best metric so far; infinite before the first.
  double best() const noexcept { return best_; }
  int64_t num_bad_epochs() const noexcept { return num_bad_epochs_; }
  bool in_cooldown() const noexcept { return cooldown_counter_ > 0; }
  torch::optim::Optimizer& optimizer() const noexcept { return *optimizer_; }

  /// As Scheduler::state and load_state.
  /// Throws: load_state UsageError if it is no such state, or of an optimizer
  /// with another number of parameter groups.
  core::Value state() const;
  void load_state(const core::Value& state);

 private:
  bool is_better(double metric) const;
  void reduce();

  torch::optim::Optimizer* optimizer_;
  Options options_;
  std::vector<double> min_lrs_, rates_;
  double best_;
  int64_t last_epoch_ = 0, num_bad_epochs_ = 0, cooldown_counter_ = 0;
};

}  // namespace hasten::optim
