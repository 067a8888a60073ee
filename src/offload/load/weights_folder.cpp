// See weights_folder.h.
#include "offload/load/weights_folder.h"

#include "hasten/core/error.h"
#include "hasten/files/folders/offload_folder.h"
#include "hasten/offload/units/set_tensor.h"

namespace hasten::offload::detail {
namespace {

files::TensorInfo info_of(const NamedTensorRef& item) {
  return {item.name, file_dtype_of(item.tensor.scalar_type()), item.tensor.sizes().vec()};
}

}  // namespace

void write_folder(const std::string& folder, const std::vector<NamedTensorRef>& items) {
  std::vector<files::TensorInfo> infos;
  for (const auto& item : items) {
    const at::Tensor values = item.tensor.detach().cpu().contiguous();
    infos.push_back(info_of(item));
    files::write_offload_weight(folder, infos.back(), values.numel() == 0 ? nullptr : values.const_data_ptr());
  }
  files::merge_offload_index(folder, infos);
}

void require_same_tensors(const files::TensorSource& source, const std::vector<NamedTensorRef>& items,
                          const std::string& folder) {
  for (const auto& item : items) {
    const bool same = source.contains(item.name) &&
                      at::IntArrayRef(source.info(item.name).shape) == item.tensor.sizes() &&
                      scalar_type_of(source.info(item.name).dtype) == item.tensor.scalar_type();
    if (same) continue;
    throw UsageError(Origin{"offload"}, "the offload folder ", folder, " holds another model: '", item.name,
                     "' is not in its index with this shape and dtype. Name an empty folder, or remove that one.");
  }
}

}  // namespace hasten::offload::detail
