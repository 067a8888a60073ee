// See megatron.h.
#include "hasten/plugins/megatron.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>

#include "hasten/core/error.h"
#include "hasten/core/text.h"
#include "hasten/settings/megatron_arguments.h"
#include "hasten/settings/parallelism_config.h"

namespace hasten {
namespace {

const Origin kMegatron{"accelerator"};

// Fields without a counterpart, if they differ from their defaults.
struct Refused {
  const char* field;
  const char* remedy;
};

constexpr const char* kOwnStep =
    "give forward_backward a function of your own (models/train_steps.h has those of GPT, BERT and T5)";
constexpr const char* kOwnObjects = "the program makes its model and loaders; leave it out";
constexpr const char* kModel = "the program makes its model; set it in the model's configuration";
constexpr const char* kGroups = "give the optimizer parameter groups with rates and weight decays of their own";

constexpr Refused kRefused[] = {
    {"consumed_samples", "load_state brings loaders to their positions, and skip_first_batches skips"},
    {"no_wd_decay_cond", kGroups},
    {"scale_lr_cond", kGroups},
    {"lr_mult", kGroups},
    {"no_load_optim", "call load_state with LoadOptions{.optimizer = OptimizerLoad::kSkip}"},
    {"no_save_optim", "save_model saves weights alone"},
    {"use_precision_aware_optimizer", "moments below float32 do not go with parts of parameters; leave it out"},
    {"custom_train_step_class", kOwnStep},
    {"custom_train_step_kwargs", kOwnStep},
    {"custom_get_batch_function", kOwnStep},
    {"custom_loss_function", kOwnStep},
    {"custom_model_provider_function", kOwnObjects},
    {"custom_prepare_model_function", kOwnObjects},
    {"custom_megatron_datasets_provider_function", kOwnObjects},
    {"attention_dropout", kModel},
    {"hidden_dropout", kModel},
    {"attention_softmax_in_fp32", kModel},
    {"use_rotary_position_embeddings", kModel},
    {"attention_backend", kModel}};

void refuse_what_is_missing(const plan::MegatronPlugin& plugin) {
  std::string found;
  const auto add = [&](const std::string& field, const std::string& value, const std::string& remedy) {
    found += text(found.empty() ? "" : "; ", field, " = ", value, " (", remedy, ')');
  };
  for (const auto& [field, remedy] : kRefused) {
    if (plugin.is_given(field)) add(field, plugin[field].to_json(), remedy);
  }
  if (plugin.flag("optimizer_cpu_offload") && !plugin.flag("use_distributed_optimizer") &&
      !plugin.flag("use_custom_fsdp")) {
    add("optimizer_cpu_offload", "true", "the state is split where it is offloaded; set use_distributed_optimizer too");
  }
  if (!found.empty()) {
    throw UsageError(kMegatron, "fields of MegatronLMPlugin that have no counterpart: ", found, ".");
  }
}

void require_one_layout(const AcceleratorOptions& options, const Environment& environment) {
  const auto& given = options.parallel;
  const bool by_program = given.pp != 1 || given.tp != 1 || given.cp != 1 || given.sp != 1 || given.dp_shard != 1 ||
                          given.dp_replicate != 1 || given.sequence_parallel || given.microbatches != 0;
  if (by_program || plan::uses_parallelism_config(environment)) {
    throw UsageError(kMegatron, "MegatronLMPlugin beside ",
                     plan::uses_parallelism_config(environment) ? "ACCELERATE_USE_PARALLELISM_CONFIG"
                                                                : "sizes in AcceleratorOptions::parallel",
                     ": both lay the ranks out. Leave one out. `stages`, `order`, `chunk_dims` and `tensor_plan` of "
                     "parallel go with the plugin.");
  }
  if (options.shard.stage != ShardStage::kNone || options.fsdp || options.deepspeed ||
      !options.deepspeed_plugins.empty() || environment.flag("ACCELERATE_USE_FSDP").value_or(false) ||
      environment.flag("ACCELERATE_USE_DEEPSPEED").value_or(false)) {
    throw UsageError(kMegatron,
                     "MegatronLMPlugin beside FSDP, DeepSpeed or AcceleratorOptions::shard: each says what is split. "
                     "Use one of them; use_distributed_optimizer and use_custom_fsdp are Megatron's.");
  }
}

// What plan::MegatronPlugin cannot see: the stages that the program names.
void require_stages(const plan::MegatronPlugin& plugin, const AcceleratorOptions& options) {
  const auto [last, decoder] = megatron_stages(plugin);
  if (last == 0 && decoder == 0) return;
  const std::string field = last > 0 ? text("decoder_last_pipeline_num_layers = ", last)
                                     : text("pipeline_model_parallel_split_rank = ", decoder);
  const int64_t ranks = plugin.number("pp_degree");
  if (ranks == 1) {
    throw UsageError(kMegatron, field, " with pp_degree 1: there are no stages. Set pp_degree, or leave it out.");
  }
  if (decoder >= ranks || decoder < 0) {
    throw UsageError(kMegatron, "pipeline_model_parallel_split_rank = ", decoder, " with pp_degree ", ranks,
                     "; expected a rank from 1 to ", ranks - 1, ", with which the decoder begins.");
  }
  if (!plugin["num_layers_per_virtual_pipeline_stage"].is_null() || options.parallel.chunks > 1) {
    throw UsageError(kMegatron, field,
                     " beside several stages a rank (num_layers_per_virtual_pipeline_stage, "
                     "AcceleratorOptions::parallel.chunks), which have as many layers each. Leave one out.");
  }
  if (!options.parallel.stages.empty()) {
    throw UsageError(kMegatron, field,
                     " beside AcceleratorOptions::parallel.stages: both say where stages begin. "
                     "Leave one out.");
  }
}

void apply_recompute(const plan::MegatronPlugin& plugin, RecomputeOptions& recompute) {
  if (!plugin.flag("recompute_activations")) return;
  const std::string granularity = plugin["recompute_granularity"].as_string();
  const std::string method = plugin["recompute_method"].as_string();
  const int64_t layers = plugin.number("recompute_num_layers");
  if (granularity != "full" && granularity != "selective") {
    throw UsageError(kMegatron, "recompute_granularity is '", granularity, "'; expected full or selective.");
  }
  if (method != "uniform" && method != "block") {
    throw UsageError(kMegatron, "recompute_method is '", method, "'; expected uniform or block.");
  }
  recompute.enabled = true;
  if (granularity == "selective") {
    recompute.operators = parallel::attention_operators();
    return;
  }
  if (method == "uniform") {
    recompute.region_size = layers;
  } else {
    recompute.max_modules = layers;
  }
}

// Arguments of Megatron's own that are options of the run. They count before the program's.
void apply_others(const plan::MegatronPlugin& plugin, AcceleratorOptions& options) {
  const auto read = plan::read_megatron_arguments(plugin["other_megatron_args"]);
  for (const auto& [name, value] : read.options.as_map()) {
    if (name == "seed") {
      options.seed = static_cast<uint64_t>(value.as_int());
    } else if (name == "distributed_timeout_minutes") {
      options.timeout = std::chrono::minutes(value.as_int());
    } else if (value.as_bool()) {
      options.mixed_precision = name == "bf16" ? Precision::kBf16 : Precision::kFp16;
    }
  }
}

void apply_tensorboard(const plan::MegatronPlugin& plugin, AcceleratorOptions& options) {
  const auto& folder = plugin["tensorboard_dir"];
  if (folder.is_null()) return;
  const auto is_there = [](const tracking::LogWith& one) { return one.name() == "tensorboard" || one.name() == "all"; };
  if (std::none_of(options.log_with.begin(), options.log_with.end(), is_there))
    options.log_with.emplace_back("tensorboard");
  if (options.project.logging_dir.empty()) options.project.logging_dir = folder.as_string();
}

int size_of(const plan::MegatronPlugin& plugin, const char* field) {
  return static_cast<int>(plugin.number(field));
}

// Lengths in samples: from steps, else from samples, else from the dummy scheduler's steps. A step is one sample where
// no field counts in them.
class Lengths {
 public:
  Lengths(const plan::MegatronPlugin& plugin, int64_t samples_per_step) : plugin_(plugin), step_(samples_per_step) {}
  int64_t operator()(const char* steps, const char* samples, int64_t otherwise) const {
    if (!plugin_[steps].is_null()) return plugin_.number(steps) * step_;
    return plugin_[samples].is_null() ? otherwise : plugin_.number(samples);
  }

