// Scheduler: what all learning-rate schedulers have in common: a step, the rates, a state that loads again.
//
// Each scheduler gives exactly PyTorch's rates step by step, in the recursive form: the new rate is made from the
// optimizer's current rate. So several schedulers can act on one optimizer (composed.h), and a rate that the program
// changes by hand stays changed. libtorch itself has only two schedulers and no state. The formulas are in lambda.h,
// decay.h, cosine.h, cyclic.h, one_cycle.h, plateau.h and warmup.h. prepared_scheduler.h decides when a scheduler steps
// in a distributed loop.
#pragma once

#include <torch/optim/optimizer.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "hasten/core/value.h"

namespace hasten::optim {

/// Sets the learning rates of an optimizer's parameter groups, step after step. It borrows the optimizer, which must
/// outlive it. The rates at its construction are the base rates (PyTorch's `initial_lr`). The constructor already sets
/// the rates of step 0. Movable, not copyable.
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  Scheduler(Scheduler&&) = default;
  Scheduler& operator=(Scheduler&&) = default;

  /// Takes a step: call it after the optimizer's step.
  /// Throws: UsageError if the optimizer has other parameter groups than at construction,
  /// or the schedule cannot go on (OneCycleLR past its end).
  void step();

  /// Returns the rates that the last step set, one for each parameter group (PyTorch's get_last_lr).
  const std::vector<double>& rates() const noexcept { return rates_; }
  /// Steps since construction; 0 at first.
  int64_t last_epoch() const noexcept { return last_epoch_; }
  /// Calls of step(), the constructor's own among them: PyTorch's `_step_count`.
  int64_t step_count() const noexcept { return step_count_; }
  /// Returns true if the schedule has ended, so that another step would throw. False for those without an end.
  virtual bool finished() const noexcept { return false; }
  torch::optim::Optimizer& optimizer() const noexcept { return *optimizer_; }

  /// Returns the position of the schedule, a map; `state().to_json()` is its text. Its options are under "options", for
  /// comparison alone. A load keeps the options of the scheduler's construction. Base rates that are options (CyclicLR,
  /// OneCycleLR) are the program's, too.
  core::Value state() const;
  /// Goes on where state() was taken. Sets the optimizer's rates to those of that step, and its momentum if the
  /// scheduler changes it. So the optimizer may be loaded before or after.
  /// Throws: UsageError if it is no state of such a scheduler, or of an optimizer with
  /// another number of parameter groups.
  void load_state(const core::Value& state);

  /// Begins anew from the optimizer's present rates, as the constructor does. For composed schedulers.
  /// Throws: as step().
  virtual void start();
  /// Begins anew from the base rates, whatever the optimizer's are. For composed schedulers.
  /// Throws: as step().
  virtual void restart();

 protected:
  /// The moments at which a rate is computed: the constructor's step 0, a step, or step 0 again after others' steps.
  enum class Moment { kStart, kStep, kRestart };

  /// `name` is the class's, for messages and the state. A derived class calls start() in its constructor.
  Scheduler(torch::optim::Optimizer& optimizer, std::string name);

  /// Returns a group's rate at last_epoch(), from the one it had before.
  virtual double rate(size_t group, double before, Moment moment) const = 0;
  /// Returns a group's momentum (or Adam's beta1) at last_epoch(); nothing where the scheduler leaves it alone.
  virtual std::optional<double> momentum(size_t group) const;
  /// The step itself, without counting it.
  virtual void advance();
  virtual void save(core::Value& state) const;
  virtual void load(const core::Value& state);

  const std::string& name() const noexcept { return name_; }
  size_t num_groups() const noexcept { return base_lrs_.size(); }
  double base_lr(size_t group) const { return base_lrs_[group]; }
  const std::vector<double>& base_lrs() const noexcept { return base_lrs_; }
  /// Base rates that come from options: a state's do not take their place.
  void set_base_lrs(std::vector<double> base_lrs) {
    base_lrs_ = std::move(base_lrs);
    base_lrs_are_options_ = true;
  }
  /// Options under PyTorch's names, for the state.
  void note_options(core::Value options) { settings_ = std::move(options); }
  /// Sets last_epoch and from it every group's rate and momentum.
  void move_to(int64_t epoch, Moment moment);
  void set_last_epoch(int64_t epoch) noexcept { last_epoch_ = epoch; }
  /// Sets the optimizer's rates as they are.
  void set_rates(const std::vector<double>& rates);
  /// Takes note of the optimizer's rates, which others have set.
  void note_rates();

 private:
  void check_groups() const;

  torch::optim::Optimizer* optimizer_;
  std::string name_;
  std::vector<double> base_lrs_, rates_;
  core::Value settings_ = {};
  bool base_lrs_are_options_ = false;
  int64_t last_epoch_ = 0, step_count_ = 0;
};

/// Makes a scheduler for a given optimizer, for composed ones. Each part has to begin from the base rates, and not from
/// rates that the construction of another part has changed.
using Recipe = std::function<std::unique_ptr<Scheduler>(torch::optim::Optimizer&)>;

/// `recipe<StepLR>({.step_size = 30})`.
/// Throws: nothing; the recipe throws what S's constructor throws.
template <std::derived_from<Scheduler> S>
Recipe recipe(typename S::Options options) {
  return [options = std::move(options)](torch::optim::Optimizer& optimizer) {
    return std::make_unique<S>(optimizer, options);
  };
}

/// Types that prepare takes as schedulers: Scheduler, ReduceLROnPlateau, and a program's own classes with these
/// methods. state() may return a core::Value or a JSON type.
template <class T>
concept SchedulerLike = requires(std::remove_cvref_t<T>& scheduler) {
  { scheduler.rates() } -> std::convertible_to<std::vector<double>>;
  { scheduler.optimizer() } -> std::convertible_to<torch::optim::Optimizer&>;
  scheduler.load_state(scheduler.state());
};

}  // namespace hasten::optim
