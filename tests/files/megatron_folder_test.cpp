// Checkpoint folders of Megatron-LM (scripts/record_megatron_folders.py): the tensors of transformers' models, whatever
// cut them and whatever they were called, and folders that do not go together.
#include "hasten/files/folders/megatron_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "hasten/core/error.h"
#include "hasten/files/folders/open_source.h"
#include "hasten/files/folders/optimizer_folder.h"
#include "hasten/files/python/python_file.h"
#include "support/folder.h"

namespace hasten::files {
namespace {

using core::Value;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::ThrowsMessage;
namespace fs = std::filesystem;

std::string recorded(const std::string& name) {
  return (fs::path(HASTEN_SOURCE_DIR) / "tests/golden/megatron" / name).string();
}

// Element `i` of a tensor of transformers', as the script has it.
float value_of(const std::string& name, int64_t i) {
  int64_t seed = 0;
  for (const char letter : name) seed += letter;
  return static_cast<float>((7919 * i + 104729 * seed) % 2003 - 1001) / 1024.0F;
}

std::vector<float> values_in(const TensorSource& source, const std::string& name, const Box& box) {
  std::vector<float> values(static_cast<size_t>(numel_of(box)));
  source.read(name, box, values.data());
  return values;
}

void expect_values(const TensorSource& source) {
  for (const std::string& name : source.names()) {
    const auto& info = source.info(name);
    ASSERT_EQ(info.dtype, Dtype::kFloat32) << name;
    const auto values = values_in(source, name, whole_box(info.shape));
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(values[i], value_of(name, static_cast<int64_t>(i)), 2e-7) << name << " at " << i;
  }
}

std::vector<std::string> under(const std::string& at, const std::vector<std::string>& names) {
  std::vector<std::string> all;
  for (const std::string& name : names) {
    all.push_back(at + name + ".weight");
    all.push_back(at + name + ".bias");
  }
  return all;
}

TEST(MegatronFolders, OfGptGiveTheTensorsOfGpt2) {
  const struct {
    const char* name;
    int64_t layers, tp, pp;
  } kFolders[] = {{"gpt2_tp2_pp2", 3, 2, 2},  {"gpt2_virtual", 4, 1, 2},  {"gpt2_torch_dist", 2, 1, 1},
                  {"gpt2_older_v0", 1, 2, 1}, {"gpt2_older_v1", 1, 2, 1}, {"gpt2_older_v2", 1, 2, 1}};
  for (const auto& [name, layers, tp, pp] : kFolders) {
    const auto folder = open_megatron_folder(recorded(name));

    EXPECT_EQ(folder.model, "gpt2") << name;
    EXPECT_EQ(folder.tag, "iter_0000020") << name;
    EXPECT_EQ(folder.iteration, 20) << name;
    EXPECT_EQ(folder.tp, tp) << name;
    EXPECT_EQ(folder.pp, pp) << name;
    EXPECT_EQ(folder.arguments.at("lr").as_double(), 0.001) << name;
    EXPECT_EQ(folder.weights->names().size(), static_cast<size_t>(12 * layers + 4)) << name;
    EXPECT_THAT(folder.weights->names(),
                IsSupersetOf(under("transformer.", {"h.0.ln_1", "h.0.attn.c_attn", "h.0.mlp.c_proj", "ln_f"})));
    EXPECT_EQ(folder.weights->info("transformer.wte.weight").shape, (std::vector<int64_t>{10, 8})) << name;
    expect_values(*folder.weights);
  }
}

TEST(MegatronFolders, OfOtherModelsGiveTheTensorsOfTransformers) {
  const struct {
    const char *name, *model, *there;
    size_t count;
  } kFolders[] = {
      {"llama_tp2", "llama", "model.layers.1.self_attn.k_proj.weight", 2 * 9 + 3},
      {"bert_tp2", "bert", "bert.encoder.layer.1.output.LayerNorm.bias", 2 * 16 + 5 + 2 + 5 + 2},
      {"bert_norms_first", "megatron-bert", "bert.encoder.layer.0.attention.ln.weight", 16 + 3 + 2 + 2 + 5 + 2},
      {"t5_tp2_pp2", "t5", "decoder.block.0.layer.1.EncDecAttention.q.weight", 8 + 13 + 4 + 2}};
  for (const auto& [name, model, there, count] : kFolders) {
    const auto folder = open_megatron_folder(recorded(name));

    EXPECT_EQ(folder.model, model) << name;
    EXPECT_TRUE(folder.weights->contains(there)) << name;
    EXPECT_EQ(folder.weights->names().size(), count) << name;
    expect_values(*folder.weights);
  }
}

TEST(MegatronFolders, AreReadBoxByBox) {
  const auto source = open_source(recorded("gpt2_tp2_pp2"));
  const auto turned = open_source(recorded("gpt2_tp2_pp2"), {.form = "megatron_transformers"});

  EXPECT_EQ(form_of(recorded("gpt2_tp2_pp2")), "megatron");
  const std::string name = "transformer.h.2.attn.c_attn.weight";
  const Box box{{5, 2}, {13, 3}};
  const auto values = values_in(*source, name, box);
  EXPECT_EQ(turned->info(name).shape, (std::vector<int64_t>{8, 24}));
  const auto columns = values_in(*turned, name, {{2, 5}, {3, 13}});
  for (int64_t row = 0; row < 13; ++row) {
    for (int64_t column = 0; column < 3; ++column) {
      const float expected = value_of(name, (5 + row) * 8 + 2 + column);
      EXPECT_EQ(values[static_cast<size_t>(row * 3 + column)], expected) << row << ' ' << column;
      EXPECT_EQ(columns[static_cast<size_t>(column * 13 + row)], expected) << row << ' ' << column;
    }
  }
}

TEST(MegatronFolders, UnderTheirOwnNamesAreWholeAndNumberedOverAllStages) {
  const auto source = open_source(recorded("gpt2_tp2_pp2"), {.form = "megatron_own"});

  EXPECT_EQ(source->info("embedding.word_embeddings.weight").shape, (std::vector<int64_t>{16, 8}));
  EXPECT_EQ(source->info("decoder.layers.2.mlp.linear_fc2.weight").shape, (std::vector<int64_t>{8, 12}));
  EXPECT_TRUE(source->contains("decoder.layers.2.input_layernorm.weight"));
  EXPECT_FALSE(source->contains("decoder.layers.3.input_layernorm.weight"));
}

// ---- The optimizer's state.

void expect_state(const TensorSource& source, const std::string& slot, const std::vector<std::string>& names) {
  EXPECT_THAT(source.names(), ::testing::UnorderedElementsAreArray(names)) << slot;
  for (const std::string& name : source.names()) {
    const auto values = values_in(source, name, whole_box(source.info(name).shape));
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i], value_of(slot + name, static_cast<int64_t>(i))) << slot << name << " at " << i;
  }
}

