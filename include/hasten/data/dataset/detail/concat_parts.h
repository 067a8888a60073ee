// The parts of a concatenation without their types, and the order of their samples. See concat.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "hasten/data/batch/detail/batch_merge.h"
#include "hasten/data/dataset/detail/stacked_batch.h"
#include "hasten/data/sampler/detail/traits.h"

namespace hasten::data::detail {

/// The samples of one part for a batch, and their places in the batch.
struct PartRequest {
  size_t part;
  std::vector<size_t> samples;
  std::vector<size_t> places;
};
/// `ends`: how many samples there are up to and with each part.
std::vector<PartRequest> part_requests(c10::ArrayRef<size_t> indices, const std::vector<size_t>& ends);
/// Returns the rows of all parts in the batch's order.
at::Tensor ordered_rows(const std::vector<at::Tensor>& rows, const std::vector<PartRequest>& requests);
[[noreturn]] void throw_no_parts();
[[noreturn]] void throw_part_of_unknown_size(size_t part);
[[noreturn]] void throw_part_gave(size_t part, size_t given, size_t requested);

/// For merge(): the parts' batches, in the batch's order.
struct InOrder {
  const std::vector<PartRequest>& requests;

  at::Tensor tensors(const std::vector<at::Tensor>& of_parts) const { return ordered_rows(of_parts, requests); }
  template <class List>
  List elements(const std::vector<List*>& of_parts) const {
    size_t count = 0;
    for (const PartRequest& request : requests) count += request.places.size();
    std::vector<std::optional<typename List::value_type>> ordered(count);
    for (size_t i = 0; i < requests.size(); ++i) {
      List& given = *of_parts[i];
      if (given.size() != requests[i].places.size()) {
        throw_part_gave(requests[i].part, given.size(), requests[i].places.size());
      }
      for (size_t j = 0; j < given.size(); ++j) ordered[requests[i].places[j]].emplace(std::move(given[j]));
    }
    List all;
    all.reserve(count);
    for (auto& element : ordered) all.push_back(std::move(*element));
    return all;
  }
};

/// A vector is a list of samples, anything else a structure of tensors and vectors (batch_merge.h).
template <class Batch>
Batch merge_batches(std::vector<Batch> batches, const std::vector<PartRequest>& requests) {
  std::vector<Batch*> pointers;
  for (Batch& batch : batches) pointers.push_back(&batch);
  InOrder in_order{requests};
  if constexpr (comm::detail::kIs<Batch, std::vector>) {
    return in_order.elements(pointers);
  } else {
    merge(pointers, in_order);
    return std::move(batches.front());
  }
}

/// A dataset without its type. Copies share it if threads may, and it takes no epoch: that belongs to one
/// loader.
template <class Batch>
class Part {
 public:
  template <class Dataset>
  explicit Part(std::in_place_t, Dataset dataset) : held_(std::make_shared<Holder<Dataset>>(std::move(dataset))) {}
  Part(const Part& other) : held_(other.held_->copy()) {
    if (!held_) held_ = other.held_;
  }
  Part(Part&&) noexcept = default;
  Part& operator=(Part other) noexcept {
    held_ = std::move(other.held_);
    return *this;
  }

  Batch get_batch(c10::ArrayRef<size_t> samples) { return held_->get_batch(samples); }
  void set_epoch(uint64_t epoch) { held_->set_epoch(epoch); }

 private:
  struct Held {
    virtual ~Held() = default;
    virtual Batch get_batch(c10::ArrayRef<size_t> samples) = 0;
    virtual void set_epoch(uint64_t epoch) = 0;
    virtual std::shared_ptr<Held> copy() const = 0;
  };
  template <class Dataset>
  struct Holder : Held {
    explicit Holder(Dataset dataset) : dataset(std::move(dataset)) {}
    Batch get_batch(c10::ArrayRef<size_t> samples) override { return batch_of(dataset, samples); }
    void set_epoch(uint64_t epoch) override { set_epoch_of(dataset, epoch); }
    std::shared_ptr<Held> copy() const override {
      constexpr bool kCopies =
          !is_thread_safe<Dataset>::value || (takes_epoch<Dataset>::value && std::is_copy_constructible_v<Dataset>);
      if constexpr (kCopies) {
        return std::make_shared<Holder>(dataset);
      } else {
        return nullptr;
      }
    }
    Dataset dataset;
  };

  std::shared_ptr<Held> held_;
};

/// Facts that hold for all parts of a concatenation.
template <class... Datasets>
struct PartTraits {
  static constexpr bool kThreadSafe = (is_thread_safe<Datasets>::value && ...);
  static constexpr bool kTakesEpoch = (takes_epoch<Datasets>::value || ...);
};

}  // namespace hasten::data::detail
