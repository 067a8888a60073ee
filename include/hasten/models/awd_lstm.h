// AWD-LSTM (Merity, Keskar, Socher, 2017): a language model with dropped weights, and a classifier on its encoder
// (ULMFiT; Howard and Ruder, 2018).
//
// fastai's numbers: embedding 400, hidden 1152, 3 layers, padding token 1. The models give (prediction, raw, dropped)
// for learner::RNNCallback and RNNRegularizer. They keep their hidden state from batch to batch; reset_state() forgets
// it.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <tuple>
#include <vector>

namespace hasten::models {

struct AwdLstmOptions {
  int64_t vocab = 0;
  int64_t embedding = 400, hidden = 1152, layers = 3;
  int64_t padding = 1;
  /// All dropouts are multiplied by it.
  double drop_mult = 0.5;
  double output_p = 0.1, hidden_p = 0.15, input_p = 0.25, embed_p = 0.02, weight_p = 0.2;
  /// Weights of the language model's output are the embedding's.
  bool tie_weights = true;
};

struct AwdEncoderImpl : torch::nn::Module {
  /// Throws: UsageError for sizes below 1.
  explicit AwdEncoderImpl(const AwdLstmOptions& options);
  /// `ids` [batch, steps] -> (raw, dropped) of the last layer, [batch, steps, embedding]. Another batch size than
  /// before forgets the state.
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& ids);
  void reset_state() { state_.clear(); }
  void reset_state(int64_t batch);
  /// The embedding, [vocab, embedding].
  at::Tensor weight;

 private:
  AwdLstmOptions o_;
  std::vector<std::vector<at::Tensor>> weights_, state_;  // by layer
};
TORCH_MODULE(AwdEncoder);

/// Predicts the next token at each step: [batch, steps, vocab].
struct AwdLanguageModelImpl : torch::nn::Module {
  explicit AwdLanguageModelImpl(const AwdLstmOptions& options);
  std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(const at::Tensor& ids);
  void reset_state() { encoder->reset_state(); }
  AwdEncoder encoder{nullptr};

 private:
  at::Tensor weight_, bias_;
};
TORCH_MODULE(AwdLanguageModel);

/// The classifier's head: features between its two linears, and the dropouts before them (fastai's lin_ftrs, ps).
struct AwdHeadOptions {
  int64_t features = 50;
  double input_p = 0.4, features_p = 0.1;
};

/// Concatenates the last step with max and mean over the steps that are no padding, then two linears.
struct AwdClassifierImpl : torch::nn::Module {
  /// The encoder reads `steps_at_once` tokens at a time.
  AwdClassifierImpl(const AwdLstmOptions& options, int64_t classes, int64_t steps_at_once = 72,
                    const AwdHeadOptions& head = {});
  /// `ids` [batch, steps], padded at the front -> scores [batch, classes], and the encoder's outputs.
  std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(const at::Tensor& ids);
  void reset_state() { encoder->reset_state(); }
  AwdEncoder encoder{nullptr};

 private:
  torch::nn::Sequential head_{nullptr};
  int64_t padding_, steps_at_once_;
};
TORCH_MODULE(AwdClassifier);

/// Returns fastai's groups of the classifier: the embedding, each LSTM layer, the head.
std::vector<std::vector<at::Tensor>> awd_groups(torch::nn::Module& model);

}  // namespace hasten::models
