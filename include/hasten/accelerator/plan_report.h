// PlanReport: what this run's steps take, beside what docs/plan.md predicts of them, and what other layouts would take.
//
// The model is counted from its modules, the layout is this run's, times are measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "hasten/accelerator.h"
#include "hasten/accelerator/measured_step.h"
#include "hasten/plan/cluster.h"
#include "hasten/plan/model_shape.h"
#include "hasten/plan/predict.h"
#include "hasten/plan/search.h"
#include "hasten/plan/strategy.h"

namespace hasten {

struct PlanReportOptions {
  /// The machines; `hasten plan --measure` writes a file for plan::cluster_from_json. Unset: the presets "cpu" or
  /// "h100_80gb", by the process's device.
  std::optional<plan::Cluster> cluster = {};
  /// The model's sizes, for a transformer whose config.json says more than its modules. Unset: counted from them.
  std::optional<plan::ModelShape> model = {};
  /// Rows that a sample puts through the model: tokens of a text, 1 for a picture. Not for a model that is given.
  double rows_a_sample = 1;
  /// State of the optimizer, in bytes a parameter: Adam 8, momentum 4, plain SGD 0.
  int optimizer_bytes = 8;
};

struct PlanReport {
  plan::ModelShape model = {};
  plan::Cluster cluster = {};
  plan::Strategy strategy = {};
  MeasuredStep measured = {};
  plan::Prediction predicted = {};
  /// Layouts of as many ranks for the same batch, by predicted seconds.
  plan::SearchResult layouts = {};

  /// Returns lines for people: a table of measured and predicted seconds by kind, then the layouts.
  std::string text() const;
};

/// Returns what the steps of `accelerator`'s loop, which `optimizer` ends, over `model` have taken so far, and should
/// have: `std::cout << plan_report(accelerator, *net, optimizer).text()` after 20 steps.
/// Throws: UsageError before the third step of a prepared optimizer; as plan::search for
/// sizes that no layout divides.
PlanReport plan_report(const Accelerator& accelerator, const torch::nn::Module& model, const Optimizer& optimizer,
                       const PlanReportOptions& options = {});

}  // namespace hasten
