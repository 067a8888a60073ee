// Reduction: adding up (or multiplying, comparing) the values of several ranks, element by element.
//
// The order is that of the inputs, so results do not depend on who computes them. Half and bfloat16 are added
// up (and divided) in float and rounded once. Whole numbers wrap around. Minimum and maximum give NaN where
// any input is NaN. The loops are compiled for several instruction sets (reduction_loops.inc) and chosen
// once, by what the processor has.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "hasten/comm/group.h"

namespace hasten::comm::shared {

/// Writes the reduction of `inputs`, of `count` elements each, to `output`, which may be one of them.
using Reduction = void (*)(void* output, const void* const* inputs, int num_inputs, int64_t count);

/// Nothing (nullptr) for dtypes that are not reduced here, and for the mean of whole numbers.
Reduction reduction(c10::ScalarType dtype, ReduceOp op);

/// The reduction for one instruction set: "generic", "avx2", "avx512"; for tests. Nothing where the build or
/// the processor lacks it.
Reduction reduction(c10::ScalarType dtype, ReduceOp op, const char* instructions);

}  // namespace hasten::comm::shared
