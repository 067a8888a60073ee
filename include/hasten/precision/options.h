// PrecisionOptions: how a mixed-precision Accelerator casts, and how weights below float32 are stored.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "hasten/precision/convert.h"

namespace hasten::precision {

/// The dtype of what `model(x)` returns. kFloat32: half-precision outputs become float32, as Accelerate's. kAsComputed:
/// they stay.
enum class Outputs { kFloat32, kAsComputed };

/// The form of parameters. kParameter: as they are made, float32 as a rule. The others convert prepared models to half
/// precision, and their optimizers step so that small updates are not lost. kMaster has float32 masters beside them.
/// kSplit has the other half of each float32 value beside them (exact). kStochastic rounds at random. kKahan has the
/// rounding error beside them. kSplit, kStochastic and kKahan are bfloat16.
enum class Weights { kParameter, kMaster, kSplit, kStochastic, kKahan };

struct PrecisionOptions {
  Outputs outputs = Outputs::kFloat32;
  /// Floating-point tensors of what `model(x)` returns are cast to this dtype, instead of `outputs` (FSDP's
  /// output_dtype). Also without mixed precision.
  std::optional<c10::ScalarType> output_dtype = {};
  /// How buffers of models are cast when they are prepared.
  BufferCasts buffers = {};
  /// Floating tensors among the inputs of a prepared model are cast to mixed_precision's dtype (FSDP's
  /// cast_forward_inputs). False: operators cast them, by autocast's lists.
  bool cast_inputs = false;
  /// Half-precision copies of float32 parameters last from scope to scope, as long as the parameter is not written to.
  /// False: autocast casts them anew in every scope.
  bool living_casts = true;
  Weights weights = Weights::kParameter;
  /// The dtype of the optimizer's moments under `weights`; unset: float32.
  std::optional<c10::ScalarType> states = {};
};

}  // namespace hasten::precision
