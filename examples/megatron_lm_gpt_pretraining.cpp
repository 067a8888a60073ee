// Pretrains a small GPT-2, BERT or T5 as Accelerate's examples with Megatron-LM do: degrees, micro batches, clipping
// and the schedule are the launcher's, the data may be Megatron's indexed tokens.
//
// hasten launch -n 4 --use_megatron_lm --megatron_lm_tp_degree 2 --megatron_lm_pp_degree 2
//   --megatron_lm_num_micro_batches 4 examples/megatron_lm_gpt_pretraining --model gpt
//
// Without --data the text is made up: each token follows from the one before, so that the loss has somewhere to go.
#include <hasten/files/folders/indexed_tokens.h>
#include <hasten/hasten.h>
#include <hasten/models.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstring>

namespace {

using hasten::models::TextBatch;

constexpr int64_t kVocabulary = 64, kLength = 16, kWidth = 32, kLayers = 4, kHeads = 4;
constexpr int64_t kEndOfDocument = 0, kMask = 1;

struct Settings {
  std::string model = "gpt", data, make, save, load;
  int64_t samples = 256, batch = 32;
  int epochs = 3;
};

// [samples, kLength] tokens of documents that end somewhere.
torch::Tensor made_up_text(int64_t samples) {
  auto generator = at::detail::createCPUGenerator(1);
  const auto steps = torch::randint(1, 3, {samples * kLength}, generator).cumsum(0);
  auto text = steps.remainder(kVocabulary - 2) + 2;
  return text.masked_fill(torch::arange(samples * kLength).remainder(41).eq(40), kEndOfDocument)
      .view({samples, kLength});
}

void write_indexed(const std::string& prefix, const torch::Tensor& text) {
  hasten::files::IndexedTokensWriter writer(hasten::files::real_disk(), prefix, hasten::files::Dtype::kInt32);
  for (const auto& row : text.to(torch::kInt).unbind(0)) {
    writer.add(row.contiguous().const_data_ptr(), kLength);
    writer.end_document();
  }
  writer.finish();
}

// All tokens in a row, cut into samples.
torch::Tensor read_indexed(const std::string& prefix) {
  const hasten::files::IndexedTokens tokens(prefix);
  std::vector<torch::Tensor> all;
  for (int64_t i = 0; i < tokens.size(); ++i) {
    auto one = torch::empty({tokens.lengths()[static_cast<size_t>(i)]}, torch::kInt);
    std::memcpy(one.data_ptr(), tokens.tokens(i), one.nbytes());
    all.push_back(one);
  }
  const auto row = torch::cat(all).to(torch::kLong);
  const int64_t samples = row.numel() / kLength;
  return row.narrow(0, 0, samples * kLength).view({samples, kLength});
}

// Every fifth word is hidden, and to be found.
TextBatch hidden_words(const torch::Tensor& text) {
  const auto hidden = torch::arange(text.numel()).view_as(text).remainder(5).eq(2);
  return {{"input_ids", text.masked_fill(hidden, kMask)},
          {"attention_mask", torch::ones_like(text)},
          {"labels", text.masked_fill(hidden.logical_not(), -100)}};
}

// A model, what its batches are made of, and its step.
struct Gpt {
  static auto make() {
    hasten::models::Gpt2Config config;
    config.vocab_size = kVocabulary, config.n_positions = kLength, config.n_embd = kWidth;
    config.n_layer = kLayers, config.n_head = kHeads;
    return hasten::models::Gpt2(config);
  }
  static TextBatch data(const torch::Tensor& text) { return {{"input_ids", text}}; }
  template <class Model>
  static auto step(const Model& model) {
    return hasten::models::gpt_train_step({.eos_token_id = kEndOfDocument, .eod_mask_loss = true},
                                          [model](const auto& b) { return model(b.tokens, torch::Tensor(), nullptr); });
  }
};

struct Bert {
  static auto make() {
    hasten::models::BertConfig config;
    config.vocab_size = kVocabulary, config.hidden_size = kWidth, config.num_hidden_layers = kLayers;
    config.num_attention_heads = kHeads, config.intermediate_size = 2 * kWidth;
    config.max_position_embeddings = kLength;
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0;
    return hasten::models::BertForPreTraining(config);
  }
  static TextBatch data(const torch::Tensor& text) { return hidden_words(text); }
  template <class Model>
  static auto step(const Model& model) {
    return hasten::models::bert_train_step([model](const auto& b) { return model(b.tokens, b.padding_mask, b.types); });
  }
};

struct T5 {
  static auto make() {
    hasten::models::T5Config config;
    config.vocab_size = kVocabulary, config.d_model = kWidth, config.d_kv = kWidth / kHeads, config.d_ff = 2 * kWidth;
    config.num_layers = kLayers / 2, config.num_heads = kHeads, config.dropout_rate = 0;
    config.initializer_factor = 0.3;
    return hasten::models::T5(config);
  }
  // The decoder gives the hidden words back, among all others.
  static TextBatch data(const torch::Tensor& text) {
    TextBatch all = hidden_words(text);
    all["labels"] = text;
    return all;
  }
  template <class Model>
  static auto step(const Model& model) {
    return hasten::models::t5_train_step(
        [model](const auto& b) { return model(b.tokens_enc, b.attention_mask, b.tokens_dec); });
  }
};

template <class Kind>
void train(const Settings& o, const torch::Tensor& text) {
  hasten::Accelerator accelerator({.loader = {.use_seedable_sampler = true},
                                   .seed = 42,
                                   .megatron_lm = hasten::MegatronLmPlugin{.lr_decay_style = "cosine"}});
  auto net = Kind::make();
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(5e-3));
  const int64_t steps = o.epochs * (text.size(0) / o.batch);
  auto [model, optimizer, batches, scheduler] = accelerator.prepare(
      net, adamw,
      hasten::data::loader<torch::data::samplers::RandomSampler>(hasten::data::NamedTensorDataset(Kind::data(text)),
                                                                 o.batch),
      hasten::parallel::DummyScheduler(adamw, {.total_num_steps = steps, .warmup_num_steps = steps / 10}));
  const auto step = Kind::step(model);
  if (!o.load.empty()) accelerator.load_state(o.load);
  for (int epoch = 0; epoch < o.epochs; ++epoch) {
    double sum = 0;
    int64_t count = 0;
    for (auto& batch : batches) {
      optimizer.zero_grad();
      sum += accelerator.template forward_backward<TextBatch>(batch, step.loss, step.weight).template item<double>();
      optimizer.step();
      scheduler.step();
      ++count;
    }
    accelerator.print("epoch ", epoch, ": loss ", sum / static_cast<double>(count), ", perplexity ",
                      std::exp(sum / static_cast<double>(count)));
  }
  if (!o.save.empty()) accelerator.save_state(o.save);
  accelerator.end_training();
}

}  // namespace

int main(int argc, char** argv) {
  Settings o;
  CLI::App app("Pretrains a small GPT-2, BERT or T5 with the options of Megatron-LM.");
  app.add_option("--model", o.model)->check(CLI::IsMember({"gpt", "bert", "t5"}));
  app.add_option("--data", o.data, "Megatron's indexed tokens: the path of .idx and .bin without its end");
  app.add_option("--make", o.make, "write the made-up text in that form, and end");
  app.add_option("--save", o.save, "save the state to this folder");
  app.add_option("--load", o.load, "begin with the state of this folder, of any degrees");
  app.add_option("--epochs", o.epochs)->check(CLI::NonNegativeNumber);
  app.add_option("--samples", o.samples)->check(CLI::PositiveNumber);
  app.add_option("--batch", o.batch, "samples of a step, on each data parallel rank")->check(CLI::PositiveNumber);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }

  const auto text = o.data.empty() ? made_up_text(o.samples) : read_indexed(o.data);
  if (!o.make.empty()) {
    write_indexed(o.make, text);
  } else if (o.model == "gpt") {
    train<Gpt>(o, text);
  } else if (o.model == "bert") {
    train<Bert>(o, text);
  } else {
    train<T5>(o, text);
  }
  return 0;
}
