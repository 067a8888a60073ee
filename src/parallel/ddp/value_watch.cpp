// See value_watch.h.
#include "parallel/ddp/value_watch.h"

#include <algorithm>
#include <cstring>

namespace hasten::parallel {

ValueWatch::Noted ValueWatch::look(const at::Tensor& tensor) {
  Noted noted;
  if (!tensor.has_storage() || tensor.layout() != at::kStrided || !tensor.is_cpu()) {
    if (!tensor.is_inference()) noted.version = tensor._version();
    return noted;
  }
  // Where its strides have gaps, bytes between its elements are looked at, too.
  const size_t begin = static_cast<size_t>(tensor.storage_offset()) * tensor.element_size();
  const size_t end = tensor.storage().nbytes();
  if (tensor.numel() == 0 || begin >= end) return noted;
  std::memcpy(noted.first.data(), tensor.const_data_ptr(), std::min(noted.first.size(), end - begin));
  return noted;
}

void ValueWatch::note(const std::vector<at::Tensor>& tensors) {
  noted_.clear();
  for (const at::Tensor& tensor : tensors) noted_.push_back(look(tensor));
}

std::vector<size_t> ValueWatch::changed(const std::vector<at::Tensor>& tensors) const {
  std::vector<size_t> indices;
  for (size_t i = 0; i < std::min(tensors.size(), noted_.size()); ++i) {
    if (look(tensors[i]) != noted_[i]) indices.push_back(i);
  }
  return indices;
}

}  // namespace hasten::parallel
