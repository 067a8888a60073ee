// See fp8_scaling.h.
#include "hasten/precision/fp8_scaling.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace hasten::precision {

double largest(Fp8Format format) noexcept {
  return format == Fp8Format::kE4M3 ? 448.0 : 57344.0;
}

float dynamic_scale(double amax, Fp8Format format, bool power_of_two) noexcept {
  const auto scale = static_cast<float>(largest(format) / std::max(amax, 1e-12));
  return power_of_two ? std::exp2(std::floor(std::log2(scale))) : scale;
}

DelayedScale delayed_scale(DelayedScale state, float amax, const DelayedScalingOptions& options) {
  state.history.resize(static_cast<size_t>(options.amax_history_len), 0.0F);
  state.history.front() = amax;
  const float chosen = options.amax_compute_algo == AmaxAlgorithm::kMostRecent
                           ? state.history.front()
                           : *std::max_element(state.history.begin(), state.history.end());
  if (chosen > 0 && std::isfinite(chosen)) {
    const double scale =
        largest(options.format) / static_cast<double>(chosen) / std::exp2(static_cast<double>(options.margin));
    state.scale = static_cast<float>(std::min(scale, static_cast<double>(std::numeric_limits<float>::max())));
  }
  std::rotate(state.history.begin(), state.history.begin() + 1, state.history.end());
  state.history.front() = 0.0F;
  return state;
}

}  // namespace hasten::precision
