// Prepare: values of rank 0 go unit by unit to the ranks that own them; see device_model.h.
//
// More than the stripes and two units is never on a device, and never more than a unit on the wire.
#include <ATen/Functions.h>
#include <c10/util/strides.h>
#include <torch/types.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <unordered_set>

#include "hasten/core/error.h"
#include "hasten/offload/load/empty.h"
#include "parallel/layout/values_away.h"
#include "parallel/shard/device/device_memory.h"
#include "parallel/shard/device/device_model.h"
#include "parallel/shard/unit_layout.h"
#include "parallel/shard/wrap_units.h"

namespace hasten::parallel::shard {
namespace {

bool can_split(const at::Tensor& tensor, c10::Device device) {
  return tensor.layout() == at::kStrided && tensor.has_storage() && tensor.numel() > 0 &&
         (tensor.is_meta() || tensor.is_cpu() || tensor.device() == device) && tensor.is_non_overlapping_and_dense();
}

c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

// Gives a tensor other contents. What stands before its operators stays, as the cut of a tensor-parallel model.
void give_contents(at::Tensor tensor, const at::Tensor& value) {
  using interception::Level;
  auto before = interception::interceptors_of(tensor, Level::kOperators);
  for (auto& each : interception::interceptors_of(tensor, Level::kEveryOperator)) before.push_back(std::move(each));
  tensor.set_data(value);
  for (auto& each : before) interception::add_interceptor(tensor, std::move(each));
}

// Units of trainable parameters hold no frozen ones.
int kind_of(const at::Tensor& tensor) {
  return 2 * static_cast<int>(tensor.scalar_type()) + (tensor.requires_grad() ? 1 : 0);
}

}  // namespace

void DeviceModel::choose(const torch::nn::Module& module, const std::vector<at::Tensor>& trainable,
                         std::vector<at::Tensor>& left) {
  std::map<const c10::TensorImpl*, size_t> trainable_index;
  for (size_t i = 0; i < trainable.size(); ++i) {
    if (trainable[i].defined()) trainable_index[trainable[i].unsafeGetTensorImpl()] = i;
  }
  const auto all = module.named_parameters();
  std::map<c10::StorageImpl*, std::set<const c10::TensorImpl*>> users;
  for (const auto& item : all) {
    const at::Tensor& tensor = item.value();
    if (tensor.defined() && tensor.has_storage() && !tensor.is_meta())
      users[storage_of(tensor)].insert(tensor.unsafeGetTensorImpl());
  }
  std::set<const c10::TensorImpl*> seen;
  for (const auto& item : all) {
    const at::Tensor& tensor = item.value();
    if (!tensor.defined() || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    if (is_taken_ && tensor.has_storage() && is_taken_(tensor)) continue;
    const auto index = trainable_index.find(tensor.unsafeGetTensorImpl());
    const bool is_sparse = tensor.requires_grad() && index == trainable_index.end();
    const bool is_shared = tensor.has_storage() && !tensor.is_meta() && users[storage_of(tensor)].size() > 1;
    if (is_sparse || is_shared || is_ignored(item.key()) || !can_split(tensor, device_)) {
      left.push_back(tensor);
      continue;
    }
    trains_.push_back(tensor.requires_grad());
    parameters_.push_back({item.key(), tensor});
    items_.push_back({item.key(), tensor.numel(), tensor.element_size(), kind_of(tensor)});
    trainable_index_.push_back(index == trainable_index.end() ? 0 : index->second);
  }
}

std::optional<c10::ScalarType> DeviceModel::low_dtype() const {
  const auto& name = options_.param_dtype;
  if (name.empty()) return std::nullopt;
  if (name == "bfloat16") return at::kBFloat16;
  if (name == "float16") return at::kHalf;
  throw UsageError(Origin{"shard", group_.rank(), group_.world_size()}, "param_dtype is '", name,
                   "'; expected bfloat16, float16, or nothing for the parameters' own.");
}

// Everything but in stage 3. There small parameters stay, and those of one dimension if others travel in a lower
// precision: norms and biases are read in float32.
std::vector<bool> DeviceModel::find_resident() const {
  std::vector<bool> resident(items_.size(), options_.stage != ShardStage::kParameters);
  const auto low = low_dtype();
  int64_t left = options_.persist_total_numel;
  for (size_t item = 0; item < items_.size() && options_.stage == ShardStage::kParameters; ++item) {
    const bool small = items_[item].numel < options_.persist_numel && items_[item].numel <= left;
    if (small) left -= items_[item].numel;
    const auto& tensor = parameters_[item].tensor;
    resident[item] = small || (low && tensor.scalar_type() == at::kFloat && tensor.dim() <= 1);
  }
  return resident;
}

// All that are trained, or with a ratio those whose gradients come first: the rest of backward hides their way.
std::vector<bool> DeviceModel::find_on_host() const {
  std::vector<bool> on_host(plan_.units.size());
  const auto& state = options_.optimizer_offload;
  if (state.device == OffloadDevice::kNone && options_.parameter_offload.device == OffloadDevice::kNone) return on_host;
  const bool is_part = state.device == OffloadDevice::kCpu && options_.parameter_offload.device == OffloadDevice::kNone;
  const auto trains = [&](const ShardUnit& unit) { return trains_[unit.items.front()]; };
  int64_t all = 0, taken = 0;
  for (const auto& unit : plan_.units) all += trains(unit) ? unit.share : 0;
  const auto most = is_part ? static_cast<int64_t>(state.ratio * static_cast<double>(all)) : all;
  for (size_t unit = 0; unit < plan_.units.size(); ++unit) {
    if (!trains(plan_.units[unit]) || taken + plan_.units[unit].share > most) continue;
    taken += plan_.units[unit].share;
    on_host[unit] = true;
  }
  return on_host;
}

// Tensors without memory get their values on rank 0's CPU.
void DeviceModel::give_values(torch::nn::Module& module) const {
  if (offload::empty_tensors(module).empty()) return;
  if (everyone_.rank() != 0) {
    std::vector<std::string> names;
    for (const auto& item : module.named_buffers()) {
      if (item.value().defined() && item.value().is_meta()) names.push_back(item.key());
    }
    std::unordered_set<const c10::TensorImpl*> split;
    for (const auto& parameter : parameters_) split.insert(parameter.tensor.unsafeGetTensorImpl());
    for (const auto& item : module.named_parameters()) {
      if (item.value().is_meta() && !split.contains(item.value().unsafeGetTensorImpl())) names.push_back(item.key());
    }
    if (!names.empty()) offload::materialize(module, {.only = names});
  } else if (options_.init) {
    for (const auto& item : module.named_parameters()) {
      if (item.value().is_meta())
        offload::fill_empty(item.value(), at::zeros(item.value().sizes(),
                                                    item.value().options().device(at::kCPU).requires_grad(false)));
    }
    options_.init(module);
    offload::materialize(module);
  } else {
    offload::materialize(module);
  }
}

// Buffers, and parameters that are not split.
void DeviceModel::move_rest(const torch::nn::Module& module, const std::vector<at::Tensor>& left) const {
  const auto move = [&](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.is_cpu()) give_contents(tensor, tensor.to(device_));
  };
  for (const at::Tensor& tensor : module.buffers()) move(tensor);
  for (const at::Tensor& tensor : left) move(tensor);
}

std::vector<at::Tensor> DeviceModel::place(const torch::nn::Module& module, const std::vector<std::string>&,
                                           const std::vector<at::Tensor>& trainable) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> left;
  check_same_options(module);
  find_group(!options_.across_hosts);
  owner_ = group_.rank();
  ++num_plans_;
  // Their values are read while the new units are filled.
  const auto memory_before = std::move(memory_);
  const auto reads_before = std::move(reads_);
  const auto parameters_before = std::exchange(parameters_, {});
  for (size_t item = 0; item < parameters_before.size(); ++item) {
    if (marks_[item].defined() && parameters_before[item].tensor.grad().is_same(marks_[item]))
      parameters_before[item].tensor.mutable_grad() = at::Tensor();
  }
  items_.clear();
  trains_.clear();
  trainable_index_.clear();
  exchanged_.clear();
  ignored_ = ignored_names(module, options_.ignored);
  choose(module, trainable, left);
  resident_ = find_resident();
  plan_ = plan_shards(items_, split_groups(group_items(module, options_, items_, ignored_), resident_),
                      group_.world_size());
  on_host_ = find_on_host();
  partial_.assign(plan_.units.size(), false);
  gradients_.assign(plan_.units.size(), at::Tensor());
  marks_.assign(items_.size(), at::Tensor());
  storages_.assign(items_.size(), c10::Storage());
  // GradientExchange's modules are the program's own.
  give_values(const_cast<torch::nn::Module&>(module));
  move_rest(module, left);
  if (memory_before) memory_before->flush();
  const bool frees = options_.reshard_after_forward;
  memory_ = std::make_unique<DeviceUnits>(
      group_, DeviceUnitsOptions{.device = device_,
                                 .max_units = frees ? 2 : std::numeric_limits<int64_t>::max(),
                                 .max_bytes = options_.limit_all_gathers
                                                  ? options_.max_live_bytes
                                                  : std::max(options_.max_live_bytes, options_.prefetch_bytes),
                                 .prefetch_bytes = options_.prefetch_bytes,
                                 .max_reuse_bytes = options_.max_reuse_bytes});
  for (size_t unit = 0; unit < plan_.units.size(); ++unit) {
    fill_unit(unit, reads_before.get());
    if (splits_gradients() && trains_[plan_.units[unit].items.front()]) exchanged_.push_back(unit);
  }
  for (const auto& parameter : parameters_before)
    interception::remove_interceptor(parameter.tensor, reads_before.get());
  if (reads_before) reads_before->forget();
  layouts_.clear();
  for (const auto& [name, tensor] : parameters_) layouts_.push_back({tensor.sizes().vec(), tensor.strides().vec()});
  versions_.assign(items_.size(), 0);
  for (size_t item = 0; item < items_.size(); ++item) note_version(item);
  make_reads();
  return left;
}

