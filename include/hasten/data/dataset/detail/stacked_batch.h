// Batches of datasets behind torch's Stack, stacked in the memory that a device copies from.
//
// torch's transform stacks in plain memory. A loader that sends batches to a device would copy each of them once more
// on the host, into pinned memory (src/data/loader/detail/staging.h).
#pragma once

#include <torch/data/datasets/map.h>
#include <torch/data/example.h>
#include <torch/data/transforms/stack.h>

#include <utility>
#include <vector>

#include "hasten/data/dataset/rows.h"

namespace hasten::data::detail {

inline torch::data::Example<> stack_samples(std::vector<torch::data::Example<>> samples) {
  std::vector<at::Tensor> data, targets;
  data.reserve(samples.size());
  targets.reserve(samples.size());
  for (auto& sample : samples) {
    data.push_back(std::move(sample.data));
    targets.push_back(std::move(sample.target));
  }
  return {stack_rows(data), stack_rows(targets)};
}

inline torch::data::TensorExample stack_samples(std::vector<torch::data::TensorExample> samples) {
  std::vector<at::Tensor> data;
  data.reserve(samples.size());
  for (auto& sample : samples) data.push_back(std::move(sample.data));
  return stack_rows(data);
}

/// True for torch's transform that stacks samples.
template <class Transform>
inline constexpr bool kStacks = false;
template <class Sample>
inline constexpr bool kStacks<torch::data::transforms::Stack<Sample>> = requires(std::vector<Sample> samples) {
  stack_samples(std::move(samples));
};

/// True for datasets behind a transform of torch's.
template <class Dataset>
inline constexpr bool kIsMapped = false;
template <class Source, class Transform>
inline constexpr bool kIsMapped<torch::data::datasets::MapDataset<Source, Transform>> = !Source::is_stateful;

/// Returns dataset.get_batch(request).
template <class Dataset, class Request>
typename Dataset::BatchType batch_of(Dataset& dataset, const Request& request) {
  if constexpr (kIsMapped<Dataset>) {
    // torch gives references to const to the parts of an object that is not.
    using Transform = typename Dataset::TransformType;
    auto batch = batch_of(const_cast<typename Dataset::DatasetType&>(dataset.dataset()), request);
    if constexpr (kStacks<Transform>) {
      return stack_samples(std::move(batch));
    } else {
      return const_cast<Transform&>(dataset.transform()).apply_batch(std::move(batch));
    }
  } else {
    return dataset.get_batch(request);
  }
}

}  // namespace hasten::data::detail
