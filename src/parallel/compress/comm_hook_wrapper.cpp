// See comm_hook_wrapper.h.
#include "hasten/parallel/compress/comm_hook_wrapper.h"

#include <utility>

#include "hasten/core/error.h"

namespace hasten::parallel {
namespace {

// The bucket with its gradients in another dtype, at the same places of the new buffer.
GradientBucket cast_bucket(const GradientBucket& bucket, at::ScalarType dtype) {
  GradientBucket cast{.buffer = bucket.buffer.to(dtype), .gradients = {}, .parameters = bucket.parameters};
  for (const at::Tensor& gradient : bucket.gradients) {
    const int64_t offset = gradient.storage_offset() - bucket.buffer.storage_offset();
    cast.gradients.push_back(cast.buffer.as_strided(gradient.sizes(), gradient.strides(), offset));
  }
  return cast;
}

CommHook wrapped(CommHook inner, at::ScalarType dtype, const char* name) {
  if (!inner) {
    throw UsageError({"ddp"}, name, " is given an empty hook; expected the hook that it wraps. Without one take ",
                     "fp16_compress() or bf16_compress().");
  }
  return [inner = std::move(inner), dtype](const GradientBucket& bucket, const comm::Group& group) {
    const auto own = bucket.buffer.scalar_type();
    if (own != at::kFloat && own != at::kDouble) return inner(bucket, group);
    const GradientBucket cast = cast_bucket(bucket, dtype);
    return inner(cast, group).then([cast = cast.buffer, buffer = bucket.buffer] { buffer.copy_(cast); });
  };
}

}  // namespace

CommHook fp16_compress_wrapper(CommHook inner) {
  return wrapped(std::move(inner), at::kHalf, "fp16_compress_wrapper");
}

CommHook bf16_compress_wrapper(CommHook inner) {
  return wrapped(std::move(inner), at::kBFloat16, "bf16_compress_wrapper");
}

}  // namespace hasten::parallel
