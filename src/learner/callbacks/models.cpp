// Recurrent models, kept batches and predictions. See learner/callbacks/rnn.h and learner/callbacks/predictions.h.
#include <ATen/ATen.h>

#include "hasten/learner/callbacks/predictions.h"
#include "hasten/learner/callbacks/rnn.h"
#include "hasten/learner/learner.h"

namespace hasten::learner {

void RNNCallback::after_pred(Learner& learn) {
  auto& outputs = learn.predictions();
  raw = outputs.size() > 1 ? outputs[1] : at::Tensor();
  dropped = outputs.size() > 2 ? outputs[2] : at::Tensor();
  outputs.resize(1);
}

void RNNRegularizer::after_loss(Learner& learn) {
  const auto* rnn = learn.find<RNNCallback>();
  if (rnn == nullptr || !rnn->raw.defined() || !rnn->dropped.defined()) {
    throw UsageError(
        Origin{"learner"},
        "rnn_regularizer without hidden outputs; expected RNNCallback and a model that gives (prediction, raw, "
        "dropped).");
  }
  if (alpha != 0) learn.loss_grad() = learn.loss_grad() + rnn->dropped.to(at::kFloat).pow(2).mean() * alpha;
  const auto& h = rnn->raw;
  if (beta != 0 && h.size(1) > 1) {
    const auto steps = h.slice(1, 1) - h.slice(1, 0, h.size(1) - 1);
    learn.loss_grad() = learn.loss_grad() + steps.to(at::kFloat).pow(2).mean() * beta;
  }
}

void ModelResetter::before_train(Learner& learn) {
  learn.model().reset();
}
void ModelResetter::before_validate(Learner& learn) {
  learn.model().reset();
}
void ModelResetter::after_fit(Learner& learn) {
  learn.model().reset();
}

void CollectData::before_fit(Learner& /*learn*/) {
  data.clear();
}
void CollectData::after_batch(Learner& learn) {
  if (learn.predictions().empty()) return;
  data.push_back(
      {{learn.inputs(), learn.targets()}, learn.predictions().front().detach(), learn.loss(), learn.training()});
}

void FetchPreds::after_validate(Learner& learn) {
  if (learn.is_unwinding()) return;
  auto own = options;
  own.inner = true;
  preds = learn.get_preds(own);
}

}  // namespace hasten::learner
