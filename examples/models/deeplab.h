// DeepLabV3 (Chen et al., 2017) on a dilated ResNet, with torchvision's names: backbone.…, classifier.0 (ASPP) …
// classifier.4.
#pragma once

#include <torch/torch.h>

#include "models/resnet.h"

namespace models {

/// Convolution, norm, activation; names 0 and 1.
inline nn::Sequential normed_conv(int64_t in, int64_t out, int64_t size, int64_t dilation = 1) {
  return nn::Sequential(conv(in, out, size, 1, dilation), nn::BatchNorm2d(out), nn::ReLU());
}

/// Atrous spatial pyramid pooling: a 1x1 convolution, one for each rate, the pooled image, and their projection.
struct AsppImpl : nn::Module {
  AsppImpl(int64_t in, int64_t out, const std::vector<int64_t>& rates) {
    branches->push_back(normed_conv(in, out, 1).ptr());
    for (const int64_t rate : rates) branches->push_back(normed_conv(in, out, 3, rate).ptr());
    pooled = nn::Sequential(nn::AdaptiveAvgPool2d(1), conv(in, out, 1), nn::BatchNorm2d(out), nn::ReLU());
    branches->push_back(pooled.ptr());
    register_module("convs", branches);
    project = register_module("project", nn::Sequential(conv(out * (static_cast<int64_t>(rates.size()) + 2), out, 1),
                                                        nn::BatchNorm2d(out), nn::ReLU(), nn::Dropout(0.5)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    std::vector<torch::Tensor> parts;
    for (const auto& branch : *branches) parts.push_back(branch->as<nn::Sequential>()->forward(x));
    parts.back() = parts.back().expand({-1, -1, x.size(2), x.size(3)});
    return project->forward(torch::cat(parts, 1));
  }
  nn::ModuleList branches;
  nn::Sequential pooled{nullptr}, project{nullptr};
};
TORCH_MODULE(Aspp);

struct DilatedBodyImpl : ResNetBodyImpl {
  using ResNetBodyImpl::ResNetBodyImpl;
  torch::Tensor forward(const torch::Tensor& x) { return features(x); }
};
TORCH_MODULE(DilatedBody);

struct DeepLabImpl : nn::Module {
  DeepLabImpl(int64_t classes, ResNetOptions body, int64_t width = 256,
              const std::vector<int64_t>& rates = {12, 24, 36}) {
    body.first_dilated = 2;
    backbone = register_module("backbone", DilatedBody(body));
    classifier = register_module("classifier", nn::Sequential(Aspp(backbone->num_features, width, rates),
                                                              conv(width, width, 3), nn::BatchNorm2d(width), nn::ReLU(),
                                                              nn::Conv2d(nn::Conv2dOptions(width, classes, 1))));
  }
  /// Images [batch, 3, height, width] to scores [batch, classes, height, width].
  torch::Tensor forward(const torch::Tensor& x) {
    const auto scores = classifier->forward(backbone->forward(x));
    return torch::upsample_bilinear2d(scores, {x.size(2), x.size(3)}, false);
  }
  DilatedBody backbone{nullptr};
  nn::Sequential classifier{nullptr};
};
TORCH_MODULE(DeepLab);

}  // namespace models
