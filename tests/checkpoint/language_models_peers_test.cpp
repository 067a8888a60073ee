// Folders of transformers give its logits here (causal models, and BERT's classifier), what is saved here loads there,
// and offload folders go both ways.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "hasten/checkpoint/state_dict.h"
#include "hasten/checkpoint/weights.h"
#include "hasten/core/env.h"
#include "hasten/models/bert.h"
#include "hasten/models/generate.h"
#include "hasten/offload/load/dispatch.h"
#include "hasten/offload/map/tree_of.h"
#include "support/python.h"

namespace hasten::checkpoint {
namespace {

namespace fs = std::filesystem;

// Tiny random models of all types and settings, each with logits of a batch, of a left-padded batch, and greedy tokens.
constexpr const char* kMakeFolders = R"(
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config
torch.manual_seed(0)
base = dict(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=64, initializer_range=0.3)
llama3 = dict(rope_type='llama3', rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
models = {
    'gpt2': GPT2Config(vocab_size=97, n_positions=64, n_embd=32, n_layer=3, n_head=4, initializer_range=0.3),
    'gpt2_gelu': GPT2Config(vocab_size=97, n_positions=64, n_embd=32, n_layer=2, n_head=2, n_inner=40, activation_function='gelu', initializer_range=0.3),
    'llama3': LlamaConfig(**base, head_dim=16, attention_bias=True, mlp_bias=True, rope_parameters=llama3),
    'llama_linear': LlamaConfig(**base, tie_word_embeddings=True, rope_parameters=dict(rope_type='linear', rope_theta=10000.0, factor=4.0)),
    'mistral': MistralConfig(**base, sliding_window=5),
    'mistral_whole': MistralConfig(**base, sliding_window=None),
    'qwen2': Qwen2Config(**base, tie_word_embeddings=True),
    'qwen2_window': Qwen2Config(**base, use_sliding_window=True, sliding_window=4, max_window_layers=0),
    'qwen2_mixed': Qwen2Config(**base, use_sliding_window=True, sliding_window=4, max_window_layers=2),
}
for name, config in models.items():
    model = AutoModelForCausalLM.from_config(config).float().eval()
    for key, p in model.named_parameters():
        if p.dim() == 1: torch.nn.init.normal_(p, mean=0.0 if key.endswith('bias') else 1.0, std=0.3)
    model.save_pretrained(name, max_shard_size='20KB' if name == 'qwen2_mixed' else '1GB')
    with torch.no_grad():
        ids = torch.randint(0, 97, (2, 12))
        mask = torch.ones(2, 12, dtype=torch.long)
        mask[1, :3] = 0
        tokens = ids[:1]
        for _ in range(10): tokens = torch.cat([tokens, model(tokens).logits[:, -1].argmax(-1, keepdim=True)], 1)
        save_file(dict(ids=ids, logits=model(ids).logits, mask=mask, tokens=tokens,
                       padded=model(ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0)).logits),
                  name + '.safetensors')
    print(name)
)";

class LanguageModelPeers : public testing::InPython {
 protected:
  LanguageModelPeers() : InPython({"torch", "transformers"}) {}

  std::string python(const std::string& program) const { return run_python(program, "", "2>" + path("errors")); }

  static double distance(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }
};

void expect_transformers_logits(const std::string& folder, const std::string& expected) {
  const auto source = files::Catalog::open(expected);
  offload::SourceReader reader(source);
  const auto read = [&](const char* name) { return reader.tensor(name); };
  const auto model = models::CausalLm::from_folder(folder);
  const at::Tensor ids = read("ids"), mask = read("mask"), tokens = read("tokens");

  const double whole = (model(ids) - read("logits")).abs().max().item<double>();
  const at::Tensor real = mask.unsqueeze(-1);
  const double padded = ((model(ids, mask) - read("padded")) * real).abs().max().item<double>();
  std::cout << folder.substr(folder.rfind('/') + 1) << ": logits within " << whole << ", left-padded " << padded
            << std::endl;
  EXPECT_LE(whole, 1e-5) << folder;
  EXPECT_LE(padded, 1e-5) << folder;
  EXPECT_TRUE(models::generate(model, ids.narrow(0, 0, 1), {.max_new_tokens = 10}).equal(tokens))
      << folder << ": greedy tokens with a cache";
}

TEST_F(LanguageModelPeers, FoldersOfTransformersGiveItsLogitsAndOursAreReadThere) {
  const torch::NoGradGuard no_grad;
  std::istringstream names(python(kMakeFolders));
  std::vector<std::string> models;
  for (std::string name; std::getline(names, name);) models.push_back(name);
  ASSERT_EQ(models.size(), 9u) << models.front();
  for (const auto& name : models) expect_transformers_logits(path(name), path(name + ".safetensors"));

  // What is saved here: a model that was mapped, with other values.
  for (const std::string name : {"mistral", "qwen2"}) {
    const auto model = models::CausalLm::from_folder(path(name));
    for (auto& parameter : model.module().parameters()) parameter.mul_(0.9);
    save_pretrained(path(name + "_ours"), state_dict(model.module()), {.config = model.config()});
    save({{"logits", model(torch::arange(12).view({1, 12}))}}, path(name + "_ours/logits.pt"));
  }
  EXPECT_EQ(python(R"(
import torch
from transformers import AutoModelForCausalLM
for name in ['mistral', 'qwen2']:
    model = AutoModelForCausalLM.from_pretrained(name + '_ours', dtype=torch.float32).eval()
    with torch.no_grad(): logits = model(torch.arange(12).view(1, 12)).logits
    difference = (logits - torch.load(name + '_ours/logits.pt', weights_only=True)['logits']).abs().max().item()
    print(name, difference <= 1e-5, model.lm_head.weight is model.model.embed_tokens.weight)
)"),
            "mistral True False\nqwen2 True True\n");
}

// Tiny random classifiers, with logits of a padded batch of pairs.
constexpr const char* kMakeClassifiers = R"(
import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertForSequenceClassification
torch.manual_seed(0)
base = dict(vocab_size=61, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48, max_position_embeddings=40, initializer_range=0.3)
for name, config in {
    'bert': BertConfig(**base),
    'bert_labels': BertConfig(**base, num_labels=5, hidden_act='gelu_new', layer_norm_eps=1e-6),
    'bert_padding': BertConfig(**{**base, 'num_attention_heads': 2}, type_vocab_size=3, pad_token_id=7, id2label={0: 'no', 1: 'yes', 2: 'who knows'}),
}.items():
    model = BertForSequenceClassification(config).float().eval()
    for key, p in model.named_parameters():
        if p.dim() == 1: torch.nn.init.normal_(p, mean=0.0 if key.endswith('bias') else 1.0, std=0.3)
    model.save_pretrained(name)
    ids = torch.randint(0, 61, (3, 17))
    mask = torch.ones(3, 17, dtype=torch.long)
    mask[1, 9:] = 0
    types = torch.randint(0, config.type_vocab_size, (3, 17))
    with torch.no_grad(): logits = model(ids, attention_mask=mask, token_type_ids=types).logits
    save_file(dict(ids=ids, mask=mask, types=types, logits=logits), name + '.safetensors')
    print(name, logits.shape[1])
)";