TEST(MegatronOptimizers, AreReadUnderTheNamesOfTheWeights) {
  for (const char* const name : {"gpt2_numbered_tp2_pp2", "gpt2_buffers_tp2_pp2", "gpt2_buffers_virtual",
                                 "llama_buffers_tp2", "gpt2_torch_dist_state"}) {
    SCOPED_TRACE(name);
    const auto folder = open_megatron_folder(recorded(name), {.optimizer = true});

    EXPECT_EQ(folder.optimizer.step, 20);
    ASSERT_EQ(folder.optimizer.slots.size(), 2U);
    expect_state(*folder.optimizer.slots.at("exp_avg"), "exp_avg:", folder.weights->names());
    expect_state(*folder.optimizer.slots.at("exp_avg_sq"), "exp_avg_sq:", folder.weights->names());
    // The weights themselves are in bfloat16 where ranks wrote them.
    ASSERT_NE(folder.optimizer.exact_weights, nullptr);
    expect_state(*folder.optimizer.exact_weights, "", folder.weights->names());
    std::vector<std::string> all;
    for (const auto& group : folder.optimizer.groups) {
      const bool decays = group.options["weight_decay"].as_double() > 0;
      for (const std::string& parameter : group.parameters) {
        EXPECT_EQ(folder.weights->info(parameter).shape.size() == 2, decays) << parameter;
        all.push_back(parameter);
      }
    }
    EXPECT_THAT(all, ::testing::UnorderedElementsAreArray(folder.weights->names()));
  }
}

TEST(MegatronOptimizers, AreStateDictsByName) {
  const std::string folder = recorded("gpt2_numbered_tp2_pp2"), name = "transformer.h.2.attn.c_attn.weight";
  for (const auto& [form, shape] : {std::pair("megatron", std::vector<int64_t>{24, 8}),
                                    std::pair("megatron_transformers", std::vector<int64_t>{8, 24})}) {
    const auto weights = open_source(folder, {.form = form});

    const auto state = read_optimizer(folder, 0, *weights);

    ASSERT_TRUE(state.has_value());
    EXPECT_FALSE(read_optimizer(folder, 1, *weights).has_value());
    const PythonValue& slots = (*state)["state"][name];
    EXPECT_EQ(slots["exp_avg"].as_tensor().shape, shape) << form;
    EXPECT_EQ(slots["step"].as_double(), 20);
    const PythonValue& groups = (*state)["param_groups"];
    ASSERT_EQ(groups.size(), 2U);
    EXPECT_EQ(groups[0]["lr"].as_double(), 0.002);
    EXPECT_EQ(groups[0]["betas"][1].as_double(), 0.98);
    EXPECT_EQ(groups[0]["weight_decay"].as_double(), 0.1);
    EXPECT_EQ(groups[1]["weight_decay"].as_double(), 0.0);
    EXPECT_TRUE(groups[1]["decoupled_weight_decay"].as_bool());
  }
  EXPECT_FALSE(read_optimizer(recorded("gpt2_tp2_pp2"), 0, *open_source(recorded("gpt2_tp2_pp2"))).has_value());
}

