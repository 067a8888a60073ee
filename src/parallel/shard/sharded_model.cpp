// See sharded_model.h.
#include "parallel/shard/sharded_model.h"

#include <algorithm>

#include "hasten/comm/nested/objects.h"
#include "hasten/comm/shared_region.h"
#include "hasten/comm/types/purpose.h"
#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/offload/load/empty.h"

namespace hasten::parallel::shard {
namespace {

std::string place_text(const OffloadOptions& options) {
  return options.device == OffloadDevice::kFile ? text("a file, by tiles of ", options.tile_numel) : "memory";
}

std::string axes_text(const ShardOptions& options) {
  std::string words;
  for (const auto& axis : options.mesh)
    words += text(words.empty() ? ", over '" + options.shard_over + "' of " : " x ", axis.name, ' ', axis.size);
  return words;
}

}  // namespace

ShardedModel::ShardedModel(comm::Group group, ShardOptions options, IsTaken is_taken)
    : everyone_(group.with_check(false)),
      group_(everyone_),
      options_(std::move(options)),
      is_taken_(std::move(is_taken)) {}

// The facts that must be alike on all ranks, in words.
void ShardedModel::check_same_options(const torch::nn::Module& module) const {
  const std::string mine = text(
      "stage ", static_cast<int>(options_.stage), ", units of ", options_.wrap.unit_bytes, " bytes by rule ",
      static_cast<int>(options_.wrap.rule), " (", join(options_.wrap.classes, ", "), ", ", options_.wrap.min_num_params,
      ", version ", options_.wrap.version, "), leaf modules '", join(options_.wrap.leaf_classes, ", "), "' '",
      join(options_.wrap.leaf_names, ", "), "' '", join(options_.wrap.leaf_suffixes, ", "), "', hold ",
      static_cast<int>(options_.hold), ", ignored '", join(options_.ignored, "', '"), "', param_dtype '",
      options_.param_dtype, "', across hosts ", options_.across_hosts, ", persist_numel ", options_.persist_numel,
      " of at most ", options_.persist_total_numel, ", optimizer state in ", place_text(options_.optimizer_offload),
      " by ", options_.optimizer_offload.ratio, ", parameters in ", place_text(options_.parameter_offload),
      axes_text(options_));
  // Values of rank 0 that nothing gives. The others' come from it.
  std::vector<std::string> facts = options_.init ? std::vector<std::string>() : offload::unknown_tensors(module);
  facts.insert(facts.begin(), mine);
  const comm::Purpose purpose("prepare of a sharded model");
  const auto all = comm::gather_object(everyone_, facts);
  const Origin origin{"shard", everyone_.rank(), everyone_.world_size()};
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank][0] == all[0][0]) continue;
    throw UsageError(origin, "rank 0 shards with ", all[0][0], "; rank ", rank, " with ", all[rank][0],
                     ". Give every rank the same options.");
  }
  if (all[0].size() == 1) return;
  const std::vector<std::string> unknown(all[0].begin() + 1, all[0].end());
  throw UsageError(origin, "rank 0 has tensors on the meta device whose values nothing gives: ", join(unknown),
                   ". Load a checkpoint into the model, set ShardOptions::init, or make it by accelerator.build.");
}

void ShardedModel::find_group(bool by_host) {
  if (replicas_ || (options_.shard_over.empty() && !by_host)) return;
  const Origin origin{"shard", everyone_.rank(), everyone_.world_size()};
  if (options_.shard_over.empty()) {
    const auto hosts = comm::ranks_by_host(everyone_);
    for (const auto& ranks : hosts) {
      if (ranks.size() == hosts.front().size()) continue;
      throw UsageError(origin,
                       "each host is to hold all parameters (across_hosts = false, HYBRID_SHARD), and hosts have ",
                       hosts.front().size(), " and ", count_text(ranks.size(), "rank"),
                       ". Start equally many on each host, or split over all ranks (across_hosts = true, FULL_SHARD).");
    }
    if (hosts.size() > 1) join_group(hosts);
    return;
  }
  if (options_.mesh.empty()) {
    throw UsageError(origin, "shard_over is '", options_.shard_over,
                     "', and ShardOptions::mesh has no axes. Give the ranks as a grid, as {{\"replicate\", -1}, {\"",
                     options_.shard_over, "\", 2}}.");
  }
  const comm::MeshLayout layout(options_.mesh, everyone_.world_size());
  if (layout.size(options_.shard_over) == everyone_.world_size()) return;
  std::vector<std::vector<int>> groups;
  for (int rank = 0; rank < everyone_.world_size(); ++rank) {
    auto ranks = layout.ranks_along(rank, {options_.shard_over});
    if (ranks.front() == rank) groups.push_back(std::move(ranks));
  }
  join_group(groups);
}

void ShardedModel::join_group(const std::vector<std::vector<int>>& groups) {
  std::optional<comm::Group> own, across;
  for (const auto& ranks : groups) {
    if (auto made = everyone_.subgroup(ranks)) own = made->with_check(false);
  }
  for (size_t place = 0; place < groups.front().size(); ++place) {
    std::vector<int> ranks;
    for (const auto& group : groups) ranks.push_back(group[place]);
    if (auto made = everyone_.subgroup(ranks)) across = made->with_check(false);
  }
  group_ = *own;
  replicas_ = *across;
}

bool ShardedModel::is_ignored(const std::string& name) const {
  return std::any_of(ignored_.begin(), ignored_.end(),
                     [&](const std::string& ignored) { return name == ignored || name.starts_with(ignored + '.'); });
}

}  // namespace hasten::parallel::shard
