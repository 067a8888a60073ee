// Several datasets, one after the other, as one: the counterpart of torch.utils.data.ConcatDataset.
//
// A batch may take samples from several parts: each part is asked once, for its samples, and the answers are
// put back into the order that was asked for.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "hasten/comm/nested.h"
#include "hasten/core/error.h"
#include "hasten/data/traits.h"

namespace hasten::data {

namespace detail {
/// Which samples of one part a batch wants, and at which places of the batch they belong.
struct PartRequest {
  size_t part;
  std::vector<size_t> samples;
  std::vector<size_t> places;
};
/// `ends`: how many samples there are up to and with each part.
std::vector<PartRequest> part_requests(c10::ArrayRef<size_t> indices, const std::vector<size_t>& ends);
/// The rows of all parts in the batch's order.
at::Tensor merge_rows(const std::vector<at::Tensor>& rows, const std::vector<PartRequest>& requests);
[[noreturn]] void throw_no_parts();
[[noreturn]] void throw_part_of_unknown_size(size_t part);
[[noreturn]] void throw_part_gave(size_t part, size_t given, size_t asked);

/// A vector holds one element a sample; in anything else each tensor has a row a sample.
template <class Batch>
Batch merge_batches(std::vector<Batch> batches, const std::vector<PartRequest>& requests) {
  if constexpr (comm::detail::kIs<Batch, std::vector>) {
    size_t count = 0;
    for (const PartRequest& request : requests) count += request.places.size();
    std::vector<std::optional<typename Batch::value_type>> ordered(count);
    for (size_t i = 0; i < requests.size(); ++i) {
      if (batches[i].size() != requests[i].places.size()) {
        throw_part_gave(requests[i].part, batches[i].size(), requests[i].places.size());
      }
      for (size_t j = 0; j < batches[i].size(); ++j) {
        ordered[requests[i].places[j]].emplace(std::move(batches[i][j]));
      }
    }
    Batch merged;
    merged.reserve(count);
    for (auto& element : ordered) merged.push_back(std::move(*element));
    return merged;
  } else {
    std::vector<std::vector<at::Tensor>> tensors;
    for (const Batch& batch : batches) tensors.push_back(comm::tensors_of(batch));
    size_t next = 0;
    return comm::map_tensors(batches.front(), [&](const at::Tensor&) {
      std::vector<at::Tensor> rows;
      for (size_t i = 0; i < tensors.size(); ++i) {
        if (tensors[i].size() != tensors[0].size()) {
          throw_part_gave(requests[i].part, tensors[i].size(), tensors[0].size());
        }
        rows.push_back(tensors[i][next]);
      }
      ++next;
      return merge_rows(rows, requests);
    });
  }
}
}  // namespace detail

/// The samples of all parts, in the order of the parts. Made by concat(). Parts that are thread-safe are
/// shared by copies and workers, others are copied with it.
template <class Batch, bool kPartsAreThreadSafe>
class ConcatDataset
    : public torch::data::datasets::BatchDataset<ConcatDataset<Batch, kPartsAreThreadSafe>, Batch> {
 public:
  static constexpr bool kThreadSafe = kPartsAreThreadSafe;

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
    for (const auto& request : requests) batches.push_back(parts_[request.part](request.samples));
    // A batch of one part is in order already.
    return batches.size() == 1 ? std::move(batches.front())
                               : detail::merge_batches(std::move(batches), requests);
  }
  std::optional<size_t> size() const override { return ends_.back(); }

 private:
  template <class Dataset>
  void add(Dataset part) {
    const std::optional<size_t> size = std::as_const(part).size();
    if (!size) detail::throw_part_of_unknown_size(parts_.size());
    ends_.push_back((ends_.empty() ? 0 : ends_.back()) + *size);
    if constexpr (kPartsAreThreadSafe) {
      parts_.emplace_back([part = std::make_shared<Dataset>(std::move(part))](c10::ArrayRef<size_t> samples) {
        return part->get_batch(samples);
      });
    } else {
      parts_.emplace_back([part = std::move(part)](c10::ArrayRef<size_t> samples) mutable {
        return part.get_batch(samples);
      });
    }
  }

  std::vector<std::function<Batch(c10::ArrayRef<size_t>)>> parts_;
  std::vector<size_t> ends_;
};

/// The datasets one after the other. They may be of different types if their batches are of one type.
/// Collective: no. Blocks: no. Throws: UsageError if a part does not know its size.
template <class First, class... More>
  requires requires { typename First::BatchType; }
auto concat(First first, More... more) {
  static_assert((std::is_same_v<typename First::BatchType, typename More::BatchType> && ...),
                "concat: the datasets' batches must be of one type");
  constexpr bool kThreadSafe = is_thread_safe<First>::value && (is_thread_safe<More>::value && ...);
  return ConcatDataset<typename First::BatchType, kThreadSafe>(std::move(first), std::move(more)...);
}
/// Collective: no. Blocks: no. Throws: UsageError if there is no part, or one that does not know its size.
template <class Dataset>
auto concat(std::vector<Dataset> parts) {
  return ConcatDataset<typename Dataset::BatchType, is_thread_safe<Dataset>::value>(std::move(parts));
}

}  // namespace hasten::data
