// See device_bucket.h.
#include "parallel/shard/device/device_bucket.h"

#include <ATen/Functions.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/types.h>

#include <algorithm>

#include "hasten/core/error.h"
#include "parallel/ddp/abandoned_work.h"
#include "parallel/shard/device/device_memory.h"

namespace hasten::parallel::shard {

// Here, so that the model does not know the bucket.
std::unique_ptr<ReducerBucket> DeviceModel::make_bucket(size_t unit, const ReducerBucketSettings& settings) {
  return std::make_unique<DeviceBucket>(*this, exchanged_.at(unit), settings);
}

DeviceBucket::DeviceBucket(DeviceModel& model, size_t unit, const ReducerBucketSettings& settings)
    : model_(model),
      unit_(unit),
      settings_(settings),
      items_(model.plan().units[unit].items),
      taken_(items_.size()),
      absent_(items_.size()),
      kept_(items_.size()),
      arrived_(items_.size()) {
  for (size_t i = 0; i < items_.size(); ++i) {
    hooks_.push_back(parameter(i).register_hook([this, i](const at::Tensor&) { set_aside(i); }));
  }
}

DeviceBucket::~DeviceBucket() {
  for (size_t i = 0; i < hooks_.size(); ++i) parameter(i).remove_hook(hooks_[i]);
  abandon();
}

// A step that did not come to its end: the exchange may still read the gradients.
void DeviceBucket::abandon() {
  if (model_.pending == this) model_.pending = nullptr;
  end_abandoned(work_);
  if (flat_.defined() && sent_on_) {
    const c10::impl::VirtualGuardImpl device(model_.device().type());
    device.recordDataPtrOnStream(flat_.storage().data_ptr(), *sent_on_);
  }
  flat_ = sums_ = at::Tensor();
  std::fill(arrived_.begin(), arrived_.end(), at::Tensor());
  sent_on_.reset();
  done_.reset();
}

// Runs before autograd accumulates: the reduced gradient stays where it is, and the new part comes alone.
void DeviceBucket::set_aside(size_t i) {
  if (!model_.has_own_gradient(items_[i])) return;
  parameter(i).mutable_grad() = at::Tensor();
  kept_[i] = true;
}

void DeviceBucket::begin_step() {
  num_taken_ = 0;
  std::fill(taken_.begin(), taken_.end(), false);
  std::fill(absent_.begin(), absent_.end(), false);
  abandon();
}

void DeviceBucket::take(size_t i, double scale, const at::Tensor&) {
  if (taken_[i]) return;
  set_aside(i);
  taken_[i] = true;
  ++num_taken_;
  scale_ = settings_.averages ? 1 : scale;
  arrived_[i] = std::exchange(parameter(i).mutable_grad(), at::Tensor());
  absent_[i] = !arrived_[i].defined();
}

void DeviceBucket::collect() {
  const bool low = settings_.wire_dtype &&
                   std::find(settings_.in_wire.begin(), settings_.in_wire.end(), false) == settings_.in_wire.end();
  const auto options = at::TensorOptions()
                           .device(model_.device())
                           .dtype(low ? *settings_.wire_dtype : model_.memory().unit(unit_).dtype);
  const int64_t numel = model_.plan().unit_numel(unit_);
  flat_ = with_words_for_memory(
      model_.group(), model_.device(), text("the gradients of the unit of '", model_.memory().unit(unit_).name, "'"),
      numel * static_cast<int64_t>(options.dtype().itemsize()), [&] { return at::empty({numel}, options); });
  made_on_ = model_.memory().current_stream();
  std::vector<at::Tensor> parts, gradients;
  for (size_t i = 0; i < size(); ++i) {
    const at::Tensor& like = parameter(i);
    const at::Tensor part = flat_.as_strided(like.sizes(), like.strides(), model_.plan().units[unit_].offsets[i]);
    if (absent_[i]) {
      part.zero_();
      continue;
    }
    parts.push_back(part);
    gradients.push_back(std::exchange(arrived_[i], at::Tensor()).detach());
  }
  if (!parts.empty()) at::_foreach_copy_(parts, gradients, /*non_blocking=*/true);
}

void DeviceBucket::take_rest(double scale) {
  for (size_t i = 0; i < size(); ++i) take(i, scale);
}

void DeviceBucket::launch(const CommHook& hook, const Trailer& tail) {
  if (hook) {
    throw UsageError(Origin{"shard", model_.group().rank(), model_.group().world_size()},
                     "a comm_hook and sharding exclude each other: no bucket travels as a whole. Use "
                     "communication_dtype to send fewer bytes.");
  }
  const at::NoGradGuard no_grad;
  model_.on_unit_reduced();
  if (model_.pending != nullptr && model_.pending != this) {
    model_.pending->reduce();
    model_.pending->release();
  }
  collect();
  if (scale_ != 1) flat_.mul_(scale_);
  auto& memory = model_.memory();
  c10::Event ready(model_.device().type());
  ready.record(memory.current_stream());
  const c10::StreamGuard guard(memory.stream());
  ready.block(memory.stream());
  sent_on_ = memory.stream();
  if (model_.group().world_size() > 1) {
    // Straight into the stripe, where nothing is added to it.
    const bool is_alone = !keeps_any() && model_.replicas() == nullptr && !model_.steps_on_host(unit_) &&
                          flat_.scalar_type() == memory.unit(unit_).dtype;
    sums_ = is_alone ? model_.gradient_of(unit_) : at::empty({model_.plan().units[unit_].share}, flat_.options());
    const bool is_mean = settings_.averages && model_.replicas() == nullptr;
    work_ =
        model_.group().reduce_scatter_into_async_(sums_, flat_, is_mean ? comm::ReduceOp::kMean : comm::ReduceOp::kSum);
  } else {
    sums_ = flat_;
  }
  std::vector<bool> without(size());
  for (size_t i = 0; i < size(); ++i) without[i] = absent_[i] && !kept_[i];
  const std::vector<double> numbers(tail.begin(), tail.end());
  model_.note_launched(unit_, without, settings_.has_tail ? &numbers : nullptr);
  model_.pending = this;
  // There the host waits for nothing.
  if (model_.group().backend_name().starts_with("nccl")) reduce();
}

void DeviceBucket::reduce() {
  if (!sums_.defined()) return;
  const at::NoGradGuard no_grad;
  auto& memory = model_.memory();
  const c10::StreamGuard guard(memory.stream());
  if (work_) std::exchange(work_, std::nullopt)->wait();
  if (model_.replicas() != nullptr && settings_.averages) sums_.div_(model_.everyone().world_size());
  if (!sums_.is_same(model_.gradient_of(unit_))) add(sums_);
  sums_ = at::Tensor();
  done_.emplace(model_.device().type());
  done_->record(memory.stream());
}

// The backward's stream waits for the exchange before it gets the memory back. So a host that runs ahead has the
// buffers of two units at most. With a note of the other stream alone it would have one of every unit.
void DeviceBucket::release() {
  if (model_.pending == this) model_.pending = nullptr;
  if (!done_) return;
  done_->block(*made_on_);
  done_.reset();
  sent_on_.reset();
  flat_ = at::Tensor();
}

bool DeviceBucket::keeps_any() const {
  return std::find(kept_.begin(), kept_.end(), true) != kept_.end();
}

// Across replicas the sum of the window is reduced once, with its last backward. What was reduced already, in a window
// that has ended, is not reduced again: then the new part is alone.
void DeviceBucket::add(const at::Tensor& sums) {
  at::Tensor& gradient = model_.gradient_of(unit_);
  const bool keeps = keeps_any(), was_partial = keeps && model_.is_partial(unit_);
  at::Tensor part = sums;
  if (model_.replicas() != nullptr && keeps && !was_partial) model_.replicas()->all_reduce_(part);
  if (keeps) {
    // Copies of this stream are in order, so no host waits for a sum that rests there.
    const at::Tensor before = gradient.to(model_.device(), /*non_blocking=*/true);
    for (size_t i = 0; i < size(); ++i) {
      const auto mine = model_.owned(items_[i]);
      if (kept_[i] || mine.size() == 0) continue;
      before.narrow(0, model_.place_of(items_[i], mine), mine.size()).zero_();
    }
    part = before.add_(part.to(before.scalar_type()));
  }
  if (model_.replicas() != nullptr && (!keeps || was_partial)) {
    if (model_.ends_window()) model_.replicas()->all_reduce_(part);
    model_.set_partial(unit_, !model_.ends_window());
  }
  if (!part.is_same(gradient)) gradient.copy_(part.to(gradient.scalar_type()), /*non_blocking=*/true);
}

void DeviceBucket::wait() {
  reduce();
  release();
  model_.memory().settle();
}

Trailer DeviceBucket::tail() const {
  const auto values = model_.tail();
  Trailer tail;
  std::copy_n(values.begin(), tail.size(), tail.begin());
  return tail;
}

std::vector<size_t> DeviceBucket::settle(double factor) {
  const at::NoGradGuard no_grad;
  if (factor != 1.0) {
    if (model_.steps_on_host(unit_)) model_.memory().wait_for_masters();
    model_.gradient_of(unit_).mul_(factor);
  }
  std::vector<size_t> without;
  for (size_t i = 0; i < size(); ++i) {
    // Read only where this rank lacks a gradient: on a device reading a number makes the host wait.
    const bool is_absent = absent_[i] && !kept_[i] && model_.presence(items_[i]) == 0;
    kept_[i] = false;
    if (is_absent) {
      without.push_back(i);
    } else {
      model_.show_gradient(items_[i]);
    }
  }
  return without;
}

void DeviceBucket::drop_gradients() {
  for (size_t i = 0; i < size(); ++i) parameter(i).mutable_grad() = at::Tensor();
}

}  // namespace hasten::parallel::shard
