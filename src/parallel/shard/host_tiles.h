// Host tiles: the step of stripes on the CPU for a device (ZeRO-Offload), some units at a time.
//
// Stepped values go to the device while the next tile is stepped. So the copies do not stand behind the step.
// State in files has tiles of its own (tiled_state.h), which may cut a unit.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "parallel/shard/sliced_step.h"

namespace hasten::parallel::shard {

/// Returns true if the CPU steps some of these parameters for a device.
bool steps_on_host(const SplitParameters& split);

/// Steps what the device itself steps, then the units of the CPU, in tiles of about `tile_numel` owned elements.
/// Returns what the first of the steps gives. Throws: the exceptions of own_step; c10::Error where a copy fails.
at::Tensor step_by_tiles(torch::optim::Optimizer& optimizer, const SplitParameters& split,
                         const std::function<at::Tensor()>& own_step, int64_t tile_numel);

/// Sends units to their device as soon as all of their parameters have been stepped.
class UnitSends {
 public:
  /// `tiles`: the parameters that are stepped together, in their order.
  UnitSends(const std::vector<std::vector<at::Tensor>>& tiles, const SplitParameters& split);
  void note_stepped(const std::vector<at::Tensor>& tile);

 private:
  using Unit = std::pair<ShardedModel*, size_t>;
  std::optional<Unit> unit_of(const at::Tensor& parameter) const;

  const SplitParameters& split_;
  /// Parameters of each unit that are yet to be stepped.
  std::map<Unit, int64_t> left_;
};

}  // namespace hasten::parallel::shard
