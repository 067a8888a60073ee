// Sizes of tensors; see tensor_source.h.
#include "hasten/files/base/tensor_source.h"

#include "files/base/origin.h"

namespace hasten::files {

int64_t bytes_of(const TensorInfo& info) {
  int64_t bytes = 0;
  if (__builtin_mul_overflow(numel_of(info.shape), static_cast<int64_t>(element_bytes(info.dtype)), &bytes)) {
    throw UsageError(kOrigin, "tensor '", info.name, "' of shape [", join(info.shape),
                     "] has more bytes than 63 bits count.");
  }
  return bytes;
}

}  // namespace hasten::files
