// Reduction: adding up (or multiplying, comparing) the values of several ranks, element by element.
//
// The order is that of the inputs, so results do not depend on the rank that computes them. Half and bfloat16 are added
// up (and divided) in float and rounded once. Whole numbers wrap around. Minimum and maximum give NaN where any input
// is NaN. The loops are compiled for several instruction sets (reduction_loops.inc) and chosen once, by what the
// processor has.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "hasten/comm/types/collective.h"

namespace hasten::comm::shared {

/// Writes the reduction of `inputs`, of `count` elements each, to `output`, which may be one of them.
using Reduction = void (*)(void* output, const void* const* inputs, int num_inputs, int64_t count);

/// The same with one input at a time, two of them or more. In between, the result so far ("partial") has
/// elements of `partial_bytes`: the type that is computed in.
struct Folding {
  int64_t partial_bytes = 0;
  void (*first)(void* partial, const void* input, int64_t count) = nullptr;
  void (*next)(void* partial, const void* input, int64_t count) = nullptr;
  /// `output` may be `input`.
  void (*last)(void* output, const void* partial, const void* input, int num_inputs, int64_t count) = nullptr;
};

struct Routines {
  Reduction reduce = nullptr;
  Folding fold;
};

/// Nothing (nullptr) for dtypes that are not reduced here, and for the mean of whole numbers.
Routines routines(c10::ScalarType dtype, ReduceOp op);

/// Those of one instruction set: "generic", "avx2", "avx512"; for tests. Nothing where the build or the
/// processor lacks it.
Routines routines(c10::ScalarType dtype, ReduceOp op, const char* instructions);

}  // namespace hasten::comm::shared
