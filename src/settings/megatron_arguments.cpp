// See megatron_arguments.h.
#include "hasten/settings/megatron_arguments.h"

#include <algorithm>
#include <iterator>

#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/core/text.h"
#include "hasten/settings/megatron_plugin.h"

namespace hasten::plan {
namespace {

using core::Value;
using enum MegatronEffect;

const Origin kMegatronArguments{"megatron"};

constexpr std::string_view kModel = "the program makes its model: set it there";
constexpr std::string_view kOptimizer = "the program makes its optimizer: set it there";
constexpr std::string_view kData = "the program makes its loaders: set it there, or in a MegatronLmDummyDataLoader";
constexpr std::string_view kScaler = "set it in AcceleratorOptions::scaler";
constexpr std::string_view kFiles = "call save_state and load_state";
constexpr std::string_view kExperts = "experts are not supported";
constexpr std::string_view kAlways = "exchanges overlap with computation anyway";
constexpr std::string_view kKernels = "libtorch chooses its kernels";

constexpr MegatronArgument kOthers[] = {
    {"seed", kOption},
    {"bf16", kOption},
    {"fp16", kOption},
    {"distributed_timeout_minutes", kOption},
    {"overlap_grad_reduce", kNone, kAlways},
    {"overlap_param_gather", kNone, kAlways},
    {"overlap_p2p_comm", kNone, kAlways},
    {"align_grad_reduce", kNone, kAlways},
    {"tp_comm_overlap", kNone, "exchanges of cut layers are not overlapped with products"},
    {"use_cpu_initialization", kNone, "the program's construction says where parameters are made"},
    {"DDP_impl", kNone, "there is one way of exchanging gradients"},
    {"use_flash_attn", kNone, kKernels},
    {"transformer_impl", kNone, kKernels},
    {"masked_softmax_fusion", kNone, kKernels},
    {"bias_gelu_fusion", kNone, kKernels},
    {"bias_swiglu_fusion", kNone, kKernels},
    {"bias_dropout_fusion", kNone, kKernels},
    {"gradient_accumulation_fusion", kNone, kKernels},
    {"make_vocab_size_divisible_by", kNone, "vocabularies are cut into uneven parts, and nothing is padded"},
    {"log_interval", kNone, "the program logs what it wants"},
    {"tensorboard_log_interval", kNone, "the program logs what it wants"},
    {"log_timers_to_tensorboard", kNone, "the program logs what it wants"},
    {"check_for_nan_in_loss_and_grad", kNone, "AcceleratorOptions::watch checks gradients"},
    {"num_layers", kElsewhere, kModel},
    {"hidden_size", kElsewhere, kModel},
    {"ffn_hidden_size", kElsewhere, kModel},
    {"num_attention_heads", kElsewhere, kModel},
    {"group_query_attention", kElsewhere, kModel},
    {"num_query_groups", kElsewhere, kModel},
    {"kv_channels", kElsewhere, kModel},
    {"max_position_embeddings", kElsewhere, kModel},
    {"position_embedding_type", kElsewhere, kModel},
    {"rotary_base", kElsewhere, kModel},
    {"rotary_percent", kElsewhere, kModel},
    {"normalization", kElsewhere, kModel},
    {"norm_epsilon", kElsewhere, kModel},
    {"swiglu", kElsewhere, kModel},
    {"disable_bias_linear", kElsewhere, kModel},
    {"untie_embeddings_and_output_weights", kElsewhere, kModel},
    {"init_method_std", kElsewhere, kModel},
    {"orig_vocab_size", kElsewhere, kModel},
    {"optimizer", kElsewhere, kOptimizer},
    {"lr", kElsewhere, kOptimizer},
    {"weight_decay", kElsewhere, kOptimizer},
    {"adam_beta1", kElsewhere, kOptimizer},
    {"adam_beta2", kElsewhere, kOptimizer},
    {"adam_eps", kElsewhere, kOptimizer},
    {"sgd_momentum", kElsewhere, kOptimizer},
    {"micro_batch_size", kElsewhere, kData},
    {"global_batch_size", kElsewhere, kData},
    {"rampup_batch_size", kElsewhere, kData},
    {"data_path", kElsewhere, kData},
    {"split", kElsewhere, kData},
    {"num_workers", kElsewhere, kData},
    {"tokenizer_type", kElsewhere, kData},
    {"vocab_file", kElsewhere, kData},
    {"merge_file", kElsewhere, kData},
    {"reset_position_ids", kElsewhere, "it is an option of the train step, models::GptBatchOptions"},
    {"reset_attention_mask", kElsewhere, "it is an option of the train step, models::GptBatchOptions"},
    {"loss_scale", kElsewhere, kScaler},
    {"initial_loss_scale", kElsewhere, kScaler},
    {"min_loss_scale", kElsewhere, kScaler},
    {"loss_scale_window", kElsewhere, kScaler},
    {"hysteresis", kElsewhere, kScaler},
    {"save", kElsewhere, kFiles},
    {"load", kElsewhere, kFiles},
    {"save_interval", kElsewhere, kFiles},
    {"num_experts", kElsewhere, kExperts},
    {"moe_router_topk", kElsewhere, kExperts}};

const MegatronArgument& argument_of(const std::string& name) {
  const auto& all = megatron_argument_table();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const MegatronArgument& one) { return one.name == name; });
  if (found != all.end()) return *found;
  std::vector<std::string> names;
  for (const auto& one : all) names.emplace_back(one.name);
  throw UsageError(kMegatronArguments, "other_megatron_args: '", name, "' is not known", guess_end(name, names),
                   " Leave it out.");
}

void require_kind(const std::string& name, const Value& value) {
  const bool is_flag = name == "bf16" || name == "fp16";
  if (is_flag ? value.is_bool() : value.is_int()) return;
  throw UsageError(kMegatronArguments, "other_megatron_args: ", name, " is ", value.to_json(), "; expected ",
                   is_flag ? "true or false" : "a whole number", ".");
}

}  // namespace

const std::vector<MegatronArgument>& megatron_argument_table() {
  static const std::vector<std::string> kFieldArguments = megatron_arguments();
  static const std::vector<MegatronArgument> kTable = [] {
    std::vector<MegatronArgument> all;
    for (const auto& name : kFieldArguments) all.push_back({name, kField, name});
    std::copy(std::begin(kOthers), std::end(kOthers), std::back_inserter(all));
    return all;
  }();
  return kTable;
}

MegatronOthers read_megatron_arguments(const Value& arguments) {
  MegatronOthers out;
  if (arguments.is_null()) return out;
  std::string elsewhere;
  for (const auto& [name, value] : arguments.as_map()) {
    const auto& argument = argument_of(name);
    switch (argument.effect) {
      case kField:
        out.fields[megatron_field(name)] = value;
        break;
      case kOption:
        require_kind(name, value);
        out.options[name] = value;
        break;
      case kNone:
        out.notes.push_back(text("other_megatron_args: ", name, " has no effect: ", argument.words));
        break;
      case kElsewhere:
        elsewhere += text(elsewhere.empty() ? "" : "; ", name, " (", argument.words, ')');
        break;
    }
  }
  if (elsewhere.empty()) return out;
  throw UsageError(kMegatronArguments, "other_megatron_args that are set elsewhere: ", elsewhere, ".");
}

}  // namespace hasten::plan
