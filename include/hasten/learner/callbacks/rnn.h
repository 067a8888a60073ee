// Callbacks of recurrent models, whose outputs are (prediction, raw, dropped): hidden states and their regularisation.
#pragma once

#include <ATen/core/Tensor.h>

#include "hasten/learner/callback.h"

namespace hasten::learner {

/// Keeps the raw and the dropped-out hidden outputs aside; the model's prediction is the first output.
struct RNNCallback : Callback {
  std::string_view name() const override { return "rnn"; }
  void after_pred(Learner& learn) override;
  /// [batch, steps, hidden], before and behind dropout; undefined where the model gives one output only.
  at::Tensor raw = {}, dropped = {};
};

/// loss += alpha * mean(dropped^2) + beta * mean((raw[:, 1:] - raw[:, :-1])^2) (Merity, 2017). Needs RNNCallback.
struct RNNRegularizer : Callback {
  explicit RNNRegularizer(double activation = 0.0, double temporal = 0.0) : alpha(activation), beta(temporal) {}
  std::string_view name() const override { return "rnn_regularizer"; }
  int order() const override { return 1; }
  Phases phases() const override { return Phases::kTrain; }
  void after_loss(Learner& learn) override;
  double alpha, beta;
};

/// Resets the model's hidden state before training and validation, and behind the fit.
struct ModelResetter : Callback {
  std::string_view name() const override { return "model_resetter"; }
  void before_train(Learner& learn) override;
  void before_validate(Learner& learn) override;
  void after_fit(Learner& learn) override;
};

}  // namespace hasten::learner
