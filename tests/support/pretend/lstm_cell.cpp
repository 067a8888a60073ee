// CUDA's own kernels of an LSTM's cell. The CPU has none, so they are written out here.
#include <ATen/Functions.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

namespace hasten::testing::pretend {
namespace {

at::Tensor with_bias(const at::Tensor& gates, const std::optional<at::Tensor>& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}

// The workspace holds the four gates behind their functions: input, forget, cell, output.
std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                                                       const at::Tensor& cx, const std::optional<at::Tensor>& bias_ih,
                                                       const std::optional<at::Tensor>& bias_hh) {
  const auto gates = (with_bias(input_gates, bias_ih) + with_bias(hidden_gates, bias_hh)).chunk(4, 1);
  const at::Tensor in = gates[0].sigmoid(), forget = gates[1].sigmoid(), cell = gates[2].tanh(),
                   out = gates[3].sigmoid();
  const at::Tensor cy = forget * cx + in * cell;
  return {out * cy.tanh(), cy, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const std::optional<at::Tensor>& grad_hy,
                                                        const std::optional<at::Tensor>& grad_cy, const at::Tensor& cx,
                                                        const at::Tensor& cy, const at::Tensor& workspace,
                                                        bool has_bias) {
  const auto gates = workspace.chunk(4, 1);
  const at::Tensor &in = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3];
  const at::Tensor tanh = cy.tanh();
  const at::Tensor dh = grad_hy && grad_hy->defined() ? *grad_hy : at::zeros_like(cy);
  at::Tensor dc = dh * out * (1 - tanh * tanh);
  if (grad_cy && grad_cy->defined()) dc = dc + *grad_cy;
  const at::Tensor dgates = at::cat({dc * cell * in * (1 - in), dc * cx * forget * (1 - forget),
                                     dc * in * (1 - cell * cell), dh * tanh * out * (1 - out)},
                                    1);
  return {dgates, dc * forget, has_bias ? dgates.sum(0) : at::Tensor()};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("_thnn_fused_lstm_cell", &forward);
  library.impl("_thnn_fused_lstm_cell_backward_impl", &backward);
}

}  // namespace hasten::testing::pretend
