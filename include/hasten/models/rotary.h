// Rotary position embeddings, in the forms that Llama, Mistral and Qwen2 use.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace hasten::models {

struct RotaryConfig {
  double theta = 10000.0;
  /// "default", "linear" (positions divided by factor) or "llama3".
  std::string type = "default";
  double factor = 1.0, low_freq_factor = 1.0, high_freq_factor = 4.0;
  int64_t original_max_positions = 8192;
};

/// Returns the inverse frequencies [head_dim / 2], float32. For llama3, w = 2 pi / inv: w > old / low gives inv /
/// factor, w < old / high keeps inv. Between them both are blended.
/// Throws: UsageError for another type, with those there are.
at::Tensor rotary_inverse_frequencies(const RotaryConfig& config, int64_t head_dim);

/// Cosines and sines [batch, 1, tokens, head_dim] of positions [batch, tokens].
struct RotaryAngles {
  at::Tensor cos, sin;
};
RotaryAngles rotary_angles(const at::Tensor& inverse_frequencies, const at::Tensor& positions, at::ScalarType type);

/// Rotates queries or keys [batch, heads, tokens, head_dim], halves against each other as transformers does.
at::Tensor apply_rotary(const at::Tensor& x, const RotaryAngles& angles);

}  // namespace hasten::models
