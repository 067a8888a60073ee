// A small 3D U-Net (Çiçek et al., 2016): two levels down, two up.
#pragma once

#include <torch/torch.h>

namespace models {

inline torch::nn::Sequential two_convolutions(int64_t from, int64_t to) {
  namespace nn = torch::nn;
  const auto convolution = [](int64_t in, int64_t out) {
    return nn::Conv3d(nn::Conv3dOptions(in, out, 3).padding(1).bias(false));
  };
  return nn::Sequential(convolution(from, to), nn::BatchNorm3d(to), nn::ReLU(), convolution(to, to),
                        nn::BatchNorm3d(to), nn::ReLU());
}

// Two levels down, two up, with the features of each level handed across; logits [batch, 1, …].
struct UNetImpl : torch::nn::Module {
  explicit UNetImpl(int64_t c)
      : down1(register_module("down1", two_convolutions(1, c))),
        down2(register_module("down2", two_convolutions(c, 2 * c))),
        bottom(register_module("bottom", two_convolutions(2 * c, 4 * c))),
        widen2(register_module("widen2", upsampling(4 * c, 2 * c))),
        up2(register_module("up2", two_convolutions(4 * c, 2 * c))),
        widen1(register_module("widen1", upsampling(2 * c, c))),
        up1(register_module("up1", two_convolutions(2 * c, c))),
        head(register_module("head", torch::nn::Conv3d(torch::nn::Conv3dOptions(c, 1, 1)))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    const auto level1 = down1->forward(x);
    const auto level2 = down2->forward(torch::max_pool3d(level1, 2));
    const auto lowest = bottom->forward(torch::max_pool3d(level2, 2));
    const auto back2 = up2->forward(torch::cat({widen2(lowest), level2}, 1));
    return head(up1->forward(torch::cat({widen1(back2), level1}, 1)));
  }

  static torch::nn::ConvTranspose3d upsampling(int64_t from, int64_t to) {
    return torch::nn::ConvTranspose3d(torch::nn::ConvTranspose3dOptions(from, to, 2).stride(2));
  }

  torch::nn::Sequential down1, down2, bottom;
  torch::nn::ConvTranspose3d widen2;
  torch::nn::Sequential up2;
  torch::nn::ConvTranspose3d widen1;
  torch::nn::Sequential up1;
  torch::nn::Conv3d head;
};
TORCH_MODULE(UNet);

}  // namespace models
