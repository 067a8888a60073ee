// The networks whose data-parallel step is measured, with a batch for each; bench/peers/models.py has the
// same.
#pragma once

#include <torch/torch.h>

#include <map>
#include <set>
#include <string>

namespace bench {

namespace nn = torch::nn;

/// A network and one batch: cross_entropy(net(data), target) is its loss.
struct Work {
  nn::Sequential net;
  torch::Tensor data, target;
};

/// MLP 512 - width - width - 10 (1.6 M parameters at 1024).
inline Work mlp(int64_t width, int64_t batch) {
  return {
      nn::Sequential(nn::Linear(512, width), nn::ReLU(), nn::Linear(width, width), nn::ReLU(), nn::Linear(width, 10)),
      torch::randn({batch, 512}), torch::randint(10, {batch}, torch::kLong)};
}

/// 49 linear layers of 22 (25 thousand parameters): a step of little but overhead.
inline Work deep() {
  nn::Sequential net;
  for (int layer = 0; layer < 48; ++layer) {
    net->push_back(nn::Linear(22, 22));
    net->push_back(nn::ReLU());
  }
  net->push_back(nn::Linear(22, 22));
  return {net, torch::randn({32, 22}), torch::randint(22, {32}, torch::kLong)};
}

/// The demo's network.
inline Work cnn() {
  return {nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 32, 5).padding(2)), nn::BatchNorm2d(32), nn::ReLU(),
                         nn::MaxPool2d(2), nn::Conv2d(nn::Conv2dOptions(32, 64, 5).padding(2)), nn::BatchNorm2d(64),
                         nn::ReLU(), nn::MaxPool2d(2), nn::Flatten(), nn::Linear(64 * 7 * 7, 64), nn::ReLU(),
                         nn::Linear(64, 10)),
          torch::rand({64, 1, 28, 28}), torch::randint(10, {64}, torch::kLong)};
}

inline nn::Conv2d convolution(int64_t from, int64_t to, int64_t kernel, int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(from, to, kernel).stride(stride).padding(kernel / 2).bias(false));
}

/// Two convolutions beside a shortcut (He et al. 2015).
struct ResidualImpl : nn::Module {
  ResidualImpl(int64_t from, int64_t to, int64_t stride) {
    register_module("body", body = nn::Sequential(convolution(from, to, 3, stride), nn::BatchNorm2d(to), nn::ReLU(),
                                                  convolution(to, to, 3, 1), nn::BatchNorm2d(to)));
    if (stride != 1 || from != to) {
      register_module("shortcut", shortcut = nn::Sequential(convolution(from, to, 1, stride), nn::BatchNorm2d(to)));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::relu(body->forward(x) + (shortcut.is_empty() ? x : shortcut->forward(x)));
  }
  nn::Sequential body{nullptr}, shortcut{nullptr};
};
TORCH_MODULE(Residual);

/// ResNet-34 (21 M parameters) on eight images of 64 x 64.
inline Work resnet34() {
  nn::Sequential net(convolution(3, 64, 7, 2), nn::BatchNorm2d(64), nn::ReLU(),
                     nn::MaxPool2d(nn::MaxPool2dOptions(3).stride(2).padding(1)));
  int64_t from = 64;
  for (const auto& [to, blocks] : {std::pair<int64_t, int>{64, 3}, {128, 4}, {256, 6}, {512, 3}}) {
    for (int block = 0; block < blocks; ++block) {
      net->push_back(Residual(from, to, block == 0 && to != 64 ? 2 : 1));
      from = to;
    }
  }
  net->push_back(nn::AdaptiveAvgPool2d(1));
  net->push_back(nn::Flatten());
  net->push_back(nn::Linear(512, 100));
  return {net, torch::randn({8, 3, 64, 64}), torch::randint(100, {8}, torch::kLong)};
}

/// A layer of a transformer's encoder (Vaswani et al. 2017), normalised first, without dropout.
struct EncoderLayerImpl : nn::Module {
  EncoderLayerImpl(int64_t width, int64_t heads) : heads(heads) {
    register_module("norm1", norm1 = nn::LayerNorm(nn::LayerNormOptions({width})));
    register_module("qkv", qkv = nn::Linear(width, 3 * width));
    register_module("out", out = nn::Linear(width, width));
    register_module("mlp",
                    mlp = nn::Sequential(nn::LayerNorm(nn::LayerNormOptions({width})), nn::Linear(width, 4 * width),
                                         nn::ReLU(), nn::Linear(4 * width, width)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const int64_t batch = x.size(0), length = x.size(1), width = x.size(2);
    const auto parts = qkv(norm1(x)).view({batch, length, 3, heads, width / heads}).permute({2, 0, 3, 1, 4}).unbind();
    const auto seen = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2]);
    const auto y = x + out(seen.transpose(1, 2).reshape({batch, length, width}));
    return y + mlp->forward(y);
  }
  int64_t heads;
  nn::LayerNorm norm1{nullptr};
  nn::Linear qkv{nullptr}, out{nullptr};
  nn::Sequential mlp{nullptr};
};
TORCH_MODULE(EncoderLayer);

/// A transformer's encoder of six layers (20 M parameters) on eight sequences of 32 tokens, or others.
inline Work transformer(int64_t batch = 8, int64_t length = 32) {
  nn::Sequential net{nn::Embedding(1000, 512)};
  for (int layer = 0; layer < 6; ++layer) net->push_back(EncoderLayer(512, 8));
  net->push_back(nn::Linear(512, 1000));
  net->push_back(nn::Flatten(nn::FlattenOptions().start_dim(0).end_dim(1)));
  return {net, torch::randint(1000, {batch, length}, torch::kLong),
          torch::randint(1000, {batch * length}, torch::kLong)};
}

inline const std::set<std::string> kModels = {"mlp", "deep", "cnn", "resnet34", "transformer"};

/// One of kModels; `width` and `batch` are the mlp's.
inline Work work(const std::string& model, int64_t width = 1024, int64_t batch = 32) {
  if (model == "deep") return deep();
  if (model == "cnn") return cnn();
  if (model == "resnet34") return resnet34();
  if (model == "transformer") return transformer();
  return mlp(width, batch);
}

}  // namespace bench
