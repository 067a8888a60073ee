// Parts and heads; see dispatch.h.
#include "hasten/data/loader/detail/dispatch.h"

namespace hasten::data::detail {

RowPart dispatched_part(size_t num_rows, int rank, int world_size) noexcept {
  const auto world = static_cast<size_t>(world_size);
  const size_t count = (num_rows + world - 1) / world;
  return {count * static_cast<size_t>(rank), count};
}

void write_head(ParcelWriter& to, const DispatchHead& head) {
  to.number(head.kind);
  to.number(head.num_samples);
  to.number(head.end);
  to.string(head.words);
}

DispatchHead read_head(ParcelReader& from) {
  DispatchHead head;
  head.kind = from.number<DispatchHead::Kind>();
  head.num_samples = from.number<uint64_t>();
  head.end = from.number<uint64_t>();
  head.words = from.string();
  return head;
}

}  // namespace hasten::data::detail
