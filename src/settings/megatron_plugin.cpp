// See megatron_plugin.h.
#include "hasten/settings/megatron_plugin.h"

#include <algorithm>
#include <array>

#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/core/strings.h"
#include "hasten/core/text.h"

namespace hasten::plan {
namespace {

using core::Value;

const Origin kMegatron{"megatron"};

enum class FieldKind { kCount, kInteger, kReal, kFlag, kText, kList, kMap };

// A field of the plugin. `argument`: Megatron's name; null if it is not handed on as it is. Those with a variable
// follow MEGATRON_LM_ and their name in capitals.
struct Field {
  const char* name;
  FieldKind kind;
  const char* argument;
  bool has_variable = false;
  Value otherwise = {};
};

const std::vector<Field>& all_fields() {
  using enum FieldKind;
  static const std::vector<Field> table = {
      {"tp_degree", kCount, "tensor_model_parallel_size", true, 1},
      {"pp_degree", kCount, "pipeline_model_parallel_size", true, 1},
      {"num_micro_batches", kCount, "num_micro_batches", true, 1},
      {"gradient_clipping", kReal, "clip_grad", true, 1.0},
      {"sequence_parallelism", kFlag, "sequence_parallel", true, false},
      {"recompute_activations", kFlag, nullptr, true, false},
      {"recompute_granularity", kText, "recompute_granularity", true, "full"},
      {"recompute_method", kText, "recompute_method", true, "uniform"},
      {"recompute_num_layers", kCount, "recompute_num_layers", true, 1},
      {"use_distributed_optimizer", kFlag, "use_distributed_optimizer", true, false},
      {"use_custom_fsdp", kFlag, "use_custom_fsdp", true, false},
      {"no_load_optim", kFlag, "no_load_optim", true, false},
      {"no_save_optim", kFlag, "no_save_optim", true, false},
      {"eod_mask_loss", kFlag, "eod_mask_loss", true, false},
      {"optimizer_cpu_offload", kFlag, "optimizer_cpu_offload", true, false},
      {"overlap_cpu_optimizer_d2h_h2d", kFlag, "overlap_cpu_optimizer_d2h_h2d", true, false},
      {"use_precision_aware_optimizer", kFlag, "use_precision_aware_optimizer", true, false},
      {"decoder_last_pipeline_num_layers", kCount, "decoder_last_pipeline_num_layers", true},
      {"attention_backend", kFlag, "attention_backend", true, true},
      {"attention_dropout", kReal, "attention_dropout", true, 0.0},
      {"hidden_dropout", kReal, "hidden_dropout", true, 0.0},
      {"attention_softmax_in_fp32", kFlag, "attention_softmax_in_fp32", true, true},
      {"use_rotary_position_embeddings", kFlag, "use_rotary_position_embeddings", true, true},
      {"calculate_per_token_loss", kFlag, "calculate_per_token_loss", true, true},
      {"context_parallel_size", kCount, "context_parallel_size", true, 1},
      {"expert_model_parallel_size", kCount, "expert_model_parallel_size", true, 1},
      {"expert_tensor_parallel_size", kCount, "expert_tensor_parallel_size", true, 1},
      {"pipeline_model_parallel_split_rank", kInteger, "pipeline_model_parallel_split_rank"},
      {"num_layers_per_virtual_pipeline_stage", kCount, "num_layers_per_virtual_pipeline_stage"},
      {"consumed_samples", kList, "consumed_samples"},
      {"no_wd_decay_cond", kText, "no_wd_decay_cond"},
      {"scale_lr_cond", kText, "scale_lr_cond"},
      {"lr_mult", kReal, "lr_mult", false, 1.0},
      {"megatron_dataset_flag", kFlag, "megatron_dataset_flag", false, false},
      {"eval_iters", kCount, "eval_iters", false, 100},
      {"eval_interval", kCount, "eval_interval", false, 1000},
      {"is_train_batch_min", kFlag, nullptr, false, true},
      {"train_iters", kCount, nullptr},
      {"train_samples", kCount, nullptr},
      {"weight_decay_incr_style", kText, nullptr, false, "constant"},
      {"start_weight_decay", kReal, nullptr},
      {"end_weight_decay", kReal, nullptr},
      {"lr_decay_style", kText, nullptr, false, "linear"},
      {"lr_decay_iters", kCount, nullptr},
      {"lr_decay_samples", kCount, nullptr},
      {"lr_warmup_iters", kInteger, nullptr},
      {"lr_warmup_samples", kInteger, nullptr},
      {"lr_warmup_fraction", kReal, nullptr},
      {"min_lr", kReal, nullptr, false, 0},
      // Megatron's own, which the peer's plugin lacks.
      {"lr_warmup_init", kReal, nullptr, false, 0},
      {"lr_wsd_decay_style", kText, nullptr, false, "exponential"},
      {"lr_wsd_decay_iters", kCount, nullptr},
      {"lr_wsd_decay_samples", kCount, nullptr},
      {"seq_length", kCount, nullptr},
      {"encoder_seq_length", kCount, nullptr},
      {"decoder_seq_length", kCount, nullptr},
      {"tensorboard_dir", kText, nullptr},
      {"set_all_logging_options", kFlag, nullptr, false, false},
      {"return_logits", kFlag, nullptr, false, false},
      {"custom_train_step_class", kText, nullptr},
      {"custom_train_step_kwargs", kMap, nullptr},
      {"custom_model_provider_function", kText, nullptr},
      {"custom_prepare_model_function", kText, nullptr},
      {"custom_megatron_datasets_provider_function", kText, nullptr},
      {"custom_get_batch_function", kText, nullptr},
      {"custom_loss_function", kText, nullptr},
      {"other_megatron_args", kMap, nullptr}};
  return table;
}

bool is_of_kind(const Value& value, FieldKind kind) {
  switch (kind) {
    case FieldKind::kCount:
    case FieldKind::kInteger:
      return value.is_int();
    case FieldKind::kReal:
      return value.is_number();
    case FieldKind::kFlag:
      return value.is_bool();
    case FieldKind::kText:
      return value.is_string();
    case FieldKind::kList:
      return value.is_list();
    case FieldKind::kMap:
      return value.is_map();
  }
  return false;
}

const char* kind_words(FieldKind kind) {
  constexpr std::array kWords = {
      "an integer of at least 1", "an integer", "a number", "true or false", "a text", "a list", "a map"};
  return kWords[static_cast<size_t>(kind)];
}

std::string variable_of(const Field& field) {
  return core::upper(text("MEGATRON_LM_", field.name));
}

Value from_environment(const Field& field, const Environment& environment) {
  const std::string name = variable_of(field);
  const auto value_or = [&](const auto& found) { return found ? Value(*found) : field.otherwise; };
  switch (field.kind) {
    case FieldKind::kCount:
    case FieldKind::kInteger:
      return value_or(environment.integer(name));
    case FieldKind::kReal:
      return value_or(environment.real(name));
    case FieldKind::kFlag:
      return value_or(environment.flag(name));
    default:
      return value_or(environment.text(name));
  }
}

Value value_of(const Field& field, const Value& given, const Environment& environment) {
  const Value* const own = given.find(field.name);
  Value value = own != nullptr && !own->is_null() ? *own
                : field.has_variable              ? from_environment(field, environment)
                                                  : field.otherwise;
  if (value.is_null()) return value;
  const bool fits = is_of_kind(value, field.kind) && (field.kind != FieldKind::kCount || value.as_int() >= 1);
  if (!fits) {
    throw UsageError(kMegatron, field.name, " is ", value.to_json(), "; expected ", kind_words(field.kind), ".");
  }
  return value;
}

void require_known(const Value& given) {
  if (given.is_null()) return;
  std::vector<std::string> names;
  for (const auto& field : all_fields()) names.emplace_back(field.name);
  for (const auto& [name, value] : given.as_map()) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    throw UsageError(kMegatron, "MegatronLMPlugin has no field '", name, "'", guess_end(name, names),
                     " Arguments of Megatron's own go to other_megatron_args.");
  }
}

int64_t of_config(const Value& config, const char* name) {
  const Value* const found = config.find(name);
  if (found == nullptr) throw UsageError(kMegatron, "the model's configuration has no '", name, "'.");
  return found->as_int();
}

// The length of a model with one sequence: its own kind's, then the program's, then the batch's, then the model's.
Value one_length(const MegatronPlugin& plugin, const char* own, const MegatronModel& model, int64_t most,
                 std::vector<std::string>& warnings) {
  if (!plugin[own].is_null()) {
    if (!plugin["seq_length"].is_null()) {
      warnings.push_back(text("Both `seq_length` and `", own, "` are set. Using `", own, "`."));
    }
    return plugin[own];
  }
  if (!plugin["seq_length"].is_null()) return plugin["seq_length"];
  return model.input_length ? Value(*model.input_length) : Value(most);
}

struct SizeNames {
  const char *layers, *hidden, *heads;
};

void add_sizes(const Value& config, const SizeNames& names, int64_t most, MegatronNetwork& out) {
  out.arguments["num_layers"] = of_config(config, names.layers);
  out.arguments["hidden_size"] = of_config(config, names.hidden);
  out.arguments["num_attention_heads"] = of_config(config, names.heads);
  out.arguments["orig_vocab_size"] = of_config(config, "vocab_size");
  out.arguments["max_position_embeddings"] = most;
  out.arguments["model_return_dict"] = true;
}

constexpr SizeNames kHuggingFace = {"num_hidden_layers", "hidden_size", "num_attention_heads"};

void add_decoder(const MegatronPlugin& plugin, const char* tokenizer, MegatronNetwork& out) {
  out.arguments["seq_length"] = out.seq_length;
  out.arguments["return_logits"] = plugin["return_logits"];
  out.arguments["tokenizer_type"] = tokenizer;
  out.arguments["model_type_name"] = "gpt";
  out.arguments["pretraining_flag"] = true;
}

void add_gpt2(const MegatronPlugin& plugin, const MegatronModel& model, MegatronNetwork& out) {
  const int64_t most = of_config(model.config, "n_positions");
  out.seq_length = one_length(plugin, "decoder_seq_length", model, most, out.warnings);
  add_sizes(model.config, {"n_layer", "n_embd", "n_head"}, most, out);
  add_decoder(plugin, "GPT2BPETokenizer", out);
}

// The configuration may name a length of its own, which counts before a decoder's.
void add_llama(const MegatronPlugin& plugin, const MegatronModel& model, MegatronNetwork& out) {
  const int64_t most = of_config(model.config, "max_position_embeddings");
  const Value* const own = model.config.find("max_sequence_length");
  if (!plugin["seq_length"].is_null()) {
    out.seq_length = plugin["seq_length"];
  } else {
    out.seq_length = own != nullptr ? *own : one_length(plugin, "decoder_seq_length", model, most, out.warnings);
  }
  add_sizes(model.config, kHuggingFace, most, out);
  add_decoder(plugin, "Llama2Tokenizer", out);
}

void add_bert(const MegatronPlugin& plugin, const MegatronModel& model, MegatronNetwork& out) {
  const int64_t most = of_config(model.config, "max_position_embeddings");
  out.seq_length = one_length(plugin, "encoder_seq_length", model, most, out.warnings);
  add_sizes(model.config, kHuggingFace, most, out);
  out.arguments["seq_length"] = out.seq_length;
  out.arguments["model_type_name"] = "bert";
  out.arguments["pretraining_flag"] = model.masked_words;
  out.arguments["num_labels"] = of_config(model.config, "num_labels");
}

void add_t5(const MegatronPlugin& plugin, const MegatronModel& model, MegatronNetwork& out) {
  const Value* const positions = model.config.find("n_positions");
  const int64_t most = positions == nullptr ? 1024 : positions->as_int();
  const auto length = [&](const char* own, const std::optional<int64_t>& of_batch) {
    return !plugin[own].is_null() ? plugin[own] : Value(of_batch.value_or(most));
  };
  out.encoder_seq_length = length("encoder_seq_length", model.input_length);
  out.decoder_seq_length = length("decoder_seq_length", model.label_length);
  add_sizes(model.config, {"num_layers", "d_model", "num_heads"}, most, out);
  out.arguments["encoder_seq_length"] = out.encoder_seq_length;
  out.arguments["decoder_seq_length"] = out.decoder_seq_length;
  out.arguments["model_type_name"] = "t5";
  out.arguments["pretraining_flag"] = true;
}

void add_optimizer(const Value& optimizer, Value& arguments) {
  const std::string type = core::lower(optimizer.at("type").as_string());
  if (type.find("adam") != std::string::npos) {
    arguments["optimizer"] = "adam";
    arguments["adam_beta1"] = optimizer.at("betas").as_list().at(0);
    arguments["adam_beta2"] = optimizer.at("betas").as_list().at(1);
    arguments["adam_eps"] = optimizer.at("eps");
  } else if (type.find("sgd") != std::string::npos) {
    arguments["optimizer"] = "sgd";
    arguments["sgd_momentum"] = optimizer.at("momentum");
  } else {
    throw UsageError(kMegatron, "an optimizer of class ", optimizer.at("type").as_string(),
                     "; expected Adam, AdamW or SGD, the only ones that Megatron-LM has.");
  }
  arguments["lr"] = optimizer.at("lr");
  const Value* const decay = optimizer.find("weight_decay");
  arguments["weight_decay"] = decay == nullptr ? Value(0) : *decay;
}

}  // namespace

