// What the loader asks of the types it is given: is it torch's own loader, may threads share the dataset,
// does the sampler draw random numbers. Answered at compile time; specialise for types of your own.
#pragma once

#include <torch/data/datasets/map.h>
#include <torch/data/samplers/distributed.h>
#include <torch/data/samplers/random.h>
#include <torch/data/samplers/sequential.h>
#include <torch/data/transforms/stack.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <type_traits>

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

/// Whether worker threads may call get_batch of one T at the same time. Then they share it; otherwise each
/// worker has its own copy, as in libtorch. A dataset or transform says so itself: `static constexpr bool
/// kThreadSafe = true;`
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

/// Whether a sampler may draw from the default generator at all, and whether it may do so in next() (not only
/// in its constructor and reset()). Ranks agree on what it draws (sampler_stream.h); a `false` here only
/// saves work.
template <class Sampler>
struct draws_random_numbers : std::true_type {};
template <>
struct draws_random_numbers<torch::data::samplers::SequentialSampler> : std::false_type {};
template <class Sampler>
struct draws_in_next : draws_random_numbers<Sampler> {};
template <>
struct draws_in_next<torch::data::samplers::RandomSampler> : std::false_type {};

/// Samples that one pass of the sampler gives: its own size() if it has one, else the size of the dataset
/// that it was made for; nothing if neither is known.
template <class Sampler>
std::optional<size_t> sampler_size(const Sampler& sampler, std::optional<size_t> dataset_size) {
  if constexpr (requires { std::optional<size_t>(sampler.size()); }) {
    return std::optional<size_t>(sampler.size());
  } else {
    return dataset_size;
  }
}

}  // namespace hasten::data
