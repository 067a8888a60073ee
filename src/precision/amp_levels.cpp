// See amp_levels.h.
#include "hasten/precision/amp_levels.h"

#include <array>
#include <cmath>
#include <exception>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/core/number.h"
#include "hasten/core/text.h"

namespace hasten::precision {
namespace {

constexpr std::array<const char*, 4> kLevelNames = {"O0", "O1", "O2", "O3"};

[[noreturn]] void refuse(AmpLevel level, const std::string& what) {
  throw UsageError(Origin{"precision"}, "opt_level ", name_of(level), ": ", what);
}

AmpProperties table(AmpLevel level, c10::ScalarType dtype) {
  const bool scaled = dtype == c10::ScalarType::Half;
  switch (level) {
    case AmpLevel::kO0:
      return {.level = level, .cast_model_type = c10::ScalarType::Float, .master_weights = false};
    case AmpLevel::kO1:
      return {.level = level, .patch_torch_functions = true, .dynamic_loss_scale = scaled};
    case AmpLevel::kO2:
      return {.level = level,
              .cast_model_type = dtype,
              .keep_batchnorm_fp32 = true,
              .master_weights = true,
              .dynamic_loss_scale = scaled};
    case AmpLevel::kO3:
      break;
  }
  return {.level = level, .cast_model_type = dtype, .keep_batchnorm_fp32 = false, .master_weights = false};
}

bool read(const KeepBatchNorm& setting, AmpLevel level) {
  if (setting.text.empty() || setting.text == "False") return setting.text.empty() && setting.value;
  if (setting.text == "True") return true;
  refuse(level, text("keep_batchnorm_fp32 = '", setting.text, "'; expected a bool, \"True\" or \"False\"."));
}

}  // namespace

const char* name_of(AmpLevel level) noexcept {
  return kLevelNames[static_cast<size_t>(level)];
}

AmpLevel parse_amp_level(const std::string& text) {
  for (size_t i = 0; i < kLevelNames.size(); ++i) {
    if (text == kLevelNames[i]) return static_cast<AmpLevel>(i);
  }
  std::string hint;
  if (text.size() == 2 && text[1] >= '0' && text[1] <= '3') hint = hasten::text(", did you mean 'O", text[1], "'?");
  throw UsageError(Origin{"precision"}, "unknown opt_level '", text, "'; expected O0, O1, O2 or O3, with the letter O",
                   hint.empty() ? "." : hint);
}

LossScale::LossScale(const std::string& text) {
  if (text == "dynamic") {
    dynamic = true;
    return;
  }
  value = core::real_number(text).value_or(0);
  if (std::isfinite(value) && value > 0) return;
  throw UsageError(Origin{"precision"}, "loss_scale = '", text, "'; expected \"dynamic\" or a finite number above 0.");
}

AmpProperties resolve(AmpLevel level, const AmpOverrides& overrides, c10::ScalarType dtype) {
  if (dtype != c10::ScalarType::Half && dtype != c10::ScalarType::BFloat16) {
    refuse(level, text("dtype ", c10::toString(dtype), "; expected Half or BFloat16."));
  }
  AmpProperties result = table(level, dtype);
  const bool is_o1 = level == AmpLevel::kO1;
  if (overrides.cast_model_type) {
    if (is_o1 && *overrides.cast_model_type != c10::ScalarType::Float) {
      refuse(level, text("casts at operators, so the model stays in float32; cast_model_type = ",
                         c10::toString(*overrides.cast_model_type), ". Use O2 or O3 to cast the model."));
    }
    result.cast_model_type = overrides.cast_model_type;
  }
  if (overrides.patch_torch_functions) {
    if (*overrides.patch_torch_functions && !is_o1) {
      refuse(level, "patch_torch_functions = true; expected it with O1 only. Use O1.");
    }
    result.patch_torch_functions = *overrides.patch_torch_functions;
  }
  if (overrides.keep_batchnorm_fp32) {
    if (is_o1) refuse(level, "keep_batchnorm_fp32 is given, but batch norms run in float32 with O1. Leave it out.");
    result.keep_batchnorm_fp32 = read(*overrides.keep_batchnorm_fp32, level);
  }
  if (overrides.master_weights) {
    if (is_o1) refuse(level, "master_weights is given, but with O1 the weights themselves are float32. Leave it out.");
    result.master_weights = overrides.master_weights;
  }
  if (overrides.loss_scale) {
    result.dynamic_loss_scale = overrides.loss_scale->dynamic;
    result.loss_scale = overrides.loss_scale->dynamic ? 1.0 : overrides.loss_scale->value;
  }
  return result;
}

}  // namespace hasten::precision
