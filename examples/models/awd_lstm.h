// AWD-LSTM (Merity, Keskar, Socher, 2017): a language model with dropped weights, and a classifier on its encoder.
//
// fastai's numbers: embedding 400, hidden 1152, 3 layers, padding token 1. The model gives (prediction, raw, dropped)
// for RNNCallback and RNNRegularizer and keeps its hidden state from batch to batch; reset_state() forgets it.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

namespace models {

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

/// One mask for all steps: [batch, 1, features].
inline torch::Tensor locked_dropout(const torch::Tensor& x, double p, bool training) {
  if (!training || p == 0) return x;
  const auto mask = torch::empty({x.size(0), 1, x.size(2)}, x.options()).bernoulli_(1 - p) / (1 - p);
  return x * mask;
}

struct AwdEncoderImpl : torch::nn::Module {
  explicit AwdEncoderImpl(const AwdLstmOptions& given) : o(given) {
    embedding = register_parameter("weight", torch::empty({o.vocab, o.embedding}).uniform_(-0.1, 0.1));
    for (int64_t i = 0; i < o.layers; ++i) {
      const int64_t in = i == 0 ? o.embedding : o.hidden, out = i == o.layers - 1 ? o.embedding : o.hidden;
      const double bound = 1 / std::sqrt(static_cast<double>(out));
      const auto make = [&](const char* name, torch::IntArrayRef sizes) {
        return register_parameter("rnn" + std::to_string(i) + "_" + name, torch::empty(sizes).uniform_(-bound, bound));
      };
      weights.push_back({make("weight_ih_l0", {4 * out, in}), make("weight_hh_l0", {4 * out, out}),
                         make("bias_ih_l0", {4 * out}), make("bias_hh_l0", {4 * out})});
    }
  }

  /// `ids` [batch, steps] -> (raw, dropped) of the last layer, [batch, steps, embedding].
  std::tuple<torch::Tensor, torch::Tensor> forward(const torch::Tensor& ids) {
    const bool training = is_training();
    if (state.empty() || state.front()[0].size(1) != ids.size(0)) reset_state(ids.size(0));
    auto table = embedding;
    if (training && o.embed_p > 0) {
      // Whole rows of the table: words, not features.
      const double p = o.embed_p * o.drop_mult;
      table = table * (torch::empty({o.vocab, 1}, table.options()).bernoulli_(1 - p) / (1 - p));
    }
    auto x = locked_dropout(torch::embedding(table, ids, o.padding), o.input_p * o.drop_mult, training);
    torch::Tensor raw;
    for (size_t i = 0; i < weights.size(); ++i) {
      auto own = weights[i];
      own[1] = torch::dropout(own[1], o.weight_p * o.drop_mult, training);
      auto [out, h, c] = at::lstm(x, {state[i][0], state[i][1]}, own, true, 1, 0.0, training, false, true);
      state[i] = {h.detach(), c.detach()};
      raw = out;
      x = i + 1 < weights.size() ? locked_dropout(out, o.hidden_p * o.drop_mult, training) : out;
    }
    return {raw, locked_dropout(raw, o.output_p * o.drop_mult, training)};
  }

  void reset_state() { state.clear(); }
  void reset_state(int64_t batch) {
    state.clear();
    for (const auto& own : weights) {
      const auto zeros = torch::zeros({1, batch, own[1].size(1)}, own[1].options().requires_grad(false));
      state.push_back({zeros, zeros.clone()});
    }
  }

  AwdLstmOptions o;
  torch::Tensor embedding;
  std::vector<std::vector<torch::Tensor>> weights;
  std::vector<std::vector<torch::Tensor>> state;
};
TORCH_MODULE(AwdEncoder);

/// Predicts the next token at each step: [batch, steps, vocab].
struct AwdLanguageModelImpl : torch::nn::Module {
  explicit AwdLanguageModelImpl(const AwdLstmOptions& o) {
    encoder = register_module("encoder", AwdEncoder(o));
    if (!o.tie_weights)
      weight = register_parameter("decoder_weight", torch::empty({o.vocab, o.embedding}).uniform_(-0.1, 0.1));
    bias = register_parameter("decoder_bias", torch::zeros({o.vocab}));
  }
  std::tuple<torch::Tensor, torch::Tensor, torch::Tensor> forward(const torch::Tensor& ids) {
    auto [raw, dropped] = encoder->forward(ids);
    return {torch::linear(dropped, weight.defined() ? weight : encoder->embedding, bias), raw, dropped};
  }
  void reset_state() { encoder->reset_state(); }
  AwdEncoder encoder{nullptr};
  torch::Tensor weight, bias;
};
TORCH_MODULE(AwdLanguageModel);

/// Concatenates the last step with max and mean over the steps that are no padding, then two linears (ULMFiT's head).
struct AwdClassifierImpl : torch::nn::Module {
  AwdClassifierImpl(const AwdLstmOptions& o, int64_t classes, int64_t steps_at_once = 72)
      : padding(o.padding), bptt(steps_at_once) {
    encoder = register_module("encoder", AwdEncoder(o));
    head =
        register_module("head", torch::nn::Sequential(torch::nn::BatchNorm1d(3 * o.embedding), torch::nn::Dropout(0.4),
                                                      torch::nn::Linear(3 * o.embedding, 50), torch::nn::ReLU(),
                                                      torch::nn::BatchNorm1d(50), torch::nn::Dropout(0.1),
                                                      torch::nn::Linear(50, classes)));
  }
  /// `ids` [batch, steps], padded at the front.
  std::tuple<torch::Tensor, torch::Tensor, torch::Tensor> forward(const torch::Tensor& ids) {
    encoder->reset_state(ids.size(0));
    std::vector<torch::Tensor> raws, drops;
    for (int64_t at = 0; at < ids.size(1); at += bptt) {
      auto [raw, dropped] = encoder->forward(ids.slice(1, at, std::min(at + bptt, ids.size(1))));
      raws.push_back(raw);
      drops.push_back(dropped);
    }
    const auto raw = torch::cat(raws, 1), dropped = torch::cat(drops, 1);
    const auto mask = (ids != padding).unsqueeze(2);
    const auto count = mask.sum(1).clamp_min(1);
    const auto mean = (dropped * mask).sum(1) / count;
    const auto most = dropped.masked_fill(~mask, -1e9).amax(1);
    const auto last = dropped.select(1, ids.size(1) - 1);
    return {head->forward(torch::cat({last, most, mean}, 1)), raw, dropped};
  }
  void reset_state() { encoder->reset_state(); }
  AwdEncoder encoder{nullptr};
  torch::nn::Sequential head{nullptr};
  int64_t padding, bptt;
};
TORCH_MODULE(AwdClassifier);

/// fastai's groups of the classifier: the embedding, each LSTM layer, the head.
inline std::vector<std::vector<torch::Tensor>> awd_groups(torch::nn::Module& model) {
  std::vector<std::vector<torch::Tensor>> groups(1);
  std::vector<torch::Tensor> head;
  for (const auto& item : model.named_parameters()) {
    const auto& name = item.key();
    const auto layer = name.find("rnn");
    if (name.rfind("head", 0) == 0)
      head.push_back(item.value());
    else if (layer == std::string::npos)
      groups[0].push_back(item.value());
    else {
      const auto index = static_cast<size_t>(std::stoll(name.substr(layer + 3))) + 1;
      if (groups.size() <= index) groups.resize(index + 1);
      groups[index].push_back(item.value());
    }
  }
  groups.push_back(std::move(head));
  return groups;
}

}  // namespace models
