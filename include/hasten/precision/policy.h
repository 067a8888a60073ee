// Precision: the dtype that a model computes in; Policy: the dtypes of a distributed model's parts.
//
// Accelerate's `mixed_precision`. A pure function of the option, the variable's text and the device's facts reads the
// setting and refuses precisions that the device lacks. So every combination is tested without a device.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

#include "hasten/precision/device_facts.h"

namespace hasten::precision {

/// kNo: nothing is changed. kFp16: autocast to float16 and scaled losses. kBf16: autocast to bfloat16. kFp8: as
/// kBf16, with linear layers in 8 bits (fp8.h).
enum class Precision { kNo, kFp16, kBf16, kFp8 };

/// "no", "fp16", "bf16", "fp8".
const char* name_of(Precision precision) noexcept;

/// Returns the precision of a name, in any case.
/// Throws: UsageError with "did you mean" for another text; `source` names the setting.
Precision parse_precision(const std::string& text, const std::string& source);

/// Returns the dtype that autocast casts to; nothing for kNo.
std::optional<c10::ScalarType> compute_dtype(Precision precision) noexcept;

/// Dtypes of a distributed model's parts, as torch's MixedPrecision (FSDP, DDP) has them. Unset: as it is.
struct Policy {
  /// Parameters in forward and backward.
  std::optional<c10::ScalarType> param = {};
  /// Gradients while they are reduced.
  std::optional<c10::ScalarType> reduce = {};
  /// Floating-point buffers.
  std::optional<c10::ScalarType> buffer = {};
  /// Outputs of the model.
  std::optional<c10::ScalarType> output = {};
  /// Casts floating-point inputs of forward to `param`.
  bool cast_inputs = false;
};

/// The precision in use, and the setting it comes from ("AcceleratorOptions::mixed_precision",
/// "ACCELERATE_MIXED_PRECISION", "default").
struct ResolvedPrecision {
  Precision precision = Precision::kNo;
  std::string source = "default";
};

/// The option wins over the environment's text, which wins over kNo. Follows Accelerate, but for the checks. A text of
/// any case is understood, and an unknown one is refused. A precision that the device computes wrongly or not at all is
/// refused, too.
/// Throws: UsageError for an unknown text; for kBf16 on CUDA below capability 8.0; for kFp8
/// on CUDA below 8.9; for anything but kNo on devices other than CPU and CUDA.
ResolvedPrecision resolve(std::optional<Precision> option, const std::optional<std::string>& environment,
                          const DeviceFacts& facts);

}  // namespace hasten::precision
