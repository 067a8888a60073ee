// Shapes of models from config.json, from fields, from module trees; what is refused, by name.
#include "hasten/plan/model_shape.h"

#include <gmock/gmock.h>

#include <functional>

#include "hasten/core/error.h"
#include "hasten/plan/model_presets.h"

namespace hasten::plan {
namespace {

using core::Value;
using ::testing::HasSubstr;

ModelShape config(const char* json) {
  return shape_from_config(Value::parse_json(json), "config.json");
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

constexpr const char* kLlama = R"({"model_type": "llama", "num_hidden_layers": 80, "hidden_size": 8192,
  "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256,
  "max_position_embeddings": 8192})";

TEST(ModelShape, keys_of_each_family_are_read) {
  const ModelShape llama = config(kLlama);
  EXPECT_EQ(llama.parameters(), preset_model("llama3-70b")->parameters());
  EXPECT_NEAR(llama.parameters(), 70.6e9, 0.1e9);
  const ModelShape gpt2 =
      config(R"({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257})");
  EXPECT_EQ(gpt2.parameters(), preset_model("gpt2")->parameters());
  EXPECT_EQ(gpt2.ffn, 3072);
  EXPECT_TRUE(gpt2.tied);
  const ModelShape bert = config(R"({"model_type": "bert", "num_hidden_layers": 12, "hidden_size": 768,
    "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 30522, "max_position_embeddings": 512})");
  EXPECT_FALSE(bert.causal);
  EXPECT_FALSE(bert.gated);
  const ModelShape qwen = config(R"({"model_type": "qwen3", "num_hidden_layers": 4, "hidden_size": 1024,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 1000,
    "max_position_embeddings": 512, "tie_word_embeddings": true})");
  EXPECT_EQ(qwen.attention_width(), 2048);
  EXPECT_EQ(qwen.qkv(), 4096);
  const ModelShape t5 = config(R"({"model_type": "t5", "num_layers": 6, "d_model": 512, "num_heads": 8, "d_kv": 64,
    "d_ff": 2048, "vocab_size": 32128, "feed_forward_proj": "gated-gelu"})");
  EXPECT_EQ(t5.layers, 12);
  EXPECT_EQ(t5.attentions, 1.5);
  EXPECT_TRUE(t5.gated);
  EXPECT_FALSE(t5.notes.empty());
}

TEST(ModelShape, a_missing_key_and_an_unknown_type_are_named_with_what_to_give) {
  EXPECT_THAT(refusal([] { config(R"({"model_type": "gpt2", "n_layer": 12})"); }),
              HasSubstr("config.json has no key 'n_embd'"));
  EXPECT_THAT(
      refusal([] { config(R"({"model_type": "gpt2", "n_layer": "x", "n_embd": 1, "n_head": 1, "vocab_size": 1})"); }),
      HasSubstr("'n_layer' is \"x\""));
  EXPECT_THAT(refusal([] { config(R"({"model_type": "mamba"})"); }), HasSubstr("the model_type 'mamba' is not known"));
  EXPECT_THAT(refusal([] { config(R"({"hidden_size": 8})"); }), HasSubstr("no key 'model_type'"));
  EXPECT_THAT(refusal([] { config("[1]"); }), HasSubstr("is no map"));
}

TEST(ModelShape, experts_fp8_and_diffusion_are_refused_by_name) {
  EXPECT_THAT(refusal([] { config(R"({"model_type": "mixtral", "num_local_experts": 8})"); }),
              HasSubstr("experts are not modelled"));
  EXPECT_THAT(refusal([] { config(R"({"model_type": "llama", "quantization_config": {"quant_method": "fp8"}})"); }),
              HasSubstr("FP8 is not modelled"));
  EXPECT_THAT(refusal([] { config(R"({"_class_name": "UNet2DConditionModel"})"); }),
              HasSubstr("diffusion models are not modelled ('UNet2DConditionModel')"));
}

TEST(ModelShape, fields_have_defaults_and_near_names) {
  const ModelShape shape = shape_from_fields(
      Value::parse_json(
          R"({"name": "mine", "layers": 2, "hidden": 64, "heads": 4, "vocabulary": 100, "sequence": 32})"),
      "net.json");
  EXPECT_EQ(shape.name, "mine");
  EXPECT_EQ(shape.ffn, 256);
  EXPECT_EQ(shape.kv_heads, 4);
  EXPECT_EQ(shape.head_dim, 16);
  EXPECT_THAT(refusal([] {
                shape_from_fields(Value::parse_json(R"({"layers": 2, "hidden": 64, "heads": 4, "vocabulary": 100,
                  "sequence": 32, "hiden": 3})"),
                                  "net.json");
              }),
              HasSubstr("did you mean 'hidden'?"));
  EXPECT_THAT(refusal([] { shape_from_fields(Value::parse_json(R"({"layers": 2})"), "net.json"); }),
              HasSubstr("no key 'hidden'"));
}

TEST(ModelShape, sizes_that_mean_nothing_are_refused) {
  ModelShape shape = *preset_model("gpt2");
  EXPECT_THAT(refusal([&] { set_field(shape, "hidden", 0); }), HasSubstr("hidden is 0"));
  EXPECT_THAT(refusal([&] { set_field(shape, "gated", 2); }), HasSubstr("expected true or false"));
  EXPECT_THAT(refusal([&] { set_field(shape, "width", 2); }), HasSubstr("no field 'width'"));
  shape.kv_heads = 5;
  EXPECT_THAT(refusal([&] { check_shape(shape); }), HasSubstr("heads 12 are no multiple of kv_heads 5"));
  shape = *preset_model("gpt2");
  shape.layers = 0;
  check_shape(shape);
  EXPECT_GT(shape.parameters(), 0);
}

TEST(ModelShape, a_module_tree_counts_its_weights_of_two_dimensions) {
  const auto tensor = [](const char* name, std::vector<int64_t> shape) { return TensorNode{name, std::move(shape)}; };
  const ModelShape shape =
      shape_from_tree(ModuleTree::from_names({tensor("embed.weight", {1000, 8}), tensor("layers.0.fc.weight", {16, 8}),
                                              tensor("layers.0.fc.bias", {16}), tensor("layers.1.fc.weight", {8, 16}),
                                              tensor("conv.weight", {4, 2, 3, 3})}),
                      "net");
  EXPECT_EQ(shape.products.size(), 2u);
  EXPECT_EQ(shape.layers, 2);
  EXPECT_EQ(shape.parameters(), 8000 + 128 + 16 + 128 + 72);
  EXPECT_EQ(shape.notes.size(), 2u);
  EXPECT_EQ(shape.step_flops(10), 6 * 10 * 256);
  EXPECT_THAT(refusal([&] { shape_from_tree(ModuleTree::from_names({tensor("b", {3})}), "net"); }),
              HasSubstr("no weight of two dimensions"));
}

TEST(ModelShape, every_preset_is_sound) {
  for (const std::string& name : preset_model_names()) check_shape(*preset_model(name));
  EXPECT_FALSE(preset_model("gpt5"));
  EXPECT_NEAR(preset_model("llama3-405b")->parameters(), 405e9, 3e9);
  EXPECT_NEAR(preset_model("gpt-175b")->parameters(), 175e9, 2e9);
}

}  // namespace
}  // namespace hasten::plan
