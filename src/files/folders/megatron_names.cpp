// See megatron_names.h. Facts from Megatron-LM's checkpointing.py and its converters.
#include "files/folders/megatron_names.h"

#include <algorithm>
#include <cmath>

#include "files/base/origin.h"
#include "hasten/core/number.h"
#include "hasten/core/sentence.h"
#include "hasten/core/text.h"

namespace hasten::files {
namespace {

using Names = std::vector<std::string>;

struct NamePair {
  std::string_view theirs, ours;
};

// In this order: later ones see the results of earlier ones.
constexpr NamePair kOlderNames[] = {{".attention.", ".self_attention."},
                                    {".query_key_value.", ".linear_qkv."},
                                    {".self_attention.dense.", ".self_attention.linear_proj."},
                                    {".inter_attention.query.", ".cross_attention.linear_q."},
                                    {".inter_attention.key_value.", ".cross_attention.linear_kv."},
                                    {".inter_attention.dense.", ".cross_attention.linear_proj."},
                                    {".dense_h_to_4h.", ".linear_fc1."},
                                    {".dense_4h_to_h.", ".linear_fc2."},
                                    {".input_norm.", ".input_layernorm."},
                                    {".post_attention_norm.", ".post_attention_layernorm."},
                                    {".post_inter_attention_layernorm.", ".pre_mlp_layernorm."},
                                    {".final_norm.", ".final_layernorm."},
                                    {".self_attention.linear_qkv.layer_norm_", ".input_layernorm."},
                                    {".cross_attention.linear_q.layer_norm_", ".pre_cross_attn_layernorm."},
                                    {".mlp.linear_fc1.layer_norm_", ".pre_mlp_layernorm."}};

void replace(std::string& name, std::string_view old, std::string_view with) {
  if (const size_t at = name.find(old); at != std::string::npos) name.replace(at, old.size(), with);
}

void remove_prefix(std::string& name, std::string_view prefix) {
  if (name.starts_with(prefix)) name.erase(0, prefix.size());
}

// Arguments that are read, and those that change what weights mean.
constexpr std::string_view kKnown[] = {"num_attention_heads",
                                       "num_query_groups",
                                       "group_query_attention",
                                       "kv_channels",
                                       "hidden_size",
                                       "num_layers",
                                       "tensor_model_parallel_size",
                                       "pipeline_model_parallel_size",
                                       "orig_vocab_size",
                                       "vocab_size",
                                       "swiglu",
                                       "gated_linear_unit",
                                       "untie_embeddings_and_output_weights",
                                       "apply_residual_connection_post_layernorm",
                                       "position_embedding_type",
                                       "normalization",
                                       "softmax_scale",
                                       "checkpoint_version"};
constexpr std::string_view kRefused[] = {
    "num_experts",        "apply_layernorm_1p",     "layernorm_zero_centered_gamma",
    "rotary_interleaved", "multi_latent_attention", "qk_layernorm"};

bool is_on(const core::Value& arguments, std::string_view name) {
  const auto* const value = arguments.find(name);
  if (value == nullptr || value->is_null()) return false;
  return value->is_bool() ? value->as_bool() : value->is_int() && value->as_int() > 0;
}

std::optional<int64_t> count_in(const core::Value& arguments, std::string_view name) {
  const auto* const value = arguments.find(name);
  if (value == nullptr || !value->is_int() || value->as_int() < 1) return std::nullopt;
  return value->as_int();
}

std::string text_in(const core::Value& arguments, std::string_view name) {
  const auto* const value = arguments.find(name);
  return value != nullptr && value->is_string() ? value->as_string() : "";
}

// Makes the tensors of transformers' model out of Megatron's.
class Naming {
 public:
  Naming(const TensorSource& own, const core::Value& arguments, int64_t version, bool is_transposed)
      : own_(own), arguments_(arguments), version_(version), is_transposed_(is_transposed) {
    is_tied_ = !is_on(arguments, "untie_embeddings_and_output_weights");
    read_heads();
  }

