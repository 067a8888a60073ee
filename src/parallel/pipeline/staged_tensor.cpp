// See staged_tensor.h.
#include "parallel/pipeline/staged_tensor.h"

#include <c10/core/DispatchKeySet.h>

#include <utility>

namespace hasten::parallel::pipeline {

StagedTensor::StagedTensor(std::shared_ptr<StageAxis> axis, c10::Device device, StagedValue value)
    : c10::TensorImpl(c10::DispatchKeySet(), c10::scalarTypeToTypeMeta(value.facts.dtype),
                      value.facts.is_on_cpu ? c10::Device(c10::kCPU) : device),
      axis_(std::move(axis)),
      value_(std::move(value)) {
  set_sizes_contiguous(value_.facts.sizes);
  extra_meta_ = std::make_unique<c10::ExtraMeta>();
  extra_meta_->custom_data_ptr_error_msg_ =
      "A value on a stage of a pipeline has no memory of its own. Use item(), or parallel::value_everywhere(x) on all "
      "ranks.";
}

StagedTensor* StagedTensor::of(const at::Tensor& tensor) noexcept {
  if (!tensor.defined()) return nullptr;
  auto* const impl = tensor.unsafeGetTensorImpl();
  // All of them have a list of interceptors; few other tensors do.
  return impl->get_backend_meta() == nullptr ? nullptr : dynamic_cast<StagedTensor*>(impl);
}

void StagedTensor::become(StagedValue value) {
  value_ = std::move(value);
  copies_.clear();
  set_sizes_contiguous(value_.facts.sizes);
}

}  // namespace hasten::parallel::pipeline
