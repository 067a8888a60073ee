// SequentialLR and ChainedScheduler: several schedulers on one optimizer, one after another or all at once.
//
// They take recipes instead of schedulers. PyTorch makes the parts one by one on the same optimizer. Each changes its
// rates, and the composed scheduler has to undo that. Here every part begins from the optimizer's rates as they were.
// Parts may be composed themselves.
#pragma once

#include "hasten/optim/schedulers/scheduler.h"

namespace hasten::optim {

/// The common part: parts that set the rates, and whose states are its state.
class ComposedScheduler : public Scheduler {
 protected:
  /// Makes each part on the optimizer's rates as they are; afterwards they are so again.
  ComposedScheduler(torch::optim::Optimizer& optimizer, std::string name, const std::vector<Recipe>& recipes);

  double rate(size_t, double before, Moment) const override { return before; }
  void save(core::Value& state) const override;
  void load(const core::Value& state) override;
  const std::vector<std::unique_ptr<Scheduler>>& parts() const noexcept { return parts_; }

 private:
  std::vector<std::unique_ptr<Scheduler>> parts_;
};

struct SequentialLROptions {
  /// `{recipe<LinearLR>({.total_iters = 5}), recipe<CosineAnnealingLR>({.T_max = 95})}`. Required.
  std::vector<Recipe> schedulers = {};
  /// The step at which each but the first takes over; ascending, one fewer than schedulers.
  std::vector<int64_t> milestones = {};
};

/// Runs parts in sequence: each begins anew, from the base rates, at its milestone.
class SequentialLR final : public ComposedScheduler {
 public:
  using Options = SequentialLROptions;
  /// Throws: UsageError if there are no schedulers, or milestones are not one fewer, or not
  /// ascending; the exceptions of the recipes.
  SequentialLR(torch::optim::Optimizer& optimizer, const Options& options);

  void start() override;
  void restart() override;
  bool finished() const noexcept override;

 private:
  void advance() override;
  void load(const core::Value& state) override;
  /// Returns the index of the scheduler at a step.
  size_t active(int64_t epoch) const noexcept;

  std::vector<int64_t> milestones_;
};

struct ChainedSchedulerOptions {
  /// Required.
  std::vector<Recipe> schedulers = {};
};

/// All at once: every step is one of each, in order, so that their factors multiply. Those that compute the
/// rate from the step alone (LambdaLR, CosineAnnealingWarmRestarts, CyclicLR, OneCycleLR) override those
/// before them.
class ChainedScheduler final : public ComposedScheduler {
 public:
  using Options = ChainedSchedulerOptions;
  /// Throws: UsageError if there are no schedulers; the exceptions of the recipes.
  ChainedScheduler(torch::optim::Optimizer& optimizer, const Options& options);

  void start() override;
  void restart() override;
  /// If any part has ended, all have ended.
  bool finished() const noexcept override;

 private:
  void advance() override;
};

}  // namespace hasten::optim
