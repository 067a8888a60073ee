// The samples of a batch, whatever its type: how many, some of them, several batches joined.
//
// A std::vector is a list of samples (what torch's datasets give without a transform), anything else a
// structure of tensors with the samples along dim 0 (comm/nested.h). Streams and dispatched loaders cut and
// fill up batches with it; loaders over map datasets cut lists of indices instead.
#pragma once

#include <cstddef>
#include <iterator>
#include <type_traits>
#include <utility>
#include <vector>

#include "hasten/comm/nested_operations.h"
#include "hasten/data/place.h"

namespace hasten::data {

namespace detail {
template <class T>
inline constexpr bool kIsList = comm::detail::kIs<T, std::vector>;
}  // namespace detail

/// Whether the samples of such a batch can be told apart. A struct of yours needs hasten_fields.
template <class Batch>
inline constexpr bool has_rows = detail::kIsList<Batch> || can_be_placed<Batch>;

/// Samples in a batch.
/// Collective: no. Blocks: no. Throws: UsageError if a structure holds no tensor, or a scalar first.
template <class Batch>
size_t num_rows(const Batch& batch) {
  if constexpr (detail::kIsList<Batch>) {
    return batch.size();
  } else {
    return static_cast<size_t>(comm::find_batch_size(batch));
  }
}

/// Samples [begin, end) of a batch; views of its tensors.
/// Collective: no. Blocks: no. Throws: UsageError for a scalar in a structure.
template <class Batch>
Batch slice_rows(const Batch& batch, size_t begin, size_t end) {
  if constexpr (detail::kIsList<Batch>) {
    const auto first = batch.begin();
    return Batch(first + static_cast<std::ptrdiff_t>(begin), first + static_cast<std::ptrdiff_t>(end));
  } else {
    return comm::slice(batch, static_cast<int64_t>(begin), static_cast<int64_t>(end));
  }
}

/// One batch of all samples, in order. At least one batch; a single one is given back as it is.
/// Collective: no. Blocks: no. Throws: UsageError if the structures differ.
template <class Batch>
Batch join_rows(std::vector<Batch> batches) {
  if (batches.size() == 1) return std::move(batches.front());
  if constexpr (detail::kIsList<Batch>) {
    Batch joined;
    for (auto& batch : batches) {
      joined.insert(joined.end(), std::make_move_iterator(batch.begin()),
                    std::make_move_iterator(batch.end()));
    }
    return joined;
  } else {
    return comm::concatenate(batches);
  }
}

}  // namespace hasten::data
