// DeepSpeed's schedules, as its configuration names them: WarmupLR, WarmupDecayLR, WarmupCosineLR, LRRangeTest,
// OneCycle.
//
// In a namespace of their own, since WarmupLR is another schedule in warmup.h. Formulas and option names are
// DeepSpeed's. s is the number of steps done, minus 1, and w = max(2, warmup_num_steps). Before the first step a rate
// is the lowest one.
#pragma once

#include <memory>
#include <string>

#include "hasten/core/value.h"
#include "hasten/optim/per_group.h"
#include "hasten/optim/schedulers/scheduler.h"

namespace hasten::optim::deepspeed {

enum class WarmupType { kLog, kLinear };

struct WarmupLROptions {
  PerGroup<double> warmup_min_lr = 0.0;
  /// Empty: the groups' rates.
  PerGroup<double> warmup_max_lr = {};
  int64_t warmup_num_steps = 1000;
  WarmupType warmup_type = WarmupType::kLog;
};

/// rate(s) = min + (max - min) g. For s < w, g = ln(s+1)/ln w, or s/w with kLinear; then g = 1.
class WarmupLR : public Scheduler {
 public:
  using Options = WarmupLROptions;
  /// Throws: UsageError for a list of another length than the groups, warmup_num_steps < 1.
  WarmupLR(torch::optim::Optimizer& optimizer, const Options& options);

 protected:
  WarmupLR(torch::optim::Optimizer& optimizer, std::string name, const Options& options);
  double rate(size_t group, double before, Moment moment) const override;
  /// g behind the warm-up, at s.
  virtual double after_warmup(double) const { return 1.0; }
  double steps() const noexcept { return steps_; }

 private:
  WarmupType type_;
  double steps_;
  std::vector<double> min_, max_;
};

struct WarmupDecayLROptions {
  int64_t total_num_steps = 0;  ///< T. Required.
  PerGroup<double> warmup_min_lr = 0.0;
  PerGroup<double> warmup_max_lr = 0.001;
  int64_t warmup_num_steps = 1000;
  WarmupType warmup_type = WarmupType::kLog;
};

/// WarmupLR's warm-up, then g = max(0, (T - s) / max(1, T - w)).
class WarmupDecayLR final : public WarmupLR {
 public:
  using Options = WarmupDecayLROptions;
  /// Throws: as WarmupLR; UsageError if total_num_steps < 1.
  WarmupDecayLR(torch::optim::Optimizer& optimizer, const Options& options);

 private:
  double after_warmup(double step) const override;
  double total_;
};

struct WarmupCosineLROptions {
  int64_t total_num_steps = 0;  ///< T. Required.
  double warmup_min_ratio = 0.0;
  int64_t warmup_num_steps = 1000;
  double cos_min_ratio = 1e-4;
  WarmupType warmup_type = WarmupType::kLog;
};

/// rate = base r. In the warm-up r = m + (1 - m) g. Then p = min(1, (s-w+1)/max(1, T-w)), r = max(0, c + (1-c)(1+cos(pi
/// p))/2).
class WarmupCosineLR final : public Scheduler {
 public:
  using Options = WarmupCosineLROptions;
  /// Throws: UsageError if total_num_steps or warmup_num_steps < 1.
  WarmupCosineLR(torch::optim::Optimizer& optimizer, const Options& options);

 private:
  double rate(size_t group, double before, Moment moment) const override;
  Options options_;
};

struct LRRangeTestOptions {
  PerGroup<double> lr_range_test_min_lr = 1e-3;
  int64_t lr_range_test_step_size = 2000;
  double lr_range_test_step_rate = 1.0;
  bool lr_range_test_staircase = false;
};

/// rate = min (1 + step_rate i), i = (s+1)/step_size, floored with a staircase.
class LRRangeTest final : public Scheduler {
 public:
  using Options = LRRangeTestOptions;
  /// Throws: UsageError for a list of another length than the groups, or a step size < 1.
  LRRangeTest(torch::optim::Optimizer& optimizer, const Options& options);

 private:
  double rate(size_t group, double before, Moment moment) const override;
  Options options_;
  std::vector<double> min_;
};

struct OneCycleOptions {
  PerGroup<double> cycle_min_lr = {}, cycle_max_lr = {};  ///< Required.
  double decay_lr_rate = 0.0;
  double cycle_first_step_size = 2000;
  /// Unset: as the first. 0: no way down.
  std::optional<double> cycle_second_step_size = {};
  int64_t cycle_first_stair_count = 0;
  std::optional<int64_t> cycle_second_stair_count = {};
  double decay_step_size = 0;
  /// Only for optimizers with betas.
  bool cycle_momentum = true;
  PerGroup<double> cycle_min_mom = 0.8, cycle_max_mom = 0.9;
  double decay_mom_rate = 0.0;
};

/// Makes a triangle from cycle_min_lr to cycle_max_lr and back, in stairs if they are counted, then decay. beta1 moves
/// against it, and beta2 is 0.99.
class OneCycle final : public Scheduler {
 public:
  using Options = OneCycleOptions;
  /// Throws: UsageError if a rate is missing, a list has another length than the groups, or
  /// the first step size is not above 0.
  OneCycle(torch::optim::Optimizer& optimizer, const Options& options);

  void start() override;

 private:
  double rate(size_t group, double before, Moment moment) const override;
  std::optional<double> momentum(size_t group) const override;
  double height() const;
  /// Steps behind the cycle, in decay_step_size; 0 within it.
  double decay() const;

  Options options_;
  std::vector<double> min_, max_, min_mom_, max_mom_;
  bool moves_betas_ = false;
  double second_ = 0, total_ = 0;
};

/// Returns the schedule that a configuration's scheduler section names, with its params.
/// Throws: UsageError with did-you-mean for an unknown type or parameter; as the
/// constructors.
std::unique_ptr<Scheduler> make_schedule(torch::optim::Optimizer& optimizer, const std::string& type,
                                         const core::Value& params);

}  // namespace hasten::optim::deepspeed
