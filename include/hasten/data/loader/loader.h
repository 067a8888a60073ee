// data::loader: makes a loader of a dataset, as torch::data::make_data_loader does.
//
// It takes the same arguments. In a world of one it gives the same, batch for batch and random draw for random draw.
// torch's own loaders hide their sampler and cannot be spread. Loader itself is loader_handle.h's.
#pragma once

#include <torch/data/dataloader_options.h>

#include <optional>
#include <type_traits>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/data/loader/loader_handle.h"

namespace hasten::data {

/// A loader with the given sampler.
template <class Dataset, class Sampler>
  requires(!std::is_convertible_v<Sampler, torch::data::DataLoaderOptions>)
Loader<Dataset, Sampler> loader(Dataset dataset, Sampler sampler, torch::data::DataLoaderOptions options = {}) {
  return Loader<Dataset, Sampler>(std::move(dataset), std::move(sampler), options);
}

/// A loader whose sampler is made for the size of the dataset, as by torch::data::make_data_loader:
/// `data::loader<torch::data::samplers::SequentialSampler>(dataset, 64)`. RandomSampler where none is named.
/// Throws: UsageError if the dataset has no known size, and as Loader's constructor.
template <class Sampler = torch::data::samplers::RandomSampler, class Dataset>
  requires(!is_stream_v<Dataset>)
Loader<Dataset, Sampler> loader(Dataset dataset, torch::data::DataLoaderOptions options = {}) {
  static_assert(std::is_constructible_v<Sampler, size_t>,
                "this sampler is not made from a size: hand it over as data::loader(dataset, sampler, options)");
  const std::optional<size_t> size = dataset.size();
  if (!size) {
    throw UsageError(Origin{"data"}, "the dataset does not know its size, so no sampler can be made for it. ",
                     "Hand one over: data::loader(dataset, sampler, options).");
  }
  return Loader<Dataset, Sampler>(std::move(dataset), Sampler(*size), options);
}

/// A loader over a stream, in the stream's own order. A sampler that is named is not used.
/// Throws: as Loader's constructor.
template <class Sampler = Streaming, class Dataset>
  requires is_stream_v<Dataset>
Loader<Dataset, Streaming> loader(Dataset dataset, torch::data::DataLoaderOptions options = {}) {
  return Loader<Dataset, Streaming>(std::move(dataset), Streaming(), options);
}

/// Returns the rest of an epoch: each pass over the result skips this rank's first `num_batches` batches without
/// reading their samples. The sampler draws as for a whole pass. The original is unchanged. Both share dataset, sampler
/// and workers, and so a single pass at a time. Follows Accelerate's skip_first_batches.
template <class Dataset, class Sampler>
Loader<Dataset, Sampler> skip_first_batches(const Loader<Dataset, Sampler>& loader, size_t num_batches) {
  return loader.skipping(num_batches);
}

}  // namespace hasten::data
