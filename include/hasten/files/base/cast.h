// Casting floating-point values between dtypes, rounding to nearest even as torch does.
#pragma once

#include <cstddef>

#include "hasten/files/base/dtype.h"

namespace hasten::files {

/// Returns true for the dtypes that cast_elements takes on either side: float64, float32, float16, bfloat16.
bool can_cast(Dtype from, Dtype to) noexcept;

/// Casts `count` elements. `source` and `target` do not overlap, unless the target's elements are no larger.
/// Throws: UsageError unless can_cast.
void cast_elements(Dtype from, const void* source, Dtype to, void* target, size_t count);

}  // namespace hasten::files
