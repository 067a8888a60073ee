// Compression by dtype; see hasten/parallel/compress/comm_hook.h.
#include "hasten/parallel/compress/comm_hook.h"

namespace hasten::parallel {
namespace {

CommHook compress(at::ScalarType dtype) {
  return [dtype](const GradientBucket& bucket, const comm::Group& group) {
    const auto own = bucket.buffer.scalar_type();
    if (own != at::kFloat && own != at::kDouble) return group.all_reduce_async_(bucket.buffer);
    const at::Tensor compressed = bucket.buffer.to(dtype);
    return group.all_reduce_async_(compressed).then([compressed, buffer = bucket.buffer] { buffer.copy_(compressed); });
  };
}

}  // namespace

CommHook fp16_compress() {
  return compress(at::kHalf);
}

CommHook bf16_compress() {
  return compress(at::kBFloat16);
}

}  // namespace hasten::parallel
