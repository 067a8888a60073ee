// Small models of the kinds people train, for identity tests.
#pragma once

#include <torch/torch.h>

namespace hasten::testing {

struct MlpImpl : torch::nn::Module {
  MlpImpl() {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) { return second->forward(torch::tanh(first->forward(x))); }
  torch::nn::Linear first{8, 16};
  torch::nn::Linear second{16, 4};
};
TORCH_MODULE(Mlp);

/// The demo's CNN on 8 x 8 images; in eval mode its running statistics are constants.
struct CnnImpl : torch::nn::Module {
  CnnImpl() {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& x) { return head(torch::max_pool2d(torch::relu(norm(conv(x))), 2).flatten(1)); }
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(1, 6, 5).padding(2)};
  torch::nn::BatchNorm2d norm{6};
  torch::nn::Linear head{6 * 4 * 4, 4};
};
TORCH_MODULE(Cnn);

struct EmbeddingModelImpl : torch::nn::Module {
  EmbeddingModelImpl() {
    register_module("embedding", embedding);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& tokens) { return head(embedding(tokens).mean(1)); }
  torch::nn::Embedding embedding{20, 8};
  torch::nn::Linear head{8, 4};
};
TORCH_MODULE(EmbeddingModel);

struct GruModelImpl : torch::nn::Module {
  GruModelImpl() {
    register_module("gru", gru);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& sequence) { return head(std::get<0>(gru(sequence)).select(1, -1)); }
  torch::nn::GRU gru{torch::nn::GRUOptions(8, 12).batch_first(true)};
  torch::nn::Linear head{12, 4};
};
TORCH_MODULE(GruModel);

/// Without dropout, so that ranks and one process compute the same.
struct TransformerModelImpl : torch::nn::Module {
  TransformerModelImpl() {
    register_module("encoder", encoder);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& sequence) { return head(encoder(sequence.transpose(0, 1)).mean(0)); }
  torch::nn::TransformerEncoder encoder{
      torch::nn::TransformerEncoderLayer(
          torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0.0)),
      2};
  torch::nn::Linear head{8, 4};
};
TORCH_MODULE(TransformerModel);

/// A model with a batch for it: `inputs` [24, …] and `targets` [24] of 4 classes, the same for the same seed.
struct Problem {
  at::Tensor inputs;
  at::Tensor targets;
};

/// Sets every parameter from a generator of its own, so that ranks that are threads agree.
inline void initialise(torch::nn::Module& module, uint64_t seed) {
  const torch::NoGradGuard no_grad;
  auto generator = at::detail::createCPUGenerator(seed);
  for (auto& parameter : module.parameters()) parameter.normal_(0, 0.3, generator);
}

inline Problem problem_for(const std::string& model, uint64_t seed = 7) {
  auto generator = at::detail::createCPUGenerator(seed);
  const at::Tensor targets = at::randint(0, 4, {24}, generator, at::TensorOptions().dtype(at::kLong));
  if (model == "embedding")
    return {at::randint(0, 20, {24, 5}, generator, at::TensorOptions().dtype(at::kLong)), targets};
  if (model == "cnn") return {at::randn({24, 1, 8, 8}, generator), targets};
  if (model == "gru" || model == "transformer") return {at::randn({24, 6, 8}, generator), targets};
  return {at::randn({24, 8}, generator), targets};
}

}  // namespace hasten::testing
