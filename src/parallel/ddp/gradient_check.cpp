// See gradient_check.h.
#include "parallel/ddp/gradient_check.h"

#include <torch/types.h>

#include <cmath>

namespace hasten::parallel {
namespace {

// Values of half precision are added up in float32, whose range their sum keeps.
at::Tensor sum_of(const at::Tensor& gradient) {
  at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
  if (values.is_complex()) values = at::view_as_real(values);
  const bool is_low = values.element_size() < 4;
  return is_low ? values.sum(at::kFloat) : values.sum();
}

}  // namespace

void GradientCheck::begin() {
  finish();
  read_pending();
  is_open_ = recorder_ && recorder_->checks_gradients();
  found_ = false;
  sums_.clear();
}

void GradientCheck::take(const std::string& parameter, const at::Tensor& gradient) {
  if (!is_open_ || found_ || !gradient.defined()) return;
  if (!gradient.is_floating_point() && !gradient.is_complex()) return;
  const at::NoGradGuard no_grad;
  const at::Tensor sum = sum_of(gradient.detach());
  if (!gradient.is_cpu()) {
    sums_.emplace_back(parameter, sum);
    return;
  }
  if (std::isfinite(sum.item<double>())) return;
  // Finite values may have a sum beyond the range.
  const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
  if (at::isfinite(values.detach()).all().item<bool>()) return;
  report(parameter);
}

void GradientCheck::finish() {
  if (!std::exchange(is_open_, false)) return;
  const at::NoGradGuard no_grad;
  if (!sums_.empty() && !total_) {
    std::vector<at::Tensor> all;
    for (const auto& [_, sum] : sums_) all.push_back(sum.to(at::kFloat));
    total_ = tracking::ValueOf<at::Tensor>::make(at::stack(all).sum());
    earlier_sums_ = std::move(sums_);
    if (total_->kind() != tracking::Value::Kind::kPending) total_.reset();
  } else if (sums_.empty() && !found_) {
    recorder_->clear_bad(flight::BadValue::kGradient);
  }
}

void GradientCheck::read_pending() {
  if (!total_ || !total_->pending().ready()) return;
  const auto total = std::exchange(total_, std::nullopt);
  const auto sums = std::exchange(earlier_sums_, {});
  if (std::isfinite(total->pending().value())) return recorder_->clear_bad(flight::BadValue::kGradient);
  for (const auto& [parameter, sum] : sums) {
    if (!std::isfinite(sum.item<double>())) return report(parameter);
  }
}

void GradientCheck::report(const std::string& parameter) {
  found_ = true;
  recorder_->set_bad(flight::BadValue::kGradient, "gradient of " + parameter);
  if (!recorder_->stops_on_bad_values()) return;
  throw UsageError(origin_, "the gradient of '", parameter, "' is not finite in step ",
                   recorder_->page().now.step.load(flight::kRelaxed) + 1,
                   ", and watch.stop_on_nonfinite ends the run. Look at this step's batch and the learning rate.");
}

}  // namespace hasten::parallel
