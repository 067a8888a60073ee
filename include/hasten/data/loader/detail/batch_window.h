// The part of a stream that is still needed: the batches that were just read, and the epoch's first ones,
// whose samples fill up the end. Samples are asked for by their place in the stream. Part of stream_loader.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <utility>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/data/batch/detail/batch_rows.h"
#include "hasten/data/sampler/batch_shard.h"

namespace hasten::data::detail {

template <class Batch>
class BatchWindow {
 public:
  /// Batches that begin below this place are kept for good.
  void keep_first(size_t num_rows) noexcept { kept_ = num_rows; }

  /// Batches are added in the order in which they lie in the stream.
  void add(size_t start, size_t size, Batch batch) { entries_.push_back({start, size, std::move(batch)}); }

  /// Batches that end before `place` are not asked for any more, apart from those kept for good.
  void forget_before(size_t place) {
    std::erase_if(entries_, [&](const Entry& entry) {
      return entry.start + entry.size <= place && entry.start >= kept_;
    });
  }

  /// The samples at these places, as one batch; a whole batch is given as it came.
  /// Collective: no. Blocks: no. Throws: UsageError if batches cannot be joined.
  Batch pick(const Indices& places) const {
    std::vector<Batch> pieces;
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
    if constexpr (has_rows<Batch>) {
      return join_rows(std::move(pieces));
    } else {
      return std::move(pieces.at(0));
    }
  }

 private:
  struct Entry {
    size_t start, size;
    Batch batch;
  };

  const Entry& at(size_t place) const {
    const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return place >= entry.start && place < entry.start + entry.size;
    });
    if (found == entries_.end()) {
      throw InternalError(Origin{"data"}, "place ", place, " of a stream is not at hand any more.");
    }
    return *found;
  }

  static Batch part_of(const Entry& entry, size_t begin, size_t count) {
    if (count == entry.size) return entry.batch;
    if constexpr (has_rows<Batch>) {
      return slice_rows(entry.batch, begin, begin + count);
    } else {
      throw InternalError(Origin{"data"}, "a batch whose samples cannot be told apart is cut.");
    }
  }

  size_t kept_ = 0;
  std::deque<Entry> entries_;
};

}  // namespace hasten::data::detail
