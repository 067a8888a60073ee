// A prediction: memory, seconds and bytes on the wires of one strategy, and how well it uses the devices.
//
// Nothing runs. docs/plan.md has the formulas, their constants, and how far they were off on published runs.
#pragma once

#include <string>
#include <vector>

#include "hasten/plan/cluster.h"
#include "hasten/plan/model_shape.h"
#include "hasten/plan/step_memory.h"
#include "hasten/plan/step_time.h"
#include "hasten/plan/strategy.h"
#include "hasten/plan/wires.h"

namespace hasten::plan {

struct Prediction {
  StepMemory memory = {};    ///< bytes of the fullest device
  StepSeconds seconds = {};  ///< of a step
  Wires wires = {};          ///< bytes that one device sends in a step
  double microbatches = 1;
  double bubble = 0;             ///< of the pipeline: idle over busy time
  double tokens_per_second = 0;  ///< of one device
  double mfu = 0;                ///< share of the peak that the model's own operations make
};

/// Returns the prediction. Pure; a few microseconds.
/// Throws: UsageError for a strategy that check_strategy refuses.
Prediction predict(const ModelShape& model, const Cluster& cluster, const Strategy& strategy);

/// The same without the check, for a caller that has made it.
Prediction predict_checked(const ModelShape& model, const Cluster& cluster, const Strategy& strategy);

/// Returns the bytes that a device may hold: `share` of its memory.
double usable_bytes(const Cluster& cluster, double share = 0.92);

/// Returns "predicted", "predicted from measured constants" or "predicted from rated figures".
std::string kind_of_numbers(const Cluster& cluster);

/// Returns sentences on what the prediction leaves out. They name a device that the constants were not fitted to, notes
/// of the model, and a host that is used in part.
std::vector<std::string> caveats(const ModelShape& model, const Cluster& cluster, double devices);

/// Returns lines that derive each number of a prediction: its formula, the formula with numbers put in, the value.
std::vector<std::string> explain_prediction(const ModelShape& model, const Cluster& cluster, const Strategy& strategy);

}  // namespace hasten::plan