// ---- Folders that do not go together.

class WrongMegatronFolders : public hasten::testing::InFolder {
 protected:
  std::string copy_of(const std::string& name) const {
    fs::remove_all(path("folder"));
    fs::copy(recorded(name), path("folder"), fs::copy_options::recursive);
    return path("folder");
  }
  std::string opened(const MegatronOptions& options = {}) const {
    return hasten::testing::words_of<Error>([&] { open_megatron_folder(path("folder"), options); });
  }
  // Replaces the values of the first rank's file.
  void edit(const std::string& rank, const std::function<void(PythonValue&)>& change) const {
    const std::string file = path("folder/iter_0000020/" + rank + "/model_optim_rng.pt");
    PythonValue value = PythonValue::dict(), args = PythonValue::dict();
    const PythonFile before = PythonFile::open(file);
    for (const auto& [key, held] : before.value().as_pairs()) value.set(key, held);
    for (const auto& [key, held] : before["args"].as_object().state.as_pairs()) args.set(key, held);
    args.set("params_dtype", PythonValue());
    value.set("args", args);
    change(value);
    save_python_file(real_disk(), file, value);
  }
};

TEST_F(WrongMegatronFolders, AreRefusedByName) {
  copy_of("gpt2_tp2_pp2");
  fs::remove_all(path("folder/iter_0000020/mp_rank_01_001"));
  EXPECT_THAT(opened(), HasSubstr("it has no folder of tensor rank 1 of stage 1; there are mp_rank_00_000, "));

  fs::remove_all(path("folder/iter_0000020/mp_rank_01_000"));
  EXPECT_THAT(opened(), HasSubstr("the arguments say tensor_model_parallel_size 2, and there are folders of 1"));

  copy_of("gpt2_tp2_pp2");
  fs::remove(path("folder/iter_0000020/mp_rank_01_000/model_optim_rng.pt"));
  EXPECT_THAT(opened(), HasSubstr("mp_rank_01_000': it has no model_optim_rng.pt"));

  copy_of("gpt2_tp2_pp2");
  fs::create_directories(path("folder/iter_0000020/mp_rank_00_000_001"));
  EXPECT_THAT(opened(), HasSubstr("a rank of experts"));

  copy_of("gpt2_tp2_pp2");
  fs::resize_file(path("folder/iter_0000020/mp_rank_01_001/model_optim_rng.pt"), 700);
  EXPECT_THAT(opened(), HasSubstr("mp_rank_01_001/model_optim_rng.pt"));

  copy_of("gpt2_older_v2");
  EXPECT_THAT(opened({.tag = "7"}), HasSubstr("has no iter_0000007; it has iter_0000020"));
  write("folder/latest_checkpointed_iteration.txt", "30\n");
  EXPECT_THAT(opened(), HasSubstr("has no iter_0000030, which latest_checkpointed_iteration.txt names"));
  write("folder/latest_checkpointed_iteration.txt", "soon");
  EXPECT_THAT(opened(), HasSubstr("it has 'soon', expected a number or release"));
  EXPECT_EQ(opened({.tag = "20"}), "no error");

  copy_of("gpt2_torch_dist");
  write("folder/iter_0000020/metadata.json", R"({"sharded_backend": "zarr", "sharded_backend_version": 1})");
  EXPECT_THAT(opened(), HasSubstr("of Megatron's form zarr; expected torch_dist"));
}

