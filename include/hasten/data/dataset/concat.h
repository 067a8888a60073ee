// Several datasets, one after the other, as one: the counterpart of torch.utils.data.ConcatDataset.
//
// A batch may take samples from several parts. Each part is called once, for its samples, and the answers are put back
// into the requested order. Parts with `set_epoch` get the beginning of an epoch.
#pragma once

#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/data/dataset/detail/concat_parts.h"

namespace hasten::data {

/// The samples of all parts, in the order of the parts. Made by concat(), which has the Traits. Parts that are
/// thread-safe are shared by copies and workers, others, and those that take an epoch, are copied with it.
template <class Batch, class Traits>
class ConcatDataset : public torch::data::datasets::BatchDataset<ConcatDataset<Batch, Traits>, Batch> {
 public:
  static constexpr bool kThreadSafe = Traits::kThreadSafe;

  template <class... Datasets>
  explicit ConcatDataset(Datasets... parts) {
    (add(std::move(parts)), ...);
  }
  template <class Dataset>
  explicit ConcatDataset(std::vector<Dataset> parts) {
    if (parts.empty()) detail::throw_no_parts();
    for (Dataset& part : parts) add(std::move(part));
  }

  Batch get_batch(c10::ArrayRef<size_t> indices) override {
    const auto requests = detail::part_requests(indices, ends_);
    std::vector<Batch> batches;
    for (const auto& request : requests) batches.push_back(parts_[request.part].get_batch(request.samples));
    // A batch of one part is in order already.
    return batches.size() == 1 ? std::move(batches.front()) : detail::merge_batches(std::move(batches), requests);
  }
  std::optional<size_t> size() const override { return ends_.back(); }
  /// For the parts with `set_epoch`; loaders call it before each pass.
  void set_epoch(uint64_t epoch)
    requires(Traits::kTakesEpoch)
  {
    for (auto& part : parts_) part.set_epoch(epoch);
  }

 private:
  template <class Dataset>
  void add(Dataset part) {
    const std::optional<size_t> size = std::as_const(part).size();
    if (!size) detail::throw_part_of_unknown_size(parts_.size());
    ends_.push_back((ends_.empty() ? 0 : ends_.back()) + *size);
    parts_.emplace_back(std::in_place, std::move(part));
  }

  std::vector<detail::Part<Batch>> parts_;
  std::vector<size_t> ends_;
};

/// The datasets one after the other. They may be of different types if their batches are of one type.
/// Throws: UsageError if a part has no known size.
template <class First, class... More>
  requires requires { typename First::BatchType; }
auto concat(First first, More... more) {
  static_assert((std::is_same_v<typename First::BatchType, typename More::BatchType> && ...),
                "concat: the datasets' batches must be of one type");
  using Traits = detail::PartTraits<First, More...>;
  return ConcatDataset<typename First::BatchType, Traits>(std::move(first), std::move(more)...);
}
/// Throws: UsageError if there is no part, or one without a known size.
template <class Dataset>
auto concat(std::vector<Dataset> parts) {
  return ConcatDataset<typename Dataset::BatchType, detail::PartTraits<Dataset>>(std::move(parts));
}

}  // namespace hasten::data
