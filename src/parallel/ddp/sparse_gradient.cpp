// See sparse_gradient.h.
#include "parallel/ddp/sparse_gradient.h"

#include "hasten/comm/types/purpose.h"

#include <torch/types.h>

#include <algorithm>

namespace hasten::parallel {

bool exchange_sparse_gradient(const at::Tensor& parameter, const comm::Group& group, double scale) {
  const at::NoGradGuard no_grad;
  const auto options = parameter.options().layout(at::kSparse).requires_grad(false);
  const at::Tensor gradient = parameter.grad();
  const at::Tensor mine =
      gradient.defined() ? gradient.coalesce() : at::sparse_coo_tensor(parameter.sizes(), options).coalesce();
  const comm::Purpose purpose("sparse gradients");
  const at::Tensor rows = at::cat(group.all_gather(mine.indices()[0].contiguous()));
  const at::Tensor values = at::cat(group.all_gather(mine.values().contiguous()));
  if (rows.size(0) == 0) return false;
  parameter.mutable_grad() =
      at::sparse_coo_tensor(rows.unsqueeze(0), values * scale, parameter.sizes(), options).coalesce();
  return true;
}

}  // namespace hasten::parallel
