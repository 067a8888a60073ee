// StepRecord: steps, samples, phases and values of an Accelerator in the page of its rank (flight/recorder.h).
//
// Two policies of prepared optimizers' steps, one before and one behind all others. Of several optimizers the first one
// that steps is counted.
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

class StepRecord : public training::StepPolicy {
 public:
  StepRecord(std::shared_ptr<flight::Recorder> recorder, const process::Process& process);

  /// Of this rank's Accelerator, once it has a precision.
  void set_values(const ValueOptions& options);

  /// A backward over this many samples begins. A loss on the CPU is looked at now, one of a device at the next call.
  /// Throws: UsageError for a loss that is not finite, if that is to stop the run.
  void note_backward(const at::Tensor& loss, int64_t num_samples);
  /// The norm of all gradients. Throws: as note_backward.
  void note_norm(double norm);
  void after_step(training::StepContext& context) override;

  /// The policy that comes before all others: the phase of the optimizer begins.
  std::shared_ptr<training::StepPolicy> begin_policy() const;
  /// Round each forward: its phase. Null if nothing is recorded.
  std::shared_ptr<parallel::ForwardHook> forward_hook() const;

 private:
  struct Begin;
  void note_loss(double value, int64_t step);
  void fail(const std::string& what, double value) const;

  const std::shared_ptr<flight::Recorder> recorder_;
  const Origin origin_;
  const std::shared_ptr<Begin> begin_;
  watch::StepProfile profile_;
  ValueOptions values_ = {};
  const torch::optim::Optimizer* counted_ = nullptr;
  int64_t num_samples_ = 0;
  int64_t num_steps_ = 0;
  int64_t num_skipped_ = 0;
  std::optional<tracking::Value> pending_loss_ = {};
};

}  // namespace hasten
