// Scales of 8-bit floating-point values: from the present values (dynamic), or from past steps (delayed).
//
// Pure functions. Dynamic scales follow torchao's float8 training, delayed ones NVIDIA's Transformer Engine. A value is
// quantised as value * scale, cut to the format's range.
#pragma once

#include <cstdint>
#include <vector>

namespace hasten::precision {

/// kE4M3: 3 bits of mantissa, at most 448. kE5M2: 2 bits, at most 57344.
enum class Fp8Format : uint8_t { kE4M3, kE5M2 };
/// kHybrid: E4M3 in forward, E5M2 for gradients.
enum class Fp8Formats : uint8_t { kHybrid, kE4M3, kE5M2 };
enum class AmaxAlgorithm : uint8_t { kMax, kMostRecent };

/// Returns the largest finite value of a format.
double largest(Fp8Format format) noexcept;

/// The scale for values whose largest magnitude is `amax`: largest / max(amax, 1e-12), rounded to float32, and with
/// `power_of_two` down to a power of two.
float dynamic_scale(double amax, Fp8Format format, bool power_of_two = false) noexcept;

struct DelayedScalingOptions {
  Fp8Format format = Fp8Format::kE4M3;
  /// Scales leave 2^margin of room.
  int64_t margin = 0;
  /// Windows whose amax counts.
  int64_t amax_history_len = 1024;
  AmaxAlgorithm amax_compute_algo = AmaxAlgorithm::kMax;
};

/// A tensor's history. `history` has amax_history_len values, of which the first is the present window's.
struct DelayedScale {
  float scale = 1.0F;
  std::vector<float> history = {};
};

/// The state after a window whose largest magnitude was `amax`: the next scale, and the history moved on. An amax that
/// is 0 or not finite leaves the scale.
DelayedScale delayed_scale(DelayedScale state, float amax, const DelayedScalingOptions& options);

}  // namespace hasten::precision