models::BertForSequenceClassification classifier_of(const std::string& folder) {
  std::ifstream file(folder + "/config.json");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  models::BertForSequenceClassification model(
      models::BertConfig::from_json(core::Value::parse_json(text, folder + "/config.json")));
  load_weights(*model, folder, {.strict = true});
  model->eval();
  return model;
}

TEST_F(LanguageModelPeers, BertsClassifiersGiveTransformersLogitsAndOursAreReadThere) {
  const torch::NoGradGuard no_grad;
  ASSERT_EQ(python(kMakeClassifiers), "bert 2\nbert_labels 5\nbert_padding 3\n");
  for (const std::string name : {"bert", "bert_labels", "bert_padding"}) {
    const auto source = files::Catalog::open(path(name + ".safetensors"));
    offload::SourceReader reader(source);
    auto model = classifier_of(path(name));

    const at::Tensor logits = model->forward(reader.tensor("ids"), reader.tensor("mask"), reader.tensor("types"));

    std::cout << name << ": logits within " << distance(logits, reader.tensor("logits")) << std::endl;
    EXPECT_LE(distance(logits, reader.tensor("logits")), 1e-5) << name;
    EXPECT_GT(reader.tensor("logits").std(0).max().item<double>(), 0.05) << name << ": inputs make a difference";
  }

  auto model = classifier_of(path("bert"));
  for (auto& parameter : model->parameters()) parameter.mul_(0.9);
  save_pretrained(path("ours"), state_dict(*model));
  fs::copy(path("bert/config.json"), path("ours/config.json"));
  const auto source = files::Catalog::open(path("bert.safetensors"));
  offload::SourceReader reader(source);
  save({{"logits", model->forward(reader.tensor("ids"), reader.tensor("mask"), reader.tensor("types"))}},
       path("ours/logits.pt"));
  EXPECT_EQ(python(R"(
import torch
from safetensors.torch import load_file
from transformers import BertForSequenceClassification
model = BertForSequenceClassification.from_pretrained('ours', dtype=torch.float32).eval()
given = load_file('bert.safetensors')
with torch.no_grad(): logits = model(given['ids'], attention_mask=given['mask'], token_type_ids=given['types']).logits
print((logits - torch.load('ours/logits.pt', weights_only=True)['logits']).abs().max().item() <= 1e-5)
)"),
            "True\n");
}

TEST_F(LanguageModelPeers, OffloadFoldersGoBothWays) {
  const torch::NoGradGuard no_grad;
  torch::nn::Sequential net(torch::nn::Linear(5, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 3));
  const auto model = offload::disk_offload(net, path("ours"));

  EXPECT_EQ(python(R"(
import torch
from accelerate.utils import OffloadedWeightsLoader, offload_state_dict
ours = OffloadedWeightsLoader(save_folder='ours')
offload_state_dict('theirs', {key: (ours[key] * 2 if ours[key].is_floating_point() else ours[key] + 7) for key in ours})
print(len(ours), ours['1.num_batches_tracked'].dtype, list(ours['0.weight'].shape))
)"),
            "9 torch.int64 [4, 5]\n");
  torch::nn::Sequential read(torch::nn::Linear(5, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 3));
  offload::load_checkpoint_in_model(*read, path("theirs"), {.strict = true});

  const auto expected = net->named_parameters(), given = read->named_parameters();
  for (const auto& item : expected) EXPECT_TRUE(given[item.key()].equal(item.value() * 2)) << item.key();
  EXPECT_EQ(read->named_buffers()["1.num_batches_tracked"].item<int64_t>(), 7);
}

}  // namespace
}  // namespace hasten::checkpoint
