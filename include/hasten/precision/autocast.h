// Autocast: a scope in which operators compute in half precision by libtorch's lists (torch.autocast).
//
// libtorch's C++ API has the switches but no scope. The state belongs to the thread. A scope restores all of it, and
// the end of the outermost one drops the cached casts of weights. Backward runs outside: libtorch's engine carries the
// caller's switches into its threads. living_casts.h has casts that outlast a scope.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <optional>

namespace hasten::precision {

struct AutocastOptions {
  /// False: a part of an enclosing scope in float32.
  bool enabled = true;
  /// kHalf or kBFloat16. Unset: the dtype that the thread has (CPU bfloat16, CUDA float16 at first).
  std::optional<c10::ScalarType> dtype = {};
  /// Whether casts of leaves that require gradients are remembered until the outermost scope ends. Unset: as it is.
  std::optional<bool> cache_enabled = {};
};

/// The switches of a thread, to be opened in another one (DataParallel, pipeline stages, recomputation).
struct AutocastState {
  struct Device {
    bool enabled = false;
    c10::ScalarType dtype = c10::ScalarType::Float;
  };
  /// CPU, CUDA.
  std::array<Device, 2> devices = {};
  bool cache_enabled = true;
};

/// Move-only; the last scope opened must be the first closed, in the same thread.
class [[nodiscard]] Autocast {
 public:
  /// Throws: UsageError for a device other than CPU and CUDA, or another dtype.
  explicit Autocast(c10::DeviceType device, const AutocastOptions& options = {});
  /// The switches of captured(), whatever this thread's are.
  explicit Autocast(const AutocastState& state);
  Autocast(Autocast&& other) noexcept;
  Autocast& operator=(Autocast&&) = delete;
  ~Autocast();

  /// Returns this thread's switches.
  static AutocastState captured();
  /// Returns true if a scope is open for the device.
  static bool is_enabled(c10::DeviceType device);
  /// Returns a scope with autocast off on all devices; backward and optimizer steps run in one.
  static Autocast off();

 private:
  AutocastState before_;
  bool active_ = true;
};

}  // namespace hasten::precision
