// Copying rows; see rows.h.
#include "hasten/data/dataset/rows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "data/dataset/pinned_rows.h"
#include "hasten/core/error.h"

namespace hasten::data {

namespace {

bool is_plain_memory(const at::Tensor& values) {
  return values.is_cpu() && values.layout() == at::kStrided && values.is_contiguous() && !values.is_conj() &&
         !values.is_neg() && !values.is_quantized() && !values.requires_grad();
}

at::Tensor index_of(c10::ArrayRef<size_t> indices) {
  const at::Tensor index = at::empty({static_cast<int64_t>(indices.size())}, at::kLong);
  int64_t* to = index.data_ptr<int64_t>();
  for (const size_t position : indices) *to++ = static_cast<int64_t>(position);
  return index;
}

}  // namespace

at::Tensor gather_rows(const at::Tensor& values, c10::ArrayRef<size_t> indices) {
  const auto count = static_cast<size_t>(values.size(0));
  for (const size_t index : indices) check_index(index, count, "a dataset");
  if (!is_plain_memory(values)) return values.index_select(0, index_of(indices).to(values.device()));
  auto shape = values.sizes().vec();
  shape[0] = static_cast<int64_t>(indices.size());
  const at::Tensor rows = empty_rows(shape, values.options());
  const size_t row_bytes = indices.empty() ? 0 : rows.nbytes() / indices.size();
  if (row_bytes == 0) return rows;
  const auto* from = static_cast<const char*>(values.const_data_ptr());
  auto* to = static_cast<char*>(rows.mutable_data_ptr());
  for (const size_t index : indices) {
    std::memcpy(to, from + index * row_bytes, row_bytes);
    to += row_bytes;
  }
  return rows;
}

at::Tensor empty_rows(at::IntArrayRef shape, const at::TensorOptions& options) {
  return at::empty(shape, options.pinned_memory(PinnedRows::are_made()));
}

at::Tensor stack_rows(at::TensorList rows) {
  const auto like_first = [&](const at::Tensor& row) {
    return row.is_cpu() && row.layout() == at::kStrided && !row.is_quantized() && !row.requires_grad() &&
           row.scalar_type() == rows[0].scalar_type();
  };
  if (!PinnedRows::are_made() || rows.empty() || !std::all_of(rows.begin(), rows.end(), like_first)) {
    return at::stack(rows);
  }
  auto shape = rows[0].sizes().vec();
  shape.insert(shape.begin(), static_cast<int64_t>(rows.size()));
  at::Tensor stacked = empty_rows(shape, rows[0].options());
  at::stack_out(stacked, rows);
  return stacked;
}

void check_index(size_t index, size_t count, std::string_view what) {
  if (index < count) return;
  if (count == 0) {
    throw DataError(Origin{"data"}, "", "sample ", index, " of ", what, " that is empty. Check what it was made from.");
  }
  throw DataError(Origin{"data"}, "", "sample ", index, " of ", what, " of ", count, " samples, expected 0 to ",
                  count - 1, ". Make the sampler for this dataset's size.");
}

}  // namespace hasten::data
