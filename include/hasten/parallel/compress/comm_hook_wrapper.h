// Comm hooks around other comm hooks: torch's fp16_compress_wrapper, Accelerate's comm_wrapper.
#pragma once

#include "hasten/parallel/compress/comm_hook.h"

namespace hasten::parallel {

/// A hook that gives `inner` the bucket in float16 or bfloat16, and brings its result back to the bucket's own dtype.
/// Buckets of other dtypes than float32 and float64 go to `inner` as they are. power_sgd exchanges buckets of 16 bits
/// without products, so that it gains nothing here.
/// Collective, Blocks: as `inner`. Throws: UsageError for an empty `inner`.
CommHook fp16_compress_wrapper(CommHook inner);
CommHook bf16_compress_wrapper(CommHook inner);

}  // namespace hasten::parallel
