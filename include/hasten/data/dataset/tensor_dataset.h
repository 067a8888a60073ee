// Tensors with a sample a row, as a dataset: the counterpart of torch.utils.data.TensorDataset, whole
// batches.
//
// The tensors may lie in memory or in a mapped file (npy.h, safetensors.h), so this one class serves them all. rows.h
// copies the rows.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/example.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "hasten/data/dataset/rows.h"

namespace hasten::data {

namespace detail {
/// Returns the common first size.
size_t check_tensors(c10::ArrayRef<at::Tensor> tensors);
size_t check_named_tensors(const std::map<std::string, at::Tensor>& tensors);
}  // namespace detail

/// The type of a batch of n tensors: the tensor itself, an Example (data, target), or an array. Each takes
/// `auto& [x, y, …] = batch` from two on.
template <size_t n>
using TensorBatch = std::conditional_t<n == 1, at::Tensor,
                                       std::conditional_t<n == 2, torch::data::Example<>, std::array<at::Tensor, n>>>;

/// Samples are the rows of one or more tensors of the same first size: `TensorDataset(images, labels)`.
/// Batches hold a copy of the rows, [n, …] of each tensor; worker threads share the tensors.
template <size_t n>
class TensorDataset : public torch::data::datasets::BatchDataset<TensorDataset<n>, TensorBatch<n>> {
  static_assert(n > 0, "a TensorDataset needs one tensor at least");

 public:
  static constexpr bool kThreadSafe = true;

  /// Throws: UsageError if a tensor is undefined or has no dimension, or if
  /// their first sizes differ.
  template <std::convertible_to<at::Tensor>... Tensors>
    requires(sizeof...(Tensors) == n)
  explicit TensorDataset(Tensors... tensors)
      : tensors_{std::move(tensors)...}, size_(detail::check_tensors(tensors_)) {}

  TensorBatch<n> get_batch(c10::ArrayRef<size_t> indices) override {
    if constexpr (n == 1) {
      return gather_rows(tensors_[0], indices);
    } else if constexpr (n == 2) {
      return {gather_rows(tensors_[0], indices), gather_rows(tensors_[1], indices)};
    } else {
      TensorBatch<n> batch;
      for (size_t i = 0; i < n; ++i) batch[i] = gather_rows(tensors_[i], indices);
      return batch;
    }
  }
  std::optional<size_t> size() const override { return size_; }
  const std::array<at::Tensor, n>& tensors() const noexcept { return tensors_; }

 private:
  std::array<at::Tensor, n> tensors_;
  size_t size_;
};
template <std::convertible_to<at::Tensor>... Tensors>
TensorDataset(Tensors...) -> TensorDataset<sizeof...(Tensors)>;

/// The same with names: a batch holds [n, …] under each of them. For tensors whose number is only known at
/// run time.
class NamedTensorDataset
    : public torch::data::datasets::BatchDataset<NamedTensorDataset, std::map<std::string, at::Tensor>> {
 public:
  static constexpr bool kThreadSafe = true;

  /// Throws: UsageError if there is no tensor, and as TensorDataset.
  explicit NamedTensorDataset(std::map<std::string, at::Tensor> tensors);

  std::map<std::string, at::Tensor> get_batch(c10::ArrayRef<size_t> indices) override;
  std::optional<size_t> size() const override { return size_; }
  const std::map<std::string, at::Tensor>& tensors() const noexcept { return tensors_; }

 private:
  std::map<std::string, at::Tensor> tensors_;
  size_t size_;
};

}  // namespace hasten::data
