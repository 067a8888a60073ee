// StepRecord: steps, samples and losses of an Accelerator in the page of its rank (flight/recorder.h).
//
// A policy of prepared optimizers' steps. Of several optimizers the first one that steps is counted.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "hasten/flight/recorder.h"
#include "hasten/training/step_policy.h"

namespace hasten {

class StepRecord : public training::StepPolicy {
 public:
  explicit StepRecord(std::shared_ptr<flight::Recorder> recorder) : recorder_(std::move(recorder)) {}

  /// A backward over this many samples begins. A loss on the CPU is written down, also whether it is finite;
  /// others would have to be waited for.
  void note_backward(const at::Tensor& loss, int64_t num_samples);
  void after_step(training::StepContext& context) override;

 private:
  const std::shared_ptr<flight::Recorder> recorder_;
  const torch::optim::Optimizer* counted_ = nullptr;
  int64_t num_samples_ = 0;
};

}  // namespace hasten