  MegatronModel finish() {
    if (own_.contains("binary_head.weight") || own_.contains("embedding.tokentype_embeddings.weight")) {
      bert();
    } else if (num_layers("encoder") > 0 && num_layers("decoder") > 0) {
      t5();
    } else {
      gpt(num_layers("decoder") > 0 ? "decoder" : "encoder");
    }
    require_all_used();
    return std::move(model_);
  }

 private:
  void read_heads() {
    for (const std::string_view name : kRefused) {
      if (!is_on(arguments_, name)) continue;
      refuse(text("the argument ", name, " is set"));
    }
    const auto heads = count_in(arguments_, "num_attention_heads");
    if (!heads) {
      throw DataError(
          kOrigin, own_.path(), "'", own_.path(),
          "' has no argument num_attention_heads, by which queries, keys and values are told apart. Give it "
          "in MegatronOptions::arguments.");
    }
    heads_ = *heads;
    groups_ =
        is_on(arguments_, "group_query_attention") ? count_in(arguments_, "num_query_groups").value_or(heads_) : heads_;
    const std::string words = "embedding.word_embeddings.weight";
    if (!own_.contains(words)) fail_data(own_.path(), "it has no embedding.word_embeddings.weight.");
    const int64_t hidden = own_.info(words).shape.back();
    head_dim_ = count_in(arguments_, "kv_channels").value_or(hidden / heads_);
    if (heads_ % groups_ != 0) {
      fail_data(own_.path(), "num_attention_heads ", heads_, " is no multiple of num_query_groups ", groups_, ".");
    }
  }

  [[noreturn]] void refuse(const std::string& why) const {
    throw UsageError(kOrigin, "'", own_.path(), "': ", why,
                     ", and no model of transformers' is read from that. Read Megatron's own tensors: "
                     "MegatronNames::kMegatron, or the form megatron_own.");
  }

  int64_t num_layers(const std::string& stack) const {
    int64_t count = 0;
    for (const std::string& name : own_.names()) {
      const auto layer = megatron_layer(name);
      if (layer && layer->stack == stack) count = std::max(count, layer->number + 1);
    }
    return count;
  }

  int64_t rows_of(const std::string& name) const { return own_.info(name).shape.front(); }

  void add(MegatronTensor tensor) {
    for (const auto& rows : tensor.rows) used_.push_back(rows.name);
    model_.tensors.push_back(std::move(tensor));
  }
  // A whole tensor, or its first rows, if it is there.
  void whole(const std::string& theirs, const std::string& ours, bool is_transposed = false, int64_t rows = -1) {
    if (!own_.contains(theirs)) return;
    const int64_t all = rows_of(theirs), count = rows < 0 ? all : std::min(rows, all);
    add({.name = ours, .rows = {{theirs, 0, count, 0}}, .is_transposed = is_transposed});
  }
  void both(const std::string& theirs, const std::string& ours, bool is_transposed = false) {
    whole(theirs + ".weight", ours + ".weight", is_transposed);
    whole(theirs + ".bias", ours + ".bias");
  }
  void forget(const std::string& theirs) { used_.push_back(theirs); }

  int64_t vocabulary() const {
    const int64_t padded = rows_of("embedding.word_embeddings.weight");
    for (const char* name : {"orig_vocab_size", "vocab_size"}) {
      if (const auto size = count_in(arguments_, name); size && *size <= padded) return *size;
    }
    return padded;
  }
  void note_vocabulary() {
    const int64_t padded = rows_of("embedding.word_embeddings.weight");
    if (!count_in(arguments_, "orig_vocab_size") && !count_in(arguments_, "vocab_size")) {
      model_.remarks.push_back(text("the vocabulary is taken with its padding, ", padded,
                                    ": no argument vocab_size says how many words it has."));
    }
  }

