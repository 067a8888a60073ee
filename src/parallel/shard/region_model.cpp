// Where parameters and gradients lie; see region_model.h.
#include "parallel/shard/region_model.h"

#include <torch/nn/modules/rnn.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <set>

#include "hasten/comm/nested/objects.h"
#include "hasten/comm/types/purpose.h"
#include "hasten/core/error.h"
#include "hasten/memory/allocator.h"
#include "hasten/offload/load/empty.h"
#include "parallel/shard/leaf_units.h"
#include "parallel/shard/shard_pool.h"
#include "parallel/shard/unit_layout.h"
#include "parallel/shard/wrap_units.h"

namespace hasten::parallel::shard {
namespace {

// Storages begin with a cache line.
constexpr int64_t kLine = 64;

int64_t round_up(int64_t value) {
  return (value + kLine - 1) / kLine * kLine;
}

bool can_rest(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && (tensor.is_cpu() || tensor.is_meta()) &&
         tensor.has_storage() && tensor.storage().nbytes() > 0;
}

c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

}  // namespace

RegionModel::RegionModel(comm::Group group, ShardOptions options, IsTaken is_taken)
    : ShardedModel(std::move(group), std::move(options), std::move(is_taken)), pool_(std::make_unique<ShardPool>()) {}

RegionModel::~RegionModel() {
  forget_casts();
  forget_lstms();
  // Nothing is collected from other hosts here, which may be gone.
  for (auto& storage : storages_) {
    if (!storage.item || !has_paged() || !is_paged(*storage.item)) continue;
    storage.home.abandon("the values of '" + storage.name +
                         "' were kept by several hosts, and what shared them is gone. Take state_dict "
                         "before the last handle of the prepared model ends.");
  }
  end_pager();
}

void RegionModel::forget_lstms() {
  for (const at::Tensor& tensor : intercepted_) interception::remove_interceptor(tensor, read_only_.get());
  intercepted_.clear();
  read_only_->clear();
}

void RegionModel::release() {
  for (auto& place : places_) {
    // .grad() stays defined, in memory of its own.
    place.gradient_home = {};
    place.gradient = at::Tensor();
  }
  forget_casts();
  forget_lstms();
  forget_touch();
  storages_.clear();
}

void RegionModel::choose(const torch::nn::Module& module, const std::vector<std::string>& names,
                         const std::vector<at::Tensor>& trainable, std::vector<at::Tensor>& left) {
  ignored_ = ignored_names(module, options_.ignored);
  std::map<const c10::TensorImpl*, size_t> trainable_index;
  for (size_t i = 0; i < trainable.size(); ++i) {
    if (trainable[i].defined()) trainable_index[trainable[i].unsafeGetTensorImpl()] = i;
  }
  // Storages of which any parameter must stay: ignored, sparse gradients (not in `trainable`), two tensors.
  std::map<c10::StorageImpl*, std::set<const c10::TensorImpl*>> users;
  std::set<c10::StorageImpl*> stays;
  const auto all = module.named_parameters();
  for (const auto& item : all) {
    const at::Tensor& tensor = item.value();
    if (!can_rest(tensor)) continue;
    users[storage_of(tensor)].insert(tensor.unsafeGetTensorImpl());
    const bool trains = trainable_index.contains(tensor.unsafeGetTensorImpl());
    const bool cannot_split = tensor.requires_grad() && (!trains || !tensor.is_non_overlapping_and_dense());
    if (is_ignored(item.key()) || cannot_split) stays.insert(storage_of(tensor));
  }
  for (const auto& [storage, tensors] : users) {
    if (tensors.size() > 1) stays.insert(storage);
  }
  std::map<c10::StorageImpl*, size_t> index;
  std::set<const c10::TensorImpl*> seen;
  for (const auto& item : all) {
    const at::Tensor& tensor = item.value();
    if (!tensor.defined() || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    if (is_taken_ && tensor.has_storage() && is_taken_(tensor)) continue;
    if (!can_rest(tensor) || stays.contains(storage_of(tensor))) {
      left.push_back(tensor);
      continue;
    }
    const auto num_bytes = static_cast<int64_t>(tensor.storage().nbytes());
    const auto [found, added] = index.emplace(storage_of(tensor), storages_.size());
    if (added) {
      storages_.push_back({.name = item.key(),
                           .tensor = tensor,
                           .num_bytes = num_bytes,
                           .sizes = tensor.sizes().vec(),
                           .strides = tensor.strides().vec(),
                           .first_element = tensor.storage_offset(),
                           .dtype = tensor.scalar_type()});
    }
    if (!tensor.requires_grad()) continue;
    parameters_.push_back({.name = item.key(), .tensor = tensor});
    places_.push_back({.storage = found->second});
    storages_[found->second].item = items_.size();
    items_.push_back({.name = item.key(),
                      .numel = tensor.numel(),
                      .element_bytes = tensor.element_size(),
                      .kind = static_cast<int>(tensor.scalar_type())});
    trainable_index_.push_back(trainable_index.at(tensor.unsafeGetTensorImpl()));
  }
  (void)names;
}

void RegionModel::find_hosts() {
  if (across_ || leaders_) return;
  const auto hosts = comm::ranks_by_host(group_);
  const size_t num_local = hosts.front().size();
  std::vector<int> leaders;
  for (const auto& host : hosts) {
    leaders.push_back(host.front());
    if (host.size() == num_local) continue;
    throw UsageError(Origin{"shard", group_.rank(), group_.world_size()}, "hosts have ", num_local, " and ",
                     host.size(), " ranks; sharding needs as many on each. Start equal numbers of processes.");
  }
  for (size_t host = 0; host < hosts.size(); ++host) {
    const auto found = std::find(hosts[host].begin(), hosts[host].end(), group_.rank());
    if (found == hosts[host].end()) continue;
    const auto local = static_cast<size_t>(found - hosts[host].begin());
    owner_ = static_cast<int>(local * hosts.size() + host);
  }
  num_hosts_ = static_cast<int>(hosts.size());
  if (hosts.size() == 1) return;
  const comm::Purpose purpose("prepare of a sharded model");
  leaders_ = group_.subgroup(leaders);
  for (size_t local = 0; local < num_local; ++local) {
    std::vector<int> column;
    for (const auto& host : hosts) column.push_back(host[local]);
    if (auto mine = group_.subgroup(column)) across_ = std::move(mine);
  }
}

void RegionModel::watch_lstms(const torch::nn::Module& module) {
  std::map<const c10::TensorImpl*, SharedStorage*> shared;
  for (auto& storage : storages_) shared[storage.tensor.unsafeGetTensorImpl()] = &storage;
  module.apply([&](const torch::nn::Module& part) {
    if (part.as<torch::nn::LSTMImpl>() == nullptr) return;
    for (const at::Tensor& tensor : part.parameters(/*recurse=*/false)) {
      const auto found = shared.find(tensor.unsafeGetTensorImpl());
      if (found == shared.end()) continue;
      read_only_->add(tensor, found->second->home);
      interception::add_interceptor(tensor, read_only_);
      intercepted_.push_back(tensor);
    }
  });
}

// For parameters that rest on a disk: the page cache holds what is in use.
std::string RegionModel::parameter_file() const {
  const auto& offload = options_.parameter_offload;
  if (offload.device != OffloadDevice::kFile) return {};
  if (offload.path.empty()) {
    throw UsageError(Origin{"shard", group_.rank(), group_.world_size()},
                     "parameters are offloaded to a file, and OffloadOptions::path names no folder for it.");
  }
  std::error_code ignored;  // the file in it names a folder that cannot be made
  std::filesystem::create_directories(offload.path, ignored);
  return (std::filesystem::path(offload.path) /
          text("hasten-parameters-", getpid(), '-', static_cast<const void*>(this)))
      .string();
}

void RegionModel::make_gradients() {
  unit_offsets_.clear();
  int64_t end = 0;
  for (size_t unit = 0; unit < plan_.units.size(); ++unit) {
    unit_offsets_.push_back(end);
    end = round_up(end + plan_.unit_bytes(unit));
  }
  gradients_ = comm::SharedRegion::create(group_, std::max(end, kLine), {.label = "hasten-gradients"});
  *pool_ = ShardPool{};
  pool_->slot_bytes = round_up(std::max(plan_.largest_unit_bytes(), kLine));
  const auto num_local = static_cast<int64_t>(gradients_.local_ranks().size());
  pool_->region = comm::SharedRegion::create(group_, num_local * ShardPool::kNumSlots * pool_->slot_bytes,
                                             {.label = "hasten-units"});
}

namespace {

std::optional<c10::ScalarType> low_precision(const std::string& name, const Origin& origin) {
  if (name.empty()) return std::nullopt;
  if (name == "bfloat16") return at::kBFloat16;
  if (name == "float16") return at::kHalf;
  throw UsageError(origin, "param_dtype is '", name,
                   "'; expected bfloat16, float16, or nothing for the parameters' own.");
}

}  // namespace

void RegionModel::make_casts() {
  if (keeps_stripes()) return;  // autocast casts what it reads
  const auto dtype = low_precision(options_.param_dtype, {"shard", group_.rank(), group_.world_size()});
  if (!dtype) return;
  cast_offsets_.clear();
  int64_t end = 0;
  for (size_t item = 0; item < items_.size(); ++item) {
    const bool cast = parameters_[item].tensor.scalar_type() == at::kFloat && items_[item].numel > 0;
    cast_offsets_.push_back(cast ? end : -1);
    if (cast) end += round_up(items_[item].numel);
  }
  const auto bytes = static_cast<int64_t>(c10::elementSize(*dtype));
  cast_region_ = comm::SharedRegion::create(group_, std::max(end * bytes, kLine), {.label = "hasten-casts"});
  casts_ = std::make_shared<CastParameters>(*dtype);
  for (size_t item = 0; item < items_.size(); ++item) {
    if (cast_offsets_[item] < 0) continue;
    const auto& parameter = parameters_[item];
    casts_->add(parameter.tensor, cast_region_, cast_offsets_[item], storages_[places_[item].storage].home);
    interception::add_interceptor(parameter.tensor, casts_);
  }
  refresh_casts();
  const comm::Purpose purpose("shared parameters");
  group_.barrier();
}

void RegionModel::forget_casts() {
  if (!casts_) return;
  for (const auto& parameter : parameters_) interception::remove_interceptor(parameter.tensor, casts_.get());
  casts_->clear();
  casts_.reset();
}

void RegionModel::refresh_casts() {
  if (!casts_) return;
  const at::NoGradGuard no_grad;
  for (size_t item = 0; item < items_.size(); ++item) {
    if (cast_offsets_[item] < 0) continue;
    // All owners with this rank's place: on one host this rank alone.
    for (int host = 0; host < num_hosts(); ++host) {
      const auto part = owned_interval(plan_, items_, item, region_.local_index() * num_hosts() + host);
      if (part.size() == 0) continue;
      const auto bytes = static_cast<int64_t>(c10::elementSize(casts_->dtype()));
      cast_region_.tensor((cast_offsets_[item] + part.begin) * bytes, part.size(), casts_->dtype())
          .copy_(value_slice(item, part));
    }
  }
}

std::vector<at::Tensor> RegionModel::place(const torch::nn::Module& module, const std::vector<std::string>& names,
                                           const std::vector<at::Tensor>& trainable) {
  std::vector<at::Tensor> left;
  forget_casts();
  forget_lstms();
  check_same_options(module);
  // All ranks have left their parameters behind.
  end_pager();
  storages_.clear();
  parameters_.clear();
  places_.clear();
  items_.clear();
  trainable_index_.clear();
  ++num_plans_;
  choose(module, names, trainable, left);
  find_group();
  find_hosts();
  find_persistent();
  plan_ = plan_shards(items_, split_paged(group_items(module, options_, items_, ignored_)), group_.world_size());
  // GradientExchange's modules are the program's own.
  give_values(const_cast<torch::nn::Module&>(module), left);
  lay_out();
  make_region();
  watch_lstms(module);
  make_pager();
  if (splits_gradients()) make_gradients();
  make_casts();
  // Gives back the ranks' own copies, which malloc would keep.
  memory::give_back_freed_memory();
  return left;
}

std::vector<std::vector<size_t>> RegionModel::units() const {
  std::vector<std::vector<size_t>> units;
  if (!splits_gradients()) return units;
  for (const auto& unit : plan_.units) {
    auto& members = units.emplace_back();
    for (const size_t item : unit.items) members.push_back(trainable_index_[item]);
  }
  return units;
}

void RegionModel::begin(bool) {
  pool_->num_launched = 0;
  pool_->pending = nullptr;
  pool_->crossing = nullptr;
}

// All slices are written, so that every rank may read every gradient, and slots may be used again.
void RegionModel::finish() {
  const comm::Purpose purpose("shared gradients");
  if (splits_gradients()) group_.barrier();
}

at::Tensor RegionModel::value_slice(size_t item, ShardInterval interval) const {
  const auto& parameter = parameters_[item];
  if (is_paged(item)) {
    const auto [unit, index] = plan_.places[item];
    const auto& of = plan_.units[unit];
    const int64_t first = of.offsets[index] + interval.begin - owner_ * of.share + region_.local_index() * of.share;
    return rest_.tensor(rest_offsets_[unit] + first * of.element_bytes, interval.size(),
                        parameter.tensor.scalar_type());
  }
  return region_.tensor(places_[item].offset_bytes + interval.begin * items_[item].element_bytes, interval.size(),
                        parameter.tensor.scalar_type());
}

at::Tensor RegionModel::gradient_slice(size_t item, ShardInterval interval) const {
  const auto [unit, index] = plan_.places[item];
  const int64_t begin = plan_.units[unit].offsets[index] + interval.begin;
  return gradients_.tensor(unit_offsets_[unit] + begin * items_[item].element_bytes, interval.size(),
                           parameters_[item].tensor.scalar_type());
}

bool RegionModel::has_own_gradient(size_t item) const {
  const auto& place = places_[item];
  const at::Tensor& gradient = parameters_[item].tensor.grad();
  return gradient.defined() && gradient.is_same(place.gradient) && !place.gradient_home.is_private();
}

bool RegionModel::holds(const at::Tensor& tensor) const {
  return std::any_of(storages_.begin(), storages_.end(),
                     [&](const auto& storage) { return storage.home.is_of(tensor); });
}

int64_t RegionModel::num_private_copies() const {
  return std::count_if(storages_.begin(), storages_.end(),
                       [](const auto& storage) { return storage.home.is_private(); });
}

// A view that the program holds becomes its own, with the values it has, before others come to its place.
void RegionModel::detach_view(size_t item) {
  auto& place = places_[item];
  if (!place.gradient.defined()) return;
  const size_t own = parameters_[item].tensor.grad().is_same(place.gradient) ? 2 : 1;
  if (place.gradient.use_count() <= own) return;
  place.gradient_home = {};
  place.gradient = at::Tensor();
}

void RegionModel::show_gradient(size_t item) {
  auto& place = places_[item];
  const at::Tensor& like = parameters_[item].tensor;
  at::Tensor& gradient = like.mutable_grad();
  if (!place.gradient.defined()) {
    const auto [unit, index] = plan_.places[item];
    const int64_t offset = unit_offsets_[unit] + plan_.units[unit].offsets[index] * items_[item].element_bytes;
    const int64_t num_bytes = items_[item].numel * items_[item].element_bytes;
    at::DataPtr memory = num_bytes == 0 ? at::DataPtr() : gradients_.read_only(offset, num_bytes);
    const c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(num_bytes), std::move(memory));
    place.gradient = torch::empty({0}, like.options().requires_grad(false));
    place.gradient.set_(storage, 0, like.sizes(), like.strides());
    if (num_bytes > 0) {
      place.gradient_home = offload::Home(place.gradient, gradients_.read_only(offset, num_bytes));
    }
  } else {
    place.gradient_home.restore();
  }
  gradient = place.gradient;
}

}  // namespace hasten::parallel::shard