MegatronPlugin::MegatronPlugin(const Value& given, const Environment& environment) {
  require_known(given);
  fields_ = Value::map();
  for (const auto& field : all_fields()) fields_[field.name] = value_of(field, given, environment);
  if (auto* const consumed = fields_.find("consumed_samples"); !consumed->is_null()) {
    while (consumed->size() < 3) consumed->push_back(0);
  }
  if (flag("sequence_parallelism") && number("tp_degree") == 1) {
    throw UsageError(kMegatron,
                     "sequence_parallelism with tp_degree 1: there are no ranks to cut activations over. Set tp_degree "
                     "above 1, or leave it out.");
  }
}

bool MegatronPlugin::is_given(std::string_view name) const {
  const auto& all = all_fields();
  const auto field = std::find_if(all.begin(), all.end(), [&](const Field& one) { return one.name == name; });
  const Value& value = fields_.at(name);
  if (field == all.end() || value.is_null()) return false;
  const bool is_same_number =
      value.is_number() && field->otherwise.is_number() && value.as_double() == field->otherwise.as_double();
  return !is_same_number && !(value == field->otherwise);
}

std::string megatron_field(std::string_view argument) {
  for (const auto& field : all_fields()) {
    if (argument == (field.argument == nullptr ? field.name : field.argument)) return field.name;
  }
  return {};
}

