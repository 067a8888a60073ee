// See resnet.h.
#include "hasten/models/resnet.h"

#include <torch/nn/functional/normalization.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/pooling.h>
#include <torch/types.h>

#include <string>

#include "hasten/core/error.h"

namespace hasten::models {

namespace nn = torch::nn;

at::Tensor relu(const at::Tensor& x) {
  return at::relu(x);
}
at::Tensor mish(const at::Tensor& x) {
  return at::mish(x);
}
at::Tensor silu(const at::Tensor& x) {
  return at::silu(x);
}

nn::Conv2d padded_conv(int64_t in, int64_t out, int64_t size, int64_t stride, int64_t dilation) {
  return nn::Conv2d(
      nn::Conv2dOptions(in, out, size).stride(stride).dilation(dilation).padding(size / 2 * dilation).bias(false));
}

SimpleSelfAttentionImpl::SimpleSelfAttentionImpl(int64_t width, bool symmetric) : symmetric_(symmetric) {
  weight_ = register_parameter("weight", at::empty({width, width}));
  nn::init::kaiming_normal_(weight_);
  gamma_ = register_parameter("gamma", at::zeros({1}));
  u_ = register_buffer("u", at::randn({width}));
}

at::Tensor SimpleSelfAttentionImpl::forward(const at::Tensor& x) {
  if (is_training()) {
    const torch::NoGradGuard no_grad;
    const at::Tensor v = at::mv(weight_.t(), u_);
    u_.copy_(nn::functional::normalize(at::mv(weight_, v / v.norm().clamp_min(1e-12)),
                                       nn::functional::NormalizeFuncOptions().dim(0)));
  }
  const at::Tensor v = at::mv(weight_.t(), u_);
  at::Tensor w = weight_ / at::dot(u_, at::mv(weight_, (v / v.norm().clamp_min(1e-12)).detach()));
  if (symmetric_) w = (w + w.t()) / 2;
  const at::Tensor flat = x.flatten(2);
  return at::bmm(at::bmm(flat, flat.transpose(1, 2)), at::matmul(w, flat)).mul(gamma_).view_as(x) + x;
}

ResNetBlockImpl::ResNetBlockImpl(int64_t in, int64_t width, int64_t stride, int64_t dilation, const ResNetOptions& o)
    : activation_(o.activation) {
  const int64_t out = o.bottleneck ? width * 4 : width;
  const auto add = [&](int64_t from, int64_t to, int64_t size, int64_t step, int64_t spread) {
    const auto number = std::to_string(convs_.size() + 1);
    convs_.push_back(register_module("conv" + number, padded_conv(from, to, size, step, spread)));
    norms_.push_back(register_module("bn" + number, nn::BatchNorm2d(to)));
  };
  if (o.bottleneck) {
    add(in, width, 1, 1, 1);
    add(width, width, 3, stride, dilation);
    add(width, out, 1, 1, 1);
  } else {
    add(in, width, 3, stride, dilation);
    add(width, out, 3, 1, dilation);
  }
  if (o.zero_last_norm) nn::init::zeros_(norms_.back()->weight);
  if (stride == 1 && in == out) return;
  downsample_ = register_module("downsample", nn::Sequential());
  const bool pools = o.pooled_shortcut && stride > 1;
  if (pools && o.pools_maximum) {
    downsample_->push_back(nn::MaxPool2d(nn::MaxPool2dOptions(2).stride(2).ceil_mode(true)));
  } else if (pools) {
    downsample_->push_back(nn::AvgPool2d(nn::AvgPool2dOptions(2).ceil_mode(true).count_include_pad(false)));
  } else if (o.pooled_shortcut) {
    downsample_->push_back(nn::Identity());
  }
  downsample_->push_back(padded_conv(in, out, 1, pools ? 1 : stride));
  downsample_->push_back(nn::BatchNorm2d(out));
}

at::Tensor ResNetBlockImpl::forward(const at::Tensor& x) {
  at::Tensor y = x;
  for (size_t i = 0; i < convs_.size(); ++i) {
    y = norms_[i](convs_[i](y));
    if (i + 1 < convs_.size()) y = activation_(y);
  }
  return activation_(y + (downsample_.is_empty() ? x : downsample_->forward(x)));
}

ResNetBodyImpl::ResNetBodyImpl(const ResNetOptions& options) : o(options) {
  int64_t in = 64;
  if (o.stem.empty()) {
    conv1_ = register_module("conv1", padded_conv(o.channels, in, 7, 2));
  } else {
    in = o.channels;
    for (size_t i = 0; i < o.stem.size(); ++i) {
      if (i > 0) {
        stem_->push_back(nn::BatchNorm2d(in));
        stem_->push_back(nn::Functional(o.activation));
      }
      stem_->push_back(padded_conv(in, o.stem[i], 3, i == 0 ? 2 : 1));
      in = o.stem[i];
    }
    register_module("conv1", stem_);
  }
  norm_ = register_module("bn1", nn::BatchNorm2d(in));
  int64_t dilation = 1;
  for (int64_t stage = 0; stage < static_cast<int64_t>(o.blocks.size()); ++stage) {
    nn::Sequential blocks;
    const bool dilates = stage >= o.first_dilated;
    const int64_t stride = stage > 0 && !dilates ? 2 : 1, first = dilation, width = int64_t{64} << stage;
    if (dilates) dilation *= 2;
    for (int64_t i = 0; i < o.blocks[static_cast<size_t>(stage)]; ++i) {
      // As torchvision: the first block of a dilated stage has the dilation of the stage before.
      blocks->push_back(ResNetBlock(in, width, i == 0 ? stride : 1, i == 0 ? first : dilation, o));
      in = width * (o.bottleneck ? 4 : 1);
    }
    if (o.self_attention && stage == 0) blocks->push_back(SimpleSelfAttention(in, o.symmetric));
    stages_.push_back(register_module("layer" + std::to_string(stage + 1), blocks));
  }
  num_features = in;
  for (const auto& module : modules(false)) {
    if (auto* one = module->as<nn::Conv2d>()) nn::init::kaiming_normal_(one->weight, 0, torch::kFanOut, torch::kReLU);
  }
}

at::Tensor ResNetBodyImpl::features(const at::Tensor& x) {
  const at::Tensor begun = o.activation(norm_(conv1_.is_empty() ? stem_->forward(x) : conv1_(x)));
  at::Tensor y = at::max_pool2d(begun, 3, 2, 1);
  for (auto& stage : stages_) y = stage->forward(y);
  return y;
}

ResNetImpl::ResNetImpl(int64_t classes, const ResNetOptions& options) : ResNetBodyImpl(options) {
  if (!o.vision_head) {
    fc_ = register_module("fc", nn::Linear(num_features, classes));
    return;
  }
  const int64_t pooled = num_features * 2;
  head_ = register_module("head", nn::Sequential(nn::BatchNorm1d(pooled), nn::Dropout(o.dropout / 2),
                                                 nn::Linear(nn::LinearOptions(pooled, o.head_features).bias(false)),
                                                 nn::ReLU(), nn::BatchNorm1d(o.head_features), nn::Dropout(o.dropout),
                                                 nn::Linear(nn::LinearOptions(o.head_features, classes).bias(false))));
}

at::Tensor ResNetImpl::forward(const at::Tensor& x) {
  const at::Tensor y = features(x);
  const at::Tensor mean = at::adaptive_avg_pool2d(y, {1, 1}).flatten(1);
  if (!o.vision_head) return fc_(mean);
  return head_->forward(at::cat({at::amax(y, {2, 3}), mean}, 1));
}

ResNet resnet(int64_t layers, int64_t classes, ResNetOptions o) {
  if (layers != 18 && layers != 34 && layers != 50 && layers != 101) {
    throw UsageError(Origin{"models"}, "a ResNet of ", layers, " layers is not there; expected 18, 34, 50 or 101.");
  }
  o.bottleneck = layers >= 50;
  o.blocks = {3, 4, 6, 3};
  if (layers == 18) o.blocks = {2, 2, 2, 2};
  if (layers == 101) o.blocks = {3, 4, 23, 3};
  return ResNet(classes, o);
}

ResNet resnet50d(int64_t classes, ResNetOptions o) {
  o.stem = {32, 32, 64};
  o.pooled_shortcut = true;
  o.vision_head = false;
  return resnet(50, classes, o);
}

ResNet xresnet(int64_t layers, int64_t classes, ResNetOptions o) {
  o.stem = {32, 32, 64};
  o.pooled_shortcut = o.zero_last_norm = true;
  o.vision_head = false;
  return resnet(layers, classes, o);
}

std::vector<std::vector<at::Tensor>> resnet_groups(nn::Module& model) {
  std::vector<std::vector<at::Tensor>> groups(3);
  for (const auto& item : model.named_parameters()) {
    const std::string& name = item.key();
    const bool late = name.starts_with("layer3") || name.starts_with("layer4");
    const bool head = name.starts_with("head") || name.starts_with("fc");
    groups[head ? 2 : late ? 1 : 0].push_back(item.value());
  }
  return groups;
}

}  // namespace hasten::models
