// Callbacks that keep batches and predictions.
#pragma once

#include <vector>

#include "hasten/learner/batch.h"
#include "hasten/learner/callback.h"
#include "hasten/learner/predictions.h"

namespace hasten::learner {

/// Keeps every batch with its prediction and loss.
struct CollectData : Callback {
  struct Collected {
    Batch batch;
    at::Tensor prediction, loss;
    bool training;
  };
  std::string_view name() const override { return "collect_data"; }
  void before_fit(Learner& learn) override;
  void after_batch(Learner& learn) override;
  std::vector<Collected> data = {};
};

/// Collects what Learner::get_preds returns from the batches of a validation, from all ranks and without padding.
struct GatherPreds : Callback {
  explicit GatherPreds(PredsOptions given = {}) : options(std::move(given)) {}
  std::string_view name() const override { return "gather_preds"; }
  void before_validate(Learner& learn) override;
  void after_batch(Learner& learn) override;
  at::Tensor joined(const std::vector<at::Tensor>& parts) const;
  PredsOptions options;
  std::vector<at::Tensor> inputs = {}, preds = {}, targets = {}, decoded = {}, losses = {};
};

/// Predictions behind each epoch's validation, of the validation data.
struct FetchPreds : Callback {
  explicit FetchPreds(PredsOptions given = {}) : options(std::move(given)) {}
  std::string_view name() const override { return "fetch_preds"; }
  PassSet passes() const override { return passes_of(PassKind::kFit); }
  bool removed_for_predictions() const override { return true; }
  void after_validate(Learner& learn) override;
  PredsOptions options;
  Predictions preds = {};
};

}  // namespace hasten::learner
