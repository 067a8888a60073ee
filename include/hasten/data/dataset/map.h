// data::map: a dataset behind transforms of its batches, whole ones too. It is the counterpart of libtorch's
// dataset.map(transform), which requires a vector of samples and does not compile if a batch is one object.
//
// A batch is fetched by one call of the dataset and transformed by one call of each transform.
#pragma once

#include <torch/data/datasets/map.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>

#include "hasten/data/dataset/detail/stacked_batch.h"
#include "hasten/data/sampler/detail/traits.h"

namespace hasten::data {

namespace detail {

template <class Batch, class Transform>
auto transformed(Transform& transform, Batch batch) {
  if constexpr (kStacks<Transform>) {
    static_assert(
        requires { stack_samples(std::move(batch)); },
        "data::map: torch's Stack behind a dataset whose batches are whole already. Leave it out");
    return stack_samples(std::move(batch));
  } else if constexpr (requires { transform.apply_batch(std::move(batch)); }) {
    return transform.apply_batch(std::move(batch));
  } else if constexpr (std::invocable<Transform&, Batch>) {
    return std::invoke(transform, std::move(batch));
  } else {
    static_assert(
        requires { transform.apply(std::move(batch)); },
        "data::map: the transform takes no batch of this dataset, neither by apply_batch(batch) nor "
        "as a function of it nor by apply(batch)");
    return transform.apply(std::move(batch));
  }
}

/// A transform in the form that torch's MapDataset takes.
template <class Batch, class Transform>
class BatchTransform {
 public:
  /// An object without state is the same in every copy.
  static constexpr bool kThreadSafe =
      is_thread_safe<Transform>::value || std::is_empty_v<Transform> || std::is_pointer_v<Transform>;
  using InputBatchType = Batch;
  using OutputBatchType = decltype(transformed(std::declval<Transform&>(), std::declval<Batch>()));

  explicit BatchTransform(Transform transform) : transform_(std::move(transform)) {}
  OutputBatchType apply_batch(Batch batch) { return transformed(transform_, std::move(batch)); }
  void set_epoch(uint64_t epoch)
    requires(takes_epoch<Transform>::value)
  {
    set_epoch_of(transform_, epoch);
  }

 private:
  Transform transform_;
};

}  // namespace detail

/// Returns the dataset's batches after these transforms, one after the other. A transform is one of torch's (with
/// `apply_batch`), or any function of a batch. One of torch's transforms of single samples gets a whole batch as if it
/// were one sample. So it must treat all rows alike (torch's Normalize does). Workers have copies of dataset and
/// transforms unless both may be shared (`kThreadSafe`; functions without captures). Works for streams too.
/// Throws: nothing of its own.
template <class Dataset, class First, class... More>
auto map(Dataset dataset, First first, More... more) {
  using Transform = detail::BatchTransform<typename stream_batch<typename Dataset::BatchType>::type, First>;
  torch::data::datasets::MapDataset<Dataset, Transform> mapped(std::move(dataset), Transform(std::move(first)));
  if constexpr (sizeof...(More) == 0) {
    return mapped;
  } else {
    return data::map(std::move(mapped), std::move(more)...);
  }
}

}  // namespace hasten::data
