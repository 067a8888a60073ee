// Questions of the loader about its types: is it torch's own loader, may threads share the dataset,
// does the sampler draw random numbers. Answered at compile time; specialise for types of your own.
#pragma once

#include <torch/data/datasets/map.h>
#include <torch/data/samplers/distributed.h>
#include <torch/data/samplers/random.h>
#include <torch/data/samplers/sequential.h>
#include <torch/data/transforms/stack.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "hasten/data/sampler/samplers.h"

namespace torch::data {
template <typename Dataset, typename Batch, typename BatchRequest>
class DataLoaderBase;
}  // namespace torch::data

namespace hasten::data {

namespace detail {
template <class D, class B, class R>
std::true_type torch_loader(const torch::data::DataLoaderBase<D, B, R>*);
std::false_type torch_loader(const void*);
}  // namespace detail

/// Whether T is a loader made by torch::data::make_data_loader (or the unique_ptr of one). Its sampler is
/// private, so it cannot be spread over ranks: `prepare` refuses it at compile time and names data::loader
/// instead.
template <class T>
struct is_torch_loader : decltype(detail::torch_loader(static_cast<std::remove_cv_t<T>*>(nullptr))) {};
template <class T, class Deleter>
struct is_torch_loader<std::unique_ptr<T, Deleter>> : is_torch_loader<T> {};
template <class T>
struct is_torch_loader<std::shared_ptr<T>> : is_torch_loader<T> {};
template <class T>
inline constexpr bool is_torch_loader_v = is_torch_loader<std::remove_cvref_t<T>>::value;

/// Whether worker threads may call get_batch of one T at the same time. Then they share it; otherwise each worker has
/// its own copy, as in libtorch. A dataset or transform declares it itself: `static constexpr bool kThreadSafe = true;`
template <class T>
struct is_thread_safe : std::false_type {};
template <class T>
  requires requires { T::kThreadSafe; }
struct is_thread_safe<T> : std::bool_constant<T::kThreadSafe> {};
template <class T>
struct is_thread_safe<torch::data::transforms::Stack<T>> : std::true_type {};
template <class Dataset, class Transform>
struct is_thread_safe<torch::data::datasets::MapDataset<Dataset, Transform>>
    : std::bool_constant<is_thread_safe<Dataset>::value && is_thread_safe<Transform>::value> {};

/// Whether T is one of torch's datasets that return "the next n samples" instead of positions: streams, chunks, and
/// transforms of them.
template <class T>
inline constexpr bool is_stream_v = [] {
  if constexpr (requires { typename T::BatchRequestType; }) {
    return std::is_same_v<typename T::BatchRequestType, size_t>;
  } else {
    return false;
  }
}();

/// The type of a stream's batches when they come: stateful datasets wrap them in an optional.
template <class T>
struct stream_batch {
  using type = T;
};
template <class T>
struct stream_batch<std::optional<T>> {
  using type = T;
};

/// Whether a sampler gives batches of its own making (batch_sampler.h), for any requested batch size. An own one has
/// `std::optional<size_t> batch_size() const` (nothing: of any size), `num_batches()`, `batch_length(i)` in any order,
/// and `largest_batch()`.
template <class Sampler>
inline constexpr bool gives_batches = requires(const Sampler& sampler) {
  std::optional<size_t>(sampler.batch_size());
  size_t{sampler.num_batches()};
  size_t{sampler.batch_length(size_t{})};
  size_t{sampler.largest_batch()};
};

/// Whether a sampler gives one rank's part of the order, so that a loader must not divide it once more.
template <class Sampler>
struct gives_a_ranks_part : std::is_base_of<torch::data::samplers::DistributedSampler<std::vector<size_t>>, Sampler> {};

/// Passes the beginning epoch to a dataset that has `set_epoch(uint64_t)`, also behind torch's transforms; nothing for
/// others. Loaders call it before each pass, for every worker's copy.
template <class Dataset>
void set_epoch_of(Dataset& dataset, uint64_t epoch) {
  if constexpr (requires { dataset.set_epoch(epoch); }) dataset.set_epoch(epoch);
}
template <class Dataset, class Transform>
void set_epoch_of(torch::data::datasets::MapDataset<Dataset, Transform>& dataset, uint64_t epoch) {
  // MapDataset shows what it holds as const only, but it is no const object.
  set_epoch_of(const_cast<Dataset&>(dataset.dataset()), epoch);
  set_epoch_of(const_cast<Transform&>(dataset.transform()), epoch);
}
template <class Dataset>
    struct takes_epoch : std::bool_constant < requires(Dataset& dataset) {
  dataset.set_epoch(uint64_t{});
} > {};
template <class Dataset, class Transform>
struct takes_epoch<torch::data::datasets::MapDataset<Dataset, Transform>>
    : std::bool_constant<takes_epoch<Dataset>::value || takes_epoch<Transform>::value> {};

/// Whether a stream, also behind torch's transforms, can begin in mid-epoch. It then has `seek(size_t position)`, after
/// which it gives the samples of the epoch from that place on. Loaders call it after reset().
template <class Dataset>
    struct can_seek : std::bool_constant < requires(Dataset& dataset) {
  dataset.seek(size_t{});
} > {};
template <class Dataset, class Transform>
struct can_seek<torch::data::datasets::MapDataset<Dataset, Transform>> : can_seek<Dataset> {};
template <class Dataset>
void seek_in(Dataset& dataset, size_t position) {
  dataset.seek(position);
}
template <class Dataset, class Transform>
void seek_in(torch::data::datasets::MapDataset<Dataset, Transform>& dataset, size_t position) {
  seek_in(const_cast<Dataset&>(dataset.dataset()), position);
}

/// Whether a sampler may draw from the default generator at all. Whether it may do so in next() (not only in its
/// constructor and reset()). Ranks agree on its draws (sampler_stream.h); a `false` here only saves work.
template <class Sampler>
struct draws_random_numbers : std::bool_constant<!std::is_base_of_v<SeedableSampler, Sampler>> {};
template <>
struct draws_random_numbers<torch::data::samplers::SequentialSampler> : std::false_type {};
template <class Sampler>
struct draws_in_next : draws_random_numbers<Sampler> {};
template <>
struct draws_in_next<torch::data::samplers::RandomSampler> : std::false_type {};

/// Number of samples in one pass of the sampler. It is its own size() if it has one, else the size of the dataset that
/// it was made for. Nothing if neither is known.
template <class Sampler>
std::optional<size_t> sampler_size(const Sampler& sampler, std::optional<size_t> dataset_size) {
  if constexpr (requires { std::optional<size_t>(sampler.size()); }) {
    return std::optional<size_t>(sampler.size());
  } else {
    return dataset_size;
  }
}

}  // namespace hasten::data
