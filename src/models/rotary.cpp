// See rotary.h.
#include "hasten/models/rotary.h"

#include <torch/types.h>

#include <numbers>

#include "hasten/core/error.h"
#include "hasten/core/sentence.h"

namespace hasten::models {
namespace {

at::Tensor llama3_frequencies(const RotaryConfig& config, const at::Tensor& inverse) {
  const auto old = static_cast<double>(config.original_max_positions);
  const at::Tensor wavelength = 2 * std::numbers::pi / inverse;
  const at::Tensor smooth =
      (old / wavelength - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor);
  const at::Tensor blended = (1 - smooth) * inverse / config.factor + smooth * inverse;
  const at::Tensor long_ones = at::where(wavelength > old / config.low_freq_factor, inverse / config.factor, inverse);
  const at::Tensor is_between =
      at::logical_and(wavelength >= old / config.high_freq_factor, wavelength <= old / config.low_freq_factor);
  return at::where(is_between, blended, long_ones);
}

}  // namespace

at::Tensor rotary_inverse_frequencies(const RotaryConfig& config, int64_t head_dim) {
  const at::Tensor exponents =
      at::arange(0, head_dim, 2, at::TensorOptions(at::kFloat)) / static_cast<double>(head_dim);
  const at::Tensor inverse = 1.0 / at::pow(at::Scalar(config.theta), exponents);
  if (config.type == "default") return inverse;
  if (config.type == "linear") return inverse / config.factor;
  if (config.type == "llama3") return llama3_frequencies(config, inverse);
  throw UsageError(Origin{"models"}, "rotary embeddings of type '", config.type, "' are not there",
                   guess_end(config.type, {"default", "linear", "llama3"}), " Expected default, linear or llama3.");
}

RotaryAngles rotary_angles(const at::Tensor& inverse_frequencies, const at::Tensor& positions, at::ScalarType type) {
  const at::Tensor angles = positions.to(at::kFloat).unsqueeze(-1) * inverse_frequencies;
  const at::Tensor both = at::cat({angles, angles}, -1).unsqueeze(1);
  return {both.cos().to(type), both.sin().to(type)};
}

at::Tensor apply_rotary(const at::Tensor& x, const RotaryAngles& angles) {
  const auto halves = x.chunk(2, -1);
  return x * angles.cos + at::cat({-halves[1], halves[0]}, -1) * angles.sin;
}

}  // namespace hasten::models
