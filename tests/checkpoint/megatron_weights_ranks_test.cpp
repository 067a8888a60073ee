// Checkpoint folders of Megatron-LM (tests/files/megatron_folder_test.cpp) loaded into models of any layout: weights
// and optimizers.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hasten/accelerator.h"
#include "hasten/checkpoint/weights.h"
#include "hasten/files/folders/manifest.h"
#include "hasten/files/folders/open_source.h"
#include "hasten/files/folders/optimizer_folder.h"
#include "hasten/files/safetensors/weight_writer.h"
#include "hasten/models/bert.h"
#include "hasten/models/gpt2.h"
#include "hasten/models/t5.h"
#include "hasten/parallel/layout/placement.h"
#include "support/folder.h"
#include "support/golden.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using testing::run_ranks;

std::string megatron_folder(const std::string& name) {
  return testing::golden_folder() + "/megatron/" + name;
}

// The values that scripts/record_megatron_folders.py gives a tensor of this name.
at::Tensor recorded_values(const std::string& name, at::IntArrayRef shape) {
  int64_t seed = 0;
  for (const char letter : name) seed += letter;
  const int64_t count = c10::multiply_integers(shape);
  const at::Tensor all = (at::arange(count) * 7919 + 104729 * seed).remainder(2003) - 1001;
  return (all.to(at::kDouble) / 1024).to(at::kFloat).view(shape);
}

std::shared_ptr<torch::nn::Module> recorded_gpt2() {
  models::Gpt2Config config;
  config.vocab_size = 10;
  config.n_positions = 6;
  config.n_embd = 8;
  config.n_layer = 3;
  config.n_head = 4;
  config.n_inner = 12;
  return std::make_shared<models::Gpt2Impl>(config);
}
std::shared_ptr<torch::nn::Module> recorded_bert() {
  models::BertConfig config;
  config.vocab_size = 10;
  config.hidden_size = 8;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.intermediate_size = 12;
  config.max_position_embeddings = 6;
  return std::make_shared<models::BertForPreTrainingImpl>(config);
}
std::shared_ptr<torch::nn::Module> recorded_t5() {
  models::T5Config config;
  config.vocab_size = 10;
  config.d_model = 8;
  config.d_kv = 2;
  config.d_ff = 12;
  config.num_layers = 1;
  config.num_heads = 4;
  config.tied_head = false;
  return std::make_shared<models::T5Impl>(config);
}

struct RecordedModel {
  const char* folder;
  std::shared_ptr<torch::nn::Module> (*make)();
};
constexpr RecordedModel kRecorded[] = {
    {"gpt2_tp2_pp2", recorded_gpt2}, {"bert_tp2", recorded_bert}, {"t5_tp2_pp2", recorded_t5}};

// Names that are tied to another, under which the values were recorded.
const std::map<std::string, std::string> kTied = {
    {"lm_head.weight", "transformer.wte.weight"},
    {"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"},
    {"cls.predictions.decoder.bias", "cls.predictions.bias"},
    {"encoder.embed_tokens.weight", "shared.weight"},
    {"decoder.embed_tokens.weight", "shared.weight"}};

void expect_recorded(const torch::nn::Module& net, const std::string& words) {
  const auto parameters = net.named_parameters();
  for (const auto& item : parameters) {
    const at::Tensor whole = parallel::gather_parameter(item.value());
    const auto tied = kTied.find(item.key());
    const std::string& name = tied == kTied.end() || !parameters.contains(tied->second) ? item.key() : tied->second;
    EXPECT_TRUE(at::allclose(whole, recorded_values(name, whole.sizes()), 0, 2e-7)) << words << ' ' << item.key();
  }
}

TEST(MegatronWeights, LoadIntoWholeModels) {
  for (const auto& [folder, make] : kRecorded) {
    const auto net = make();

    const auto report = checkpoint::load_weights(*net, megatron_folder(folder));

    EXPECT_TRUE(report.missing.empty()) << folder;
    EXPECT_TRUE(report.unexpected.empty()) << folder;
    expect_recorded(*net, folder);
  }
}

