// channels_last: convolutional networks with the channels of a pixel side by side in memory (NHWC).
//
// Convolutions, batch normalisation and pooling then work along the channels. The demo's network takes a quarter to a
// third less time on a CPU with AVX-512 (docs/benchmarks.md). Tensor cores of GPUs work in this order. libtorch's
// Module::to cannot ask for it, as PyTorch's can (`memory_format=`; fastai's ChannelsLast callback).
#pragma once

#include <torch/nn/module.h>

#include "hasten/parallel/model/prepared_model.h"

namespace hasten::parallel {

/// Gives the parameters and buffers of four dimensions (of five: 3D convolutions) this order, in place. The outputs of
/// a convolution with such a weight have it too, and so on through the network. Inputs may have either order. Shapes,
/// values, names and results stay as they are, but for rounding. torch::save keeps the order. Before prepare, or
/// between two steps.
/// Throws: the exceptions of the allocator.
void channels_last(torch::nn::Module& model);

/// The same for holders (TORCH_MODULE) and shared pointers.
template <class M>
  requires detail::is_module_pointer<M>::value
void channels_last(M model) {
  channels_last(static_cast<torch::nn::Module&>(module_of(model)));
}

}  // namespace hasten::parallel
