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

// Below this many elements an operator of libtorch's spends more time on getting ready than on the data.
constexpr int64_t kFew = 4096;

template <class T>
void scale_into(const at::Tensor& to, const at::Tensor& from, double scale) {
  const T* in = from.const_data_ptr<T>();
  T* out = to.data_ptr<T>();
  const T factor = static_cast<T>(scale);
  for (int64_t i = 0; i < to.numel(); ++i) out[i] = in[i] * factor;
}

// to = from * scale
void scaled_copy(at::Tensor& to, const at::Tensor& from, double scale) {
  const bool alike = to.is_cpu() && from.is_cpu() && from.scalar_type() == to.scalar_type() &&
                     from.layout() == at::kStrided && to.numel() <= kFew && from.sizes() == to.sizes() &&
                     from.strides() == to.strides() && !from.is_neg();
  if (alike && to.scalar_type() == at::kFloat) return scale_into<float>(to, from, scale);
  if (alike && to.scalar_type() == at::kDouble) return scale_into<double>(to, from, scale);
  at::mul_out(to, from.detach(), at::scalar_tensor(scale, to.options()));
}

}  // namespace

Bucket::Bucket(std::vector<at::Tensor> parameters, const comm::Group& group, const BucketSettings& settings)
    : parameters_(std::move(parameters)),
      taken_(parameters_.size()),
      absent_(parameters_.size()),
      graphs_(parameters_.size()) {
  const at::NoGradGuard no_grad;
  int64_t total = 0;
  for (const auto& parameter : parameters_) total += parameter.numel();
  const auto count = static_cast<int64_t>(parameters_.size());
  const int64_t behind = settings.has_tail ? static_cast<int64_t>(Tail().size()) : 0;
  const auto options = parameters_.empty() ? at::TensorOptions(at::kDouble)
                                           : parameters_.front().options().requires_grad(false);
  const int64_t numel = total + count + behind;
  if (settings.wire_dtype && *settings.wire_dtype != options.dtype().toScalarType()) {
    wire_ = group.buffer(total, options.dtype(*settings.wire_dtype));
    flat_ = at::zeros({numel}, options);
  } else {
    flat_ = group.buffer(numel, options).zero_();
  }
  gradients_ = flat_.narrow(0, 0, total);
  presence_ = flat_.narrow(0, total, count);
  tail_ = flat_.narrow(0, total + count, behind);
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
  std::fill(graphs_.begin(), graphs_.end(), at::Tensor());
  work_.reset();
}

void Bucket::take(size_t i, double scale) {
  if (taken_[i]) return;
  const bool keep_graph = at::GradMode::is_enabled();
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
  scaled_copy(slots_[i], gradient, scale);
  if (keep_graph && gradient.requires_grad()) {
    graphs_[i] = gradient;
  } else {
    gradient = slots_[i];
  }
}

void Bucket::take_rest(double scale) {
  for (size_t i = 0; i < size(); ++i) take(i, scale);
}

void Bucket::launch(const comm::Group& group, const CommHook& hook, const Tail& tail) {
  const at::NoGradGuard no_grad;
  presence_.fill_(1);
  for (size_t i = 0; i < size(); ++i) {
    if (absent_[i]) presence_[static_cast<int64_t>(i)].zero_();
  }
  if (tail_.numel() > 0) tail_.zero_();
  for (int64_t i = 0; i < tail_.numel(); ++i) {
    if (tail[static_cast<size_t>(i)] != 0) tail_[i].fill_(tail[static_cast<size_t>(i)]);
  }
  if (parameters_.empty() || !(hook || wire_.defined())) {
    work_ = group.all_reduce_async_(flat_);
    return;
  }
  // What lies behind the gradients must arrive exactly, whatever happens to them.
  const int64_t total = gradients_.numel();
  const at::Tensor behind = flat_.narrow(0, total, flat_.numel() - total);
  const auto exact = std::make_shared<comm::Work<>>(group.all_reduce_async_(behind));
  if (wire_.defined()) wire_.copy_(gradients_);
  auto gradients = hook ? hook({gradients_, slots_, parameters_}, group) : group.all_reduce_async_(wire_);
  work_ = std::move(gradients).then([exact] { exact->wait(); });
}

void Bucket::wait() {
  if (!work_) return;
  work_->wait();
  work_.reset();
  const at::NoGradGuard no_grad;
  if (wire_.defined()) gradients_.copy_(wire_);
}

Tail Bucket::tail() const {
  const at::Tensor values = tail_.to(at::TensorOptions(at::kCPU).dtype(at::kDouble));
  Tail tail;
  std::copy_n(values.const_data_ptr<double>(), tail.size(), tail.begin());
  return tail;
}

std::vector<size_t> Bucket::settle(double factor) {
  if (factor != 1.0) gradients_.mul_(factor);
  std::vector<size_t> without;
  for (size_t i = 0; i < size(); ++i) {
    if (!graphs_[i].defined() && !absent_[i]) continue;
    at::Tensor& gradient = parameters_[i].mutable_grad();
    if (graphs_[i].defined()) {
      // The mean's value, and this rank's own derivative: the mean of what a second backward makes of it is
      // the derivative of the mean.
      const at::AutoGradMode with_grad(true);
      gradient = graphs_[i] + (slots_[i] - graphs_[i]).detach();
      graphs_[i] = at::Tensor();
    }
    if (!absent_[i]) continue;
    // Read only where this rank lacks a gradient: on a GPU reading a number waits for the device.
    if (at::real(presence_[static_cast<int64_t>(i)]).item<double>() > 0) {
      gradient = slots_[i];
    } else {
      without.push_back(i);
    }
  }
  return without;
}

void Bucket::drop_gradients() {
  for (auto& parameter : parameters_) parameter.mutable_grad() = at::Tensor();
}

}  // namespace hasten::parallel
