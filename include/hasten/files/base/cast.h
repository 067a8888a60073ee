// Casting values between dtypes; floating-point ones are rounded to nearest even as torch does.
#pragma once

#include <cstddef>

#include "hasten/files/base/dtype.h"

namespace hasten::files {

/// Returns true for the dtypes that cast_elements takes on either side: float64, float32, float16, bfloat16.
bool can_cast(Dtype from, Dtype to) noexcept;

/// Casts `count` elements. `source` and `target` do not overlap, unless the target's elements are no larger.
/// Throws: UsageError unless can_cast.
void cast_elements(Dtype from, const void* source, Dtype to, void* target, size_t count);

/// Returns true for the dtypes that convert_elements takes on either side: those of can_cast, integers and bool.
bool can_convert(Dtype from, Dtype to) noexcept;

/// Does the same with integers and bool as well: fractions are cut off, and bool is true for what is not 0.
/// Throws: UsageError unless can_convert.
void convert_elements(Dtype from, const void* source, Dtype to, void* target, size_t count);

}  // namespace hasten::files
