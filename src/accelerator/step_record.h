// StepRecord: steps, samples, phases and values of an Accelerator in the page of its rank (flight/recorder.h).
//
// It observes backwards, and is two policies of prepared optimizers' steps: one before and one behind all others.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "hasten/core/error.h"
#include "hasten/flight/recorder.h"
#include "hasten/parallel/parameters/forward_scope.h"
#include "hasten/process/process.h"
#include "hasten/tracking/journal/value.h"
#include "hasten/training/backward_observers.h"
#include "hasten/training/counted_optimizer.h"
#include "hasten/training/gradient_state.h"
#include "hasten/training/step_policy.h"
#include "hasten/watch/step_profile.h"

namespace hasten {

struct ValueOptions {
  /// Gradients of each n-th step are looked at; 0: of none.
  int64_t check_gradients_every = 10;
  bool stop_on_nonfinite = false;
  /// A loss scale makes gradients infinite now and then, and skips such steps.
  bool scales_loss = false;
};

class StepRecord : public training::StepPolicy, public training::BackwardObserver {
 public:
  /// `gradients` are those of the loop that it records.
  StepRecord(std::shared_ptr<flight::Recorder> recorder, const process::Process& process,
             const std::shared_ptr<training::GradientState>& gradients);

  /// Sets the checks of this rank's Accelerator, once it has a precision.
  void set_values(const ValueOptions& options);

  /// The phase begins. A loss on the CPU is looked at now, one of a device at the next call.
  /// Throws: UsageError for a loss that is not finite, if that is to stop the run.
  void before_backward(const training::BackwardFacts& facts) override;
  void leave_backward() noexcept override;
  /// The norm of all gradients. Throws: as before_backward.
  void note_norm(double norm);
  void after_step(training::StepContext& context) override;

  /// This many steps of the run have ended: this rank has taken the state of another one.
  void go_on_from(int64_t num_steps);
  /// The policy that comes before all others: the phase of the optimizer begins.
  std::shared_ptr<training::StepPolicy> begin_policy() const;
  /// Round each forward: its phase. Null if nothing is recorded.
  std::shared_ptr<parallel::ForwardHook> forward_hook() const;

 private:
  struct Begin;
  void note_loss(const at::Tensor& loss);
  void note_loss(double value, int64_t step);
  void fail(const std::string& what, double value) const;

  const std::shared_ptr<flight::Recorder> recorder_;
  const Origin origin_;
  const std::shared_ptr<Begin> begin_;
  watch::StepProfile profile_;
  ValueOptions values_ = {};
  /// Not kept alive: it holds this policy.
  const std::weak_ptr<training::GradientState> gradients_;
  training::CountedOptimizer counted_ = {};
  std::optional<uint32_t> outer_ = {};
  int64_t num_samples_ = 0;
  int64_t num_steps_ = 0;
  int64_t num_skipped_ = 0;
  std::optional<tracking::Value> pending_loss_ = {};
};

}  // namespace hasten
