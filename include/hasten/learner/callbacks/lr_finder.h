// LrFinder: the LR range test as a callback (Smith, 2015); Learner::lr_find runs it.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "hasten/learner/callback.h"
#include "hasten/learner/learner_options.h"
#include "hasten/learner/recorder.h"

namespace hasten::learner {

/// Raises the rate exponentially with each batch. Cancels the fit behind num_it batches, or when the smoothed loss is 4
/// times its best, on all ranks at the same batch.
struct LrFinder : Callback {
  explicit LrFinder(const LrFindOptions& given = {}) : options(given), num_it(std::max<int64_t>(6, given.num_it)) {}
  std::string_view name() const override { return "lr_finder"; }
  int order() const override { return 60; }
  Phases phases() const override { return Phases::kTrain; }
  PassSet passes() const override { return passes_of(PassKind::kLrFind); }
  void before_batch(Learner& learn) override;
  void after_loss(Learner& learn) override;
  void after_batch(Learner& learn) override;
  void before_validate(Learner& learn) override;

  LrFindOptions options;
  int64_t num_it;
  SmoothLoss smooth{};
  double best = std::numeric_limits<double>::infinity();
  std::vector<double> lrs = {};
};

}  // namespace hasten::learner
