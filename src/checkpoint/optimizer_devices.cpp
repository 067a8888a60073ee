// See optimizer_devices.h.
#include "hasten/checkpoint/optimizer_devices.h"

#include <utility>

#include "hasten/checkpoint/optimizer_state.h"

namespace hasten::checkpoint {
namespace {

using training::State;

bool is_elsewhere(const State& state, c10::Device device) {
  if (state.is_tensor()) return state.tensor().device() != device;
  if (!state.is_map()) return false;
  for (const auto& [name, part] : state.map()) {
    if (is_elsewhere(part, device)) return true;
  }
  return false;
}

State moved(const State& state, c10::Device device) {
  if (state.is_tensor()) return State(state.tensor().to(device));
  if (!state.is_map()) return state;
  State::Map map;
  for (const auto& [name, part] : state.map()) map.emplace_back(name, moved(part, device));
  return State(std::move(map));
}

}  // namespace

void move_state_to_parameters(torch::optim::Optimizer& optimizer) {
  const AnyOptimizerCodec* codec = find_codec(optimizer);
  if (codec == nullptr) return;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end() || found->second == nullptr) continue;
      const State slots(codec->state(*found->second));
      if (!is_elsewhere(slots, parameter.device())) continue;
      found->second = codec->make_state(moved(slots, parameter.device()).map());
    }
  }
}

}  // namespace hasten::checkpoint
