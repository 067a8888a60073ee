// Gradients in and out of a bucket's memory; see bucket.h.
#include "parallel/ddp/bucket.h"

#include <torch/types.h>

#include <algorithm>

namespace hasten::parallel {
namespace {

// A tensor over part of `flat` that autograd does not take for a view. The gradient has its parameter's
// strides, as autograd's own has, where those are dense.
at::Tensor slot_in(const at::Tensor& flat, int64_t offset, const at::Tensor& parameter) {
  const at::Tensor slot = torch::empty({0}, flat.options());
  const at::Tensor like = parameter.is_non_overlapping_and_dense() ? parameter : parameter.contiguous();
  slot.set_(flat.storage(), offset, like.sizes(), like.strides());
  return slot;
}

}  // namespace

Bucket::Bucket(std::vector<at::Tensor> parameters, const comm::Group& group)
    : parameters_(std::move(parameters)), taken_(parameters_.size()), absent_(parameters_.size()) {
  const at::NoGradGuard no_grad;
  int64_t total = 0;
  for (const auto& parameter : parameters_) total += parameter.numel();
  const auto count = static_cast<int64_t>(parameters_.size());
  flat_ = group.buffer(total + count, parameters_.front().options().requires_grad(false)).zero_();
  presence_ = flat_.narrow(0, total, count);
  int64_t offset = 0;
  for (const auto& parameter : parameters_) {
    slots_.push_back(slot_in(flat_, offset, parameter));
    offset += parameter.numel();
  }
}

void Bucket::begin_step() {
  num_taken_ = 0;
  std::fill(taken_.begin(), taken_.end(), false);
  std::fill(absent_.begin(), absent_.end(), false);
  work_.reset();
}

void Bucket::take(size_t i, double scale) {
  if (taken_[i]) return;
  const at::NoGradGuard no_grad;
  taken_[i] = true;
  ++num_taken_;
  at::Tensor& gradient = parameters_[i].mutable_grad();
  if (!gradient.defined()) {
    absent_[i] = true;
    slots_[i].zero_();
    return;
  }
  if (gradient.is_alias_of(slots_[i])) {
    gradient.mul_(scale);
    return;
  }
  at::mul_out(slots_[i], gradient, at::scalar_tensor(scale, slots_[i].options()));
  gradient = slots_[i];
}

void Bucket::take_rest(double scale) {
  for (size_t i = 0; i < size(); ++i) take(i, scale);
}

void Bucket::launch(const comm::Group& group, const CommHook& hook) {
  const at::NoGradGuard no_grad;
  presence_.fill_(1);
  for (size_t i = 0; i < size(); ++i) {
    if (absent_[i]) presence_[static_cast<int64_t>(i)].zero_();
  }
  if (!hook) {
    work_ = group.all_reduce_async_(flat_);
    return;
  }
  // What lies behind the gradients must arrive exactly, whatever the hook does with them.
  const int64_t total = flat_.numel() - presence_.numel();
  const auto exact = std::make_shared<comm::Work<>>(group.all_reduce_async_(presence_));
  work_ = hook({flat_.narrow(0, 0, total), slots_, parameters_}, group).then([exact] { exact->wait(); });
}

std::vector<size_t> Bucket::finish() {
  const at::NoGradGuard no_grad;
  work_->wait();
  std::vector<size_t> without;
  for (size_t i = 0; i < size(); ++i) {
    if (!absent_[i]) continue;
    // Read only where this rank lacks a gradient: on a GPU reading a number waits for the device.
    if (at::real(presence_[static_cast<int64_t>(i)]).item<double>() > 0) {
      parameters_[i].mutable_grad() = slots_[i];
    } else {
      without.push_back(i);
    }
  }
  return without;
}

}  // namespace hasten::parallel