  // Rows of one of the parts of a matrix (queries, keys, values; or keys, values), to row `to` on. `parts`: how many
  // heads of each part a group has.
  std::vector<MegatronRows> part_rows(const std::string& name, const std::vector<int64_t>& parts, size_t part,
                                      int64_t to) const {
    int64_t all = 0, before = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (i < part) before += parts[i];
      all += parts[i];
    }
    const int64_t expected = all * groups_ * head_dim_;
    if (rows_of(name) != expected) {
      fail_data(own_.path(), "tensor '", name, "' has ", rows_of(name), " rows, expected ", expected,
                " by num_attention_heads ", heads_, ", ", groups_, " groups of queries and kv_channels ", head_dim_,
                ".");
    }
    std::vector<MegatronRows> rows;
    const int64_t splits = static_cast<int64_t>(parts.size()), dim = head_dim_;
    if (version_ == 0) {
      rows.push_back({name, static_cast<int64_t>(part) * heads_ * dim, heads_ * dim, to});
    } else if (version_ == 1) {
      for (int64_t row = 0; row < heads_ * dim; ++row)
        rows.push_back({name, row * splits + static_cast<int64_t>(part), 1, to + row});
    } else {
      const int64_t count = parts[part] * dim;
      for (int64_t group = 0; group < groups_; ++group)
        rows.push_back({name, (group * all + before) * dim, count, to + group * count});
    }
    return rows;
  }
  std::vector<int64_t> qkv_parts() const { return {heads_ / groups_, 1, 1}; }

  void split(const std::string& theirs, const std::vector<int64_t>& parts, const Names& ours,
             bool scales_first = false) {
    for (const char* const kind : {".weight", ".bias"}) {
      if (!own_.contains(theirs + kind)) continue;
      for (size_t part = 0; part < parts.size(); ++part) {
        add({.name = ours[part] + kind,
             .rows = part_rows(theirs + kind, parts, part, 0),
             .scale = scales_first && part == 0 ? score_scale() : 1.0});
      }
    }
  }
  void halves(const std::string& theirs, const std::string& one, const std::string& other) {
    for (const char* const kind : {".weight", ".bias"}) {
      if (!own_.contains(theirs + kind)) continue;
      const int64_t half = rows_of(theirs + kind) / 2;
      add({.name = one + kind, .rows = {{theirs + kind, 0, half, 0}}});
      add({.name = other + kind, .rows = {{theirs + kind, half, half, 0}}});
    }
  }
  // T5's own attention does not scale scores; Megatron's divides by the root of a head's size, unless softmax_scale
  // says otherwise.
  double score_scale() const {
    const auto* const given = arguments_.find("softmax_scale");
    return given != nullptr && given->is_number() ? given->as_double() : 1 / std::sqrt(static_cast<double>(head_dim_));
  }

  void output(const std::string& ours) {
    if (is_tied_) {
      forget("output_layer.weight");
    } else {
      whole("output_layer.weight", ours, false, vocabulary());
    }
  }

  void gpt(const std::string& stack) {
    if (is_on(arguments_, "apply_residual_connection_post_layernorm"))
      refuse("a GPT whose norms come behind the residual sums (apply_residual_connection_post_layernorm)");
    if (own_.contains("embedding.position_embeddings.weight")) return gpt2(stack);
    if (is_gated(arguments_) && !own_.contains(stack + ".final_layernorm.bias")) return llama(stack);
    refuse(text("a GPT with position_embedding_type '", text_in(arguments_, "position_embedding_type"),
                "', normalization '", text_in(arguments_, "normalization"), "' and ", is_gated(arguments_) ? "" : "no ",
                "gates in its mlp is neither a GPT-2 nor a Llama"));
  }

