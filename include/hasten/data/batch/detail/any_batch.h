// AnyBatch: a batch whose type only a loader's handle knows, and the functions on one type of batch as a
// table.
//
// The stages of a loader (epoch_pipeline.h) move such batches, so that they are compiled once and not for
// each type.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "hasten/comm/nested/nested.h"
#include "hasten/data/batch/can_be_placed.h"
#include "hasten/data/batch/detail/batch_rows.h"
#include "hasten/data/batch/detail/batch_serialization.h"

namespace hasten::data {

/// Whether a batch of this type can be sent to another rank.
template <class Batch>
inline constexpr bool can_be_dispatched = can_be_placed<Batch> && std::default_initializable<Batch>;

namespace detail {

/// Owns a batch; null: none. Copies are the same batch.
using AnyBatch = std::shared_ptr<void>;

template <class Batch>
AnyBatch any_batch(Batch batch) {
  return std::make_shared<Batch>(std::move(batch));
}
template <class Batch>
Batch& batch_in(const AnyBatch& any) noexcept {
  return *static_cast<Batch*>(any.get());
}

/// The functions on batches of one type; null where the type has none. Each returns a new batch.
struct BatchOperations {
  using OnTensor = std::function<at::Tensor(const at::Tensor&)>;

  /// comm::map_tensors and tensors_of; for types that can be placed.
  AnyBatch (*map_tensors)(const AnyBatch&, const OnTensor&) = nullptr;
  std::vector<at::Tensor> (*tensors_of)(const AnyBatch&) = nullptr;
  AnyBatch (*copy)(const AnyBatch&) = nullptr;
  /// batch_rows.h's functions; for types with rows. join empties its arguments.
  size_t (*num_rows)(const AnyBatch&) = nullptr;
  AnyBatch (*slice)(const AnyBatch&, size_t begin, size_t end) = nullptr;
  AnyBatch (*join)(const std::vector<AnyBatch>&) = nullptr;
  /// batch_serialization.h's functions; for types that can be dispatched.
  void (*write)(ParcelWriter&, const AnyBatch&) = nullptr;
  AnyBatch (*read)(ParcelReader&) = nullptr;
};

template <class Batch>
struct OperationsOf {
  static AnyBatch map_tensors(const AnyBatch& any, const BatchOperations::OnTensor& fn) {
    return any_batch(comm::map_tensors(batch_in<Batch>(any), fn));
  }
  static std::vector<at::Tensor> tensors_of(const AnyBatch& any) { return comm::tensors_of(batch_in<Batch>(any)); }
  static AnyBatch copy(const AnyBatch& any) { return any_batch(Batch(batch_in<Batch>(any))); }
  static size_t num_rows(const AnyBatch& any) { return data::num_rows(batch_in<Batch>(any)); }
  static AnyBatch slice(const AnyBatch& any, size_t begin, size_t end) {
    return any_batch(slice_rows(batch_in<Batch>(any), begin, end));
  }
  static AnyBatch join(const std::vector<AnyBatch>& all) {
    std::vector<Batch> batches;
    batches.reserve(all.size());
    for (const AnyBatch& any : all) batches.push_back(std::move(batch_in<Batch>(any)));
    return any_batch(join_rows(std::move(batches)));
  }
  static void write(ParcelWriter& to, const AnyBatch& any) { detail::write(to, batch_in<Batch>(any)); }
  static AnyBatch read(ParcelReader& from) {
    Batch batch{};
    detail::read(from, batch);
    return any_batch(std::move(batch));
  }
};

/// `kCuts`: batches are copied, cut and joined. `kSends`: they go to other ranks, too.
template <class Batch, bool kCuts, bool kSends>
constexpr BatchOperations batch_operations() {
  using Of = OperationsOf<Batch>;
  BatchOperations all;
  if constexpr (can_be_placed<Batch>) {
    all.map_tensors = &Of::map_tensors;
    all.tensors_of = &Of::tensors_of;
  }
  if constexpr (kCuts) all.copy = &Of::copy;
  if constexpr (kCuts && has_rows<Batch>) {
    all.num_rows = &Of::num_rows;
    all.slice = &Of::slice;
    all.join = &Of::join;
  }
  if constexpr (kSends) {
    all.write = &Of::write;
    all.read = &Of::read;
  }
  return all;
}

}  // namespace detail

}  // namespace hasten::data
