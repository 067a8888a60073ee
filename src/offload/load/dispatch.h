// DispatchState: the contents of a handle of a dispatched or placed model, and the mark that its tensors carry.
#pragma once

#include <c10/core/Device.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hasten/interception/claim.h"
#include "hasten/interception/interceptor.h"
#include "hasten/offload/load/dispatch.h"
#include "hasten/offload/units/cast_weights.h"
#include "hasten/offload/units/weight_streamer.h"
#include "offload/load/device_start.h"

namespace hasten::offload::detail {

/// Carried by tensors that a device map puts on disk, that are streamed, or that a Placement has placed.
class OffloadMark : public interception::Interceptor, public interception::Claim {
 public:
  std::weak_ptr<WeightStreamer> streamer = {};
  /// Placed tensors: remove_placement gives them memory of this process again.
  bool was_in_memory = false, is_placed = false;
  std::vector<std::string_view> operators() const override { return {}; }
  bool intercept(const c10::OperatorHandle&, interception::Stack&) override { return false; }
  std::string words() const override { return streamer.expired() ? "" : "streamed by a device map or a Placement"; }
};

class DispatchState {
 public:
  DispatchState();
  ~DispatchState();
  DispatchState(const DispatchState&) = delete;
  DispatchState& operator=(const DispatchState&) = delete;

  DeviceMap map = {};
  LoadReport load = {};
  HookList hooks = {};
  Report report = {};
  ArgumentTransfer transfer = {};
  std::shared_ptr<WeightStreamer> streamer = {};
  /// Null where everything computes on the CPU.
  std::shared_ptr<DeviceRun> run = {};
  /// Where inputs go, and modules of "cpu" and "disk" compute.
  c10::Device main = c10::Device(at::kCPU);
  std::vector<CastWeights> casts = {};
  std::vector<std::shared_ptr<MappedRegion>> regions = {};
  DispatchOptions options = {};
};

/// Throws: UsageError naming the devices of the map that this process lacks, and those it has.
void require_devices(const DeviceMap& map);
/// The state gets the run, and lines of its report.
void take_run(DispatchState& state, StartedRun started);
/// Ends the run on devices that the tensor is part of, if there is one.
void end_run(const at::Tensor& tensor);

}  // namespace hasten::offload::detail
