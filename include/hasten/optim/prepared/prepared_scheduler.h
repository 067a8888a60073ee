// PreparedScheduler: the handle that Accelerator::prepare gives for a learning-rate scheduler.
//
// A loop calls step() after every backward. The handle decides whether and how far the schedule moves, as Accelerate's
// AcceleratedScheduler does. It moves with the optimizer's steps. So it waits while gradients are accumulated, and if a
// step was skipped. The schedule itself is the scheduler's (scheduler.h, plateau.h).
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "hasten/optim/schedulers/scheduler.h"
#include "hasten/training/gradient_state.h"

namespace hasten::optim {

struct PreparedSchedulerOptions {
  /// False: every call of step() is one step of the schedule, whatever the optimizer does.
  bool step_with_optimizer = true;
  /// The schedule's length was given in batches although gradients are accumulated: each optimizer step moves
  /// it by the number of batches that it took in. Default: the length is in optimizer steps.
  bool adjust_scheduler = false;
  /// As the peer does without split_batches: world_size steps of the schedule for one of the optimizer, since
  /// the global batch is world_size times larger. Default: the schedule counts optimizer steps.
  bool once_per_process = false;
  int world_size = 1;
};

/// How far a schedule moves, call by call.
class SchedulerPace {
 public:
  SchedulerPace(std::shared_ptr<const training::GradientState> gradient_state, const PreparedSchedulerOptions& options)
      : gradient_state_(std::move(gradient_state)), options_(options) {}

  /// Returns the number of steps that the schedule of this optimizer takes at this call. Counts accumulated batches.
  /// Throws: UsageError if it moves with an optimizer that was not prepared.
  int64_t steps(const torch::optim::Optimizer& optimizer);

  /// Returns true if a schedule that has ended stays at its end. If a call may be several steps, the end need not be
  /// met exactly. Otherwise passing it is an error.
  bool stays_at_end() const noexcept {
    return options_.step_with_optimizer && (options_.once_per_process || accumulated_);
  }

 private:
  std::shared_ptr<const training::GradientState> gradient_state_;
  PreparedSchedulerOptions options_;
  int64_t waiting_ = 0;
  bool accumulated_ = false;
};

/// A value handle; copies are the same scheduler. The scheduler must have been made on the optimizer that
/// steps: on `optimizer.unwrap()` where prepare was given an rvalue.
template <class S>
class PreparedScheduler {
 public:
  PreparedScheduler(std::shared_ptr<S> scheduler, std::shared_ptr<const training::GradientState> gradient_state,
                    const PreparedSchedulerOptions& options)
      : scheduler_(std::move(scheduler)), pace_(std::make_shared<SchedulerPace>(std::move(gradient_state), options)) {}
  // Moves copy: a handle that was moved from is one still.
  PreparedScheduler(const PreparedScheduler&) = default;
  PreparedScheduler& operator=(const PreparedScheduler&) = default;

  /// To be called after every batch's optimizer.step(), also while accumulating.
  /// Throws: UsageError if it moves with the optimizer's steps and the same Accelerator did
  /// not prepare the optimizer; the exceptions of the scheduler.
  void step() const
    requires requires(S& scheduler) { scheduler.step(); }
  {
    for (int64_t steps = pace_->steps(scheduler_->optimizer()); steps > 0; --steps) {
      if constexpr (requires { scheduler_->finished(); }) {
        if (pace_->stays_at_end() && scheduler_->finished()) return;
      }
      scheduler_->step();
    }
  }

  /// With a metric (ReduceLROnPlateau), which counts once, for any number of processes.
  /// Collective: no, but all ranks must give the same metric. Throws: as step().
  void step(double metric) const
    requires requires(S& scheduler) { scheduler.step(0.0); }
  {
    if (pace_->steps(scheduler_->optimizer()) > 0) scheduler_->step(metric);
  }

  std::vector<double> rates() const { return scheduler_->rates(); }
  auto state() const { return scheduler_->state(); }
  void load_state(const decltype(std::declval<S&>().state())& state) const { scheduler_->load_state(state); }

  S* operator->() const noexcept { return scheduler_.get(); }
  S& unwrap() const noexcept { return *scheduler_; }

 private:
  std::shared_ptr<S> scheduler_;
  std::shared_ptr<SchedulerPace> pace_;
};

template <class T>
struct is_prepared_scheduler : std::false_type {};
template <class S>
struct is_prepared_scheduler<PreparedScheduler<S>> : std::true_type {};
template <class T>
inline constexpr bool is_prepared_scheduler_v = is_prepared_scheduler<std::remove_cvref_t<T>>::value;

}  // namespace hasten::optim
