// The place of parameters: the host's whole region, and on several hosts its stripes. See region_model.h.
#include <torch/csrc/autograd/graph_task.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include "hasten/comm/types/purpose.h"
#include "hasten/core/error.h"
#include "hasten/interception/interceptor.h"
#include "hasten/memory/allocator.h"
#include "hasten/offload/load/empty.h"
#include "parallel/shard/region_model.h"
#include "parallel/shard/unit_layout.h"

namespace hasten::parallel::shard {
namespace {

constexpr int64_t kStorageAlign = 64, kMessageBytes = int64_t{64} << 20;

int64_t up_to(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

int64_t page_bytes() {
  return sysconf(_SC_PAGESIZE);
}

void broadcast_region(const std::optional<comm::Group>& leaders, const comm::SharedRegion& region, int64_t first,
                      int64_t last) {
  const comm::Purpose purpose("shared parameters");
  for (int64_t begin = first; leaders && begin < last; begin += kMessageBytes) {
    leaders->broadcast_(region.tensor(begin, std::min(kMessageBytes, last - begin), at::kByte), 0);
  }
}

}  // namespace

/// Requests the units of an operator's arguments, so that it does not fault, and an error can be thrown.
class RegionModel::TouchUnits : public interception::Interceptor {
 public:
  TouchUnits(offload::UnitPager& pager, const ShardOptions& options)
      : pager_(&pager),
        ahead_in_forward_(options.forward_prefetch),
        ahead_in_backward_(options.backward_prefetch == BackwardPrefetch::kPre) {}
  interception::Level level() const override { return interception::Level::kEveryOperator; }

  bool intercept(const c10::OperatorHandle& op, interception::Stack& stack) override {
    if (pager_ == nullptr || pager_->is_paused()) return false;
    for (size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
      if (stack[i].isTensor()) touch(stack[i].toTensor());
      if (!stack[i].isTensorList()) continue;
      for (const at::Tensor& tensor : stack[i].toTensorVector()) touch(tensor);
    }
    return false;
  }

  void add(const at::Tensor& parameter, const offload::Home& home, size_t unit) {
    units_.insert_or_assign(parameter.storage().unsafeGetStorageImpl(), Place{&home, unit});
    tensors_.push_back(parameter);
  }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  void forget() {
    pager_ = nullptr;
    units_.clear();
  }

 private:
  struct Place {
    const offload::Home* home;
    size_t unit;
  };
  void touch(const at::Tensor& tensor) const {
    if (!tensor.defined() || !tensor.has_storage()) return;
    const auto found = units_.find(tensor.storage().unsafeGetStorageImpl());
    if (found == units_.end() || found->second.home->is_private()) return;
    const bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
    pager_->touch(found->second.unit, in_backward ? ahead_in_backward_ : ahead_in_forward_);
  }

