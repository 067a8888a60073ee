// Parameters that one call steps together, with their gradients and the state of torch::optim's optimizers.
//
// Put together by multi_tensor_step.h, stepped by fused_kernels.h or by foreach_steps.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

namespace hasten::optim::detail {

/// Parameters of one group, device and dtype, at the same step. Their gradients and states lie in memory as
/// they do.
struct ParameterBatch {
  c10::Device device;
  at::ScalarType dtype;
  bool fused;  // for a fused kernel; otherwise for foreach operations
  bool small;  // too small for several threads
  /// Counted from 1, as torch::optim's states count. SGD's is 0 if the momentum is yet to be set.
  int64_t step;
  std::vector<at::Tensor> params = {}, grads = {};
  /// SGD: momentum_buffer. Adam, AdamW: exp_avg, exp_avg_sq, max_exp_avg_sq. Adagrad: sum. RMSprop:
  /// square_avg, momentum_buffer, grad_avg. Empty where the options need none.
  std::array<std::vector<at::Tensor>, 3> states = {};
};

}  // namespace hasten::optim::detail
