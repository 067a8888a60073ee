// Gradients in and out of a bucket's memory; see bucket.h.
#include "parallel/ddp/bucket.h"

#include <torch/types.h>

#include <algorithm>

#include "parallel/ddp/slot.h"

namespace hasten::parallel {

Bucket::Bucket(std::vector<at::Tensor> parameters, comm::Group group, BucketSettings settings)
    : parameters_(std::move(parameters)),
      group_(std::move(group)),
      settings_(std::move(settings)),
      taken_(parameters_.size()),
      absent_(parameters_.size()),
      graphs_(parameters_.size()) {
  for (const auto& parameter : parameters_) slots_.push_back(torch::empty({0}, parameter.options()));
  lay_out();
  for (size_t i = 0; i < size() && settings_.gradient_allocator; ++i) {
    places_.push_back(settings_.gradient_allocator->add(parameters_[i], slots_[i]));
  }
}

void Bucket::lay_out() {
  const at::NoGradGuard no_grad;
  const auto count = static_cast<int64_t>(parameters_.size());
  const int64_t behind = settings_.has_tail ? static_cast<int64_t>(Trailer().size()) : 0;
  const auto options =
      parameters_.empty() ? at::TensorOptions(at::kDouble) : parameters_.front().options().requires_grad(false);
  std::vector<int64_t> offsets;
  const int64_t total = place_slots(parameters_, settings_.gradient_allocator.get(), offsets);
  const int64_t numel = total + count + behind;
  if (settings_.wire_dtype && *settings_.wire_dtype != options.dtype().toScalarType()) {
    wire_ = group_.buffer(total, options.dtype(*settings_.wire_dtype));
    flat_ = at::zeros({numel}, options);
  } else {
    flat_ = group_.buffer(numel, options).zero_();
  }
  gradients_ = flat_.narrow(0, 0, total);
  presence_ = flat_.narrow(0, total, count);
  tail_ = flat_.narrow(0, total + count, behind);
  for (size_t i = 0; i < size(); ++i) set_slot(slots_[i], flat_, offsets[i], parameters_[i]);
}

void Bucket::move() {
  const at::Tensor before = flat_;
  lay_out();
  flat_.copy_(before);
  for (size_t i = 0; i < size(); ++i) settings_.gradient_allocator->move(places_[i], slots_[i]);
}

void Bucket::begin_step() {
  num_taken_ = 0;
  std::fill(taken_.begin(), taken_.end(), false);
  std::fill(absent_.begin(), absent_.end(), false);
  std::fill(graphs_.begin(), graphs_.end(), at::Tensor());
  end_abandoned(work_);
  for (size_t i = 0; i < size(); ++i) detach_view(i);
}

void Bucket::detach_view(size_t i) {
  const size_t own = settings_.gradient_allocator ? 2 : 1;
  if (slots_[i].use_count() <= own || parameters_[i].grad().is_same(slots_[i])) return;
  slots_[i] = leave_slot(slots_[i], flat_, parameters_[i]);
  if (settings_.gradient_allocator) settings_.gradient_allocator->replace(places_[i], slots_[i]);
}

void Bucket::take(size_t i, double scale, const at::Tensor& arrived) {
  if (taken_[i]) return;
  keeps_graph_ = at::GradMode::is_enabled();
  const at::NoGradGuard no_grad;
  taken_[i] = true;
  ++num_taken_;
  at::Tensor& gradient = parameters_[i].mutable_grad();
  scale_ = settings_.averages ? 1 : scale;
  if (settings_.gradient_allocator) {
    const bool written_in_place = is_same_memory(gradient, slots_[i]) && is_autograds_alone(gradient, arrived);
    if (gradient.defined()) settings_.gradient_allocator->record(places_[i], gradient);
    if (written_in_place) {
      gradient = slots_[i];
    } else if (settings_.gradient_allocator->is_in_use(places_[i])) {
      settings_.gradient_allocator->disable(places_[i]);
      move();
    }
  }
  if (!gradient.defined()) {
    absent_[i] = true;
    slots_[i].zero_();
  }
  if (!absent_[i] && (is_cpu() || gradient.nbytes() >= kLargeBytes)) {
    put_scaled(slots_[i], gradient, is_cpu() ? scale_ : 1);
    put_slot(i);
  }
  if (!is_cpu() && complete()) collect();
}

void Bucket::put_slot(size_t i) {
  at::Tensor& gradient = parameters_[i].mutable_grad();
  if (absent_[i] || gradient.is_alias_of(slots_[i])) return;
  if (keeps_graph_ && gradient.requires_grad()) graphs_[i] = gradient;
  if (!graphs_[i].defined()) gradient = slots_[i];
}

void Bucket::collect() {
  fill_slots(slots_, parameters_);
  if (scale_ != 1) gradients_.mul_(scale_);
  for (size_t i = 0; i < size(); ++i) put_slot(i);
}

void Bucket::take_rest(double scale) {
  for (size_t i = 0; i < size(); ++i) take(i, scale);
}

void Bucket::launch(const CommHook& hook, const Trailer& tail) {
  const at::NoGradGuard no_grad;
  presence_.fill_(1);
  for (size_t i = 0; i < size(); ++i) {
    if (absent_[i]) presence_[static_cast<int64_t>(i)].zero_();
  }
  if (tail_.numel() > 0) tail_.zero_();
  const double part = settings_.averages ? 1 : 1.0 / group_.world_size();
  for (int64_t i = 0; i < tail_.numel(); ++i) {
    if (tail[static_cast<size_t>(i)] != 0) tail_[i].fill_(tail[static_cast<size_t>(i)] * part);
  }
  if (parameters_.empty() || !(hook || wire_.defined())) {
    work_ = group_.all_reduce_async_(flat_, settings_.averages ? comm::ReduceOp::kMean : comm::ReduceOp::kSum);
    return;
  }
  // Data behind the gradients must arrive exactly, whatever happens to them.
  const int64_t total = gradients_.numel();
  const at::Tensor behind = flat_.narrow(0, total, flat_.numel() - total);
  const auto exact = std::make_shared<comm::Work<>>(group_.all_reduce_async_(behind));
  if (wire_.defined()) wire_.copy_(gradients_);
  auto gradients = hook ? hook({gradients_, slots_, parameters_}, group_) : group_.all_reduce_async_(wire_);
  work_ = std::move(gradients).then([exact] { exact->wait(); });
}

void Bucket::wait() {
  if (!work_) return;
  work_->wait();
  work_.reset();
  const at::NoGradGuard no_grad;
  if (wire_.defined()) gradients_.copy_(wire_);
}

Trailer Bucket::tail() const {
  const at::Tensor values = tail_.to(at::TensorOptions(at::kCPU).dtype(at::kDouble));
  Trailer tail;
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
