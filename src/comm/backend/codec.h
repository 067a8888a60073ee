// Codec: turns any tensor into what a backend can carry, and back.
//
// Movers get the bytes of a contiguous tensor on the backend's device. Reducers get a dtype that the backend can add
// up. Booleans become bytes (sum and max are "or", product and min "and"). Complex numbers become pairs of reals, small
// integers and float8 a wider type. If a backend would lose NaN, the minimum and maximum of floats are taken of
// integers of the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/backend/backend.h"
#include "hasten/core/error.h"

namespace hasten::comm {

/// Throws: UsageError naming the operation where elements of `result` share memory, as those of an expanded
/// tensor, so that nothing can be written there.
void check_result(const at::Tensor& result, const char* operation, const Origin& origin);

/// `tensor`, without gradient history, contiguous on the backend's device. The same storage if that holds already.
at::Tensor stage(const at::Tensor& tensor, const Backend& backend);

/// Returns the storage of a contiguous tensor as flat uint8; keeps it alive.
at::Tensor bytes_of(const at::Tensor& contiguous);

/// A tensor as a backend reduces it.
struct Encoded {
  at::Tensor buffer;
  /// kMean where the backend gives means of the buffer's dtype.
  ReduceOp op;
  /// The divisor of the result.
  int divisor = 1;
};

/// Throws: UsageError that names dtype and operation where there is no meaning (mean of integers, max of
/// complex, bits of floats).
void check_reduction(at::ScalarType dtype, ReduceOp op, const Origin& origin);

/// Throws: as check_reduction.
Encoded encode(const at::Tensor& tensor, ReduceOp op, const Backend& backend, const Origin& origin);

/// Returns the tensor of this dtype, flat, in `buffer` once it is divided, which happens in place.
at::Tensor decode(const at::Tensor& buffer, int divisor, at::ScalarType dtype);

/// Writes `from` (any shape of as many elements) into `to`, unless that is where it lies. `to` has another version
/// afterwards.
void write_back(const at::Tensor& to, const at::Tensor& from);

}  // namespace hasten::comm
