// See model_rules.h.
#include "parallel/tensor/model_rules.h"

#include <torch/nn/modules/activation.h>

#include <algorithm>
#include <string_view>

#include "hasten/core/error.h"
#include "hasten/plan/attention_heads.h"
#include "hasten/plan/module_tree.h"

namespace hasten::parallel::tensor {
namespace {

struct ClassRule {
  std::string_view class_name;
  std::vector<std::pair<std::string_view, std::string_view>> entries;
};

const std::vector<ClassRule>& class_rules() {
  static const std::vector<ClassRule> rules = {
      {"Gpt2", {{"transformer.wte", "embedding_rowwise"}, {"lm_head", "colwise"}}},
      {"Gpt2Block",
       {{"attn.c_attn", "packed_colwise:3"},
        {"attn.c_proj", "rowwise"},
        {"mlp.c_fc", "colwise"},
        {"mlp.c_proj", "rowwise"}}},
      {"Llama", {{"model.embed_tokens", "embedding_rowwise"}, {"lm_head", "colwise"}}},
      {"LlamaBlock",
       {{"self_attn.q_proj", "colwise"},
        {"self_attn.k_proj", "colwise"},
        {"self_attn.v_proj", "colwise"},
        {"self_attn.o_proj", "rowwise"},
        {"mlp.gate_proj", "colwise"},
        {"mlp.up_proj", "colwise"},
        {"mlp.down_proj", "rowwise"}}},
      {"Bert", {{"embeddings.word_embeddings", "embedding_rowwise"}}},
      {"BertLayer",
       {{"attention.self.query", "colwise"},
        {"attention.self.key", "colwise"},
        {"attention.self.value", "colwise"},
        {"attention.output.dense", "rowwise"},
        {"intermediate.dense", "colwise"},
        {"output.dense", "rowwise"}}},
      {"BertForPreTraining", {{"cls.predictions.decoder", "colwise"}}},
      {"T5", {{"shared", "embedding_rowwise"}, {"lm_head", "colwise"}}},
      {"T5Attention",
       {{"q", "colwise"},
        {"k", "colwise"},
        {"v", "colwise"},
        {"o", "rowwise"},
        {"relative_attention_bias", "embedding_colwise"}}},
      {"T5DenseReluDense", {{"wi", "colwise"}, {"wi_0", "colwise"}, {"wi_1", "colwise"}, {"wo", "rowwise"}}},
      {"MultiheadAttention",
       {{"in_proj", "packed_colwise:3"},
        {"q_proj", "colwise"},
        {"k_proj", "colwise"},
        {"v_proj", "colwise"},
        {"out_proj", "rowwise"}}},
      {"TransformerEncoderLayer", {{"linear1", "colwise"}, {"linear2", "rowwise"}}},
      {"TransformerDecoderLayer", {{"linear1", "colwise"}, {"linear2", "rowwise"}}},
  };
  return rules;
}

std::string joined(const std::string& module, std::string_view name) {
  return module.empty() ? std::string(name) : module + "." + std::string(name);
}

bool is_there(const std::string& name, const std::vector<PlanParameter>& parameters) {
  return std::any_of(parameters.begin(), parameters.end(), [&](const PlanParameter& parameter) {
    const std::string_view rest = parameter.name;
    return rest.starts_with(name) && rest.size() > name.size() &&
           (rest[name.size()] == '.' || rest[name.size()] == '_');
  });
}

std::vector<plan::HeadCount> head_counts_of(const torch::nn::Module& part) {
  if (const auto* const attention = part.as<torch::nn::MultiheadAttentionImpl>())
    return {{"heads", attention->options.num_heads()}};
  const auto* const of_models = dynamic_cast<const plan::AttentionHeads*>(&part);
  return of_models == nullptr ? std::vector<plan::HeadCount>() : of_models->head_counts();
}

void require_heads(const std::string& name, const torch::nn::Module& part, int num_parts) {
  const std::string problem = plan::problem_with_heads(head_counts_of(part), num_parts);
  if (!problem.empty()) throw UsageError(Origin{"tensor"}, "'", name, "' has ", problem, ".");
}

}  // namespace

TensorPlan plan_by_classes(const torch::nn::Module& module, const std::vector<PlanParameter>& parameters,
                           int num_parts) {
  TensorPlan plan;
  module.apply([&](const std::string& name, const torch::nn::Module& part) {
    const std::string class_name = plan::short_class_name(part.name());
    for (const auto& rule : class_rules()) {
      if (rule.class_name != class_name) continue;
      require_heads(name, part, num_parts);
      for (const auto& [entry, style] : rule.entries) {
        const std::string whole = joined(name, entry);
        if (is_there(whole, parameters)) plan.emplace_back(whole, style);
      }
    }
  });
  return plan;
}

}  // namespace hasten::parallel::tensor