TEST_F(WrongMegatronFolders, OfTensorsThatDoNotGoTogetherAreRefused) {
  const auto without = [&](const std::string& rank, const std::string& name) {
    edit(rank, [&](PythonValue& value) {
      PythonValue model = PythonValue::dict();
      for (const auto& [key, held] : value["model"].as_pairs()) {
        if (key.as_string() != name) model.set(key, held);
      }
      value.set("model", model);
    });
  };
  copy_of("gpt2_tp2_pp2");
  without("mp_rank_01_000", "decoder.layers.0.mlp.linear_fc2.weight");
  EXPECT_THAT(opened(), HasSubstr("mp_rank_01_000/model_optim_rng.pt': it has no "
                                  "'decoder.layers.0.mlp.linear_fc2.weight'"));

  copy_of("bert_norms_first");
  edit("mp_rank_00", [](PythonValue& value) { value["args"].is_mapping(); });
  EXPECT_EQ(opened(), "no error") << "arguments in a dict";
  const auto with = [&](const char* name, PythonValue given) {
    copy_of("bert_norms_first");
    edit("mp_rank_00", [&](PythonValue& value) {
      PythonValue args = value["args"];
      args.set(name, std::move(given));
    });
    return opened();
  };
  EXPECT_THAT(with("num_layers", 3), HasSubstr("num_layers 3, and the files of all stages hold 1"));
  EXPECT_THAT(with("num_attention_heads", 16), HasSubstr("linear_qkv.weight' has 24 rows, expected 96"));
  EXPECT_THAT(with("num_experts", 8), HasSubstr("the argument num_experts is set"));
  EXPECT_THAT(with("qk_layernorm", true), HasSubstr("form megatron_own"));
  EXPECT_THAT(with("num_attention_heads", PythonValue()), HasSubstr("has no argument num_attention_heads"));
  EXPECT_EQ(opened({.arguments = Value::map({{"num_attention_heads", 4}})}), "no error");
  EXPECT_EQ(opened({.names = MegatronNames::kMegatron}), "no error");
  EXPECT_THAT(opened({.arguments = Value::map({{"num_atention_heads", 4}})}),
              HasSubstr("did you mean 'num_attention_heads'"));
}

TEST_F(WrongMegatronFolders, WithStateWhoseParametersCannotBeToldAreRefused) {
  const MegatronOptions with_state{.optimizer = true};
  const std::string remedy = "Read weights alone (--only model), or save with --ckpt-format torch_dist";
  const auto edit_groups = [&](const std::function<void(PythonValue::Items & groups)>& change) {
    copy_of("gpt2_numbered_tp2_pp2");
    edit("mp_rank_00_000", [&](PythonValue& value) {
      PythonValue groups = value["optimizer"]["optimizer"]["param_groups"];  // the same list, as in Python
      change(groups.as_items());
    });
    return opened(with_state);
  };
  EXPECT_THAT(edit_groups([](auto& groups) {
                PythonValue numbers = groups[0]["params"];
                std::swap(numbers.as_items()[0], numbers.as_items()[1]);
              }),
              AllOf(HasSubstr("'embedding.word_embeddings.weight', which is in its place, [8, 8]"), HasSubstr(remedy)));
  EXPECT_THAT(edit_groups([](auto& groups) {
                PythonValue numbers = groups[1]["params"];
                numbers.as_items().pop_back();
              }),
              HasSubstr("biases and tensors of one dimension"));
  EXPECT_THAT(edit_groups([](auto& groups) { groups.push_back(groups[0]); }),
              HasSubstr("its groups are not those of weight decay alone"));

  copy_of("gpt2_buffers_tp2_pp2");
  EXPECT_EQ(opened(), "no error") << "weights alone";
  edit("mp_rank_00_000", [](PythonValue& value) {
    PythonValue model = value["model"];
    const std::string of = ".mlp.linear_fc1.weight";
    const PythonValue first = model["decoder.layers.0" + of], second = model["decoder.layers.1" + of];
    model.set("decoder.layers.0" + of, second);
    model.set("decoder.layers.1" + of, first);
  });
  EXPECT_THAT(opened(with_state), HasSubstr("linear_fc1.weight' there are other values than the model's"));
  copy_of("gpt2_buffers_tp2_pp2");
  fs::remove(path("folder/iter_0000020/mp_rank_01_001/distrib_optim.pt"));
  EXPECT_THAT(opened(with_state),
              HasSubstr("mp_rank_01_001/model_optim_rng.pt' is missing: a distributed optimizer has "
                        "it in distrib_optim.pt"));

  copy_of("gpt2_torch_dist_buckets");
  EXPECT_EQ(opened(), "no error") << "weights alone";
  EXPECT_THAT(opened(with_state), HasSubstr("Save with --dist-ckpt-optim-fully-reshardable"));
}

TEST_F(WrongMegatronFolders, OfModelsWithoutACounterpartAreRefused) {
  copy_of("gpt2_older_v2");
  EXPECT_THAT(opened({.arguments = Value::map({{"apply_residual_connection_post_layernorm", true}})}),
              HasSubstr("norms come behind the residual sums"));
  EXPECT_THAT(hasten::testing::words_of<UsageError>(
                  [&] { open_source(path("folder"), {.form = "megatron", .part = "optimizer"}); }),
              HasSubstr("weights alone are read"));

  copy_of("llama_tp2");
  EXPECT_THAT(opened({.arguments = Value::map({{"swiglu", false}})}), HasSubstr("neither a GPT-2 nor a Llama"));

  EXPECT_THAT(hasten::testing::words_of<UsageError>([&] { open_megatron_folder(path("")); }),
              HasSubstr("neither latest_checkpointed_iteration.txt nor folders mp_rank_*"));
}

}  // namespace
}  // namespace hasten::files
