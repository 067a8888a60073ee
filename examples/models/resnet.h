// ResNet 18, 34, 50 and 101 (He et al., 2015) with torchvision's names, resnet50d with timm's, and xresnet (He et al.,
// 2018).
//
// Header only, from scratch: nothing pretrained is shipped. checkpoint::load_weights takes torchvision's files with
// strict = false. The head of resnetN is fastai's of vision_learner: maximum and average pooling side by side, two
// linears without bias.
#pragma once

#include <hasten/learner/groups.h>
#include <torch/torch.h>

#include <string>
#include <vector>

namespace models {

namespace nn = torch::nn;

using Activation = torch::Tensor (*)(const torch::Tensor&);
inline torch::Tensor relu(const torch::Tensor& x) {
  return torch::relu(x);
}
inline torch::Tensor mish(const torch::Tensor& x) {
  return torch::mish(x);
}
inline torch::Tensor swish(const torch::Tensor& x) {
  return torch::silu(x);
}

inline nn::Conv2d conv(int64_t in, int64_t out, int64_t size, int64_t stride = 1, int64_t dilation = 1) {
  return nn::Conv2d(
      nn::Conv2dOptions(in, out, size).stride(stride).dilation(dilation).padding(size / 2 * dilation).bias(false));
}

/// What differs between the families.
struct ResNetOptions {
  /// Blocks of the four stages.
  std::vector<int64_t> blocks = {2, 2, 2, 2};
  /// 1-3-1 blocks that widen by 4.
  bool bottleneck = false;
  /// Three 3x3 convolutions in the place of the 7x7 one, with these widths; empty: the 7x7.
  std::vector<int64_t> stem = {};
  /// The shortcut of a strided block pools before a 1x1 convolution of stride 1.
  bool pooled_shortcut = false;
  bool pools_maximum = false;
  /// The last norm of each block starts at 0.
  bool zero_last_norm = false;
  Activation activation = relu;
  /// fastai's head of vision_learner; false: average pooling and one linear.
  bool vision_head = true;
  double dropout = 0.25;
  int64_t channels = 3;
  /// Stages from this one on keep their resolution and dilate instead (DeepLab: 2).
  int64_t first_dilated = 4;
  /// Self-attention behind the first stage; symmetric weights.
  bool self_attention = false, symmetric = false;
};

/// fastai's SimpleSelfAttention: x + gamma * (x x^T) (W x), W with its spectral norm divided out.
struct SelfAttentionImpl : nn::Module {
  SelfAttentionImpl(int64_t width, bool is_symmetric) : symmetric(is_symmetric) {
    weight = register_parameter("weight", torch::empty({width, width}));
    nn::init::kaiming_normal_(weight);
    gamma = register_parameter("gamma", torch::zeros({1}));
    u = register_buffer("u", torch::randn({width}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    {
      const torch::NoGradGuard no_grad;
      const auto v = torch::mv(weight.t(), u);
      if (is_training())
        u.copy_(torch::nn::functional::normalize(torch::mv(weight, v / v.norm().clamp_min(1e-12)),
                                                 torch::nn::functional::NormalizeFuncOptions().dim(0)));
    }
    const auto v = torch::mv(weight.t(), u);
    auto w = weight / torch::dot(u, torch::mv(weight, (v / v.norm().clamp_min(1e-12)).detach()));
    if (symmetric) w = (w + w.t()) / 2;
    const auto flat = x.flatten(2);
    return torch::bmm(torch::bmm(flat, flat.transpose(1, 2)), torch::matmul(w, flat)).mul(gamma).view_as(x) + x;
  }
  torch::Tensor weight, gamma, u;
  bool symmetric;
};
TORCH_MODULE(SelfAttention);

/// A residual block; names conv1, bn1, …, downsample.N.
struct BlockImpl : nn::Module {
  BlockImpl(int64_t in, int64_t width, int64_t stride, int64_t dilation, const ResNetOptions& o)
      : activation(o.activation) {
    const int64_t out = o.bottleneck ? width * 4 : width;
    const auto add = [&](int64_t from, int64_t to, int64_t size, int64_t step, int64_t spread) {
      const auto number = std::to_string(convs.size() + 1);
      convs.push_back(register_module("conv" + number, conv(from, to, size, step, spread)));
      norms.push_back(register_module("bn" + number, nn::BatchNorm2d(to)));
    };
    if (o.bottleneck) {
      add(in, width, 1, 1, 1);
      add(width, width, 3, stride, dilation);
      add(width, out, 1, 1, 1);
    } else {
      add(in, width, 3, stride, dilation);
      add(width, out, 3, 1, dilation);
    }
    if (o.zero_last_norm) nn::init::zeros_(norms.back()->weight);
    if (stride == 1 && in == out) return;
    downsample = register_module("downsample", nn::Sequential());
    const bool pools = o.pooled_shortcut && stride > 1;
    if (pools && o.pools_maximum)
      downsample->push_back(nn::MaxPool2d(nn::MaxPool2dOptions(2).stride(2).ceil_mode(true)));
    else if (pools)
      downsample->push_back(nn::AvgPool2d(nn::AvgPool2dOptions(2).ceil_mode(true).count_include_pad(false)));
    else if (o.pooled_shortcut)
      downsample->push_back(nn::Identity());
    downsample->push_back(conv(in, out, 1, pools ? 1 : stride));
    downsample->push_back(nn::BatchNorm2d(out));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    auto y = x;
    for (size_t i = 0; i < convs.size(); ++i) {
      y = norms[i](convs[i](y));
      if (i + 1 < convs.size()) y = activation(y);
    }
    return activation(y + (downsample.is_empty() ? x : downsample->forward(x)));
  }

  std::vector<nn::Conv2d> convs;
  std::vector<nn::BatchNorm2d> norms;
  nn::Sequential downsample{nullptr};
  Activation activation;
};
TORCH_MODULE(Block);

/// The convolutions of a ResNet: names conv1, bn1, layer1 … layer4.
struct ResNetBodyImpl : nn::Module {
  explicit ResNetBodyImpl(const ResNetOptions& given) : o(given) {
    int64_t in = 64;
    if (o.stem.empty()) {
      conv1 =
          register_module("conv1", nn::Conv2d(nn::Conv2dOptions(o.channels, in, 7).stride(2).padding(3).bias(false)));
    } else {
      in = o.channels;
      for (size_t i = 0; i < o.stem.size(); ++i) {
        if (i > 0) {
          stem->push_back(nn::BatchNorm2d(in));
          stem->push_back(nn::Functional(o.activation));
        }
        stem->push_back(conv(in, o.stem[i], 3, i == 0 ? 2 : 1));
        in = o.stem[i];
      }
      register_module("conv1", stem);
    }
    norm = register_module("bn1", nn::BatchNorm2d(in));
    int64_t dilation = 1;
    for (int64_t stage = 0; stage < static_cast<int64_t>(o.blocks.size()); ++stage) {
      nn::Sequential blocks;
      const bool dilates = stage >= o.first_dilated;
      const int64_t stride = stage > 0 && !dilates ? 2 : 1, first = dilation;
      if (dilates) dilation *= 2;
      for (int64_t i = 0; i < o.blocks[static_cast<size_t>(stage)]; ++i) {
        // As torchvision: the first block of a dilated stage has the dilation of the stage before.
        blocks->push_back(Block(in, 64LL << stage, i == 0 ? stride : 1, i == 0 ? first : dilation, o));
        in = (64LL << stage) * (o.bottleneck ? 4 : 1);
      }
      if (o.self_attention && stage == 0) blocks->push_back(SelfAttention(in, o.symmetric));
      stages.push_back(register_module("layer" + std::to_string(stage + 1), blocks));
    }
    num_features = in;
    for (const auto& module : modules(false)) {
      if (auto* one = module->as<nn::Conv2d>()) nn::init::kaiming_normal_(one->weight, 0, torch::kFanOut, torch::kReLU);
    }
  }

  /// Features [batch, num_features, height / 32, width / 32], or of higher resolution where stages dilate.
  torch::Tensor features(const torch::Tensor& x) {
    auto y = torch::max_pool2d(o.activation(norm(conv1.is_empty() ? stem->forward(x) : conv1(x))), 3, 2, 1);
    for (auto& stage : stages) y = stage->forward(y);
    return y;
  }

  ResNetOptions o;
  nn::Conv2d conv1{nullptr};
  nn::Sequential stem;
  nn::BatchNorm2d norm{nullptr};
  std::vector<nn::Sequential> stages;
  int64_t num_features = 0;
};

/// A body with a head of `classes` scores.
struct ResNetImpl : ResNetBodyImpl {
  ResNetImpl(int64_t classes, const ResNetOptions& options) : ResNetBodyImpl(options) {
    if (!o.vision_head) {
      fc = register_module("fc", nn::Linear(num_features, classes));
      return;
    }
    head = register_module("head", nn::Sequential(nn::BatchNorm1d(num_features * 2), nn::Dropout(o.dropout),
                                                  nn::Linear(nn::LinearOptions(num_features * 2, 512).bias(false)),
                                                  nn::ReLU(), nn::BatchNorm1d(512), nn::Dropout(o.dropout * 2),
                                                  nn::Linear(nn::LinearOptions(512, classes).bias(false))));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = features(x);
    const auto mean = torch::adaptive_avg_pool2d(y, {1, 1}).flatten(1);
    if (!o.vision_head) return fc(mean);
    return head->forward(torch::cat({torch::amax(y, {2, 3}), mean}, 1));
  }
  nn::Linear fc{nullptr};
  nn::Sequential head{nullptr};
};
TORCH_MODULE(ResNet);

inline ResNet resnet18(int64_t classes, ResNetOptions o = {}) {
  return ResNet(classes, o);
}
inline ResNet resnet34(int64_t classes, ResNetOptions o = {}) {
  o.blocks = {3, 4, 6, 3};
  return ResNet(classes, o);
}
inline ResNet resnet50(int64_t classes, ResNetOptions o = {}) {
  o.bottleneck = true;
  return resnet34(classes, o);
}
inline ResNet resnet101(int64_t classes, ResNetOptions o = {}) {
  o.bottleneck = true;
  o.blocks = {3, 4, 23, 3};
  return ResNet(classes, o);
}
/// timm's resnet50d: deep stem, pooled shortcuts; the fine-tuning examples give it one linear as a head.
inline ResNet resnet50d(int64_t classes, ResNetOptions o = {}) {
  o.stem = {32, 32, 64};
  o.pooled_shortcut = true;
  o.vision_head = false;
  return resnet50(classes, o);
}
/// fastai's xresnet of 18, 34, 50 or 101 layers.
inline ResNet xresnet(int64_t layers, int64_t classes, ResNetOptions o = {}) {
  o.stem = {32, 32, 64};
  o.pooled_shortcut = o.zero_last_norm = true;
  o.vision_head = false;
  return layers == 18   ? resnet18(classes, o)
         : layers == 34 ? resnet34(classes, o)
         : layers == 50 ? resnet50(classes, o)
                        : resnet101(classes, o);
}

/// fastai's groups for fine-tuning: up to layer2, from layer3 on, the head.
inline std::vector<std::vector<torch::Tensor>> resnet_groups(nn::Module& model) {
  std::vector<std::vector<torch::Tensor>> groups(3);
  for (const auto& item : model.named_parameters()) {
    const auto& name = item.key();
    const bool late = name.rfind("layer3", 0) == 0 || name.rfind("layer4", 0) == 0;
    const bool head = name.rfind("head", 0) == 0 || name.rfind("fc", 0) == 0;
    groups[head ? 2 : late ? 1 : 0].push_back(item.value());
  }
  return groups;
}

}  // namespace models
