// The samples of a batch, whatever its type: how many, some of them, several batches joined.
//
// A std::vector is a list of samples, as torch's datasets give without a transform. Anything else is a structure
// (comm/nested/nested.h) of tensors with the samples along dim 0 and of vectors with an element a sample. Streams and
// dispatched loaders cut and fill up batches with it. Loaders over map datasets cut lists of indices instead.
#pragma once

#include <cstddef>
#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "hasten/comm/nested/nested_operations.h"
#include "hasten/data/batch/can_be_placed.h"
#include "hasten/data/batch/detail/batch_merge.h"

namespace hasten::data {

namespace detail {
template <class T>
inline constexpr bool kIsList = comm::detail::kIs<T, std::vector>;

/// Refuse what has not one row or element for each of a batch's samples.
void check_rows(const at::Tensor& tensor, size_t num_rows);
void check_elements(size_t given, size_t num_rows);

/// For merge(): the size of the first vector.
struct FirstListSize {
  std::optional<size_t> size;
  at::Tensor tensors(const std::vector<at::Tensor>& of_one) const { return of_one.front(); }
  template <class List>
  List elements(const std::vector<List*>& of_one) {
    if (!size) size = of_one.front()->size();
    return std::move(*of_one.front());
  }
};

/// For merge(): rows [begin, end) of one batch.
struct Slice {
  size_t num_rows, begin, end;
  at::Tensor tensors(const std::vector<at::Tensor>& of_one) const {
    check_rows(of_one.front(), num_rows);
    return comm::slice(of_one.front(), static_cast<int64_t>(begin), static_cast<int64_t>(end));
  }
  template <class List>
  List elements(const std::vector<List*>& of_one) const {
    check_elements(of_one.front()->size(), num_rows);
    const auto first = of_one.front()->begin();
    return List(first + static_cast<std::ptrdiff_t>(begin), first + static_cast<std::ptrdiff_t>(end));
  }
};

/// For merge(): all rows of several batches.
struct Joint {
  std::vector<size_t> num_rows;
  at::Tensor tensors(const std::vector<at::Tensor>& of_each) const {
    for (size_t i = 0; i < of_each.size(); ++i) check_rows(of_each[i], num_rows[i]);
    return comm::concatenate(of_each);
  }
  template <class List>
  List elements(const std::vector<List*>& of_each) const {
    List joined;
    for (size_t i = 0; i < of_each.size(); ++i) {
      check_elements(of_each[i]->size(), num_rows[i]);
      joined.insert(joined.end(), std::make_move_iterator(of_each[i]->begin()),
                    std::make_move_iterator(of_each[i]->end()));
    }
    return joined;
  }
};

/// Returns the samples of a structure: the rows of its first tensor, without tensors the elements of its first vector.
/// Throws: UsageError if it holds neither, or a scalar first.
template <class T>
size_t structure_rows(const T& value) {
  if (comm::tensors_of(value).empty()) {
    T copy = value;
    FirstListSize list;
    merge(std::vector<T*>{&copy}, list);
    if (list.size) return *list.size;
  }
  return static_cast<size_t>(comm::find_batch_size(value));
}

/// Samples [begin, end) of a structure with `num_rows` of them.
/// Throws: UsageError if something in it has not one row or element a sample.
template <class T>
T slice_structure(const T& value, size_t num_rows, size_t begin, size_t end) {
  T part = value;
  Slice slice{num_rows, begin, end};
  merge(std::vector<T*>{&part}, slice);
  return part;
}
}  // namespace detail

/// Whether the samples of such a batch are separable. A struct of yours needs hasten_fields.
template <class Batch>
inline constexpr bool has_rows = detail::kIsList<Batch> || can_be_placed<Batch>;

/// Samples in a batch.
/// Throws: UsageError if a structure holds neither tensor nor vector, or a scalar
/// first.
template <class Batch>
size_t num_rows(const Batch& batch) {
  if constexpr (detail::kIsList<Batch>) {
    return batch.size();
  } else {
    return detail::structure_rows(batch);
  }
}

/// Samples [begin, end) of a batch; views of its tensors. All of them: the batch as it is.
/// Throws: UsageError if something in a structure has not one row or element a
/// sample.
template <class Batch>
Batch slice_rows(const Batch& batch, size_t begin, size_t end) {
  const size_t size = num_rows(batch);
  if (begin == 0 && end == size) return batch;
  if constexpr (detail::kIsList<Batch>) {
    const auto first = batch.begin();
    return Batch(first + static_cast<std::ptrdiff_t>(begin), first + static_cast<std::ptrdiff_t>(end));
  } else {
    return detail::slice_structure(batch, size, begin, end);
  }
}

/// Returns a single batch of all samples, in order. At least one batch; a single one is given back as it is.
/// Throws: UsageError if the structures differ, or the parts that belong to a batch as a
/// whole; UsageError if a value has not one row or element a sample.
template <class Batch>
Batch join_rows(std::vector<Batch> batches) {
  if (batches.size() == 1) return std::move(batches.front());
  detail::Joint joint;
  std::vector<Batch*> pointers;
  for (Batch& batch : batches) {
    joint.num_rows.push_back(num_rows(batch));
    pointers.push_back(&batch);
  }
  if constexpr (detail::kIsList<Batch>) {
    return joint.elements(pointers);
  } else {
    detail::merge(pointers, joint);
    return std::move(batches.front());
  }
}

}  // namespace hasten::data
