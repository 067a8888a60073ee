// Tracking: losses, hyper-parameters and metrics of a fit go to where runs are shown.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/learner/callback.h"

namespace hasten::learner {

/// Names with values, at a step.
using TrackedValues = std::vector<std::pair<std::string, double>>;
using TrackingSink = std::function<void(const TrackedValues& values, int64_t step)>;

struct TrackingOptions {
  /// Training losses and hyper-parameters each so many batches; 0: epochs only.
  int64_t every = 1;
  bool hypers = true;
};

/// train_loss and each hyper-parameter as NAME_GROUP by batch, the columns of the table by epoch; on the main process. Steps
/// count training batches over all fits: `learn.add(Tracking([&](const auto& values, int64_t step) { … }))`.
struct Tracking : Callback {
  explicit Tracking(TrackingSink to, TrackingOptions given = {}) : sink(std::move(to)), options(given) {}
  std::string_view name() const override { return "tracking"; }
  int order() const override { return 55; }
  bool removed_for_predictions() const override { return true; }
  void before_train(Learner& learn) override;
  void after_batch(Learner& learn) override;
  void after_epoch(Learner& learn) override;
  core::Value state() const override { return core::Value::map({{"step", step}}); }
  void load_state(const core::Value& state) override { step = state.at("step").as_int(); }

  TrackingSink sink;
  TrackingOptions options;
  int64_t step = 0;

 private:
  bool trained_ = false;
};

}  // namespace hasten::learner