at::Tensor DeviceModel::to_rest(const at::Tensor& stripe, bool on_host) const {
  if (!on_host) return stripe.clone();
  return at::empty(stripe.sizes(), at::TensorOptions().dtype(stripe.scalar_type()).pinned_memory(true)).copy_(stripe);
}

void DeviceModel::fill_unit(size_t index, const DeviceReads* before) {
  const auto& planned = plan_.units[index];
  const size_t first = planned.items.front();
  const auto dtype = parameters_[first].tensor.scalar_type();
  const int64_t numel = plan_.unit_numel(index);
  const auto make = [&] { return at::empty({numel}, at::TensorOptions().dtype(dtype).device(device_)); };
  const at::Tensor whole =
      with_words_for_memory(group_, device_, text("the unit of '", items_[first].name, "' in prepare"),
                            numel * static_cast<int64_t>(c10::elementSize(dtype)), make);
  for (size_t i = 0; i < planned.items.size(); ++i) {
    const at::Tensor& tensor = parameters_[planned.items[i]].tensor;
    // Reads of split parameters are collectives.
    const bool reads = everyone_.rank() == 0 || (before != nullptr && before->holds(tensor));
    // The model may be cut as well: Ddp has interceptors passed by here.
    if (reads && before != nullptr) bring_values(tensor);
    if (reads && !tensor.is_meta())
      whole.as_strided(tensor.sizes(), tensor.strides(), planned.offsets[i]).copy_(tensor.detach());
  }
  everyone_.broadcast_(whole, 0);
  const at::Tensor own = whole.narrow(0, owner_ * planned.share, planned.share);
  DeviceUnits::Unit unit{
      .name = items_[first].name, .share = planned.share, .dtype = dtype, .resident = resident_[first]};
  const bool rests_on_host = options_.parameter_offload.device != OffloadDevice::kNone,
             is_stepped_there = on_host_[index];
  const auto low = dtype == at::kFloat ? low_dtype() : std::nullopt;
  if (unit.resident) {
    unit.whole = whole;
    unit.stripe = own;
    if (is_stepped_there) unit.master = to_rest(own, true);
  } else if (low && (rests_on_host || is_stepped_there)) {
    // The device has the low form alone. The exact one comes from the CPU where an operator reads it.
    unit.stripe = to_rest(own, true);
    unit.low = to_rest(own.to(*low), rests_on_host);
    if (!rests_on_host) unit.staging = to_rest(unit.low, true);
  } else {
    unit.stripe = to_rest(own, rests_on_host);
    if (is_stepped_there && !rests_on_host) unit.master = to_rest(own, true);
  }
  memory_->add(std::move(unit));
  for (size_t i = 0; i < planned.items.size(); ++i) show_values(planned.items[i], whole, planned.offsets[i], before);
}