  offload::UnitPager* pager_;
  bool ahead_in_forward_, ahead_in_backward_;
  std::unordered_map<const c10::StorageImpl*, Place> units_;
  std::vector<at::Tensor> tensors_;
};

// A file holds all parameters of its host.
bool RegionModel::keeps_stripes() const {
  return options_.stage == ShardStage::kParameters && options_.across_hosts && across_ &&
         options_.parameter_offload.device != OffloadDevice::kFile;
}

// Small parameters, and those whose storage holds more than them.
void RegionModel::find_persistent() {
  persistent_.assign(items_.size(), false);
  int64_t left = options_.persist_total_numel;
  for (size_t item = 0; item < items_.size(); ++item) {
    const auto& storage = storages_[places_[item].storage];
    const bool alone =
        storage.first_element == 0 && storage.num_bytes == items_[item].numel * items_[item].element_bytes;
    const bool small = items_[item].numel < options_.persist_numel && items_[item].numel <= left;
    if (small) left -= items_[item].numel;
    persistent_[item] = small || !alone;
  }
}

// Units are of one kind: kept by stripes, or whole by each host.
std::vector<std::vector<size_t>> RegionModel::split_paged(const std::vector<std::vector<size_t>>& groups) const {
  return keeps_stripes() ? split_groups(groups, persistent_) : groups;
}

// Parameters that each host holds whole lie in front. Then come units, each in pages of its own and in the order of its
// stripes.
void RegionModel::lay_out() {
  rest_offsets_.assign(plan_.units.size(), -1);
  unit_begins_.assign(plan_.units.size(), -1);
  std::vector<bool> in_unit(storages_.size());
  if (keeps_stripes()) {
    int64_t rest = 0;
    for (size_t unit = 0; unit < plan_.units.size(); ++unit) {
      if (persistent_[plan_.units[unit].items.front()]) continue;
      for (const size_t item : plan_.units[unit].items) in_unit[places_[item].storage] = true;
      rest_offsets_[unit] = rest;
      rest += up_to(plan_.unit_bytes(unit) / num_hosts(), kStorageAlign);
    }
  }
  int64_t end = 0;
  for (size_t i = 0; i < storages_.size(); ++i) {
    if (in_unit[i]) continue;
    storages_[i].offset_bytes = end;
    end = up_to(end + storages_[i].num_bytes, kStorageAlign);
  }
  kept_bytes_ = end;
  for (size_t unit = 0; unit < plan_.units.size(); ++unit) {
    if (rest_offsets_[unit] < 0) continue;
    end = up_to(end, page_bytes());
    unit_begins_[unit] = end;
    const auto& of = plan_.units[unit];
    for (size_t i = 0; i < of.items.size(); ++i) {
      storages_[places_[of.items[i]].storage].offset_bytes = end + of.offsets[i] * of.element_bytes;
    }
    end += up_to(plan_.unit_bytes(unit), page_bytes());
  }
  region_bytes_ = std::max(end, kStorageAlign);
  for (size_t item = 0; item < items_.size(); ++item) {
    const auto& storage = storages_[places_[item].storage];
    places_[item].offset_bytes = storage.offset_bytes + storage.first_element * items_[item].element_bytes;
  }
}

// Tensors without memory: rank 0's get their values, the others' only where each rank keeps its own.
void RegionModel::give_values(torch::nn::Module& module, const std::vector<at::Tensor>& left) const {
  const auto empty = offload::empty_tensors(module);
  if (empty.empty()) return;
  if (options_.init && everyone_.rank() == 0) {
    for (const auto& item : module.named_parameters()) {
      if (item.value().is_meta())
        offload::fill_empty(item.value(), at::zeros(item.value().sizes(),
                                                    item.value().options().device(at::kCPU).requires_grad(false)));
    }
    options_.init(module);
  }
  if (group_.rank() == 0) {
    offload::materialize(module);
    return;
  }
  std::unordered_set<const c10::TensorImpl*> own;
  for (const at::Tensor& tensor : left) own.insert(tensor.unsafeGetTensorImpl());
  std::vector<std::string> names;
  for (const auto& item : module.named_parameters()) {
    if (item.value().is_meta() && own.contains(item.value().unsafeGetTensorImpl())) names.push_back(item.key());
  }
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined() && item.value().is_meta()) names.push_back(item.key());
  }
  if (!names.empty()) offload::materialize(module, {.only = names});
}

void RegionModel::make_region() {
  region_ = comm::SharedRegion::create(group_, up_to(region_bytes_, kStorageAlign),
                                       {.label = "hasten-parameters", .file = parameter_file()});
  int64_t rest = 0, num_units = 0;
  for (size_t unit = 0; unit < plan_.units.size(); ++unit) {
    if (rest_offsets_[unit] < 0) continue;
    rest = rest_offsets_[unit] + up_to(plan_.unit_bytes(unit) / num_hosts(), kStorageAlign);
    ++num_units;
  }
  if (num_units > 0) {
    rest_ = comm::SharedRegion::create(group_, rest, {.label = "hasten-stripes"});
    control_ = comm::SharedRegion::create(group_, offload::UnitPager::control_bytes(static_cast<size_t>(num_units)),
                                          {.label = "hasten-units-in-use"});
  }
  fill_region();
}