  void gpt2(const std::string& stack) {
    model_.type = "gpt2";
    if (groups_ != heads_) refuse(text("a GPT with learned positions and num_query_groups ", groups_));
    const bool turns = is_transposed_;
    note_vocabulary();
    whole("embedding.word_embeddings.weight", "transformer.wte.weight", false, vocabulary());
    whole("embedding.position_embeddings.weight", "transformer.wpe.weight");
    for (int64_t i = 0, layers = num_layers(stack); i < layers; ++i) {
      const std::string theirs = text(stack, ".layers.", i, '.'), ours = text("transformer.h.", i, '.');
      both(theirs + "input_layernorm", ours + "ln_1");
      for (const char* const kind : {".weight", ".bias"}) {
        const std::string name = theirs + "self_attention.linear_qkv" + kind;
        if (!own_.contains(name)) continue;
        MegatronTensor packed{.name = ours + "attn.c_attn" + kind, .is_transposed = turns && kind[1] == 'w'};
        for (size_t part = 0; part < 3; ++part) {
          const auto rows = part_rows(name, qkv_parts(), part, static_cast<int64_t>(part) * heads_ * head_dim_);
          packed.rows.insert(packed.rows.end(), rows.begin(), rows.end());
        }
        add(std::move(packed));
      }
      both(theirs + "self_attention.linear_proj", ours + "attn.c_proj", turns);
      both(theirs + "pre_mlp_layernorm", ours + "ln_2");
      both(theirs + "mlp.linear_fc1", ours + "mlp.c_fc", turns);
      both(theirs + "mlp.linear_fc2", ours + "mlp.c_proj", turns);
    }
    both(stack + ".final_layernorm", "transformer.ln_f");
    output("lm_head.weight");
  }

  void llama(const std::string& stack) {
    model_.type = "llama";
    note_vocabulary();
    whole("embedding.word_embeddings.weight", "model.embed_tokens.weight", false, vocabulary());
    for (int64_t i = 0, layers = num_layers(stack); i < layers; ++i) {
      const std::string theirs = text(stack, ".layers.", i, '.'), ours = text("model.layers.", i, '.');
      const std::string attention = ours + "self_attn.";
      both(theirs + "input_layernorm", ours + "input_layernorm");
      split(theirs + "self_attention.linear_qkv", qkv_parts(),
            {attention + "q_proj", attention + "k_proj", attention + "v_proj"});
      both(theirs + "self_attention.linear_proj", attention + "o_proj");
      both(theirs + "pre_mlp_layernorm", ours + "post_attention_layernorm");
      halves(theirs + "mlp.linear_fc1", ours + "mlp.gate_proj", ours + "mlp.up_proj");
      both(theirs + "mlp.linear_fc2", ours + "mlp.down_proj");
    }
    both(stack + ".final_layernorm", "model.norm");
    output("lm_head.weight");
  }

  // With apply_residual_connection_post_layernorm the sum behind a norm takes its result. So the norm at a layer's head
  // is the last one of the layer before, as in BERT's paper. Else it is transformers' MegatronBert.
  void bert() {
    const bool norms_behind = is_on(arguments_, "apply_residual_connection_post_layernorm");
    model_.type = norms_behind ? "bert" : "megatron-bert";
    if (!norms_behind) {
      model_.remarks.emplace_back(
          "norms come before the layers: the names are those of transformers' MegatronBertForPreTraining.");
    }
    note_vocabulary();
    const std::string embeddings = "bert.embeddings.";
    whole("embedding.word_embeddings.weight", embeddings + "word_embeddings.weight", false, vocabulary());
    whole("embedding.position_embeddings.weight", embeddings + "position_embeddings.weight");
    whole("embedding.tokentype_embeddings.weight", embeddings + "token_type_embeddings.weight");
    const int64_t layers = num_layers("encoder");
    for (int64_t i = 0; i < layers; ++i) {
      const std::string theirs = text("encoder.layers.", i, '.'), ours = text("bert.encoder.layer.", i, '.');
      const std::string before =
          i == 0 ? embeddings + "LayerNorm" : text("bert.encoder.layer.", i - 1, ".output.LayerNorm");
      both(theirs + "input_layernorm", norms_behind ? before : ours + "attention.ln");
      const std::string self = ours + "attention.self.";
      split(theirs + "self_attention.linear_qkv", qkv_parts(), {self + "query", self + "key", self + "value"});
      both(theirs + "self_attention.linear_proj", ours + "attention.output.dense");
      both(theirs + "pre_mlp_layernorm", ours + (norms_behind ? "attention.output.LayerNorm" : "ln"));
      both(theirs + "mlp.linear_fc1", ours + "intermediate.dense");
      both(theirs + "mlp.linear_fc2", ours + "output.dense");
    }
    both("encoder.final_layernorm",
         norms_behind ? text("bert.encoder.layer.", layers - 1, ".output.LayerNorm") : "bert.encoder.ln");
    both("pooler.dense", "bert.pooler.dense");
    both("lm_head.dense", "cls.predictions.transform.dense");
    both("lm_head.layer_norm", "cls.predictions.transform.LayerNorm");
    whole("output_layer.bias", "cls.predictions.bias", false, vocabulary());
    both("binary_head", "cls.seq_relationship");
    output("cls.predictions.decoder.weight");
  }

