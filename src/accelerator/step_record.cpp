// See accelerator/step_record.h.
#include "accelerator/step_record.h"

#include <ATen/record_function.h>

#include <cmath>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/core/text.h"
#include "hasten/training/deferred_scalar.h"

namespace hasten {
namespace {

constexpr int64_t kMostSkipped = 20;

// An event of libtorch's profiler, where one is on.
struct ProfiledPhase {
  explicit ProfiledPhase(const char* name) {
    if (event.isActive()) event.before(name);
  }
  at::RecordFunction event{at::RecordScope::USER_SCOPE};
};

class ForwardPhase : public parallel::ForwardHook {
 public:
  explicit ForwardPhase(std::shared_ptr<flight::Recorder> recorder) : recorder_(std::move(recorder)) {}
  std::unique_ptr<Entered> enter(torch::nn::Module&) override {
    struct Phase : Entered {
      explicit Phase(const std::shared_ptr<flight::Recorder>& recorder) : scope(recorder, "forward") {}
      flight::PhaseScope scope;
      ProfiledPhase event{"forward"};
    };
    return std::make_unique<Phase>(recorder_);
  }

 private:
  const std::shared_ptr<flight::Recorder> recorder_;
};

}  // namespace

struct StepRecord::Begin : training::StepPolicy {
  explicit Begin(std::shared_ptr<flight::Recorder> recorder_) : recorder(std::move(recorder_)) {}
  void before_step(training::StepContext&) override {
    if (!recorder) return;
    const uint32_t before = recorder->enter_phase(recorder->phase_number("optimizer"));
    if (!outer) outer = before;  // a step that an exception has left keeps its own
  }
  const std::shared_ptr<flight::Recorder> recorder;
  std::optional<uint32_t> outer = {};
};

StepRecord::StepRecord(std::shared_ptr<flight::Recorder> recorder, const process::Process& process,
                       const std::shared_ptr<training::GradientState>& gradients)
    : recorder_(std::move(recorder)),
      origin_{"accelerator", process.rank(), process.world_size()},
      begin_(std::make_shared<Begin>(recorder_)),
      profile_(recorder_, process),
      gradients_(gradients) {}

std::shared_ptr<training::StepPolicy> StepRecord::begin_policy() const {
  return begin_;
}

std::shared_ptr<parallel::ForwardHook> StepRecord::forward_hook() const {
  return recorder_ ? std::make_shared<ForwardPhase>(recorder_) : nullptr;
}

void StepRecord::set_values(const ValueOptions& options) {
  values_ = options;
  if (!recorder_) return;
  recorder_->set_value_checks(
      {.gradients_every = options.scales_loss ? 0 : options.check_gradients_every, .stop = options.stop_on_nonfinite});
}

void StepRecord::fail(const std::string& what, double value) const {
  if (!values_.stop_on_nonfinite) return;
  throw UsageError(origin_, what, " is ", value, " in step ", num_steps_ + 1,
                   ", and watch.stop_on_nonfinite ends the run. Look at this step's batch and the learning rate.");
}

void StepRecord::note_loss(double value, int64_t step) {
  if (recorder_) recorder_->set_loss(value);
  if (std::isfinite(value)) {
    if (recorder_) recorder_->clear_bad(flight::BadValue::kLoss);
    return;
  }
  if (recorder_) {
    recorder_->set_bad(flight::BadValue::kLoss, step == num_steps_ ? "loss" : text("loss (of step ", step + 1, ")"));
  }
  fail("the loss", value);
}

void StepRecord::before_backward(const training::BackwardFacts& facts) {
  if (recorder_) outer_ = recorder_->enter_phase(recorder_->phase_number("backward"));
  num_samples_ += facts.num_samples;
  note_loss(facts.loss);
}

void StepRecord::leave_backward() noexcept {
  if (outer_) recorder_->enter_phase(*std::exchange(outer_, std::nullopt));
}

void StepRecord::note_loss(const at::Tensor& loss) {
  if (!recorder_ && !values_.stop_on_nonfinite) return;
  if (pending_loss_ && pending_loss_->pending().ready()) {
    const auto arrived = std::exchange(pending_loss_, std::nullopt);
    note_loss(arrived->pending().value(), num_steps_ - 1);
  }
  if (!loss.defined() || loss.numel() != 1 || !c10::isFloatingType(loss.scalar_type())) return;
  if (loss.is_cpu()) return note_loss(loss.item<double>(), num_steps_);
  // Read a step later, so that no step waits for the device.
  if (!pending_loss_) pending_loss_ = tracking::ValueOf<at::Tensor>::make(loss.detach());
  if (pending_loss_->kind() != tracking::Value::Kind::kPending) pending_loss_.reset();
}

void StepRecord::note_norm(double norm) {
  if (values_.scales_loss) return;
  if (std::isfinite(norm)) {
    if (recorder_) recorder_->clear_bad(flight::BadValue::kNorm);
    return;
  }
  if (recorder_) recorder_->set_bad(flight::BadValue::kNorm, "norm of the gradients");
  fail("the norm of the gradients", norm);
}

void StepRecord::after_step(training::StepContext& context) {
  if (recorder_ && begin_->outer) recorder_->enter_phase(*std::exchange(begin_->outer, std::nullopt));
  const auto gradients = gradients_.lock();
  if (!gradients || !counted_.is(context.optimizer, gradients->optimizers())) return;
  ++num_steps_;
  num_skipped_ = context.skip ? num_skipped_ + 1 : 0;
  if (recorder_ && values_.scales_loss && num_skipped_ == kMostSkipped) {
    recorder_->set_bad(flight::BadValue::kGradient,
                       text("gradients of ", kMostSkipped, " steps in a row, all skipped"));
  } else if (recorder_ && values_.scales_loss && num_skipped_ == 0) {
    recorder_->clear_bad(flight::BadValue::kGradient);
  }
  if (recorder_) recorder_->step(num_samples_);
  num_samples_ = 0;
  profile_.after_step();
}

void StepRecord::go_on_from(int64_t num_steps) {
  num_steps_ = num_steps;
  num_samples_ = 0;
  if (recorder_) recorder_->page().now.step.store(num_steps);
}

}  // namespace hasten