// Rank 0 frees each of its copies as soon as its values are in the region. So both fit where little more than one did.
// Rank 0 of each further group does the same, and takes the values of the first.
void RegionModel::fill_region() {
  const at::NoGradGuard no_grad;
  constexpr int64_t kReturnBytes = int64_t{64} << 20;
  int64_t freed = 0;
  const auto take = [&](SharedStorage& storage) {
    if (group_.rank() != 0) return;
    region_.write(storage.offset_bytes, storage.tensor.storage().data(), storage.num_bytes);
    broadcast_region(replicas_, region_, storage.offset_bytes, storage.offset_bytes + storage.num_bytes);
    point_to_region(storage);
    freed += storage.num_bytes;
    if (freed < kReturnBytes) return;
    memory::give_back_freed_memory();
    freed = 0;
  };
  const auto is_in_unit = [&](const SharedStorage& storage) { return storage.item && is_paged(*storage.item); };
  for (auto& storage : storages_) {
    if (!is_in_unit(storage)) take(storage);
  }
  broadcast_region(leaders_, region_, 0, std::min(kept_bytes_, region_.size()));
  for (size_t unit = 0; unit < plan_.units.size(); ++unit) {
    if (rest_offsets_[unit] < 0) continue;
    for (const size_t item : plan_.units[unit].items) take(storages_[places_[item].storage]);
    fill_unit(unit);
  }
  // The other ranks free their copies meanwhile.
  if (group_.rank() != 0) {
    for (auto& storage : storages_) point_to_region(storage);
  }
  const comm::Purpose purpose("shared parameters");
  group_.barrier();
}

// The stripes of a unit go to their hosts; the whole unit leaves memory.
void RegionModel::fill_unit(size_t unit) {
  const int64_t begin = unit_begins_[unit], bytes = plan_.unit_bytes(unit), stripe = bytes / group_.world_size();
  broadcast_region(leaders_, region_, begin, begin + bytes);
  const comm::Purpose purpose("shared parameters");
  group_.barrier();
  rest_.write(rest_offsets_[unit] + region_.local_index() * stripe, region_.data() + begin + owner_ * stripe, stripe);
  group_.barrier();
  if (region_.local_index() == 0) offload::give_back_pages(region_.writable() + begin, up_to(bytes, page_bytes()));
}

// The storage shows the region's bytes from here on.
void RegionModel::point_to_region(SharedStorage& storage) {
  if (storage.tensor.is_meta()) {
    const c10::Storage memory(c10::Storage::use_byte_size_t(), static_cast<size_t>(storage.num_bytes),
                              region_.read_only(storage.offset_bytes, storage.num_bytes));
    const at::Tensor value = torch::empty({0}, at::TensorOptions().dtype(storage.dtype));
    value.set_(memory, storage.first_element, storage.sizes, storage.strides);
    offload::fill_empty(storage.tensor, value);
  }
  storage.named =
      offload::NamedMemory(region_.data() + storage.offset_bytes, static_cast<size_t>(storage.num_bytes), storage.name);
  storage.home = offload::Home(storage.tensor, region_.read_only(storage.offset_bytes, storage.num_bytes));
}

