// See accelerator/step_times.h.
#include "accelerator/step_times.h"

#include <algorithm>

namespace hasten {
namespace {

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

void StepTimes::before_backward(const training::BackwardFacts& facts) {
  const auto now = Clock::now();
  const double waited = seconds(facts.waited);
  if (last_ != Clock::time_point{}) step_.forward_s += std::max(0.0, seconds(now - last_) - waited);
  step_.data_s += waited;
  step_.samples += static_cast<double>(facts.num_samples);
  step_.backwards += 1;
  last_ = now;
}

void StepTimes::after_backward(const training::BackwardFacts&) {
  const auto now = Clock::now();
  step_.backward_s += seconds(now - last_);
  last_ = now;
}

void StepTimes::after_step(training::StepContext& context) {
  const auto now = Clock::now();
  step_.update_s += seconds(now - last_);
  last_ = now;
  const auto gradients = gradients_.lock();
  if (!gradients || !counted_.is(context.optimizer, gradients->optimizers())) return;
  if (++num_steps_ > kFirst) {
    ++sum_.num_steps;
    sum_.samples += step_.samples;
    sum_.backwards += step_.backwards;
    sum_.data_s += step_.data_s;
    sum_.forward_s += step_.forward_s;
    sum_.backward_s += step_.backward_s;
    sum_.update_s += step_.update_s;
  }
  step_ = {};
}

MeasuredStep StepTimes::mean() const {
  MeasuredStep mean = sum_;
  if (mean.num_steps == 0) return mean;
  const auto count = static_cast<double>(mean.num_steps);
  for (double* value :
       {&mean.samples, &mean.backwards, &mean.data_s, &mean.forward_s, &mean.backward_s, &mean.update_s})
    *value /= count;
  return mean;
}

}  // namespace hasten
