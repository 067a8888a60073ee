// Parameters of which no rank has all: stage 3 on devices. Reading one is a collective.
#pragma once

#include <ATen/core/Tensor.h>

namespace hasten::parallel {

/// Returns true if a read of the tensor, a split parameter or a view of one, has its unit gathered from all ranks.
bool is_in_parts(const at::Tensor& tensor);

}  // namespace hasten::parallel
