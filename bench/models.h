// The networks whose data-parallel step is measured, with a batch for each; bench/peers/models.py has the
// same.
#pragma once

#include <torch/torch.h>

#include <map>
#include <string>

namespace bench {

/// A network and one batch: cross_entropy(net(data), target) is its loss.
struct Work {
  torch::nn::Sequential net;
  torch::Tensor data, target;
};

/// MLP 512 - width - width - 10 (1.6 M parameters at 1024).
inline Work mlp(int64_t width, int64_t batch) {
  using namespace torch::nn;
  return {Sequential(Linear(512, width), ReLU(), Linear(width, width), ReLU(), Linear(width, 10)),
          torch::randn({batch, 512}), torch::randint(10, {batch}, torch::kLong)};
}

/// 49 linear layers of 22 (25 thousand parameters): a step of little but overhead.
inline Work deep() {
  using namespace torch::nn;
  Sequential net;
  for (int layer = 0; layer < 48; ++layer) {
    net->push_back(Linear(22, 22));
    net->push_back(ReLU());
  }
  net->push_back(Linear(22, 22));
  return {net, torch::randn({32, 22}), torch::randint(22, {32}, torch::kLong)};
}

/// The demo's network.
inline Work cnn() {
  using namespace torch::nn;
  return {Sequential(Conv2d(Conv2dOptions(1, 32, 5).padding(2)), BatchNorm2d(32), ReLU(), MaxPool2d(2),
                     Conv2d(Conv2dOptions(32, 64, 5).padding(2)), BatchNorm2d(64), ReLU(), MaxPool2d(2),
                     Flatten(), Linear(64 * 7 * 7, 64), ReLU(), Linear(64, 10)),
          torch::rand({64, 1, 28, 28}), torch::randint(10, {64}, torch::kLong)};
}

inline torch::nn::Conv2d convolution(int64_t from, int64_t to, int64_t kernel, int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(from, to, kernel).stride(stride).padding(kernel / 2).bias(false));
}

/// Two convolutions beside a shortcut (He et al. 2015).
struct ResidualImpl : torch::nn::Module {
  ResidualImpl(int64_t from, int64_t to, int64_t stride) {
    using namespace torch::nn;
    register_module("body", body = Sequential(convolution(from, to, 3, stride), BatchNorm2d(to), ReLU(),
                                              convolution(to, to, 3, 1), BatchNorm2d(to)));
    if (stride != 1 || from != to) {
      register_module("shortcut", shortcut = Sequential(convolution(from, to, 1, stride), BatchNorm2d(to)));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::relu(body->forward(x) + (shortcut.is_empty() ? x : shortcut->forward(x)));
  }
  torch::nn::Sequential body{nullptr}, shortcut{nullptr};
};
TORCH_MODULE(Residual);

/// ResNet-34 (21 M parameters) on eight images of 64 x 64.
inline Work resnet34() {
  using namespace torch::nn;
  Sequential net(convolution(3, 64, 7, 2), BatchNorm2d(64), ReLU(),
                 MaxPool2d(MaxPool2dOptions(3).stride(2).padding(1)));
  int64_t from = 64;
  for (const auto& [to, blocks] : {std::pair<int64_t, int>{64, 3}, {128, 4}, {256, 6}, {512, 3}}) {
    for (int block = 0; block < blocks; ++block) {
      net->push_back(Residual(from, to, block == 0 && to != 64 ? 2 : 1));
      from = to;
    }
  }
  net->push_back(AdaptiveAvgPool2d(1));
  net->push_back(Flatten());
  net->push_back(Linear(512, 100));
  return {net, torch::randn({8, 3, 64, 64}), torch::randint(100, {8}, torch::kLong)};
}

/// A layer of a transformer's encoder (Vaswani et al. 2017), normalised first, without dropout.
struct EncoderLayerImpl : torch::nn::Module {
  EncoderLayerImpl(int64_t width, int64_t heads) : heads(heads) {
    using namespace torch::nn;
    register_module("norm1", norm1 = LayerNorm(LayerNormOptions({width})));
    register_module("qkv", qkv = Linear(width, 3 * width));
    register_module("out", out = Linear(width, width));
    register_module("mlp", mlp = Sequential(LayerNorm(LayerNormOptions({width})), Linear(width, 4 * width),
                                            ReLU(), Linear(4 * width, width)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const int64_t batch = x.size(0), length = x.size(1), width = x.size(2);
    const auto parts =
        qkv(norm1(x)).view({batch, length, 3, heads, width / heads}).permute({2, 0, 3, 1, 4}).unbind();
    const auto seen = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2]);
    const auto y = x + out(seen.transpose(1, 2).reshape({batch, length, width}));
    return y + mlp->forward(y);
  }
  int64_t heads;
  torch::nn::LayerNorm norm1{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr};
  torch::nn::Sequential mlp{nullptr};
};
TORCH_MODULE(EncoderLayer);

/// A transformer's encoder of six layers (20 M parameters) on eight sequences of 32 tokens.
inline Work transformer() {
  using namespace torch::nn;
  Sequential net{Embedding(1000, 512)};
  for (int layer = 0; layer < 6; ++layer) net->push_back(EncoderLayer(512, 8));
  net->push_back(Linear(512, 1000));
  net->push_back(Flatten(FlattenOptions().start_dim(0).end_dim(1)));
  return {net, torch::randint(1000, {8, 32}, torch::kLong), torch::randint(1000, {8 * 32}, torch::kLong)};
}

}  // namespace bench