// The parameter's storage points into the whole unit if that stays, and to nothing otherwise.
void DeviceModel::show_values(size_t item, const at::Tensor& whole, int64_t offset, const DeviceReads* before) {
  const at::Tensor& tensor = parameters_[item].tensor;
  const auto num_bytes = tensor.nbytes();
  at::DataPtr memory(nullptr, device_);
  if (resident_[item]) {
    auto* const begin = static_cast<char*>(whole.mutable_data_ptr()) + offset * tensor.element_size();
    memory = at::DataPtr(
        begin, new c10::Storage(whole.storage()), [](void* keep) { delete static_cast<c10::Storage*>(keep); }, device_);
  }
  const bool stays = tensor.device() == device_ && tensor.storage_offset() == 0 &&
                     tensor.storage().nbytes() == num_bytes && !(before != nullptr && before->holds(tensor));
  if (stays) {
    tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
  } else {
    const at::Tensor value = torch::empty({0}, tensor.options().device(device_).requires_grad(false));
    auto& impl = *value.unsafeGetTensorImpl();
    impl.set_storage_keep_dtype(
        c10::Storage(c10::Storage::use_byte_size_t(), num_bytes, std::move(memory), nullptr, /*resizable=*/false));
    impl.set_sizes_and_strides(tensor.sizes(), tensor.strides(), 0);
    if (tensor.is_meta()) {
      offload::fill_empty(tensor, value);
    } else {
      give_contents(tensor, value);
    }
  }
  storages_[item] = tensor.storage();
}

