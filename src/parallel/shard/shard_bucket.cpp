// See shard_bucket.h.
#include "parallel/shard/shard_bucket.h"

#include <torch/types.h>

#include <algorithm>

#include "hasten/core/error.h"

namespace hasten::parallel::shard {

ShardBucket::ShardBucket(ShardedModel& model, size_t unit, const ReducerBucketSettings& settings)
    : model_(model),
      unit_(unit),
      settings_(settings),
      items_(model.plan().units[unit].items),
      taken_(items_.size()),
      absent_(items_.size()),
      kept_(items_.size()),
      graphs_(items_.size()) {
  numbers_ = torch::zeros({static_cast<int64_t>(2 * items_.size() + Trailer().size())}, at::kDouble);
  for (size_t i = 0; i < items_.size(); ++i) {
    hooks_.push_back(parameter(i).register_hook([this, i](const at::Tensor&) { set_aside(i); }));
  }
}

ShardBucket::~ShardBucket() {
  for (size_t i = 0; i < hooks_.size(); ++i) parameter(i).remove_hook(hooks_[i]);
  if (model_.pool().pending == this) model_.pool().pending = nullptr;
}

// Runs before autograd accumulates: the region's values stay where they are, and the new part comes alone.
void ShardBucket::set_aside(size_t i) {
  if (taken_[i] || !model_.has_own_gradient(items_[i])) return;
  parameter(i).mutable_grad() = at::Tensor();
  kept_[i] = true;
}

void ShardBucket::begin_step() {
  num_taken_ = 0;
  std::fill(taken_.begin(), taken_.end(), false);
  std::fill(absent_.begin(), absent_.end(), false);
  std::fill(graphs_.begin(), graphs_.end(), at::Tensor());
  for (const size_t item : items_) model_.leave_to_others(item);
  // Of an exchange that an exception has left.
  if (work_) std::exchange(work_, std::nullopt)->wait();
}

void ShardBucket::take(size_t i, double scale, const at::Tensor&) {
  if (taken_[i]) return;
  set_aside(i);
  taken_[i] = true;
  ++num_taken_;
  scale_ = settings_.averages ? 1 : scale;
  at::Tensor& gradient = parameter(i).mutable_grad();
  absent_[i] = !gradient.defined();
  if (gradient.defined() && at::GradMode::is_enabled() && gradient.requires_grad()) graphs_[i] = gradient;
}

void ShardBucket::take_rest(double scale) {
  for (size_t i = 0; i < size(); ++i) take(i, scale);
}

void ShardBucket::fill(const at::Tensor& flat, size_t i) {
  const int64_t offset = model_.plan().units[unit_].offsets[i];
  const at::Tensor& like = parameter(i);
  const at::Tensor slot = flat.as_strided(like.sizes(), like.strides(), offset);
  at::Tensor& gradient = like.mutable_grad();
  if (!gradient.defined()) {
    slot.zero_();
    return;
  }
  at::Tensor value = gradient.detach();
  // Rounded as it would be on a wire, and added up in the parameter's dtype.
  if (settings_.wire_dtype) value = value.to(*settings_.wire_dtype);
  slot.copy_(value);
  if (scale_ != 1) slot.mul_(scale_);
  gradient = at::Tensor();
}

void ShardBucket::launch(const CommHook& hook, const Trailer& tail) {
  if (hook) {
    throw UsageError(Origin{"shard", model_.group().rank(), model_.group().world_size()},
                     "a comm_hook and sharding exclude each other: no bucket travels as a whole. Use "
                     "communication_dtype to send fewer bytes.");
  }
  const at::NoGradGuard no_grad;
  auto& pool = model_.pool();
  if (pool.pending != nullptr && pool.pending != this) pool.pending->reduce();
  slot_ = pool.num_launched++ % ShardedModel::Pool::kNumSlots;
  const at::Tensor flat =
      pool.region.tensor(pool.offset(pool.region.local_index(), slot_), model_.plan().unit_numel(unit_),
                         parameter(0).scalar_type());
  for (size_t i = 0; i < size(); ++i) fill(flat, i);
  double* numbers = numbers_.mutable_data_ptr<double>();
  for (size_t i = 0; i < size(); ++i) {
    *numbers++ = absent_[i] && !kept_[i] ? 0 : 1;
    *numbers++ = kept_[i] ? 1 : 0;
  }
  for (const double value : tail) *numbers++ = value;
  pool.pending = this;
  work_ = model_.group().all_reduce_async_(numbers_);
}

void ShardBucket::reduce() {
  if (!work_) return;
  const at::NoGradGuard no_grad;
  std::exchange(work_, std::nullopt)->wait();
  if (model_.pool().pending == this) model_.pool().pending = nullptr;
  numbers_.div_(model_.group().world_size());
  add_up();
}

at::Tensor ShardBucket::own_part() const {
  const auto& unit = model_.plan().units[unit_];
  const int64_t begin = model_.owner() * unit.share * unit.element_bytes;
  return model_.gradients().tensor(model_.unit_offset(unit_) + begin, unit.share, parameter(0).scalar_type());
}

void ShardBucket::add_up() {
  const double* numbers = numbers_.const_data_ptr<double>();
  bool any_kept = false;
  for (size_t i = 0; i < size(); ++i) any_kept = any_kept || numbers[2 * i + 1] > 0;
  const at::Tensor out = own_part();
  if (!any_kept) return sum(out);
  const at::Tensor sums = at::empty_like(out);
  sum(sums);
  add_kept(sums);
}

// The sum (or mean) over all ranks of this rank's part.
void ShardBucket::sum(const at::Tensor& out) {
  const auto& unit = model_.plan().units[unit_];
  const auto& pool = model_.pool();
  const int hosts = model_.num_hosts();
  // The parts of the ranks with this rank's place on all hosts lie side by side.
  const int64_t column = unit.share * hosts, begin = pool.region.local_index() * column * unit.element_bytes;
  std::vector<at::Tensor> inputs;
  const int num_local = static_cast<int>(pool.region.local_ranks().size());
  for (int rank = 0; rank < num_local; ++rank) {
    inputs.push_back(pool.region.tensor(pool.offset(rank, slot_) + begin, column, out.scalar_type()));
  }
  if (hosts == 1) {
    return comm::reduce_local(out, inputs, settings_.averages ? comm::ReduceOp::kMean : comm::ReduceOp::kSum);
  }
  const at::Tensor of_host = at::empty({column}, out.options());
  comm::reduce_local(of_host, inputs, comm::ReduceOp::kSum);
  model_.across()->reduce_scatter_into_(out, of_host, comm::ReduceOp::kSum);
  if (settings_.averages) out.div_(model_.group().world_size());
}

// Where ranks kept the reduced gradient from before, it counts as much as it would in their .grad().
void ShardBucket::add_kept(const at::Tensor& sums) {
  const double* numbers = numbers_.const_data_ptr<double>();
  const at::Tensor out = own_part();
  const auto& unit = model_.plan().units[unit_];
  for (size_t i = 0; i < size(); ++i) {
    const auto mine = model_.owned(items_[i]);
    if (mine.size() == 0) continue;
    const int64_t begin = unit.offsets[i] + mine.begin - model_.owner() * unit.share;
    at::Tensor part = out.narrow(0, begin, mine.size());
    const double kept = numbers[2 * i + 1];
    if (kept == 0) {
      part.copy_(sums.narrow(0, begin, mine.size()));
    } else {
      if (kept != 1) part.mul_(kept);
      part.add_(sums.narrow(0, begin, mine.size()));
    }
  }
}

Trailer ShardBucket::tail() const {
  Trailer tail;
  std::copy_n(numbers_.const_data_ptr<double>() + 2 * size(), tail.size(), tail.begin());
  return tail;
}

std::vector<size_t> ShardBucket::settle(double factor) {
  const at::NoGradGuard no_grad;
  if (factor != 1.0) own_part().mul_(factor);
  const double* numbers = numbers_.const_data_ptr<double>();
  std::vector<size_t> without;
  for (size_t i = 0; i < size(); ++i) {
    kept_[i] = false;
    if (numbers[2 * i] > 0) {
      model_.show_gradient(items_[i]);
    } else {
      without.push_back(i);
    }
  }
  return without;
}

void ShardBucket::drop_gradients() {
  for (size_t i = 0; i < size(); ++i) parameter(i).mutable_grad() = at::Tensor();
}

}  // namespace hasten::parallel::shard
