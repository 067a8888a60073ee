// ResNet 18, 34, 50 and 101 with torchvision's names, so that its weights load if a file is given; xresnet with fastai's stem.
//
// Header only. "From scratch": nothing pretrained is shipped. Heads are fastai's vision_learner's: max and average pooling side
// by side, two batch-normalised linears without bias.
#pragma once

#include <torch/torch.h>

#include <hasten/learner/groups.h>

#include <string>
#include <vector>

namespace models {

namespace nn = torch::nn;

enum class Activation { kReLU, kMish };

inline torch::Tensor activate(const torch::Tensor& x, Activation activation) { return activation == Activation::kReLU ? x.relu() : torch::mish(x); }

inline nn::Conv2d conv(int64_t in, int64_t out, int64_t size, int64_t stride = 1) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2).bias(false));
}

/// What differs between the families.
struct ResNetOptions {
  /// Blocks of the four stages.
  std::vector<int64_t> blocks = {2, 2, 2, 2};
  /// 1-3-1 blocks that widen by 4.
  bool bottleneck = false;
  /// Three 3x3 convolutions in the place of the 7x7 one, with these widths; empty: the 7x7.
  std::vector<int64_t> stem = {};
  /// The shortcut of a strided block pools before a 1x1 convolution of stride 1 (ResNet-D, xresnet).
  bool pooled_shortcut = false;
  /// The last norm of each block starts at 0.
  bool zero_last_norm = false;
  Activation activation = Activation::kReLU;
};

/// One residual block; names conv1, bn1, …, downsample.0, downsample.1.
struct BlockImpl : nn::Module {
  BlockImpl(int64_t in, int64_t width, int64_t stride, const ResNetOptions& o) : activation(o.activation) {
    const int64_t out = o.bottleneck ? width * 4 : width;
    const auto add = [&](int64_t from, int64_t to, int64_t size, int64_t step) {
      const auto number = std::to_string(convs.size() + 1);
      convs.push_back(register_module("conv" + number, conv(from, to, size, step)));
      norms.push_back(register_module("bn" + number, nn::BatchNorm2d(to)));
    };
    if (o.bottleneck) {
      add(in, width, 1, 1);
      add(width, width, 3, stride);
      add(width, out, 1, 1);
    } else {
      add(in, width, 3, stride);
      add(width, out, 3, 1);
    }
    if (o.zero_last_norm) nn::init::zeros_(norms.back()->weight);
    if (stride == 1 && in == out) return;
    nn::Sequential shortcut;
    const bool pools = o.pooled_shortcut && stride > 1;
    if (pools) shortcut->push_back("pool", nn::AvgPool2d(nn::AvgPool2dOptions(2).ceil_mode(true)));
    shortcut->push_back("0", conv(in, out, 1, pools ? 1 : stride));
    shortcut->push_back("1", nn::BatchNorm2d(out));
    downsample = register_module("downsample", shortcut);
  }

  torch::Tensor forward(torch::Tensor x) {
    auto y = x;
    for (size_t i = 0; i < convs.size(); ++i) {
      y = norms[i]->forward(convs[i]->forward(y));
      if (i + 1 < convs.size()) y = activate(y, activation);
    }
    return activate(y + (downsample.is_empty() ? x : downsample->forward(x)), activation);
  }

  std::vector<nn::Conv2d> convs;
  std::vector<nn::BatchNorm2d> norms;
  nn::Sequential downsample{nullptr};
  Activation activation;
};
TORCH_MODULE(Block);


/// A Sequential that can lie in another one.
struct StageImpl : nn::SequentialImpl {
  using SequentialImpl::SequentialImpl;
  torch::Tensor forward(const torch::Tensor& x) { return SequentialImpl::forward(x); }
};
TORCH_MODULE(Stage);

