// See host_tiles.h.
#include "parallel/shard/host_tiles.h"

#include <torch/types.h>

#include <algorithm>
#include <map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace hasten::parallel::shard {
namespace {

struct HostTile {
  std::unordered_set<const c10::TensorImpl*> parameters = {};
  std::vector<std::pair<ShardedModel*, size_t>> units = {};
  int64_t numel = 0;
};

// Units in the order of the optimizer, a few in a tile. The first tile is what the CPU does not step.
std::vector<HostTile> tiles_of_units(const torch::optim::Optimizer& optimizer, const SplitParameters& split,
                                     int64_t tile_numel) {
  std::vector<HostTile> tiles(1);
  std::map<std::pair<ShardedModel*, size_t>, size_t> tile_of;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto place = split.find(parameter.unsafeGetTensorImpl());
      if (place == split.end()) continue;
      ShardedModel* const model = place->second.model;
      const auto unit = model->unit_on_host(place->second.item);
      size_t tile = 0;
      if (unit) {
        const auto [known, is_new] = tile_of.try_emplace({model, *unit}, tiles.size() - 1);
        if (is_new && (tiles.size() == 1 || tiles.back().numel >= tile_numel)) {
          tiles.emplace_back();
          known->second = tiles.size() - 1;
        }
        tile = known->second;
        if (is_new) {
          tiles[tile].units.emplace_back(model, *unit);
          tiles[tile].numel += model->plan().units[*unit].share;
        }
      }
      tiles[tile].parameters.insert(place->first);
    }
  }
  return tiles;
}

}  // namespace

bool steps_on_host(const SplitParameters& split) {
  return std::any_of(split.begin(), split.end(),
                     [](const auto& item) { return item.second.model->unit_on_host(item.second.item).has_value(); });
}

at::Tensor step_by_tiles(torch::optim::Optimizer& optimizer, const SplitParameters& split,
                         const std::function<at::Tensor()>& own_step, int64_t tile_numel) {
  at::Tensor loss;
  bool is_first = true;
  for (const auto& tile : tiles_of_units(optimizer, split, tile_numel)) {
    {
      const SlicedStep slices(optimizer, split, StepKind::kElementwise, &tile.parameters, is_first);
      const at::Tensor given = own_step();
      if (std::exchange(is_first, false)) loss = given;
    }
    for (const auto& [model, unit] : tile.units) model->send_stepped(unit);
  }
  return loss;
}

UnitSends::UnitSends(const std::vector<std::vector<at::Tensor>>& tiles, const SplitParameters& split) : split_(split) {
  for (const auto& tile : tiles) {
    for (const at::Tensor& parameter : tile) {
      if (const auto unit = unit_of(parameter)) ++left_[*unit];
    }
  }
}

std::optional<UnitSends::Unit> UnitSends::unit_of(const at::Tensor& parameter) const {
  const auto place = split_.find(parameter.unsafeGetTensorImpl());
  if (place == split_.end()) return std::nullopt;
  const auto unit = place->second.model->unit_on_host(place->second.item);
  return unit ? std::optional(Unit{place->second.model, *unit}) : std::nullopt;
}

void UnitSends::note_stepped(const std::vector<at::Tensor>& tile) {
  for (const at::Tensor& parameter : tile) {
    const auto unit = unit_of(parameter);
    if (unit && --left_[*unit] == 0) unit->first->send_stepped(unit->second);
  }
}

}  // namespace hasten::parallel::shard
