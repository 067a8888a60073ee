// Apex's optimization levels O0 to O3: what each sets, and which overrides it takes.
//
// A single pure function turns level and overrides into properties. Amp (amp.h) carries the properties out.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

namespace hasten::precision {

/// kO0: float32. kO1: casts at operators (autocast). kO2: a half-precision model with float32 masters and batch norms.
/// kO3: all of it in half precision.
enum class AmpLevel { kO0, kO1, kO2, kO3 };

/// Throws: UsageError with "did you mean" for other texts than O0, O1, O2, O3.
AmpLevel parse_amp_level(const std::string& text);
const char* name_of(AmpLevel level) noexcept;

/// "dynamic", or a fixed number; Apex takes the number's text, too.
struct LossScale {
  LossScale(double value) : value(value) {}  // NOLINT: converts as Apex's argument does
  LossScale(const std::string& text);        // NOLINT. Throws: UsageError for a text that is no number
  LossScale(const char* text) : LossScale(std::string(text)) {}  // NOLINT
  bool dynamic = false;
  double value = 1.0;
};

/// A bool, or its text: Apex takes "True" and "False".
struct KeepBatchNorm {
  KeepBatchNorm(bool value) : value(value) {}                 // NOLINT
  KeepBatchNorm(const char* text) : text(text) {}             // NOLINT
  KeepBatchNorm(std::string text) : text(std::move(text)) {}  // NOLINT
  bool value = false;
  std::string text = {};
};

/// Instead of what the level sets.
struct AmpOverrides {
  std::optional<c10::ScalarType> cast_model_type = {};
  std::optional<bool> patch_torch_functions = {};
  std::optional<KeepBatchNorm> keep_batchnorm_fp32 = {};
  std::optional<bool> master_weights = {};
  std::optional<LossScale> loss_scale = {};
};

struct AmpProperties {
  AmpLevel level = AmpLevel::kO1;
  std::optional<c10::ScalarType> cast_model_type = {};
  bool patch_torch_functions = false;
  std::optional<bool> keep_batchnorm_fp32 = {};
  std::optional<bool> master_weights = {};
  bool dynamic_loss_scale = false;
  double loss_scale = 1.0;
};

/// Returns the table of levels, then the overrides. `dtype` kBFloat16 gives levels in bfloat16, whose loss scale is 1.
/// Throws: UsageError for an override that the level does not take.
AmpProperties resolve(AmpLevel level, const AmpOverrides& overrides = {},
                      c10::ScalarType dtype = c10::ScalarType::Half);

}  // namespace hasten::precision
