// See autocast.h.
#include "hasten/precision/autocast.h"

#include <ATen/autocast_mode.h>

#include <utility>

#include "hasten/core/error.h"
#include "precision/scope_casts.h"

namespace hasten::precision {
namespace {

namespace switches = at::autocast;

constexpr std::array<c10::DeviceType, 2> kDevices = {c10::DeviceType::CPU, c10::DeviceType::CUDA};

void set(const AutocastState& state) {
  for (size_t i = 0; i < kDevices.size(); ++i) {
    switches::set_autocast_enabled(kDevices[i], state.devices[i].enabled);
    switches::set_autocast_dtype(kDevices[i], state.devices[i].dtype);
  }
  switches::set_autocast_cache_enabled(state.cache_enabled);
}

}  // namespace

detail::ScopeCasts& detail::scope_casts() {
  thread_local ScopeCasts casts;
  return casts;
}

AutocastState Autocast::captured() {
  AutocastState state;
  for (size_t i = 0; i < kDevices.size(); ++i) {
    state.devices[i] = {switches::is_autocast_enabled(kDevices[i]), switches::get_autocast_dtype(kDevices[i])};
  }
  state.cache_enabled = switches::is_autocast_cache_enabled();
  return state;
}

Autocast::Autocast(c10::DeviceType device, const AutocastOptions& options) : before_(captured()) {
  if (device != c10::DeviceType::CPU && device != c10::DeviceType::CUDA) {
    throw UsageError(Origin{"precision"}, "autocast for devices of type ", c10::DeviceTypeName(device, true),
                     "; expected a CPU or CUDA. Use float32 there.");
  }
  const auto dtype = options.dtype.value_or(switches::get_autocast_dtype(device));
  if (dtype != c10::ScalarType::Half && dtype != c10::ScalarType::BFloat16) {
    throw UsageError(Origin{"precision"}, "autocast to ", c10::toString(dtype), "; expected Half or BFloat16.");
  }
  switches::set_autocast_enabled(device, options.enabled);
  switches::set_autocast_dtype(device, dtype);
  switches::set_autocast_cache_enabled(options.cache_enabled.value_or(before_.cache_enabled));
  switches::increment_nesting();
  ++detail::scope_casts().depth;
}

Autocast::Autocast(const AutocastState& state) : before_(captured()) {
  set(state);
  switches::increment_nesting();
  ++detail::scope_casts().depth;
}

Autocast::Autocast(Autocast&& other) noexcept : before_(other.before_), active_(std::exchange(other.active_, false)) {}

Autocast::~Autocast() {
  if (!active_) return;
  if (switches::decrement_nesting() == 0) switches::clear_cache();
  if (--detail::scope_casts().depth == 0) detail::scope_casts().nodes.clear();
  set(before_);
}

bool Autocast::is_enabled(c10::DeviceType device) {
  return switches::is_autocast_enabled(device);
}

Autocast Autocast::off() {
  AutocastState state = captured();
  for (auto& device : state.devices) device.enabled = false;
  return Autocast(state);
}

}  // namespace hasten::precision
