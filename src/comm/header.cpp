// See header.h.
#include "comm/header.h"

#include <c10/core/ScalarType.h>

#include "comm/agreement.h"
#include "hasten/core/text.h"

namespace hasten::comm {
namespace {

std::string describe(const Header& header) {
  std::string call = name_of(static_cast<Kind>(header.kind));
  if (header.reduce_op >= 0) call += text('(', name_of(static_cast<ReduceOp>(header.reduce_op)), ')');
  if (header.dtype >= 0) call += text(" of ", header.count, ' ', static_cast<c10::ScalarType>(header.dtype));
  if (header.dtype < 0 && header.count > 0) call += text(" of ", header.count, " bytes");
  if (header.root >= 0) call += text(", root ", header.root);
  return call;
}

}  // namespace

std::string difference(int rank, const Header& call, int other_rank, const Header& other_call) {
  return text("rank ", rank, " calls ", describe(call), ", rank ", other_rank, " calls ",
              describe(other_call), ". Every rank of a group must make the same calls in the same order");
}

}  // namespace hasten::comm
