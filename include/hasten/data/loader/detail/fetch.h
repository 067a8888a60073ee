// Fetching one batch from a dataset, with errors that name the sample.
#pragma once

#include <cstddef>
#include <optional>

#include "hasten/core/error.h"
#include "hasten/data/dataset/detail/stacked_batch.h"
#include "hasten/data/sampler/batch_shard.h"

namespace hasten::data {

namespace detail {
/// Throws a DataError that names the `suspects` and has the exception being handled nested in it.
[[noreturn]] void throw_sample_error(const Origin& origin, const Indices& suspects, std::optional<size_t> num_samples);
}  // namespace detail

/// Returns the dataset's batch of these samples. If the dataset throws, the samples are tried one by one to find the
/// one that is to blame.
/// Blocks: as the dataset does. Throws: DataError that names the sample, the size of the dataset, the
/// rank and the dataset's words; the dataset's own exception is nested in it.
template <class Dataset>
typename Dataset::BatchType fetch(Dataset& dataset, const Indices& indices, const Origin& origin) {
  try {
    return detail::batch_of(dataset, indices);
  } catch (...) {
    Indices suspects = indices;
    for (size_t i = 0; indices.size() > 1 && i < indices.size(); ++i) {
      try {
        (void)detail::batch_of(dataset, Indices{indices[i]});
      } catch (...) {
        suspects = {indices[i]};
        break;
      }
    }
    detail::throw_sample_error(origin, suspects, dataset.size());
  }
}

}  // namespace hasten::data
