// The options of hasten.distribute: names of DdpOptions and ShardOptions, and their values from Python's.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/core/text.h"
#include "python/trainer.h"

namespace hasten::python {
namespace {

using core::Value;

c10::ScalarType half_dtype(const std::string& name) {
  if (name == "bfloat16") return at::kBFloat16;
  if (name == "float16") return at::kHalf;
  throw UsageError(Origin{"python"}, "'", name, "' is no dtype for this. It can be: bfloat16, float16.");
}

parallel::CommHook comm_hook(const std::string& name) {
  if (name == "bf16_compress") return parallel::bf16_compress();
  if (name == "fp16_compress") return parallel::fp16_compress();
  throw UsageError(Origin{"python"}, "'", name, "' is no hook. It can be: bf16_compress, fp16_compress.");
}

parallel::GradientHold hold(const std::string& name) {
  if (name == "slices") return parallel::GradientHold::kSlices;
  if (name == "whole") return parallel::GradientHold::kWhole;
  throw UsageError(Origin{"python"}, "'", name, "' is no way to hold gradients. It can be: slices, whole.");
}

parallel::OffloadOptions offload(const std::string& place) {
  if (place == "cpu") return {.device = parallel::OffloadDevice::kCpu};
  return {.device = parallel::OffloadDevice::kFile, .path = place};
}

ShardStage stage(int64_t number) {
  if (number < 0 || number > 3) throw UsageError(Origin{"python"}, number, " is no stage; expected 0 to 3.");
  return static_cast<ShardStage>(number);
}

std::vector<std::string> texts(const Value& list) {
  std::vector<std::string> all;
  for (const Value& item : list.as_list()) all.push_back(item.as_string());
  return all;
}

void wrap(parallel::WrapPolicy& policy, const Value& classes) {
  policy.rule = parallel::WrapPolicy::Rule::kTransformer;
  policy.classes = texts(classes);
}

using Set = void (*)(AcceleratorOptions&, const Value&);
const std::vector<std::pair<std::string, Set>>& all_options() {
  using O = AcceleratorOptions;
  using V = Value;
  static const std::vector<std::pair<std::string, Set>> kAll = {
      {"shard", [](O& o, const V& v) { o.shard.stage = stage(v.as_int()); }},
      // Members of DdpOptions.
      {"first_bucket_bytes", [](O& o, const V& v) { o.ddp.buckets.first_bytes = v.as_int(); }},
      {"bucket_bytes", [](O& o, const V& v) { o.ddp.buckets.bytes = v.as_int(); }},
      {"broadcast_buffers", [](O& o, const V& v) { o.ddp.broadcast_buffers = v.as_bool(); }},
      {"sync_module_states", [](O& o, const V& v) { o.ddp.sync_module_states = v.as_bool(); }},
      {"comm_hook", [](O& o, const V& v) { o.ddp.comm_hook = comm_hook(v.as_string()); }},
      {"static_graph", [](O& o, const V& v) { o.ddp.static_graph = v.as_bool(); }},
      {"allow_unused", [](O& o, const V& v) { o.ddp.allow_unused = v.as_bool(); }},
      {"delay_allreduce", [](O& o, const V& v) { o.ddp.delay_allreduce = v.as_bool(); }},
      {"gradient_predivide_factor", [](O& o, const V& v) { o.ddp.gradient_predivide_factor = v.as_double(); }},
      {"average", [](O& o, const V& v) { o.ddp.average = v.as_bool(); }},
      {"communication_dtype", [](O& o, const V& v) { o.ddp.communication_dtype = half_dtype(v.as_string()); }},
      {"check_parameters_every", [](O& o, const V& v) { o.ddp.check_parameters_every = v.as_int(); }},
      // Members of ShardOptions.
      {"reshard_after_forward", [](O& o, const V& v) { o.shard.reshard_after_forward = v.as_bool(); }},
      {"wrap_classes", [](O& o, const V& v) { wrap(o.shard.wrap, v); }},
      {"unit_bytes", [](O& o, const V& v) { o.shard.wrap.unit_bytes = v.as_int(); }},
      {"across_hosts", [](O& o, const V& v) { o.shard.across_hosts = v.as_bool(); }},
      {"max_live_bytes", [](O& o, const V& v) { o.shard.max_live_bytes = v.as_int(); }},
      {"hold", [](O& o, const V& v) { o.shard.hold = hold(v.as_string()); }},
      {"param_dtype", [](O& o, const V& v) { o.shard.param_dtype = v.as_string(); }},
      {"ignored", [](O& o, const V& v) { o.shard.ignored = texts(v); }},
      {"optimizer_offload", [](O& o, const V& v) { o.shard.optimizer_offload = offload(v.as_string()); }},
      // Accelerate's plugins.
      {"fsdp", [](O& o, const V& v) { o.shard = fsdp_options(v.as_string(), o.shard); }},
      {"deepspeed", [](O& o, const V& v) { o.shard = deepspeed_options(v.as_string(), o.shard); }},
      // Members of AcceleratorOptions.
      {"fused", [](O& o, const V& v) { o.optimizer.fused = v.as_bool(); }},
      {"change_process", [](O& o, const V& v) { o.change_process = v.as_bool(); }},
  };
  return kAll;
}

}  // namespace

AcceleratorOptions trainer_options(const py::dict& given) {
  AcceleratorOptions options{.device_placement = false, .cpu = true, .mixed_precision = Precision::kNo};
  std::vector<std::string> names;
  for (const auto& [name, set] : all_options()) names.push_back(name);
  for (const auto& [key, value] : given) {
    const auto name = key.cast<std::string>();
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      throw UsageError(Origin{"python"}, "distribute has no option '", name, "'", guess_end(name, names),
                       " It can be: ", join(names), ".");
    }
    if (value.is_none()) continue;
    try {
      all_options()[found - names.begin()].second(options, plain_value(value, name));
    } catch (const UsageError& error) {
      throw UsageError(Origin{"python"}, "distribute(", name, "=", std::string(py::repr(value)), "): ", error.what());
    }
  }
  return options;
}

}  // namespace hasten::python