std::vector<std::string> megatron_arguments() {
  std::vector<std::string> names;
  for (const auto& field : all_fields()) names.emplace_back(field.argument == nullptr ? field.name : field.argument);
  return names;
}

Value MegatronPlugin::arguments() const {
  Value out = Value::map();
  const bool recomputes = flag("recompute_activations");
  for (const auto& field : all_fields()) {
    if (field.argument == nullptr) continue;
    const bool is_lost = std::string_view(field.name).starts_with("recompute_") && !recomputes;
    out[field.argument] = is_lost ? Value() : fields_.at(field.name);
  }
  out["DDP_impl"] = number("pp_degree") > 1 || flag("use_distributed_optimizer") ? "local" : "torch";
  if (!fields_.at("tensorboard_dir").is_null()) out["tensorboard_dir"] = fields_.at("tensorboard_dir");
  if (const auto& others = fields_.at("other_megatron_args"); !others.is_null()) {
    for (const auto& [name, value] : others.as_map()) out[name] = value;
  }
  return out;
}

MegatronLayout MegatronPlugin::layout(int64_t world_size) const {
  if (number("expert_model_parallel_size") > 1 || number("expert_tensor_parallel_size") > 1) {
    throw UsageError(kMegatron, "expert_model_parallel_size ", number("expert_model_parallel_size"),
                     " and expert_tensor_parallel_size ", number("expert_tensor_parallel_size"),
                     ": experts are not supported. Leave both at 1.");
  }
  MegatronLayout sizes{.pp = number("pp_degree"), .cp = number("context_parallel_size"), .tp = number("tp_degree")};
  const int64_t model = sizes.pp * sizes.cp * sizes.tp;
  if (world_size % model != 0) {
    throw UsageError(kMegatron, "tp_degree ", sizes.tp, " x pp_degree ", sizes.pp, " x context_parallel_size ",
                     sizes.cp, " = ", model, " ranks a model, and ", world_size,
                     " ranks in all; expected a multiple. Start more ranks, or lower one of the degrees.");
  }
  const bool splits = flag("use_distributed_optimizer") || flag("use_custom_fsdp");
  (splits ? sizes.dp_shard : sizes.dp_replicate) = world_size / model;
  return sizes;
}

