// The layout of a model on a device and its steps; see device_model.h. Prepare is device_placement.cpp's.
#include "parallel/shard/device/device_model.h"

#include <ATen/Functions.h>
#include <c10/core/StreamGuard.h>
#include <torch/types.h>

#include <algorithm>

#include "hasten/core/error.h"
#include "parallel/ddp/abandoned_work.h"
#include "parallel/ddp/reducer_bucket.h"
#include "parallel/shard/program_writes.h"

namespace hasten::parallel::shard {

DeviceModel::DeviceModel(const comm::Group& group, ShardOptions options, c10::Device device, IsTaken is_taken)
    : ShardedModel(group, std::move(options), std::move(is_taken)), is_checked_(group.checked()), device_(device) {
  if (options_.parameter_offload.device != OffloadDevice::kFile) return;
  throw UsageError(Origin{"shard", group_.rank(), group_.world_size()}, "parameters of ", device_,
                   " are to rest in files of '", options_.parameter_offload.path,
                   "', which is for CPUs. Let them rest in memory (OffloadDevice::kCpu, offload_param.device cpu).");
}

DeviceModel::~DeviceModel() {
  *self_ = nullptr;
  if (reads_) reads_->forget();
  end_abandoned(numbers_work_);
}

std::vector<std::vector<size_t>> DeviceModel::units() const {
  std::vector<std::vector<size_t>> units;
  for (const size_t unit : exchanged_) {
    auto& members = units.emplace_back();
    for (const size_t item : plan_.units[unit].items) members.push_back(trainable_index_[item]);
  }
  return units;
}

void DeviceModel::begin(bool ends_window) {
  ends_window_ = ends_window;
  end_abandoned(numbers_work_);
  num_launched_ = 0;
  numbers_.assign(items_.size() + Trailer().size(), 0.0);
  sums_ = read_ = at::Tensor();
  pending = nullptr;
}

void DeviceModel::finish() {
  if (!numbers_work_) return;
  const c10::StreamGuard guard(memory_->stream());
  std::exchange(numbers_work_, std::nullopt)->wait();
}

void DeviceModel::note_launched(size_t unit, const std::vector<bool>& absent, const std::vector<double>* tail) {
  const auto& members = plan_.units[unit].items;
  for (size_t i = 0; i < members.size(); ++i) numbers_[members[i]] = absent[i] ? 0 : 1;
  if (tail != nullptr) std::copy(tail->begin(), tail->end(), numbers_.end() - static_cast<int64_t>(tail->size()));
  if (++num_launched_ < exchanged_.size()) return;
  const c10::StreamGuard guard(memory_->stream());
  sums_ = torch::tensor(numbers_, at::kDouble).to(device_, /*non_blocking=*/true);
  if (everyone_.world_size() > 1) numbers_work_ = everyone_.all_reduce_async_(sums_);
}

void DeviceModel::read_numbers() {
  if (read_.defined()) return;
  const c10::StreamGuard guard(memory_->stream());
  if (numbers_work_) std::exchange(numbers_work_, std::nullopt)->wait();
  read_ = sums_.cpu().div_(everyone_.world_size());
}

double DeviceModel::presence(size_t item) {
  read_numbers();
  return read_.const_data_ptr<double>()[item];
}

std::vector<double> DeviceModel::tail() {
  read_numbers();
  const double* begin = read_.const_data_ptr<double>() + items_.size();
  return {begin, begin + Trailer().size()};
}

void DeviceModel::on_unit_reduced() {
  if (options_.backward_prefetch == BackwardPrefetch::kPost && reads_) memory_->read_ahead();
}

bool DeviceModel::holds(const at::Tensor& tensor) const {
  return item_of(tensor).has_value();
}

std::optional<size_t> DeviceModel::item_of(const at::Tensor& tensor) const {
  if (!tensor.has_storage()) return std::nullopt;
  const auto* storage = tensor.storage().unsafeGetStorageImpl();
  for (size_t item = 0; item < storages_.size(); ++item) {
    if (storages_[item].unsafeGetStorageImpl() == storage) return item;
  }
  return std::nullopt;
}

std::optional<size_t> DeviceModel::unit_on_host(size_t item) const {
  const size_t unit = plan_.places[item].unit;
  return on_host_[unit] ? std::optional(unit) : std::nullopt;
}

bool DeviceModel::steps_any_on_host() const {
  return std::find(on_host_.begin(), on_host_.end(), true) != on_host_.end();
}

bool DeviceModel::steps_whole(size_t item) const {
  return options_.stage == ShardStage::kOptimizer && resident_[item] && !on_host_[plan_.places[item].unit];
}

at::Tensor DeviceModel::value_slice(size_t item, ShardInterval interval) const {
  const auto [unit, index] = plan_.places[item];
  auto& of = memory_->unit(unit);
  const int64_t begin = plan_.units[unit].offsets[index] + interval.begin;
  if (of.resident && !of.master.defined()) return of.whole.narrow(0, begin, interval.size());
  const at::Tensor& stripe = of.master.defined() ? of.master : of.stripe;
  return stripe.narrow(0, begin - owner_ * of.share, interval.size());
}

at::Tensor& DeviceModel::gradient_of(size_t unit) {
  at::Tensor& gradient = gradients_[unit];
  if (gradient.defined()) return gradient;
  const auto& of = memory_->unit(unit);
  const auto options = at::TensorOptions().dtype(of.dtype);
  gradient = at::zeros({of.share}, on_host_[unit] ? options.pinned_memory(true) : options.device(device_));
  return gradient;
}

int64_t DeviceModel::place_of(size_t item, ShardInterval interval) const {
  const auto [unit, index] = plan_.places[item];
  return plan_.units[unit].offsets[index] + interval.begin - owner_ * plan_.units[unit].share;
}

at::Tensor DeviceModel::gradient_slice(size_t item, ShardInterval interval) const {
  return gradients_[plan_.places[item].unit].narrow(0, place_of(item, interval), interval.size());
}

bool DeviceModel::has_own_gradient(size_t item) const {
  const at::Tensor& gradient = parameters_[item].tensor.grad();
  return gradient.defined() && marks_[item].defined() && gradient.is_same(marks_[item]);
}

void DeviceModel::show_gradient(size_t item) {
  const auto part = [self = self_, item]() -> at::Tensor {
    if (*self == nullptr) return {};
    (*self)->complete_gradient((*self)->plan_.places[item].unit);
    const auto interval = (*self)->owned(item);
    return interval.size() > 0 ? (*self)->gradient_slice(item, interval) : at::Tensor();
  };
  const auto& parameter = parameters_[item];
  if (!marks_[item].defined()) marks_[item] = make_split_gradient(parameter.tensor, parameter.name, part);
  parameter.tensor.mutable_grad() = marks_[item];
}

// In the order of the units, which is that of all ranks.
void DeviceModel::complete_gradients() {
  if (steps_any_on_host()) memory_->wait_for_masters();  // sums on their way there are there then
  for (const size_t unit : exchanged_) complete_gradient(unit);
}

void DeviceModel::complete_gradient(size_t unit) {
  if (!partial_[unit]) return;
  const at::NoGradGuard no_grad;
  partial_[unit] = false;
  if (on_host_[unit]) memory_->wait_for_masters();
  const at::Tensor sums = gradients_[unit].to(device_);
  replicas_->all_reduce_(sums);
  if (!sums.is_same(gradients_[unit])) gradients_[unit].copy_(sums);
}

at::Tensor DeviceModel::full_gradient(size_t item) {
  const at::Tensor& like = parameters_[item].tensor;
  if (!has_own_gradient(item)) return like.grad();
  const at::NoGradGuard no_grad;
  const auto [unit, index] = plan_.places[item];
  complete_gradient(unit);
  const at::Tensor own = gradients_[unit].to(device_);
  const at::Tensor whole = at::empty({plan_.unit_numel(unit)}, own.options());
  group_.all_gather_into_(whole, own);
  return whole.as_strided(like.sizes(), like.strides(), plan_.units[unit].offsets[index]).clone();
}

void DeviceModel::set_whole(bool whole) {
  if (!reads_) return;
  if (!whole) {
    memory_->flush();
    memory_->set_hold(false);
    return;
  }
  memory_->set_hold(true);
  for (size_t unit = 0; unit < memory_->num_units(); ++unit) {
    if (!memory_->unit(unit).resident) memory_->read({DeviceUnits::exact(unit)}, false);
  }
}

void DeviceModel::begin_step() {
  if (is_checked_) compare_writes();
  if (reads_) {
    memory_->flush();
    memory_->end_reads();
  }
  adopt_replaced();
  complete_gradients();
  if (!steps_any_on_host()) return;
  memory_->begin_sends();
  memory_->wait_for_masters();
  adopt_written();
}

// Ranks do not meet round a step on devices, so that no host waits for another: this is for checks alone.
void DeviceModel::compare_writes() const {
  std::vector<std::string> names;
  std::vector<int64_t> counts;
  for (size_t item = 0; item < items_.size(); ++item) {
    names.push_back(items_[item].name);
    counts.push_back(version(item) - versions_[item]);
  }
  refuse_different_writes(names, counts, everyone_);
}

int64_t DeviceModel::version(size_t item) const {
  const at::Tensor& tensor = parameters_[item].tensor;
  return tensor.is_inference() ? 0 : tensor._version();
}

void DeviceModel::note_version(size_t item) {
  versions_[item] = version(item);
}

// Writes of the program to a whole parameter on the device count for the stripe on the CPU, too. They are seen by
// versions: those through .data() have none.
void DeviceModel::adopt_written() {
  const at::NoGradGuard no_grad;
  for (size_t item = 0; item < items_.size(); ++item) {
    const auto [unit, index] = plan_.places[item];
    auto& of = memory_->unit(unit);
    const auto mine = owned(item);
    if (!of.resident || !of.master.defined() || mine.size() == 0) continue;
    const auto before = versions_[item];
    note_version(item);
    if (versions_[item] == before) continue;
    const int64_t begin = plan_.units[unit].offsets[index] + mine.begin;
    of.master.narrow(0, begin - owner_ * of.share, mine.size()).copy_(of.whole.narrow(0, begin, mine.size()));
  }
}

// The step itself has counted.
void DeviceModel::end_step() {
  if (!steps_any_on_host() && !is_checked_) return;
  for (size_t item = 0; item < items_.size(); ++item) note_version(item);
}

// Parameters that were stepped whole go from their owners to all ranks.
void DeviceModel::exchange_stepped(const IsStepped& is_stepped) {
  if (!is_stepped.whole_owner) return;
  const at::NoGradGuard no_grad;
  for (size_t item = 0; item < items_.size(); ++item) {
    if (is_stepped.any(item))
      group_.broadcast_(value_slice(item, {0, items_[item].numel}), is_stepped.whole_owner(item));
  }
}

void DeviceModel::finish_step() {
  for (size_t unit = 0; unit < on_host_.size(); ++unit) {
    if (on_host_[unit]) memory_->send(unit);
  }
  bool gathered = false;
  for (size_t unit = 0; unit < memory_->num_units(); ++unit) {
    if (!memory_->unit(unit).resident || !trains_[plan_.units[unit].items.front()]) continue;
    memory_->gather(unit);
    gathered = true;
  }
  if (gathered) memory_->settle();
  memory_->drop();
}

}  // namespace hasten::parallel::shard
