// Header: what one rank is about to do, in few bytes that travel with its data.
//
// Where data comes with a header, the ranks' agreement costs nothing, and a difference is found before any of
// the data is used.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "comm/types/call_label.h"
#include "comm/types/collective_fingerprint.h"

namespace hasten::comm {

struct Header {
  uint32_t kind = 0;
  int32_t dtype = -1;
  int32_t reduce_op = -1;
  int32_t root = -1;
  int64_t count = 0;
  /// Further values of the operation, which are not compared.
  int64_t extra = 0;
  CallLabel label = {};
};

/// Headers have the thread's call label. Of what moves `count` bytes.
Header header_of(OpType kind, int64_t count, int root = -1);
/// Returns the header of operations that add up tensors like this one.
Header header_of(OpType kind, const at::Tensor& tensor, ReduceOp op, int root = -1, int64_t extra = 0);

/// Returns true if both are equal, but for `extra` and `label`.
inline bool same_call(const Header& a, const Header& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.reduce_op == b.reduce_op && a.root == b.root && a.count == b.count;
}

/// Returns a sentence that names two ranks, as the group numbers them, and their different calls.
std::string difference(const std::string& rank, const Header& call, const std::string& other_rank,
                       const Header& other_call);

}  // namespace hasten::comm
