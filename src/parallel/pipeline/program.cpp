// See program.h.
#include "parallel/pipeline/program.h"

namespace hasten::parallel::pipeline {

std::vector<int64_t> CallRecord::encode() const {
  std::vector<int64_t> words{static_cast<int64_t>(slots.size())};
  for (const Slot& slot : slots) words.insert(words.end(), {static_cast<int64_t>(slot.kind), slot.count});
  for (const ValueFacts& value : values) {
    words.insert(words.end(),
                 {value.is_defined, static_cast<int64_t>(value.dtype), value.is_on_cpu, value.requires_grad,
                  value.is_view, value.cut.dim, value.cut.blocks, static_cast<int64_t>(value.sizes.size())});
    words.insert(words.end(), value.sizes.begin(), value.sizes.end());
  }
  return words;
}

void CallRecord::decode(const std::vector<int64_t>& words) {
  auto next = words.begin();
  slots.resize(static_cast<size_t>(*next++));
  int64_t num_values = 0;
  for (Slot& slot : slots) {
    slot.kind = static_cast<Kind>(*next++);
    slot.count = *next++;
    if (slot.kind != Kind::kNumber) num_values += slot.count;
  }
  values.resize(static_cast<size_t>(num_values));
  for (ValueFacts& value : values) {
    value.is_defined = *next++ != 0;
    value.dtype = static_cast<c10::ScalarType>(*next++);
    value.is_on_cpu = *next++ != 0;
    value.requires_grad = *next++ != 0;
    value.is_view = *next++ != 0;
    value.cut.dim = *next++;
    value.cut.blocks = *next++;
    value.sizes.resize(static_cast<size_t>(*next++));
    for (int64_t& size : value.sizes) size = *next++;
  }
}

}  // namespace hasten::parallel::pipeline
