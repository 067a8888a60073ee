// See batch_window.h.
#include "data/loader/detail/batch_window.h"

#include <algorithm>
#include <vector>

#include "hasten/core/error.h"

namespace hasten::data::detail {

void BatchWindow::forget_before(size_t place) {
  std::erase_if(entries_,
                [&](const Entry& entry) { return entry.start + entry.size <= place && entry.start >= kept_; });
}

AnyBatch BatchWindow::pick(const Indices& places) const {
  std::vector<AnyBatch> pieces;
  for (size_t i = 0; i < places.size();) {
    const Entry& entry = at(places[i]);
    size_t count = 1;
    while (i + count < places.size() && places[i + count] == places[i] + count &&
           places[i] + count < entry.start + entry.size) {
      ++count;
    }
    pieces.push_back(part_of(entry, places[i] - entry.start, count));
    i += count;
  }
  return operations_.join ? operations_.join(pieces) : pieces.at(0);
}

const BatchWindow::Entry& BatchWindow::at(size_t place) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return place >= entry.start && place < entry.start + entry.size;
  });
  if (found == entries_.end()) {
    throw InternalError(Origin{"data"}, "place ", place, " of a stream is not at hand any more.");
  }
  return *found;
}

AnyBatch BatchWindow::part_of(const Entry& entry, size_t begin, size_t count) const {
  if (count == entry.size) return operations_.copy(entry.batch);
  if (operations_.slice) return operations_.slice(entry.batch, begin, begin + count);
  throw InternalError(Origin{"data"}, "a batch whose samples cannot be told apart is cut.");
}

}  // namespace hasten::data::detail
