// See model_step.h.
#include "hasten/parallel/ddp/model_step.h"

#include <torch/types.h>

#include <algorithm>
#include <vector>

#include "hasten/core/log.h"
#include "hasten/core/text.h"
#include "parallel/ddp/reducer.h"
#include "parallel/ddp/value_watch.h"
#include "parallel/parameters/parameter_set.h"

namespace hasten::parallel {

ModelStep::ModelStep(const comm::Group& group) : group_(group), values_(std::make_unique<ValueWatch>()) {}
ModelStep::~ModelStep() = default;

void ModelStep::attach(const ParameterSet* parameters, Reducer* reducer) noexcept {
  parameters_ = parameters;
  reducer_ = reducer;
}

void ModelStep::forget() noexcept {
  window_.forget();
  values_->forget();
}

void ModelStep::set_averaged() noexcept {
  local_sgd_.num_steps = 0;
  forget();
}

bool ModelStep::has_gradients() const noexcept {
  return std::any_of(parameters_->tensors.begin(), parameters_->tensors.end(),
                     [](const at::Tensor& parameter) { return parameter.grad().defined(); });
}

void ModelStep::begin_backward(int64_t optimizer_calls, bool ends_window) {
  const auto changed = window_.is_held() ? values_->changed(parameters_->tensors) : std::vector<size_t>{};
  const auto warnings = window_.begin_backward({.optimizer_calls = optimizer_calls,
                                                .ends_window = ends_window,
                                                .has_gradients = has_gradients(),
                                                .values_changed = !changed.empty()});
  for (const auto kind : warnings) warn(kind, changed.size(), changed.empty() ? 0 : changed.front());
  if (ends_window) forget();
}

void ModelStep::warn(AccumulationWindow::Warning kind, size_t num_changed, size_t first_changed) const {
  using enum AccumulationWindow::Warning;
  const Logger logger("ddp", {group_.rank(), group_.world_size()});
  const int64_t count = window_.num_held();
  if (kind == kSteppedInside) {
    const size_t others = num_changed - 1;
    logger.warning(text("'", parameters_->names[first_changed], '\'', others > 0 ? text(" and ", others, " more") : "",
                        " changed after backward ", count,
                        " of a window in which gradients are accumulated, and no prepared optimizer has "
                        "stepped. Step the optimizer that prepare gave, which waits for the window's end, not "
                        "the one that it was given."));
    return;
  }
  logger.warning(text(
      "the gradients after backward ", count, " of a window in which they are accumulated are gone before its end, ",
      kind == kGradientsLostAtEnd ? "by zero_grad() before the backward of its last batch. Call zero_grad() behind "
                                    "step(), at the end of the loop's body."
                                  : "as by zero_grad() of the module or of an optimizer that was not prepared. Call "
                                    "zero_grad() of the one that prepare gave, behind step()."));
}

void ModelStep::end_held_backward(int64_t optimizer_calls) {
  if (window_.end_held_backward(optimizer_calls, has_gradients())) values_->note(parameters_->tensors);
}

void ModelStep::add_weight(double weight) {
  const auto factor = window_.add_weight(weight);
  if (!factor) return;
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters_->tensors) {
    if (parameter.grad().defined()) parameter.mutable_grad().mul_(*factor);
  }
}

void ModelStep::settle_alone() {
  const bool by_itself = group_.world_size() == 1 || local_sgd_.now;
  const int others = window_.num_holds() - (local_sgd_.now ? 1 : 0);  // local SGD's own scope is no window's
  if (!by_itself || !window_.weight() || !window_.ends() || others > 0) return;
  const double total = *window_.settle(*window_.weight());
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters_->tensors) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (total == 0) gradient = at::Tensor();
    if (gradient.defined()) gradient.div_(total);
  }
}

void ModelStep::drop_gradients() {
  for (const at::Tensor& parameter : parameters_->tensors) parameter.mutable_grad() = at::Tensor();
  window_.drop_gradients();
}

void ModelStep::start() {
  if (reducer_) reducer_->start();
}

void ModelStep::finish() {
  if (reducer_) reducer_->finish();
}

bool ModelStep::is_exchanging() const noexcept {
  return reducer_ && reducer_->is_exchanging();
}

void ModelStep::abandon() noexcept {
  if (reducer_) reducer_->abandon();
}

int64_t ModelStep::num_exchanges() const noexcept {
  return reducer_ ? reducer_->num_steps() : 0;
}

bool ModelStep::had_gradients() const noexcept {
  return reducer_ && reducer_->had_gradients();
}

}  // namespace hasten::parallel