std::vector<std::string> MegatronPlugin::remarks() const {
  std::vector<std::string> all;
  const int64_t stages = number("pp_degree"), batches = number("num_micro_batches");
  if (batches < stages) {
    all.push_back(text("num_micro_batches ", batches, " is below pp_degree ", stages, ": the stages wait for ",
                       100 * (stages - 1) / (stages - 1 + batches), " % of a step. Give more of them."));
  }
  for (const auto& [steps, samples] :
       {std::pair("train_iters", "train_samples"), std::pair("lr_decay_iters", "lr_decay_samples"),
        std::pair("lr_warmup_iters", "lr_warmup_samples"), std::pair("lr_wsd_decay_iters", "lr_wsd_decay_samples")}) {
    if (!fields_.at(steps).is_null() && !fields_.at(samples).is_null())
      all.push_back(text(steps, " and ", samples, " are both given; ", steps, " counts."));
  }
  return all;
}

MegatronNetwork megatron_network(const MegatronPlugin& plugin, const MegatronModel& model) {
  MegatronNetwork out{.arguments = Value::map(),
                      .seq_length = plugin["seq_length"],
                      .encoder_seq_length = plugin["encoder_seq_length"],
                      .decoder_seq_length = plugin["decoder_seq_length"]};
  const auto is = [&](const char* type) { return model.type.find(type) != std::string::npos; };
  if (is("megatron-bert")) {
    add_bert(plugin, model, out);
  } else if (is("gpt2")) {
    add_gpt2(plugin, model, out);
  } else if (is("t5")) {
    add_t5(plugin, model, out);
  } else if (is("llama")) {
    add_llama(plugin, model, out);
  } else {
    throw UsageError(kMegatron, "a model of type '", model.type,
                     "'; expected megatron-bert, gpt2, t5 or llama. Other models need no arguments of Megatron's: "
                     "cut them by .parallel.tensor_plan.");
  }
  return out;
}

