// The ResNets of the library (hasten/models/resnet.h) under the examples' names.
#pragma once

#include <hasten/models/resnet.h>
#include <torch/torch.h>

namespace models {

namespace nn = torch::nn;

using hasten::models::mish;
using hasten::models::relu;
using hasten::models::resnet;
using hasten::models::resnet50d;
using hasten::models::resnet_groups;
using hasten::models::ResNetBody;
using hasten::models::ResNetBodyImpl;
using hasten::models::ResNetOptions;
using hasten::models::silu;
using hasten::models::xresnet;

inline nn::Conv2d conv(int64_t in, int64_t out, int64_t size, int64_t stride = 1, int64_t dilation = 1) {
  return hasten::models::padded_conv(in, out, size, stride, dilation);
}

}  // namespace models
