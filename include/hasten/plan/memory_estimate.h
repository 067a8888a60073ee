// Memory estimates: what loading or training a model takes, and the table that `hasten estimate-memory` prints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hasten/plan/module_sizes.h"

namespace hasten::plan {

/// Bytes of training with Adam; -1 = not known.
struct TrainingUsage {
  int64_t model = -1, optimizer = -1, gradients = -1, step = -1;
  int64_t largest() const noexcept;
};

/// Accelerate's estimate_training_usage for a model of `bytes` in float32: float32 4 times that in a step, float16,
/// bfloat16 and fp8 twice, others unknown.
TrainingUsage estimate_training_usage(int64_t bytes, const std::string& precision);

struct EstimateRow {
  std::string dtype, largest_layer, total, training;
};

/// Returns one row a dtype. Sizes are those of the model in its own dtypes, divided by 2 for float16 and bfloat16, by 4
/// for int8, by 8 for int4.
/// Throws: UsageError for another dtype, with the nearest one.
std::vector<EstimateRow> estimate_rows(const MaximumSizes& sizes, const std::vector<std::string>& dtypes);

/// Returns Accelerate's table, in UTF-8, its lines separated by newlines.
std::string estimate_table(const std::vector<EstimateRow>& rows, const std::string& model_name);

}  // namespace hasten::plan