MegatronTrainingArguments megatron_training(const MegatronPlugin& plugin, const MegatronTraining& training) {
  MegatronTrainingArguments out{.arguments = Value::map()};
  Value& all = out.arguments;
  out.global_batch_size = training.data_parallel_size * training.micro_batch_size * plugin.number("num_micro_batches");
  all["DDP_impl"] = training.mixed_precision == "bf16" ? Value("local") : plugin.arguments().at("DDP_impl");
  if (training.mixed_precision != "no") all[training.mixed_precision] = true;
  all["data_parallel_size"] = training.data_parallel_size;
  all["micro_batch_size"] = training.micro_batch_size;
  all["global_batch_size"] = out.global_batch_size;
  add_optimizer(training.optimizer, all);
  for (const char* name : {"train_iters", "train_samples", "lr_warmup_iters", "lr_warmup_samples", "lr_decay_iters",
                           "lr_decay_samples", "lr_warmup_fraction", "lr_decay_style", "weight_decay_incr_style",
                           "start_weight_decay", "end_weight_decay", "min_lr"}) {
    all[name] = plugin[name];
  }
  const auto ignore = [&](const char* samples, const char* iters) {
    out.warnings.push_back(
        text("Ignoring `", samples, "` as `", iters, "` based on scheduler is being used for training."));
  };
  if (all["train_iters"].is_null()) {
    all["train_iters"] = training.total_num_steps / training.data_parallel_size;
    if (!all["train_samples"].is_null()) ignore("train_samples", "train_iters");
    all["train_samples"] = nullptr;
  }
  if (all["lr_warmup_iters"].is_null()) {
    all["lr_warmup_iters"] = training.warmup_num_steps / training.data_parallel_size;
    if (!all["lr_warmup_samples"].is_null()) ignore("lr_warmup_samples", "lr_warmup_iters");
    all["lr_warmup_samples"] = 0;
  }
  return out;
}

}  // namespace hasten::plan