void DeviceModel::make_reads() {
  if (std::find(resident_.begin(), resident_.end(), false) == resident_.end()) return;
  reads_ = std::make_shared<DeviceReads>(
      *memory_, DeviceReads::Ahead{options_.forward_prefetch, options_.backward_prefetch == BackwardPrefetch::kPre});
  const auto low = low_dtype();
  for (size_t item = 0; item < items_.size(); ++item) {
    if (resident_[item]) continue;
    const at::Tensor& tensor = parameters_[item].tensor;
    const auto [unit, index] = plan_.places[item];
    const int64_t offset = plan_.units[unit].offsets[index];
    DeviceReads::Parameter parameter(tensor);
    parameter.name = items_[item].name;
    parameter.unit = unit;
    memory_->show(DeviceUnits::exact(unit), tensor.scalar_type(), storages_[item], offset);
    if (low && tensor.scalar_type() == at::kFloat) {
      const auto bytes = static_cast<size_t>(tensor.numel()) * c10::elementSize(*low);
      parameter.low = torch::empty({0}, tensor.options().dtype(*low).requires_grad(false));
      auto& impl = *parameter.low.unsafeGetTensorImpl();
      impl.set_storage_keep_dtype(c10::Storage(c10::Storage::use_byte_size_t(), bytes, at::DataPtr(nullptr, device_),
                                               nullptr, /*resizable=*/false));
      impl.set_sizes_and_strides(tensor.sizes(), tensor.strides(), 0);
      memory_->show(DeviceUnits::low(unit), *low, parameter.low.storage(), offset);
    }
    const at::Tensor low_form = parameter.low;
    reads_->add(tensor, std::move(parameter));
    interception::add_interceptor(tensor, reads_);
    if (low_form.defined()) interception::add_interceptor(low_form, reads_);
  }
}

void DeviceModel::set_value(size_t item, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  const auto [unit, index] = plan_.places[item];
  auto& of = memory_->unit(unit);
  const at::Tensor& like = parameters_[item].tensor;
  // In the order of memory.
  const at::Tensor laid =
      at::empty_strided(like.sizes(), layouts_[item].strides, value.options().dtype(of.dtype)).copy_(value);
  const at::Tensor values = laid.as_strided({laid.numel()}, {1}).to(device_);
  const auto mine = owned(item);
  const int64_t begin = plan_.units[unit].offsets[index];
  memory_->forget(DeviceUnits::exact(unit));  // the stripe takes over what the program has written to the unit
  if (of.resident) of.whole.narrow(0, begin, values.numel()).copy_(values);
  if (mine.size() > 0) {
    const int64_t own = begin + mine.begin - owner_ * of.share;
    const at::Tensor part = values.narrow(0, mine.begin, mine.size());
    of.stripe.narrow(0, own, mine.size()).copy_(part);
    if (of.master.defined()) of.master.narrow(0, own, mine.size()).copy_(part);
  }
  memory_->forget(DeviceUnits::exact(unit));
}

// set_data and torch::load put another storage into a parameter, whose values count.
void DeviceModel::adopt_replaced() {
  const at::NoGradGuard no_grad;
  for (size_t item = 0; item < items_.size(); ++item) {
    const at::Tensor& tensor = parameters_[item].tensor;
    if (tensor.has_storage() && tensor.storage().unsafeGetStorageImpl() == storages_[item].unsafeGetStorageImpl())
      continue;
    const auto [unit, index] = plan_.places[item];
    auto& of = memory_->unit(unit);
    if (tensor.numel() != items_[item].numel || tensor.scalar_type() != of.dtype) {
      throw UsageError(Origin{"shard", group_.rank(), group_.world_size()}, "'", items_[item].name, "' is ",
                       tensor.toString(), " of [", join(tensor.sizes(), ", "), "] now and had ", items_[item].numel,
                       " elements of ", of.dtype,
                       " when it was prepared. Run the prepared model's forward after changing dtypes or sizes.");
    }
    // Optimizer state lies as the values did before.
    auto& layout = layouts_[item];
    if (tensor.sizes() != layout.sizes) {
      const auto strides = c10::contiguous_strides(tensor.sizes());
      layout = {tensor.sizes().vec(), {strides.begin(), strides.end()}};
    }
    set_value(item, tensor.detach());
    auto& impl = *tensor.unsafeGetTensorImpl();
    impl.set_storage_keep_dtype(storages_[item]);
    impl.set_sizes_and_strides(layout.sizes, layout.strides, 0);
    if (reads_ && !resident_[item]) interception::add_interceptor(tensor, reads_);
  }
}

}  // namespace hasten::parallel::shard