void RegionModel::make_pager() {
  if (rest_.size() == 0) return;
  std::vector<UnitStripes> stripes;
  offload::UnitPagerOptions options{
      .readable = region_.data(), .writable = region_.writable(), .control = control_.writable()};
  std::vector<std::vector<size_t>> items;
  for (size_t unit = 0; unit < plan_.units.size(); ++unit) {
    if (rest_offsets_[unit] < 0) continue;
    stripes.push_back({unit_begins_[unit], rest_offsets_[unit], plan_.unit_bytes(unit) / group_.world_size()});
    options.units.push_back({unit_begins_[unit], up_to(plan_.unit_bytes(unit), page_bytes())});
    items.push_back(plan_.units[unit].items);
  }
  exchange_ = std::make_unique<UnitExchange>(group_, region_, rest_, std::move(stripes));
  options.fill = [exchange = exchange_.get()](size_t unit) { exchange->fill(unit); };
  options.max_live_units = options_.reshard_after_forward ? 2 : std::numeric_limits<int64_t>::max();
  options.max_live_bytes =
      options_.limit_all_gathers ? options_.max_live_bytes : std::max(options_.max_live_bytes, options_.prefetch_bytes);
  options.max_reuse_bytes = options_.max_reuse_bytes;
  options.prefetch_bytes = options_.prefetch_bytes;
  options.timeout = group_.options().timeout;
  pager_ = std::make_unique<offload::UnitPager>(std::move(options));
  touch_ = std::make_shared<TouchUnits>(*pager_, options_);
  for (size_t unit = 0; unit < items.size(); ++unit) {
    for (const size_t item : items[unit]) {
      touch_->add(parameters_[item].tensor, storages_[places_[item].storage].home, unit);
      interception::add_interceptor(parameters_[item].tensor, touch_);
    }
  }
}

void RegionModel::forget_touch() {
  if (!touch_) return;
  for (const at::Tensor& tensor : touch_->tensors()) interception::remove_interceptor(tensor, touch_.get());
  touch_->forget();
  touch_.reset();
}

void RegionModel::end_pager() {
  forget_touch();
  pager_.reset();
  exchange_.reset();
  rest_ = {};
  control_ = {};
}

void RegionModel::on_unit_reduced() {
  if (pager_ && options_.backward_prefetch == BackwardPrefetch::kPost) pager_->fill_next();
}

void RegionModel::begin_step() {
  if (pager_) pager_->pause();
}

// Hosts hold regions of their own. The steps of the ranks with this rank's place on the others come here.
void RegionModel::exchange_stepped(const IsStepped& is_stepped) {
  if (across() == nullptr) return;
  const at::NoGradGuard no_grad;
  const int hosts = num_hosts(), local = region_.local_index();
  const auto pieces = [&](int host, const auto& visit) {
    for (size_t item = 0; item < items_.size(); ++item) {
      if (!is_stepped.any(item) || is_paged(item)) continue;
      const int owner = local * hosts + host;
      const auto interval = !is_stepped.whole_owner
                                ? owned_interval(plan_, items_, item, owner)
                                : ShardInterval{0, is_stepped.whole_owner(item) == owner ? items_[item].numel : 0};
      if (interval.size() > 0) visit(value_slice(item, interval).view(at::kByte));
    }
  };
  int64_t most = 0;
  for (int host = 0; host < hosts; ++host) {
    int64_t bytes = 0;
    pieces(host, [&](const at::Tensor& piece) { bytes += piece.numel(); });
    most = std::max(most, bytes);
  }
  if (most == 0) return;
  const at::Tensor all = at::empty({hosts * most}, at::kByte);
  const at::Tensor mine = all.narrow(0, region_.host_index() * most, most);
  int64_t end = 0;
  pieces(region_.host_index(), [&](const at::Tensor& piece) {
    mine.narrow(0, end, piece.numel()).copy_(piece);
    end += piece.numel();
  });
  across()->all_gather_into_(all, mine);
  for (int host = 0; host < hosts; ++host) {
    if (host == region_.host_index()) continue;
    int64_t begin = host * most;
    pieces(host, [&](const at::Tensor& piece) {
      piece.copy_(all.narrow(0, begin, piece.numel()));
      begin += piece.numel();
    });
  }
}

void RegionModel::finish_step() {
  refresh_casts();
  if (pager_) pager_->drop();
}

void RegionModel::end_step() {
  if (pager_) pager_->resume();
}

UnitCounts RegionModel::unit_counts() const {
  if (!pager_) return {};
  const auto counts = pager_->counts();
  return {counts.fills, counts.shared, exchange_->pulled_bytes(), counts.max_held_bytes};
}

}  // namespace hasten::parallel::shard