/// Body and head; `classes` outputs. named_groups({"body_stem", "body_stages", "head"}) splits it as fastai does.
struct ResNetImpl : nn::Module {
  ResNetImpl(int64_t classes, const ResNetOptions& o, int64_t channels = 3, double dropout = 0.25) : activation(o.activation) {
    int64_t width = 64;
    if (o.stem.empty()) {
      stem->push_back(nn::Conv2d(nn::Conv2dOptions(channels, 64, 7).stride(2).padding(3).bias(false)));
      stem->push_back(nn::BatchNorm2d(64));
      stem->push_back(nn::Functional(activate, o.activation));
    } else {
      int64_t in = channels;
      for (size_t i = 0; i < o.stem.size(); ++i) {
        stem->push_back(conv(in, o.stem[i], 3, i == 0 ? 2 : 1));
        stem->push_back(nn::BatchNorm2d(o.stem[i]));
        stem->push_back(nn::Functional(activate, o.activation));
        in = o.stem[i];
      }
      width = in;
    }
    stem->push_back(nn::MaxPool2d(nn::MaxPool2dOptions(3).stride(2).padding(1)));
    register_module("body_stem", stem);
    int64_t in = width;
    for (size_t stage = 0; stage < o.blocks.size(); ++stage) {
      const int64_t own = 64LL << stage;
      Stage blocks;
      for (int64_t i = 0; i < o.blocks[stage]; ++i) {
        blocks->push_back(Block(in, own, i == 0 && stage > 0 ? 2 : 1, o));
        in = o.bottleneck ? own * 4 : own;
      }
      stages->push_back(blocks);
    }
    register_module("body_stages", stages);
    head->push_back(nn::BatchNorm1d(in * 2));
    head->push_back(nn::Dropout(dropout));
    head->push_back(nn::Linear(nn::LinearOptions(in * 2, 512).bias(false)));
    head->push_back(nn::Functional(activate, o.activation));
    head->push_back(nn::BatchNorm1d(512));
    head->push_back(nn::Dropout(dropout * 2));
    head->push_back(nn::Linear(nn::LinearOptions(512, classes).bias(false)));
    register_module("head", head);
    for (auto& module : modules(false)) {
      if (auto* convolution = module->as<nn::Conv2d>()) nn::init::kaiming_normal_(convolution->weight, 0, torch::kFanOut, torch::kReLU);
    }
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = stages->forward(stem->forward(x));
    return head->forward(torch::cat({torch::adaptive_avg_pool2d(y, {1, 1}), torch::amax(y, {2, 3}, true)}, 1).flatten(1));
  }

  nn::Sequential stem, stages, head;
  Activation activation;
};
TORCH_MODULE(ResNet);

inline ResNet resnet18(int64_t classes) { return ResNet(classes, ResNetOptions{}); }
inline ResNet resnet34(int64_t classes) { return ResNet(classes, ResNetOptions{.blocks = {3, 4, 6, 3}}); }
inline ResNet resnet50(int64_t classes) { return ResNet(classes, ResNetOptions{.blocks = {3, 4, 6, 3}, .bottleneck = true}); }
inline ResNet resnet101(int64_t classes) { return ResNet(classes, ResNetOptions{.blocks = {3, 4, 23, 3}, .bottleneck = true}); }
/// timm's resnet50d: deep stem, pooled shortcuts.
inline ResNet resnet50d(int64_t classes) {
  return ResNet(classes, ResNetOptions{.blocks = {3, 4, 6, 3}, .bottleneck = true, .stem = {32, 32, 64}, .pooled_shortcut = true});
}
/// fastai's xresnet50 (He et al., "Bag of Tricks", 2018).
inline ResNet xresnet50(int64_t classes, Activation activation = Activation::kReLU) {
  return ResNet(classes, ResNetOptions{.blocks = {3, 4, 6, 3}, .bottleneck = true, .stem = {32, 32, 64}, .pooled_shortcut = true,
                                       .zero_last_norm = true, .activation = activation});
}
inline ResNet xresnet18(int64_t classes, Activation activation = Activation::kReLU) {
  return ResNet(classes, ResNetOptions{.stem = {32, 32, 64}, .pooled_shortcut = true, .zero_last_norm = true, .activation = activation});
}

/// Layer groups of fine-tuning: stem, stages, head.
inline std::vector<std::vector<torch::Tensor>> resnet_groups(nn::Module& model) {
  return hasten::learner::named_groups({"body_stem", "body_stages", "head"})(model);
}

}  // namespace models
