// See shard_bucket.h.
#include "parallel/shard/shard_bucket.h"

#include <torch/types.h>

#include <algorithm>

#include "hasten/comm/types/purpose.h"
#include "hasten/core/error.h"

namespace hasten::parallel::shard {

// Here, so that the model does not know the bucket.
std::unique_ptr<ReducerBucket> RegionModel::make_bucket(size_t unit, const ReducerBucketSettings& settings) {
  return std::make_unique<ShardBucket>(*this, unit, settings);
}

ShardBucket::ShardBucket(RegionModel& model, size_t unit, const ReducerBucketSettings& settings)
    : model_(model),
      unit_(unit),
      settings_(settings),
      items_(model.plan().units[unit].items),
      taken_(items_.size()),
      absent_(items_.size()),
      kept_(items_.size()),
      own_(items_.size()),
      graphs_(items_.size()) {
  numbers_ = torch::zeros({static_cast<int64_t>(2 * items_.size() + Trailer().size())}, at::kDouble);
  for (size_t i = 0; i < items_.size(); ++i) {
    hooks_.push_back(parameter(i).register_hook([this, i](const at::Tensor&) { set_aside(i); }));
  }
}

ShardBucket::~ShardBucket() {
  for (size_t i = 0; i < hooks_.size(); ++i) parameter(i).remove_hook(hooks_[i]);
  if (model_.pool().pending == this) model_.pool().pending = nullptr;
  if (model_.pool().crossing == this) model_.pool().crossing = nullptr;
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
  std::fill(own_.begin(), own_.end(), at::Tensor());
  for (const size_t item : items_) model_.detach_view(item);
  // An exception may have left an exchange under way.
  if (work_) std::exchange(work_, std::nullopt)->wait();
  if (crossing_) std::exchange(crossing_, std::nullopt)->wait();
  if (model_.pool().crossing == this) model_.pool().crossing = nullptr;
  sent_ = received_ = at::Tensor();
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

// The elements of the owners with this rank's place on all hosts. They lie side by side.
ShardInterval ShardBucket::column() const {
  const int64_t size = model_.plan().units[unit_].share * model_.num_hosts();
  const int64_t begin = model_.pool().region.local_index() * size;
  return {begin, begin + size};
}

// Parts that others add up go into the slot. This rank's part is read where autograd has left it.
void ShardBucket::fill(const at::Tensor& flat, size_t i) {
  const int64_t offset = model_.plan().units[unit_].offsets[i];
  const at::Tensor& like = parameter(i);
  const at::Tensor slot = flat.narrow(0, offset, like.numel());
  at::Tensor& gradient = like.mutable_grad();
  own_[i] = at::Tensor();
  if (!gradient.defined()) {
    slot.zero_();
    return;
  }
  at::Tensor value = gradient.detach();
  gradient = at::Tensor();
  // Rounded as it would be on a wire, and added up in the parameter's dtype.
  if (settings_.wire_dtype && (settings_.in_wire.empty() || settings_.in_wire[i]))
    value = value.to(*settings_.wire_dtype);
  const bool lies_alike = value.sizes() == like.sizes() && value.strides() == like.strides();
  if (scale_ != 1 || value.scalar_type() != like.scalar_type() || !lies_alike) {
    slot.as_strided(like.sizes(), like.strides(), slot.storage_offset()).copy_(value);
    if (scale_ != 1) slot.mul_(scale_);
    return;
  }
  own_[i] = value.as_strided({value.numel()}, {1});
  const auto mine = column();
  const int64_t first = std::clamp<int64_t>(mine.begin - offset, 0, slot.numel());
  const int64_t last = std::clamp<int64_t>(mine.end - offset, 0, slot.numel());
  if (first > 0) slot.narrow(0, 0, first).copy_(own_[i].narrow(0, 0, first));
  if (last < slot.numel())
    slot.narrow(0, last, slot.numel() - last).copy_(own_[i].narrow(0, last, slot.numel() - last));
}

void ShardBucket::launch(const CommHook& hook, const Trailer& tail) {
  if (hook) {
    throw UsageError(Origin{"shard", model_.group().rank(), model_.group().world_size()},
                     "a comm_hook and sharding exclude each other: no bucket travels as a whole. Use "
                     "communication_dtype to send fewer bytes.");
  }
  const at::NoGradGuard no_grad;
  model_.on_unit_reduced();
  auto& pool = model_.pool();
  if (pool.pending != nullptr && pool.pending != this) pool.pending->reduce();
  slot_ = pool.num_launched++ % ShardPool::kNumSlots;
  const at::Tensor flat = pool.region.tensor(pool.offset(pool.region.local_index(), slot_),
                                             model_.plan().unit_numel(unit_), parameter(0).scalar_type());
  for (size_t i = 0; i < size(); ++i) fill(flat, i);
  double* numbers = numbers_.mutable_data_ptr<double>();
  for (size_t i = 0; i < size(); ++i) {
    *numbers++ = absent_[i] && !kept_[i] ? 0 : 1;
    *numbers++ = kept_[i] ? 1 : 0;
  }
  for (const double value : tail) *numbers++ = value;
  pool.pending = this;
  work_ = model_.everyone().all_reduce_async_(numbers_);
  // Without other ranks on the host there is nothing to wait for.
  if (model_.num_hosts() > 1 && pool.region.local_ranks().size() == 1) send_to_hosts();
}

void ShardBucket::reduce() {
  if (!work_) return;
  const at::NoGradGuard no_grad;
  std::exchange(work_, std::nullopt)->wait();
  auto& pool = model_.pool();
  if (pool.pending == this) pool.pending = nullptr;
  numbers_.div_(model_.everyone().world_size());
  if (model_.num_hosts() > 1) {
    if (!crossing_) send_to_hosts();
    return;
  }
  const at::Tensor sums = place_of_sums();
  const auto op = model_.replicas() == nullptr && settings_.averages ? comm::ReduceOp::kMean : comm::ReduceOp::kSum;
  sum_of_host(sums, op);
  finish(sums);
}

// Each host sends each other one its part, once. Gloo's reduce_scatter is an all_reduce, which sends twice as much.
void ShardBucket::send_to_hosts() {
  auto& pool = model_.pool();
  if (pool.crossing != nullptr && pool.crossing != this) pool.crossing->end_reduce();
  const at::Tensor sums = at::empty({column().size()}, own_part().options());
  sum_of_host(sums, comm::ReduceOp::kSum);
  sent_ = sums.to(dtype_between_hosts());
  received_ = at::empty_like(sent_);
  crossing_ = model_.across()->all_to_all_into_async_(received_, sent_);
  pool.crossing = this;
}

void ShardBucket::end_reduce() {
  if (!crossing_) return;
  const at::NoGradGuard no_grad;
  if (model_.pool().crossing == this) model_.pool().crossing = nullptr;
  std::exchange(crossing_, std::nullopt)->wait();
  const at::Tensor sums = place_of_sums();
  comm::reduce_local(sums, received_.to(sums.scalar_type()).chunk(model_.num_hosts()), comm::ReduceOp::kSum);
  sent_ = received_ = at::Tensor();
  finish(sums);
}

// From the sums of this rank's part over all ranks of the group.
void ShardBucket::finish(const at::Tensor& sums) {
  const comm::Purpose purpose("gradients of a unit");
  if (model_.replicas() != nullptr) model_.replicas()->all_reduce_(sums);
  const bool is_mean = model_.num_hosts() == 1 && model_.replicas() == nullptr;
  if (settings_.averages && !is_mean) sums.div_(model_.everyone().world_size());
  if (keeps_any()) add_kept(sums);
}

c10::ScalarType ShardBucket::dtype_between_hosts() const {
  const auto& low = settings_.in_wire;
  const bool all = std::find(low.begin(), low.end(), false) == low.end();
  return settings_.wire_dtype && all ? *settings_.wire_dtype : parameter(0).scalar_type();
}

at::Tensor ShardBucket::place_of_sums() const {
  const at::Tensor out = own_part();
  return keeps_any() ? at::empty_like(out) : out;
}

// Whether any rank keeps a reduced gradient from before.
bool ShardBucket::keeps_any() const {
  const double* numbers = numbers_.const_data_ptr<double>();
  bool any = false;
  for (size_t i = 0; i < size(); ++i) any = any || numbers[2 * i + 1] > 0;
  return any;
}

at::Tensor ShardBucket::own_part() const {
  const auto& unit = model_.plan().units[unit_];
  const int64_t begin = model_.owner() * unit.share * unit.element_bytes;
  return model_.gradients().tensor(model_.unit_offset(unit_) + begin, unit.share, parameter(0).scalar_type());
}

void ShardBucket::sum_of_host(const at::Tensor& out, comm::ReduceOp op) {
  for (size_t i = 0; i < size(); ++i) sum_of_item(out, i, op);
  std::fill(own_.begin(), own_.end(), at::Tensor());
}

// Sums what lies of item i in this rank's column.
void ShardBucket::sum_of_item(const at::Tensor& out, size_t i, comm::ReduceOp op) {
  const auto& unit = model_.plan().units[unit_];
  const auto& pool = model_.pool();
  const auto mine = column();
  const int64_t offset = unit.offsets[i], numel = model_.items()[items_[i]].numel;
  const int64_t begin = std::max(mine.begin, offset), end = std::min(mine.end, offset + numel);
  if (begin >= end) return;
  std::vector<at::Tensor> inputs;
  const int num_local = static_cast<int>(pool.region.local_ranks().size());
  for (int rank = 0; rank < num_local; ++rank) {
    const bool here = rank == pool.region.local_index() && own_[i].defined();
    inputs.push_back(here ? own_[i].narrow(0, begin - offset, end - begin)
                          : pool.region.tensor(pool.offset(rank, slot_) + begin * unit.element_bytes, end - begin,
                                               out.scalar_type()));
  }
  comm::reduce_local(out.narrow(0, begin - mine.begin, end - begin), inputs, op);
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
