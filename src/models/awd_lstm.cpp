// See awd_lstm.h.
#include "hasten/models/awd_lstm.h"

#include <torch/nn/functional/linear.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>

#include "hasten/core/error.h"
#include "hasten/core/number.h"

namespace hasten::models {
namespace {

namespace nn = torch::nn;

// One mask for all steps: [batch, 1, features].
at::Tensor locked_dropout(const at::Tensor& x, double p, bool training) {
  if (!training || p == 0) return x;
  return x * (at::empty({x.size(0), 1, x.size(2)}, x.options()).bernoulli_(1 - p) / (1 - p));
}

}  // namespace

AwdEncoderImpl::AwdEncoderImpl(const AwdLstmOptions& options) : o_(options) {
  if (o_.vocab < 1 || o_.embedding < 1 || o_.hidden < 1 || o_.layers < 1) {
    throw UsageError(Origin{"models"}, "an AWD-LSTM of ", o_.vocab, " words, embedding ", o_.embedding, ", hidden ",
                     o_.hidden, " and ", o_.layers, " layers; expected at least 1 of each. Set AwdLstmOptions::vocab.");
  }
  weight = register_parameter("weight", at::empty({o_.vocab, o_.embedding}).uniform_(-0.1, 0.1));
  for (int64_t i = 0; i < o_.layers; ++i) {
    const int64_t in = i == 0 ? o_.embedding : o_.hidden, out = i == o_.layers - 1 ? o_.embedding : o_.hidden;
    const double bound = 1 / std::sqrt(static_cast<double>(out));
    const auto make = [&](const char* name, at::IntArrayRef sizes) {
      return register_parameter(text("rnn", i, '_', name), at::empty(sizes).uniform_(-bound, bound));
    };
    weights_.push_back({make("weight_ih_l0", {4 * out, in}), make("weight_hh_l0", {4 * out, out}),
                        make("bias_ih_l0", {4 * out}), make("bias_hh_l0", {4 * out})});
  }
}

std::tuple<at::Tensor, at::Tensor> AwdEncoderImpl::forward(const at::Tensor& ids) {
  const bool training = is_training();
  if (state_.empty() || state_.front()[0].size(1) != ids.size(0)) reset_state(ids.size(0));
  at::Tensor table = weight;
  if (training && o_.embed_p > 0) {
    // Whole rows of the table: words, not features.
    const double p = o_.embed_p * o_.drop_mult;
    table = table * (at::empty({o_.vocab, 1}, table.options()).bernoulli_(1 - p) / (1 - p));
  }
  at::Tensor x = locked_dropout(at::embedding(table, ids, o_.padding), o_.input_p * o_.drop_mult, training);
  at::Tensor raw;
  for (size_t i = 0; i < weights_.size(); ++i) {
    auto own = weights_[i];
    own[1] = at::dropout(own[1], o_.weight_p * o_.drop_mult, training);
    auto [out, h, c] = at::lstm(x, {state_[i][0], state_[i][1]}, own, true, 1, 0.0, training, false, true);
    state_[i] = {h.detach(), c.detach()};
    raw = out;
    x = i + 1 < weights_.size() ? locked_dropout(out, o_.hidden_p * o_.drop_mult, training) : out;
  }
  return {raw, locked_dropout(raw, o_.output_p * o_.drop_mult, training)};
}

void AwdEncoderImpl::reset_state(int64_t batch) {
  state_.clear();
  for (const auto& own : weights_) {
    const at::Tensor zeros = at::zeros({1, batch, own[1].size(1)}, own[1].options().requires_grad(false));
    state_.push_back({zeros, zeros.clone()});
  }
}

AwdLanguageModelImpl::AwdLanguageModelImpl(const AwdLstmOptions& o) {
  encoder = register_module("encoder", AwdEncoder(o));
  if (!o.tie_weights)
    weight_ = register_parameter("decoder_weight", at::empty({o.vocab, o.embedding}).uniform_(-0.1, 0.1));
  bias_ = register_parameter("decoder_bias", at::zeros({o.vocab}));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> AwdLanguageModelImpl::forward(const at::Tensor& ids) {
  auto [raw, dropped] = encoder->forward(ids);
  return {at::linear(dropped, weight_.defined() ? weight_ : encoder->weight, bias_), raw, dropped};
}

AwdClassifierImpl::AwdClassifierImpl(const AwdLstmOptions& o, int64_t classes, int64_t steps_at_once,
                                     const AwdHeadOptions& head)
    : padding_(o.padding), steps_at_once_(steps_at_once) {
  encoder = register_module("encoder", AwdEncoder(o));
  head_ = register_module(
      "head", nn::Sequential(nn::BatchNorm1d(3 * o.embedding), nn::Dropout(head.input_p),
                             nn::Linear(3 * o.embedding, head.features), nn::ReLU(), nn::BatchNorm1d(head.features),
                             nn::Dropout(head.features_p), nn::Linear(head.features, classes)));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> AwdClassifierImpl::forward(const at::Tensor& ids) {
  encoder->reset_state(ids.size(0));
  std::vector<at::Tensor> raws, drops;
  for (int64_t at = 0; at < ids.size(1); at += steps_at_once_) {
    auto [raw, dropped] = encoder->forward(ids.slice(1, at, std::min(at + steps_at_once_, ids.size(1))));
    raws.push_back(raw);
    drops.push_back(dropped);
  }
  const at::Tensor raw = at::cat(raws, 1), dropped = at::cat(drops, 1);
  const at::Tensor mask = at::ne(ids, padding_).unsqueeze(2);
  const at::Tensor mean = (dropped * mask).sum(1) / mask.sum(1).clamp_min(1);
  const at::Tensor most = dropped.masked_fill(at::logical_not(mask), -1e9).amax(1);
  const at::Tensor last = dropped.select(1, ids.size(1) - 1);
  return {head_->forward(at::cat({last, most, mean}, 1)), raw, dropped};
}

std::vector<std::vector<at::Tensor>> awd_groups(nn::Module& model) {
  std::vector<std::vector<at::Tensor>> groups(1);
  std::vector<at::Tensor> head;
  for (const auto& item : model.named_parameters()) {
    const std::string& name = item.key();
    const size_t layer = name.find("rnn");
    if (name.starts_with("head") || name.starts_with("decoder")) {
      head.push_back(item.value());
    } else if (layer == std::string::npos) {
      groups[0].push_back(item.value());
    } else {
      const std::string digits = name.substr(layer + 3, name.find('_', layer) - layer - 3);
      const auto index = core::whole_number<size_t>(digits).value() + 1;
      if (groups.size() <= index) groups.resize(index + 1);
      groups[index].push_back(item.value());
    }
  }
  groups.push_back(std::move(head));
  return groups;
}

}  // namespace hasten::models
