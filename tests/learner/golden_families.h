// What the golden families of the Learner share, and the functions that run them; one file for each kind.
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "hasten/learner/learner.h"
#include "learner/golden_models.h"
#include "support/golden.h"

namespace hasten::learner {

/// A model of one weight for cases about events and values only.
struct OneWeightImpl : torch::nn::Module {
  OneWeightImpl() { weight = register_parameter("weight", at::zeros({1})); }
  at::Tensor forward(const at::Tensor& x) { return x * weight; }
  at::Tensor weight;
};
TORCH_MODULE(OneWeight);

inline std::vector<Batch> ones(int64_t count) {
  return std::vector<Batch>(static_cast<size_t>(count), Batch{{at::ones({2, 1})}, {at::ones({2, 1})}});
}

inline std::optional<Event> event_named(const std::string& name) {
  for (size_t i = 0; i < kNumEvents; ++i) {
    if (name_of(static_cast<Event>(i)) == name) return static_cast<Event>(i);
  }
  return std::nullopt;
}

/// Calls a function at every event.
struct Every : Callback {
  using Function = std::function<void(Learner&, Event)>;
  Every(std::string own_name, int own_order, Function own)
      : called(std::move(own_name)), place(own_order), function(std::move(own)) {}
  std::string_view name() const override { return called; }
  int order() const override { return place; }
#define HASTEN_EVENT(method, event) \
  void method(Learner& learn) override { function(learn, Event::event); }
  HASTEN_EVENT(before_fit, kBeforeFit)
  HASTEN_EVENT(before_epoch, kBeforeEpoch)
  HASTEN_EVENT(before_train, kBeforeTrain)
  HASTEN_EVENT(before_batch, kBeforeBatch)
  HASTEN_EVENT(after_pred, kAfterPred)
  HASTEN_EVENT(after_loss, kAfterLoss)
  HASTEN_EVENT(before_backward, kBeforeBackward)
  HASTEN_EVENT(after_cancel_backward, kAfterCancelBackward)
  HASTEN_EVENT(after_backward, kAfterBackward)
  HASTEN_EVENT(before_step, kBeforeStep)
  HASTEN_EVENT(after_cancel_step, kAfterCancelStep)
  HASTEN_EVENT(after_step, kAfterStep)
  HASTEN_EVENT(after_cancel_batch, kAfterCancelBatch)
  HASTEN_EVENT(after_batch, kAfterBatch)
  HASTEN_EVENT(after_cancel_train, kAfterCancelTrain)
  HASTEN_EVENT(after_train, kAfterTrain)
  HASTEN_EVENT(before_validate, kBeforeValidate)
  HASTEN_EVENT(after_cancel_validate, kAfterCancelValidate)
  HASTEN_EVENT(after_validate, kAfterValidate)
  HASTEN_EVENT(after_cancel_epoch, kAfterCancelEpoch)
  HASTEN_EVENT(after_epoch, kAfterEpoch)
  HASTEN_EVENT(after_cancel_fit, kAfterCancelFit)
  HASTEN_EVENT(after_fit, kAfterFit)
#undef HASTEN_EVENT
  std::string called;
  int place;
  Function function;
};

}  // namespace hasten::learner

namespace hasten::testing {

/// What we give for a case.
using Outcome = std::function<json(const GoldenCase&)>;

// events_golden_test.cpp
json golden_events(const GoldenCase& golden);
json unwound(const GoldenCase& golden);
json golden_calls(const GoldenCase& golden);
json golden_order(const GoldenCase& golden);
json without_cast(const GoldenCase& golden);
json golden_schedule(const GoldenCase& golden);

// fits_golden_test.cpp
json golden_fits(const GoldenCase& golden);
json sgdr_in_double(const GoldenCase& golden);
json golden_hypers(const GoldenCase& golden);
json golden_freeze(const GoldenCase& golden);
json beyond_is_refused(const GoldenCase& golden);
json golden_suggestion(const GoldenCase& golden);
json golden_lr_finder(const GoldenCase& golden);
json short_curve(const GoldenCase& golden);

// values_golden_test.cpp
json golden_tracker(const GoldenCase& golden);
json kept_the_last(const GoldenCase& golden);
json golden_metrics(const GoldenCase& golden);
json over_pixels(const GoldenCase& golden);
json golden_losses(const GoldenCase& golden);
json golden_mix(const GoldenCase& golden);
learner::Metric metric_named(const std::string& name);

}  // namespace hasten::testing