  void t5_layer(const std::string& stack, int64_t number) {
    const std::string theirs = text(stack, ".layers.", number, '.'), ours = text(stack, ".block.", number, ".layer.");
    const std::string self = ours + "0.SelfAttention.", cross = ours + "1.EncDecAttention.";
    both(theirs + "input_layernorm", ours + "0.layer_norm");
    split(theirs + "self_attention.linear_qkv", qkv_parts(), {self + "q", self + "k", self + "v"}, true);
    both(theirs + "self_attention.linear_proj", self + "o");
    const bool decodes = stack == "decoder";
    if (decodes) {
      both(theirs + "pre_cross_attn_layernorm", ours + "1.layer_norm");
      split(theirs + "cross_attention.linear_q", {1}, {cross + "q"}, true);
      split(theirs + "cross_attention.linear_kv", {1, 1}, {cross + "k", cross + "v"});
      both(theirs + "cross_attention.linear_proj", cross + "o");
    }
    const std::string last = ours + (decodes ? "2." : "1."), dense = last + "DenseReluDense.";
    both(theirs + "pre_mlp_layernorm", last + "layer_norm");
    if (is_gated(arguments_)) {
      halves(theirs + "mlp.linear_fc1", dense + "wi_0", dense + "wi_1");
    } else {
      both(theirs + "mlp.linear_fc1", dense + "wi");
    }
    both(theirs + "mlp.linear_fc2", dense + "wo");
  }

  void t5() {
    model_.type = "t5";
    if (groups_ != heads_) refuse(text("a T5 with num_query_groups ", groups_));
    if (own_.contains("embedding.position_embeddings.weight") || own_.contains("encoder.final_layernorm.bias")) {
      refuse(
          "a T5 with learned positions, or norms and linear layers with biases (transformers' has "
          "position_embedding_type relative, normalization RMSNorm and disable_bias_linear)");
    }
    note_vocabulary();
    whole("embedding.word_embeddings.weight", "shared.weight", false, vocabulary());
    for (const std::string stack : {"encoder", "decoder"}) {
      whole(stack + "_relative_pos_emb.relative_attention_bias.weight",
            stack + ".block.0.layer.0.SelfAttention.relative_attention_bias.weight");
      for (int64_t i = 0, layers = num_layers(stack); i < layers; ++i) t5_layer(stack, i);
      both(stack + ".final_layernorm", stack + ".final_layer_norm");
    }
    // Behind a tied head T5 scales the input, which Megatron does not do.
    whole(is_tied_ ? "embedding.word_embeddings.weight" : "output_layer.weight", "lm_head.weight", false, vocabulary());
    forget("output_layer.weight");
    whole("output_layer.bias", "lm_head.bias", false, vocabulary());
    if (is_tied_)
      model_.remarks.emplace_back(
          "the head has weights of its own: T5Config::tied_head = false (tie_word_embeddings).");
  }

