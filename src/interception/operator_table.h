// The operators that interceptors of Level::kOperators may name: each has one kernel at the key.
//
// A kernel that no interceptor of the tensor uses costs 0.1 us a call, so the list has only used operators. These are
// operators with weights, copies, and the operators of SyncBatchNorm, precision and quantised weights.
#pragma once

#include <array>
#include <string_view>

namespace hasten::interception {

// Names without "aten::", with their overload.
inline constexpr std::array kOperatorTable = std::to_array<const char*>({
    "_convolution",
    "_thnn_fused_gru_cell",
    "_thnn_fused_lstm_cell",
    "_to_copy",
    "_weight_norm",
    "add_.Scalar",
    "addmm",
    "addmm_",
    "addmv",
    "baddbmm",
    "batch_norm",
    "bilinear",
    "bmm",
    "clone",
    "conv1d",
    "conv1d.padding",
    "conv2d",
    "conv2d.padding",
    "conv3d",
    "conv3d.padding",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "convolution",
    "cudnn_batch_norm",
    "embedding",
    "embedding_bag",
    "embedding_bag.padding_idx",
    "group_norm",
    "gru.data",
    "gru.input",
    "gru_cell",
    "index_select",
    "instance_norm",
    "layer_norm",
    "linear",
    "lstm.data",
    "lstm.input",
    "lstm_cell",
    "matmul",
    "mkldnn_rnn_layer",
    "mkldnn_rnn_layer_backward",
    "mm",
    "mv",
    "native_batch_norm",
    "native_layer_norm",
    "prelu",
    "rms_norm",
    "rnn_relu.data",
    "rnn_relu.input",
    "rnn_relu_cell",
    "rnn_tanh.data",
    "rnn_tanh.input",
    "rnn_tanh_cell",
    "scaled_dot_product_attention",
    "t",
    "to.device",
    "to.dtype",
    "to.dtype_layout",
});

}  // namespace hasten::interception
