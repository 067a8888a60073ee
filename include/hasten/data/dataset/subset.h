// A part of a dataset, and random parts of it: Subset and random_split, as torch.utils.data has them.
//
// A subset calls the dataset once a batch, so a subset of a dataset of whole batches fetches whole batches. It passes
// on the beginning of an epoch. The decisions (how long each part is, which sample goes where) are pure functions.
#pragma once

#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/data/dataset/detail/stacked_batch.h"
#include "hasten/data/dataset/rows.h"
#include "hasten/data/sampler/detail/traits.h"

namespace hasten::data {

/// How many of `size` samples each fraction gives: rounded down, then what is left over one by one from the
/// first on, as PyTorch does.
/// Throws: UsageError if a fraction is outside [0, 1] or they do not sum to 1.
std::vector<size_t> split_lengths(size_t size, const std::vector<double>& fractions);

/// Positions 0 … size-1 in the random order of `seed` (PyTorch's randperm), cut into parts of these lengths.
/// Throws: UsageError if the lengths do not sum to `size`.
std::vector<std::vector<size_t>> split_indices(size_t size, const std::vector<size_t>& lengths, uint64_t seed);

namespace detail {
void check_subset(const std::vector<size_t>& indices, size_t size);
[[noreturn]] void throw_split_of_unknown_size();
[[noreturn]] void throw_negative_length(long long length);
}  // namespace detail

/// The samples of `dataset` at `indices`, in that order; batches are the dataset's. Copies share the
/// indices.
template <class Dataset>
class Subset : public torch::data::datasets::BatchDataset<Subset<Dataset>, typename Dataset::BatchType> {
 public:
  static constexpr bool kThreadSafe = is_thread_safe<Dataset>::value;

  /// Throws: UsageError for an index that the dataset does not have.
  Subset(Dataset dataset, std::vector<size_t> indices)
      : dataset_(std::move(dataset)), indices_(std::make_shared<const std::vector<size_t>>(std::move(indices))) {
    if (const std::optional<size_t> size = dataset_.size()) detail::check_subset(*indices_, *size);
  }

  typename Dataset::BatchType get_batch(c10::ArrayRef<size_t> positions) override {
    std::vector<size_t> chosen;
    chosen.reserve(positions.size());
    for (const size_t position : positions) {
      check_index(position, indices_->size(), "a subset");
      chosen.push_back((*indices_)[position]);
    }
    return detail::batch_of(dataset_, chosen);
  }
  std::optional<size_t> size() const override { return indices_->size(); }
  /// For a dataset with `set_epoch`; loaders call it before each pass.
  void set_epoch(uint64_t epoch)
    requires(takes_epoch<Dataset>::value)
  {
    set_epoch_of(dataset_, epoch);
  }
  const Dataset& dataset() const noexcept { return dataset_; }
  const std::vector<size_t>& indices() const noexcept { return *indices_; }

 private:
  Dataset dataset_;
  std::shared_ptr<const std::vector<size_t>> indices_;
};

/// Splits the dataset into random parts that do not overlap. By fractions: `random_split(dataset, {0.9, 0.1}, seed)`.
/// By lengths: `random_split(dataset, {54000, 6000}, seed)`. The same parts as PyTorch's random_split with a generator
/// of that seed.
/// Throws: UsageError if the fractions do not sum to 1 (within 1e-9) or the lengths to the
/// dataset's size; UsageError if the dataset has no known size.
template <class Dataset, class Part>
  requires std::is_arithmetic_v<Part>
std::vector<Subset<Dataset>> random_split(const Dataset& dataset, const std::vector<Part>& parts, uint64_t seed) {
  const std::optional<size_t> size = dataset.size();
  if (!size) detail::throw_split_of_unknown_size();
  std::vector<size_t> lengths;
  if constexpr (std::floating_point<Part>) {
    lengths = split_lengths(*size, std::vector<double>(parts.begin(), parts.end()));
  } else {
    for (const Part part : parts) {
      if (std::cmp_less(part, 0)) detail::throw_negative_length(static_cast<long long>(part));
      lengths.push_back(static_cast<size_t>(part));
    }
  }
  std::vector<Subset<Dataset>> subsets;
  for (auto& indices : split_indices(*size, lengths, seed)) subsets.emplace_back(dataset, std::move(indices));
  return subsets;
}
template <class Dataset, class Part>
  requires std::is_arithmetic_v<Part>
std::vector<Subset<Dataset>> random_split(const Dataset& dataset, std::initializer_list<Part> parts, uint64_t seed) {
  return random_split(dataset, std::vector<Part>(parts), seed);
}

}  // namespace hasten::data