  void require_all_used() const {
    Names left;
    for (const std::string& name : own_.names()) {
      if (std::find(used_.begin(), used_.end(), name) == used_.end()) left.push_back(name);
    }
    if (left.empty()) return;
    const size_t count = left.size();
    if (count > 5) left.resize(5);
    refuse(text("tensors of a ", model_.type, " that transformers' lacks (", count, "): ", join(left),
                count > 5 ? ", …" : ""));
  }

  const TensorSource& own_;
  const core::Value& arguments_;
  int64_t version_;
  bool is_transposed_;
  bool is_tied_ = true;
  int64_t heads_ = 1, groups_ = 1, head_dim_ = 1;
  MegatronModel model_ = {};
  Names used_ = {};
};

}  // namespace

std::optional<std::string> megatron_name(std::string name) {
  while (name.starts_with("module.")) name.erase(0, 7);
  const bool is_older = name.starts_with("language_model.");
  remove_prefix(name, "language_model.");
  for (const char* const no_weight : {"_extra_state", "rotary_pos_emb", "inv_freq", "word_embeddings_for_head"}) {
    if (name.find(no_weight) != std::string::npos) return std::nullopt;
  }
  if (name.starts_with("transformer.")) replace(name, "transformer.", "encoder.");
  for (const auto& [theirs, ours] : kOlderNames) replace(name, theirs, ours);
  // In the decoder of a T5 the norm behind attention comes before that over the encoder's states.
  const bool crosses = is_older && name.starts_with("decoder.");
  replace(name, ".post_attention_layernorm.", crosses ? ".pre_cross_attn_layernorm." : ".pre_mlp_layernorm.");
  if (name.starts_with("lm_head.output_layer.")) remove_prefix(name, "lm_head.");
  if (name == "lm_head.bias") return "output_layer.bias";
  replace(name, "lm_head.layernorm.", "lm_head.layer_norm.");
  return name;
}

std::optional<MegatronLayer> megatron_layer(std::string_view name) {
  constexpr std::string_view kLayers = ".layers.";
  const size_t at = name.find(kLayers);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view behind = name.substr(at + kLayers.size());
  const size_t dot = behind.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const auto number = core::whole_number<int64_t>(behind.substr(0, dot));
  if (!number || *number < 0 || *number > 100'000) return std::nullopt;
  return MegatronLayer{std::string(name.substr(0, at)), *number, std::string(behind.substr(dot + 1))};
}

MegatronCut megatron_cut(std::string_view name, bool is_gated, int64_t version) {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  const bool is_bias = name.ends_with(".bias");
  if (has("word_embeddings.") || name.starts_with("output_layer.")) return {.dim = 0};
  if (has(".linear_qkv.")) return {.dim = 0, .blocks = version == 0 ? 3 : 1};
  if (has(".linear_kv.")) return {.dim = 0, .blocks = version == 0 ? 2 : 1};
  if (has(".linear_q.")) return {.dim = 0};
  if (has(".linear_fc1.")) return {.dim = 0, .blocks = is_gated ? 2 : 1};
  if ((has(".linear_proj.") || has(".linear_fc2.")) && !is_bias) return {.dim = 1};
  return {};
}

bool is_gated(const core::Value& arguments) {
  return is_on(arguments, "swiglu") || is_on(arguments, "gated_linear_unit");
}

MegatronModel megatron_model(const TensorSource& own, const core::Value& arguments, int64_t version,
                             bool is_transposed) {
  return Naming(own, arguments, version, is_transposed).finish();
}

void require_known_arguments(const core::Value& arguments) {
  Names known(std::begin(kKnown), std::end(kKnown));
  known.insert(known.end(), std::begin(kRefused), std::end(kRefused));
  for (const auto& [name, value] : arguments.as_map()) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    throw UsageError(kOrigin, "MegatronOptions::arguments has '", name, "', which is not read", guess_end(name, known),
                     " Leave it out.");
  }
}

}  // namespace hasten::files