TEST(MegatronWeights, LoadIntoModelsOfAnyLayout) {
  const std::pair<int, parallel::ParallelOptions> layouts[] = {
      {2, {.tp = 2}}, {4, {.tp = 4}}, {2, {.pp = 2}}, {4, {.tp = 2, .pp = 2}}, {2, {.dp_shard = 2}}};
  for (const auto& [folder, make] : kRecorded) {
    for (const auto& [world, layout] : layouts) {
      std::vector<std::shared_ptr<torch::nn::Module>> nets;
      for (int i = 0; i < world; ++i) nets.push_back(make());
      run_ranks(world, [&](process::Process& process) {
        const Accelerator accelerator(process, {.tune_allocator = false, .parallel = layout});
        const auto& net = nets[static_cast<size_t>(process.rank())];
        if (const auto gpt2 = std::dynamic_pointer_cast<models::Gpt2Impl>(net)) (void)accelerator.prepare(gpt2);
        if (const auto bert = std::dynamic_pointer_cast<models::BertForPreTrainingImpl>(net))
          (void)accelerator.prepare(bert);
        if (const auto t5 = std::dynamic_pointer_cast<models::T5Impl>(net)) (void)accelerator.prepare(t5);

        checkpoint::load_weights(*net, megatron_folder(folder));

        accelerator.wait_for_everyone();
        expect_recorded(*net, text(folder, " tp ", layout.tp, " pp ", layout.pp, " dp_shard ", layout.dp_shard));
        accelerator.wait_for_everyone();
      });
    }
  }
}

// As `hasten convert --to hasten` writes it.
void convert(const std::string& from, const std::string& to) {
  const auto source = files::open_source(from);
  const auto optimizer = files::read_optimizer(from, 0, *source);
  std::filesystem::create_directories(to);
  files::write_weights(files::real_disk(), *source, to, {.dtype = files::Dtype::kFloat32});
  core::Value parts = core::Value::map();
  files::write_hasten_optimizers(files::real_disk(), to, {*optimizer}, parts);
  files::Manifest manifest = files::manifest_of_headers(to);
  manifest.parts = std::move(parts);
  for (auto& tensor : manifest.tensors) {
    if (tensor.kind == "state") tensor.kind = "optimizer";
  }
  files::write_manifest(files::real_disk(), to, manifest);
}

class MegatronOptimizers : public testing::InFolder {};

TEST_F(MegatronOptimizers, LoadIntoModelsOfAnyLayout) {
  const std::pair<int, parallel::ParallelOptions> layouts[] = {
      {1, {}}, {2, {.tp = 2}}, {4, {.tp = 4}}, {2, {.pp = 2}}, {4, {.tp = 2, .pp = 2}}};
  for (const char* const from : {"gpt2_numbered_tp2_pp2", "gpt2_buffers_tp2_pp2"}) {
    convert(megatron_folder(from), path(from));
    for (const auto& [world, layout] : layouts) {
      std::vector<std::shared_ptr<models::Gpt2Impl>> nets;
      for (int i = 0; i < world; ++i) nets.push_back(std::dynamic_pointer_cast<models::Gpt2Impl>(recorded_gpt2()));
      run_ranks(world, [&](process::Process& process) {
        const Accelerator accelerator(process, {.tune_allocator = false, .parallel = layout});
        const auto& net = nets[static_cast<size_t>(process.rank())];
        torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1.0));
        auto [model, optimizer] = accelerator.prepare(net, adamw);

        accelerator.load_state(path(from), {.strict = false});

        const std::string words = text(from, " tp ", layout.tp, " pp ", layout.pp);
        EXPECT_EQ(adamw.param_groups()[0].options().get_lr(), 0.002) << words;
        for (const auto& item : net->named_parameters()) {
          if (item.value().numel() == 0 || kTied.contains(item.key())) continue;  // another stage's
          const auto found = adamw.state().find(item.value().unsafeGetTensorImpl());
          ASSERT_NE(found, adamw.state().end()) << words << ' ' << item.key();
          const auto& state = static_cast<const torch::optim::AdamWParamState&>(*found->second);
          EXPECT_EQ(state.step(), 20) << words;
          const auto sizes = parallel::whole_sizes(item.value());
          const at::Tensor first = recorded_values("exp_avg:" + item.key(), sizes);
          const at::Tensor second = recorded_values("exp_avg_sq:" + item.key(), sizes);
          EXPECT_TRUE(state.exp_avg().equal(parallel::part_as(item.value(), first))) << words << ' ' << item.key();
          EXPECT_TRUE(state.exp_avg_sq().equal(parallel::part_as(item.value(), second))) << words << ' ' << item.key();
        }
        accelerator.wait_for_everyone();
      });
    }
  }
}

}  // namespace
}  // namespace hasten
