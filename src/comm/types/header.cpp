// See header.h.
#include "comm/types/header.h"

#include <torch/types.h>

#include "comm/types/call_advice.h"
#include "hasten/core/text.h"

namespace hasten::comm {
namespace {

std::string describe(const Header& header) {
  std::string call = name_of(static_cast<OpType>(header.kind));
  if (header.reduce_op >= 0) call += text('(', name_of(static_cast<ReduceOp>(header.reduce_op)), ')');
  if (header.dtype >= 0) call += text(" of ", header.count, ' ', static_cast<c10::ScalarType>(header.dtype));
  if (header.dtype < 0 && header.count > 0) call += text(" of ", header.count, " bytes");
  if (header.root >= 0) call += text(", root ", header.root);
  return call + header.label.in_brackets();
}

}  // namespace

Header header_of(OpType kind, int64_t count, int root) {
  return {.kind = static_cast<uint32_t>(kind), .root = root, .count = count, .label = call_label()};
}

Header header_of(OpType kind, const at::Tensor& tensor, ReduceOp op, int root, int64_t extra) {
  return {.kind = static_cast<uint32_t>(kind),
          .dtype = static_cast<int32_t>(tensor.scalar_type()),
          .reduce_op = static_cast<int32_t>(op),
          .root = root,
          .count = tensor.numel(),
          .extra = extra,
          .label = call_label()};
}

std::string difference(const std::string& rank, const Header& call, const std::string& other_rank,
                       const Header& other_call) {
  return text("rank ", rank, " calls ", describe(call), ", rank ", other_rank, " calls ", describe(other_call), ". ",
              advice_on(rank, call.label, other_rank, other_call.label), kSameCalls);
}

}  // namespace hasten::comm
