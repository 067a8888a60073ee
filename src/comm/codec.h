// Codec: turns any tensor into what a backend can carry, and back.
//
// Movers get the bytes of a contiguous tensor on the backend's device. Reducers get a dtype the backend can
// add up: booleans become bytes (sum and max are "or", product and min "and"), complex numbers pairs of
// reals, small integers and float8 a wider type.
#pragma once

#include <ATen/core/Tensor.h>

#include "hasten/comm/backend.h"
#include "hasten/core/error.h"

namespace hasten::comm {

/// `tensor`, without gradient history, contiguous on the backend's device; the same storage where that is so
/// already.
at::Tensor stage(const at::Tensor& tensor, const Backend& backend);

/// The storage of a contiguous tensor as flat uint8; keeps it alive.
at::Tensor bytes_of(const at::Tensor& contiguous);

/// A tensor as a backend reduces it.
struct Encoded {
  at::Tensor buffer;
  /// kMean where the backend gives means of the buffer's dtype.
  ReduceOp op;
  /// What the result is to be divided by.
  int divisor = 1;
};

/// Throws: UsageError that names dtype and operation where there is no meaning (mean of integers, max of
/// complex).
Encoded encode(const at::Tensor& tensor, ReduceOp op, const Backend& backend, const Origin& origin);

/// The tensor of this dtype, flat, that `buffer` stands for once it is divided, which happens in place.
at::Tensor decode(const at::Tensor& buffer, int divisor, at::ScalarType dtype);

/// Writes `from` (any shape of as many elements) into `to`, unless they share their storage.
void write_back(const at::Tensor& to, const at::Tensor& from);

}  // namespace hasten::comm