 private:
  const plan::MegatronPlugin& plugin_;
  int64_t step_;
};

plan::MegatronScheduleOptions schedule_options(const plan::MegatronPlugin& plugin, double max_lr,
                                               const MegatronLengths& lengths) {
  const int64_t step = lengths.samples_per_step;
  const Lengths length(plugin, step);
  const int64_t total = length("train_iters", "train_samples", lengths.total_num_steps * step);
  plan::MegatronScheduleOptions options{.max_lr = max_lr,
                                        .min_lr = plugin["min_lr"].as_double(),
                                        .decay = length("lr_decay_iters", "lr_decay_samples", total),
                                        .style = plugin["lr_decay_style"].as_string(),
                                        .weight_decay_steps = total,
                                        .weight_decay_style = plugin["weight_decay_incr_style"].as_string()};
  options.warmup = length("lr_warmup_iters", "lr_warmup_samples", lengths.warmup_num_steps * step);
  options.init_lr = plugin["lr_warmup_init"].as_double();
  options.wsd_style = plugin["lr_wsd_decay_style"].as_string();
  options.wsd_steps = length("lr_wsd_decay_iters", "lr_wsd_decay_samples", 0);
  if (const auto& fraction = plugin["lr_warmup_fraction"]; !fraction.is_null())
    options.warmup = static_cast<int64_t>(fraction.as_double() * static_cast<double>(options.decay));
  if (options.weight_decay_style == "constant") return options;
  options.start_weight_decay = plugin["start_weight_decay"].is_null() ? 0.0 : plugin["start_weight_decay"].as_double();
  options.end_weight_decay = plugin["end_weight_decay"].is_null() ? 0.0 : plugin["end_weight_decay"].as_double();
  return options;
}

double highest_rate(const torch::optim::Optimizer& optimizer) {
  double rate = 0;
  for (const auto& group : optimizer.param_groups()) rate = std::max(rate, group.options().get_lr());
  return rate;
}

// The weight decay of a group; null for a class without one that is known.
template <class Options>
double* decay_in(torch::optim::OptimizerOptions& options) {
  auto* const own = dynamic_cast<Options*>(&options);
  return own == nullptr ? nullptr : &own->weight_decay();
}
double* decay_of(torch::optim::OptimizerOptions& options) {
  if (auto* const found = decay_in<torch::optim::AdamWOptions>(options)) return found;
  if (auto* const found = decay_in<torch::optim::AdamOptions>(options)) return found;
  return decay_in<torch::optim::SGDOptions>(options);
}

}  // namespace

std::optional<plan::MegatronPlugin> read_megatron(const AcceleratorOptions& options, const Environment& environment) {
  if (!options.megatron_lm && !environment.flag("ACCELERATE_USE_MEGATRON_LM").value_or(false)) return std::nullopt;
  core::Value fields = options.megatron_lm.value_or(core::Value::map());
  if (fields.is_null()) fields = core::Value::map();
  const auto* const others = fields.find("other_megatron_args");
  if (others == nullptr || others->is_null()) return plan::MegatronPlugin(fields, environment);
  const auto read = plan::read_megatron_arguments(*others);
  for (const auto& [field, value] : read.fields.as_map()) fields[field] = value;
  return plan::MegatronPlugin(fields, environment);
}

void apply_megatron(AcceleratorOptions& options, const Environment& environment) {
  const auto plugin = read_megatron(options, environment);
  if (!plugin) return;
  require_one_layout(options, environment);
  refuse_what_is_missing(*plugin);
  require_stages(*plugin, options);
  auto& parallel = options.parallel;
  parallel.tp = size_of(*plugin, "tp_degree");
  parallel.pp = size_of(*plugin, "pp_degree");
  parallel.cp = size_of(*plugin, "context_parallel_size");
  plugin->layout(int64_t{1} * parallel.tp * parallel.pp * parallel.cp);  // experts are refused
  parallel.microbatches = size_of(*plugin, "num_micro_batches");
  parallel.sequence_parallel = plugin->flag("sequence_parallelism");
  if (!(*plugin)["num_layers_per_virtual_pipeline_stage"].is_null())
    parallel.layers_per_stage = size_of(*plugin, "num_layers_per_virtual_pipeline_stage");
  const bool splits_all = plugin->flag("use_custom_fsdp");
  const bool splits = splits_all || plugin->flag("use_distributed_optimizer");
  (splits ? parallel.dp_shard : parallel.dp_replicate) = -1;
  if (splits) options.shard.stage = splits_all ? ShardStage::kParameters : ShardStage::kOptimizer;
  if (plugin->flag("optimizer_cpu_offload")) options.shard.optimizer_offload.device = parallel::OffloadDevice::kCpu;
  apply_recompute(*plugin, options.recompute);
  apply_tensorboard(*plugin, options);
  apply_others(*plugin, options);
}

MegatronStages megatron_stages(const plan::MegatronPlugin& plugin) {
  const auto number = [&](const char* field) { return plugin[field].is_null() ? 0 : size_of(plugin, field); };
  return {number("decoder_last_pipeline_num_layers"), number("pipeline_model_parallel_split_rank")};
}

bool counts_samples(const plan::MegatronPlugin& plugin) {
  const auto counts = [&](const char* steps, const char* samples) {
    return plugin[steps].is_null() && !plugin[samples].is_null();
  };
  return counts("train_iters", "train_samples") || counts("lr_decay_iters", "lr_decay_samples") ||
         counts("lr_wsd_decay_iters", "lr_wsd_decay_samples") ||
         (counts("lr_warmup_iters", "lr_warmup_samples") && plugin["lr_warmup_fraction"].is_null());
}

std::vector<std::string> megatron_notes(const plan::MegatronPlugin& plugin) {
  std::vector<std::string> notes;
  const auto note = [&](bool applies, const char* words) {
    if (applies) notes.emplace_back(words);
  };
  for (const char* const length : {"seq_length", "encoder_seq_length", "decoder_seq_length"}) {
    if (plugin[length].is_null()) continue;
    notes.push_back(text(length, " = ", plugin.number(length),
                         " is the length of a MegatronLmDummyDataLoader's samples; sequences of other loaders have the "
                         "length that their batches have"));
  }
  const auto& others = plan::read_megatron_arguments(plugin["other_megatron_args"]).notes;
  notes.insert(notes.end(), others.begin(), others.end());
  note(plugin.flag("overlap_cpu_optimizer_d2h_h2d"),
       "overlap_cpu_optimizer_d2h_h2d has no effect: copies of offloaded state overlap the step anyway");
  note(plugin.flag("megatron_dataset_flag"),
       "megatron_dataset_flag has no effect: a MegatronLmDummyDataLoader that prepare is given reads Megatron's data");
  note(plugin.flag("eod_mask_loss"), "eod_mask_loss is an option of the train step: models::GptBatchOptions");
  note(plugin.flag("return_logits"),
       "return_logits has no effect: model(x) without gradients gives logits on every rank");
  note(plugin.flag("set_all_logging_options"), "set_all_logging_options has no effect: the program logs what it wants");
  note(plugin.is_given("eval_iters") || plugin.is_given("eval_interval"),
       "eval_iters and eval_interval have no effect: the program's loop evaluates");
  note(!plugin.flag("calculate_per_token_loss"),
       "calculate_per_token_loss false: call forward_backward without a weight, so that parts count by their samples");
  return notes;
}

MegatronScheduler::MegatronScheduler(torch::optim::Optimizer& optimizer, const plan::MegatronPlugin& plugin,
                                     const MegatronLengths& lengths)
    : Scheduler(optimizer, "MegatronScheduler"),
      schedule_(schedule_options(plugin, highest_rate(optimizer), lengths)),
      samples_per_step_(lengths.samples_per_step) {
  const auto& options = schedule_.options();
  if (options.weight_decay_style != "constant") {
    for (auto& group : optimizer.param_groups()) {
      const double* const decay = decay_of(group.options());
      if (decay == nullptr) {
        throw UsageError(kMegatron, "weight_decay_incr_style ", options.weight_decay_style,
                         " with an optimizer other than Adam, AdamW and SGD: its weight decay is not known. Use one of "
                         "these, or constant.");
      }
      decays_.push_back(*decay);
    }
  }
  note_options(core::Value::map({{"lr_decay_style", options.style},
                                 {"lr_decay_iters", options.decay},
                                 {"lr_warmup_iters", options.warmup},
                                 {"min_lr", options.min_lr},
                                 {"samples_per_step", samples_per_step_}}));
  start();
}

void MegatronScheduler::start() {
  Scheduler::start();
  note_rates();
  set_weight_decay();
}

void MegatronScheduler::advance() {
  Scheduler::advance();
  set_weight_decay();
}

double MegatronScheduler::rate(size_t group, double, Moment) const {
  return schedule_.rate(samples(), base_lr(group), schedule_.options().min_lr);
}

void MegatronScheduler::set_weight_decay() {
  for (size_t i = 0; i < decays_.size(); ++i) {
    if (decays_[i] != 0) *decay_of(optimizer().param_groups()[i].options()) = schedule_.weight_decay(samples());
  }
}

}  // namespace hasten
