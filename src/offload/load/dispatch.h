// DispatchState: the contents of a handle of a dispatched or placed model, and the mark that its tensors carry.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hasten/interception/interceptor.h"
#include "hasten/offload/load/dispatch.h"
#include "hasten/offload/units/cast_weights.h"
#include "hasten/offload/units/weight_streamer.h"

namespace hasten::offload::detail {

/// Carried by tensors that a device map puts on disk, that are streamed, or that a Placement has placed.
class OffloadMark : public interception::Interceptor {
 public:
  std::weak_ptr<WeightStreamer> streamer = {};
  /// Placed tensors: remove_placement gives them memory of this process again.
  bool was_in_memory = false, is_placed = false;
  std::vector<std::string_view> operators() const override { return {}; }
  bool intercept(const c10::OperatorHandle&, interception::Stack&) override { return false; }
};

class DispatchState {
 public:
  DeviceMap map = {};
  LoadReport load = {};
  HookList hooks = {};
  Report report = {};
  ArgumentTransfer transfer = {};
  std::shared_ptr<WeightStreamer> streamer = {};
  std::vector<CastWeights> casts = {};
  std::vector<std::shared_ptr<MappedRegion>> regions = {};
  DispatchOptions options = {};
};

/// Throws: UsageError naming the devices of the map that this process lacks, and those it has.
void require_devices(const DeviceMap& map);
at::Device torch_device_of(const Device& device);

}  // namespace hasten::offload::detail
