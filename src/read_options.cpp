// See read_options.h.
#include "read_options.h"

#include "hasten/core/error.h"

namespace hasten {

void refuse_what_is_missing(const AcceleratorOptions& options, const Environment& environment) {
  const auto variable = environment.choice("ACCELERATE_MIXED_PRECISION", {"no", "fp16", "bf16", "fp8"});
  if (options.mixed_precision == Precision::kNo && variable.value_or("no") == "no") return;
  const std::string asked = options.mixed_precision != Precision::kNo
                                ? "AcceleratorOptions::mixed_precision"
                                : "ACCELERATE_MIXED_PRECISION=" + *variable;
  throw UsageError(Origin{"accelerator"}, asked,
                   " asks for mixed precision, which this version does not have yet. Set it to no.");
}

state::Accumulation read_accumulation(const AcceleratorOptions& options, const Environment& environment) {
  const auto steps = environment.integer("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", 1);
  return state::Accumulation({.num_steps = steps.value_or(options.gradient_accumulation_steps),
                              .sync_with_dataloader = options.sync_with_dataloader,
                              .sync_each_batch = options.sync_each_batch});
}

}  // namespace hasten
