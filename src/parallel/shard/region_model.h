// RegionModel: a sharded model whose parameters each host holds once, in memory that its ranks map.
//
// Parameters rest in memory that all ranks of the host read in place (offload/units/home.h), so forward fills nothing
// and is no collective. With stages 2 and 3 gradients are reduced unit by unit into one region of the host
// (shard_bucket.h), of which every .grad() is a view. Each rank writes the slices that it owns. sliced_step.h steps
// them.
//
// Stage 3 on several hosts: a host keeps the stripes of its ranks alone (the rest region). The whole region then has
// pages for the units in use (offload/units/unit_pager.h), which are put together from all hosts' stripes
// (unit_exchange.h).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/comm/shared_region.h"
#include "hasten/offload/units/home.h"
#include "hasten/offload/units/named_memory.h"
#include "hasten/offload/units/unit_pager.h"
#include "hasten/parallel/shard/options.h"
#include "hasten/parallel/shard/plan.h"
#include "parallel/shard/cast_parameters.h"
#include "parallel/shard/read_only_operators.h"
#include "parallel/shard/sharded_model.h"
#include "parallel/shard/unit_exchange.h"

namespace hasten::parallel::shard {

struct ShardPool;

/// A storage of which the host keeps one copy.
struct SharedStorage {
  std::string name;
  /// Keeps the storage; one of the parameters that lie in it.
  at::Tensor tensor;
  int64_t offset_bytes = 0;
  int64_t num_bytes = 0;
  /// How the parameter lies in it, in elements.
  std::vector<int64_t> sizes = {}, strides = {};
  int64_t first_element = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  offload::Home home = {};
  offload::NamedMemory named = {};
  /// The item that takes all of it, if any.
  std::optional<size_t> item = {};
};

/// Where an item lies.
struct RegionPlace {
  /// Index into the shared storages, and of its first byte in the region.
  size_t storage = 0;
  int64_t offset_bytes = 0;
  /// Stages 2 and 3: the view that becomes .grad(), with memory in the gradient region.
  at::Tensor gradient = {};
  offload::Home gradient_home = {};
};

class RegionModel : public ShardedModel {
 public:
  /// `is_taken`: whether a tensor's storage is shared by another model already.
  RegionModel(comm::Group group, ShardOptions options, IsTaken is_taken = {});
  ~RegionModel() override;

  void release() override;
  std::vector<at::Tensor> place(const torch::nn::Module& module, const std::vector<std::string>& names,
                                const std::vector<at::Tensor>& trainable) override;
  std::vector<std::vector<size_t>> units() const override;
  std::unique_ptr<ReducerBucket> make_bucket(size_t unit, const ReducerBucketSettings& settings) override;
  void begin(bool ends_window) override;
  void finish() override;

  std::vector<SharedStorage>& storages() noexcept { return storages_; }
  const comm::SharedRegion& region() const noexcept { return region_; }
  const comm::SharedRegion& gradients() const noexcept { return gradients_; }
  /// Where a unit begins in the gradient region.
  int64_t unit_offset(size_t unit) const { return unit_offsets_[unit]; }

  /// Returns the hosts' ranks that sum with this one across hosts.
  int num_hosts() const noexcept { return num_hosts_; }
  /// Returns the ranks with this rank's place on each host; null on one host.
  const comm::Group* across() const noexcept { return across_ ? &*across_ : nullptr; }

  bool holds(const at::Tensor& tensor) const override;
  int64_t num_private_copies() const override;
  at::Tensor value_slice(size_t item, ShardInterval interval) const override;
  at::Tensor gradient_slice(size_t item, ShardInterval interval) const override;
  bool has_own_gradient(size_t item) const override;
  void detach_view(size_t item);
  /// .grad() becomes the view, with the region's values.
  void show_gradient(size_t item);

  /// Returns true if each host keeps its stripes of this item alone.
  bool is_paged(size_t item) const { return !rest_offsets_.empty() && rest_offsets_[plan_.places[item].unit] >= 0; }
  bool has_paged() const noexcept { return pager_ != nullptr; }
  bool steps_whole(size_t item) const override { return !is_paged(item); }
  void begin_step() override;
  void exchange_stepped(const IsStepped& is_stepped) override;
  void finish_step() override;
  void end_step() override;
  /// Called when a unit's gradients are there.
  void on_unit_reduced();
  UnitCounts unit_counts() const override;

  /// Casts what this rank's column owns into the copies of autocast's dtype; others cast theirs. To be called by all
  /// ranks of the host before their next forward.
  void refresh_casts();

  ShardPool& pool() noexcept { return *pool_; }

 private:
  void choose(const torch::nn::Module& module, const std::vector<std::string>& names,
              const std::vector<at::Tensor>& trainable, std::vector<at::Tensor>& left);
  void make_region();
  void fill_region();
  void fill_unit(size_t unit);
  void point_to_region(SharedStorage& storage);
  void lay_out();
  void find_persistent();
  bool keeps_stripes() const;
  std::vector<std::vector<size_t>> split_paged(const std::vector<std::vector<size_t>>& groups) const;
  void make_pager();
  void forget_touch();
  void end_pager();
  void give_values(torch::nn::Module& module, const std::vector<at::Tensor>& left) const;
  std::string parameter_file() const;
  void make_gradients();
  void watch_lstms(const torch::nn::Module& module);
  void forget_lstms();
  void make_casts();
  void forget_casts();
  void find_hosts();

  std::vector<SharedStorage> storages_;
  std::vector<RegionPlace> places_;
  std::vector<int64_t> unit_offsets_;
  /// For each unit, its beginning in the whole region and in the rest region. -1 for a unit that each host holds whole.
  std::vector<int64_t> unit_begins_, rest_offsets_;
  /// Items that each host keeps whole.
  std::vector<bool> persistent_;
  int64_t kept_bytes_ = 0, region_bytes_ = 0;
  comm::SharedRegion region_, gradients_;
  std::optional<comm::Group> across_, leaders_;
  int num_hosts_ = 1;
  std::unique_ptr<ShardPool> pool_;
  /// At the weights of LSTMs.
  std::shared_ptr<ReadOnlyOperators> read_only_ = std::make_shared<ReadOnlyOperators>();
  std::vector<at::Tensor> intercepted_;
  /// Null without ShardOptions::param_dtype.
  std::shared_ptr<CastParameters> casts_;
  comm::SharedRegion cast_region_;
  /// The element of cast_region_ at which the copy of each item begins; -1 for none.
  std::vector<int64_t> cast_offsets_;
  class TouchUnits;
  comm::SharedRegion rest_, control_;
  std::unique_ptr<UnitExchange> exchange_;
  std::unique_ptr<offload::UnitPager> pager_;
  std::shared_ptr<TouchUnits> touch_;
};

}  // namespace hasten::parallel::shard
