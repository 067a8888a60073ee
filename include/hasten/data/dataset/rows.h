// Rows of tensors by index: what every dataset over tensors does for a batch.
//
// Copies row by row instead of at::index_select, because the indices come as size_t and rows may lie in a mapped file.
// That is twice as fast for rows of a few kilobytes. Tensors that are not plain memory take index_select.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <string_view>

namespace hasten::data {

/// Rows `indices` of `values` [count, …] as a new tensor [n, …] of the same dtype.
/// Blocks: on the file, if `values` lies in one. Throws: DataError for an index out of range.
at::Tensor gather_rows(const at::Tensor& values, c10::ArrayRef<size_t> indices);

/// Returns memory for the rows of a batch. On a loader's way to a device it is what the device copies from.
at::Tensor empty_rows(at::IntArrayRef shape, const at::TensorOptions& options);

/// Returns torch::stack(rows) [n, …] in such memory.
/// Throws: as torch::stack.
at::Tensor stack_rows(at::TensorList rows);

/// Refuses an index that `what` ("an IDX dataset") of `count` samples does not have.
/// Throws: DataError with the values.
void check_index(size_t index, size_t count, std::string_view what);

}  // namespace hasten::data
