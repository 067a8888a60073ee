// ResNet 18, 34, 50 and 101 (He et al., 2015) with torchvision's names, resnet50d with timm's, and fastai's xresnet.
//
// The head is fastai's of vision_learner, or one linear. Weights are drawn; checkpoint::load_weights takes
// torchvision's files with strict = false. learner::vision_learner makes a Learner of one.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <vector>

namespace hasten::models {

using Activation = at::Tensor (*)(const at::Tensor&);
at::Tensor relu(const at::Tensor& x);
at::Tensor mish(const at::Tensor& x);
at::Tensor silu(const at::Tensor& x);

/// Returns a convolution of odd `size` without bias, padded so that only `stride` changes the resolution.
torch::nn::Conv2d padded_conv(int64_t in, int64_t out, int64_t size, int64_t stride = 1, int64_t dilation = 1);

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
  /// fastai's head: maximum and average pooling side by side, norms, dropout, two linears without bias. false: average
  /// pooling and one linear, "fc".
  bool vision_head = true;
  /// Probability of the head's second dropout; the first has half of it (fastai's ps).
  double dropout = 0.5;
  /// Features between the head's two linears (fastai's lin_ftrs).
  int64_t head_features = 512;
  int64_t channels = 3;
  /// Stages from this one on keep their resolution and dilate instead (DeepLab: 2).
  int64_t first_dilated = 4;
  /// fastai's SimpleSelfAttention behind the first stage; symmetric weights.
  bool self_attention = false, symmetric = false;
};

/// fastai's SimpleSelfAttention: x + gamma * (x x^T) (W x), W with its spectral norm divided out.
struct SimpleSelfAttentionImpl : torch::nn::Module {
  SimpleSelfAttentionImpl(int64_t width, bool symmetric);
  /// `x` [batch, width, height, width of the picture].
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor weight_, gamma_, u_;
  bool symmetric_;
};
TORCH_MODULE(SimpleSelfAttention);

/// A residual block; names conv1, bn1, …, downsample.N.
struct ResNetBlockImpl : torch::nn::Module {
  ResNetBlockImpl(int64_t in, int64_t width, int64_t stride, int64_t dilation, const ResNetOptions& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  std::vector<torch::nn::Conv2d> convs_;
  std::vector<torch::nn::BatchNorm2d> norms_;
  torch::nn::Sequential downsample_{nullptr};
  Activation activation_;
};
TORCH_MODULE(ResNetBlock);

/// The convolutions of a ResNet: names conv1, bn1, layer1 … layer4.
struct ResNetBodyImpl : torch::nn::Module {
  explicit ResNetBodyImpl(const ResNetOptions& options);
  /// Returns features [batch, num_features, height / 32, width / 32], of higher resolution where stages dilate.
  at::Tensor features(const at::Tensor& x);

  ResNetOptions o;
  int64_t num_features = 0;

 private:
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::Sequential stem_;
  torch::nn::BatchNorm2d norm_{nullptr};
  std::vector<torch::nn::Sequential> stages_;
};
TORCH_MODULE(ResNetBody);

/// A body with a head of `classes` scores.
struct ResNetImpl : ResNetBodyImpl {
  ResNetImpl(int64_t classes, const ResNetOptions& options);
  /// `x` [batch, channels, height, width]; scores [batch, classes].
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::Linear fc_{nullptr};
  torch::nn::Sequential head_{nullptr};
};
TORCH_MODULE(ResNet);

/// ResNet of 18, 34, 50 or 101 layers. Throws: UsageError for another number (as xresnet).
ResNet resnet(int64_t layers, int64_t classes, ResNetOptions options = {});
/// timm's resnet50d: deep stem, pooled shortcuts, one linear as a head.
ResNet resnet50d(int64_t classes, ResNetOptions options = {});
/// fastai's xresnet of as many layers: deep stem, pooled shortcuts, zeros in last norms, one linear as a head.
ResNet xresnet(int64_t layers, int64_t classes, ResNetOptions options = {});

/// Returns fastai's groups for fine-tuning: up to layer2, from layer3 on, the head.
std::vector<std::vector<at::Tensor>> resnet_groups(torch::nn::Module& model);

}  // namespace hasten::models
