// See strategy.h.
#include "hasten/plan/strategy.h"

#include <algorithm>
#include <cmath>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/core/text.h"

namespace hasten::plan {
namespace {

constexpr std::string_view kDataParallelNames[] = {"ddp", "zero1", "zero2", "zero3"};
constexpr std::string_view kRecomputeNames[] = {"none", "selective", "full", "every_other_product"};
constexpr std::string_view kOverlapNames[] = {"none", "async", "megatron"};

template <class Kind, size_t n>
Kind parse(std::string_view name, const std::string_view (&names)[n], const char* what) {
  for (size_t i = 0; i < n; ++i) {
    if (name == names[i]) return static_cast<Kind>(i);
  }
  const std::vector<std::string> known(std::begin(names), std::end(names));
  throw UsageError({"plan"}, "'", name, "' is no ", what, "; expected one of ", join(known), guess_end(name, known));
}

bool divides(double divisor, double number) {
  return std::fmod(number, divisor) == 0;
}

// All divisors of both numbers, as text.
std::string common_divisors(double a, double b) {
  std::vector<double> found;
  for (double d = 1; d <= std::min(a, b) && found.size() < 24; ++d) {
    if (divides(d, a) && divides(d, b)) found.push_back(d);
  }
  return join(found);
}

}  // namespace

double Strategy::microbatches() const noexcept {
  return std::max(1.0, std::nearbyint(batch / (data_ranks() * micro_batch)));
}

std::string_view data_parallel_name(DataParallel kind) {
  return kDataParallelNames[static_cast<size_t>(kind)];
}

std::string_view recompute_name(Recompute kind) {
  return kRecomputeNames[static_cast<size_t>(kind)];
}

DataParallel parse_data_parallel(std::string_view name) {
  if (name == "fsdp" || name == "shard") return DataParallel::kZero3;
  if (name.size() == 1 && name[0] >= '0' && name[0] <= '3') return static_cast<DataParallel>(name[0] - '0');
  return parse<DataParallel>(name, kDataParallelNames, "form of data parallelism");
}

Recompute parse_recompute(std::string_view name) {
  return parse<Recompute>(name, kRecomputeNames, "kind of recompute");
}

TensorOverlap parse_tensor_overlap(std::string_view name) {
  return parse<TensorOverlap>(name, kOverlapNames, "overlap of tensor parallelism");
}

std::string strategy_text(const Strategy& strategy) {
  const LayoutSizes& sizes = strategy.sizes;
  std::vector<std::string> parts;
  if (sizes.tp > 1) parts.push_back(text("tp ", sizes.tp));
  if (sizes.pp > 1) parts.push_back(text("pp ", sizes.pp));
  if (strategy.chunks > 1) parts.push_back(text("chunks ", strategy.chunks));
  if (sizes.cp > 1) parts.push_back(text("cp ", sizes.cp));
  const bool split = strategy.data_parallel != DataParallel::kDdp;
  const std::string name(strategy.data_parallel == DataParallel::kZero3 ? "shard"
                                                                        : data_parallel_name(strategy.data_parallel));
  if (split && sizes.dp_shard > 1) {
    parts.push_back(text(name, " ", sizes.dp_shard, sizes.dp_replicate > 1 ? text(" x ", sizes.dp_replicate) : ""));
  } else if (strategy.data_ranks() > 1) {
    parts.push_back(text("ddp ", strategy.data_ranks()));
  } else if (split && sizes.cp > 1) {
    parts.push_back(name);
  }
  return parts.empty() ? "one device" : join(parts, " ");
}

int num_axes(const Strategy& strategy) {
  const LayoutSizes& sizes = strategy.sizes;
  return (sizes.tp > 1) + (sizes.pp > 1) + (sizes.cp > 1) + (strategy.data_ranks() > 1) + (strategy.chunks > 1);
}

void set_precision(Strategy& strategy, std::string_view precision) {
  if (precision == "fp8")
    throw UsageError({"plan"}, "FP8 is not modelled. Plan with --precision bf16, which a layout in FP8 fits as well.");
  if (precision != "no" && precision != "fp16" && precision != "bf16")
    throw UsageError({"plan"}, "'", precision, "' is no precision; expected no, fp16 or bf16.");
  strategy.element_bytes = strategy.weight_bytes = precision == "no" ? 4 : 2;
}

std::vector<std::string> launch_flags(const Strategy& strategy) {
  const LayoutSizes& sizes = strategy.sizes;
  std::vector<std::string> flags;
  const auto add = [&](const std::string& name, const auto& value) {
    flags.push_back(text("--", name));
    flags.push_back(text(value));
  };
  if (sizes.pp > 1) {
    flags.push_back("--use_megatron_lm");
    add("megatron_lm_tp_degree", sizes.tp);
    add("megatron_lm_pp_degree", sizes.pp);
    add("megatron_lm_num_micro_batches", strategy.microbatches());
    if (sizes.cp > 1) add("megatron_lm_context_parallel_size", sizes.cp);
    if (sizes.tp > 1) add("megatron_lm_sequence_parallelism", strategy.sequence_parallel ? "true" : "false");
    if (strategy.recompute != Recompute::kNone) {
      add("megatron_lm_recompute_activations", "true");
      add("megatron_lm_recompute_granularity", strategy.recompute == Recompute::kSelective ? "selective" : "full");
    }
    if (strategy.data_parallel == DataParallel::kZero3) {
      add("megatron_lm_use_custom_fsdp", "true");
    } else if (strategy.data_parallel != DataParallel::kDdp) {
      add("megatron_lm_use_distributed_optimizer", "true");
    }
    return flags;
  }
  // hasten launch takes sizes of tp and cp with FSDP's second version alone, as Accelerate does.
  const bool needs_fsdp = strategy.data_parallel == DataParallel::kDdp && (sizes.tp > 1 || sizes.cp > 1);
  if (strategy.data_parallel == DataParallel::kZero3 || needs_fsdp) {
    flags.push_back("--use_fsdp");
    add("fsdp_version", 2);
    if (strategy.recompute == Recompute::kFull) add("fsdp_activation_checkpointing", "true");
  } else if (strategy.data_parallel != DataParallel::kDdp) {
    flags.push_back("--use_deepspeed");
    add("zero_stage", static_cast<int>(strategy.data_parallel));
    if (strategy.microbatches() > 1) add("gradient_accumulation_steps", strategy.microbatches());
  }
  if (sizes.tp > 1 || sizes.cp > 1 || (sizes.dp_replicate > 1 && sizes.dp_shard > 1)) {
    flags.push_back("--use_parallelism_config");
    for (const Axis axis : {Axis::kTp, Axis::kCp, Axis::kDpShard, Axis::kDpReplicate}) {
      if (sizes[axis] > 1) add(text("parallelism_config_", axis_name(axis), "_size"), sizes[axis]);
    }
  }
  return flags;
}

void check_strategy(const ModelShape& model, const Strategy& strategy) {
  const Origin origin{"plan"};
  const LayoutSizes& sizes = strategy.sizes;
  fit_to_world(sizes, num_ranks(sizes));
  if (sizes.sp > 1)
    throw UsageError(origin, "sp ", sizes.sp, " is not modelled. Plan with cp, which splits sequences as well.");
  if (model.is_transformer() && (!divides(sizes.tp, model.heads) || !divides(sizes.tp, model.kv_heads)))
    throw UsageError(origin, "tp ", sizes.tp, " does not divide ", count_text(model.heads, "head"), " and ",
                     count_text(model.kv_heads, "head"),
                     " of keys; tp may be ", common_divisors(model.heads, model.kv_heads), ".");
  const double stages = static_cast<double>(sizes.pp) * strategy.chunks;
  if (strategy.chunks < 1 || (stages > 1 && stages > model.layers))
    throw UsageError(origin, "pp ", sizes.pp, " x chunks ", strategy.chunks, " = ", count_text(stages, "stage"),
                     " for ",
                     count_text(model.layers, "layer"), "; expected a layer for each. chunks may be at most ",
                     std::max(1.0, std::floor(model.layers / sizes.pp)), ", pp at most ", std::max(1.0, model.layers),
                     ".");
  if (strategy.chunks > 1 && sizes.pp == 1)
    throw UsageError(origin, "chunks ", strategy.chunks,
                     " without a pipeline; expected 1. Set pp, or leave chunks out.");
  if (!divides(sizes.cp, model.sequence))
    throw UsageError(origin, "cp ", sizes.cp, " does not divide the sequence of ", count_text(model.sequence, "token"),
                     ".");
  if (!(strategy.batch >= 1) || !std::isfinite(strategy.batch) || !(strategy.micro_batch >= 1))
    throw UsageError(origin, "batch ", strategy.batch, " and micro_batch ", strategy.micro_batch,
                     "; expected at least 1.");
  if (strategy.batch < strategy.data_ranks())
    throw UsageError(origin, "a batch of ", count_text(strategy.batch, "sequence"), " for ", strategy.data_ranks(),
                     " data parallel ranks; expected at least one for each.");
}

}  // namespace hasten::plan
