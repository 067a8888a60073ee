// Cuts the samples that were given once more to even out the last step.
//
// Gathered values lie in rank order, which is the global order, so the repeated samples are at the end. The loader's
// remainder is the number of new ones. comm gathers, and the front door combines both.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "hasten/comm/nested/nested_operations.h"
#include "hasten/data/batch/can_be_placed.h"
#include "hasten/data/batch/detail/batch_rows.h"
#include "hasten/training/gradient_state.h"

namespace hasten::data {

/// Returns true if the batch in hand holds samples that were given once more, so that only the first `remainder`
/// gathered rows count.
inline bool has_padding(const training::LoaderPosition& position) noexcept {
  return position.end_of_dataloader && position.remainder > 0;
}

/// Returns a gathered structure (comm/nested/nested.h) whose tensors and lists are cut to the first `remainder` rows on
/// the last batch.
/// Throws: nothing for what comm::gather gives.
template <class T>
T truncate_to_remainder(const T& gathered, const training::LoaderPosition& position) {
  if (!has_padding(position)) return gathered;
  T cut = comm::slice(gathered, 0, position.remainder);
  comm::detail::join_lists(cut, [&](auto list) {
    if (list.size() > static_cast<size_t>(position.remainder)) list.resize(static_cast<size_t>(position.remainder));
    return list;
  });
  return cut;
}

/// Returns this rank's part of a batch without the rows that were given once more. It serves metrics for which each
/// rank counts its own samples and nothing is gathered (counted_metrics.h). The ranks hold equally many rows of a
/// padded batch, in rank order. A structure (batch_rows.h) of tensors, as views, and vectors. Throws: UsageError if it
/// holds neither, or a value that has not one row or element a sample.
template <class T>
T without_padding(const T& value, const training::LoaderPosition& position, int rank) {
  if (!has_padding(position)) return value;
  const auto rows = static_cast<int64_t>(detail::structure_rows(value));
  const int64_t own = position.num_local_valid >= 0 ? std::min(position.num_local_valid, rows)
                                                    : std::clamp<int64_t>(position.remainder - rank * rows, 0, rows);
  return detail::slice_structure(value, static_cast<size_t>(rows), 0, static_cast<size_t>(own));
}

/// Gathered objects, cut to the first `remainder` samples on the last batch. An object is one sample, unless it holds
/// tensors. Then it is as many as its first tensor has rows, and the object in which the limit falls is cut.
/// Throws: UsageError if an object holds a scalar beside the tensor that has rows.
template <class T>
std::vector<T> truncate_objects(std::vector<T> gathered, const training::LoaderPosition& position) {
  if (!has_padding(position)) return gathered;
  int64_t left = position.remainder;
  size_t kept = 0;
  for (; kept < gathered.size() && left > 0; ++kept) {
    if constexpr (can_be_placed<T>) {
      const auto tensors = comm::tensors_of(gathered[kept]);
      const int64_t rows = tensors.empty() || tensors[0].dim() == 0 ? 1 : tensors[0].size(0);
      if (rows > left) gathered[kept] = comm::slice(gathered[kept], 0, left);
      left -= rows;
    } else {
      --left;
    }
  }
  gathered.resize(kept);
  return gathered;
}

}  // namespace hasten::data
