// What nlp and complete_nlp share: options, data, model, schedule and judgement of BERT on pairs of sentences.
#pragma once

#include <hasten/checkpoint/weights.h>
#include <hasten/core/value.h>
#include <hasten/hasten.h>
#include <hasten/models/bert.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "data/paraphrases.h"
#include "support.h"

namespace example {

struct PairOptions {
  std::string data, model;
  int64_t epochs = 3, batch_size = 16, max_length = 128, limit = 1'000'000, warm_up = 100, hidden = 128, layers = 2,
          vocabulary = 3000;
  double lr = 2e-5;
  uint64_t seed = 42;

  void add_to(CLI::App& app) {
    app.add_option("--data", data, "folder of MRPC (default: verses of two translations)");
    app.add_option("--model", model, "folder of transformers with a BERT (default: a small one from scratch)");
    app.add_option("--epochs", epochs)->capture_default_str();
    app.add_option("--batch_size", batch_size, "of each process and step")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--max_length", max_length, "tokens of a pair")->check(CLI::Range(8, 512))->capture_default_str();
    app.add_option("--limit", limit, "pairs to train with");
    app.add_option("--warm_up", warm_up, "steps")->capture_default_str();
    app.add_option("--hidden", hidden, "width of the small model, a multiple of 32")->capture_default_str();
    app.add_option("--layers", layers, "of the small model")->capture_default_str();
    app.add_option("--vocabulary", vocabulary, "tokens of the small model")->capture_default_str();
    app.add_option("--lr", lr, "highest rate")->capture_default_str();
    app.add_option("--seed", seed)->capture_default_str();
  }
};

struct PairTask {
  hasten::data::TensorDataset<4> train, test;
  hasten::models::BertForSequenceClassification net;
  /// Steps of all epochs.
  int64_t steps(const PairOptions& o, int num_processes) const {
    const auto global_batch = static_cast<size_t>(o.batch_size) * static_cast<size_t>(num_processes);
    return static_cast<int64_t>((*train.size() + global_batch - 1) / global_batch) * o.epochs;
  }
};

inline PairTask pair_task(const PairOptions& o) {
  const auto train = o.data.empty() ? verse_paraphrases(true, o.seed) : read_paraphrases(o.data, true);
  const auto test = o.data.empty() ? verse_paraphrases(false, o.seed) : read_paraphrases(o.data, false);
  auto texts = train.first;
  texts.insert(texts.end(), train.second.begin(), train.second.end());
  const auto pieces = o.model.empty() ? WordPiece::from_texts(texts, static_cast<size_t>(o.vocabulary))
                                      : WordPiece::from_file(o.model + "/vocab.txt");
  hasten::models::BertConfig config{.vocab_size = pieces.size(),
                                    .hidden_size = o.hidden,
                                    .num_hidden_layers = o.layers,
                                    .num_attention_heads = o.hidden / 32,
                                    .intermediate_size = 4 * o.hidden,
                                    .max_position_embeddings = o.max_length};
  if (!o.model.empty()) {
    std::ifstream file(o.model + "/config.json");
    config = hasten::models::BertConfig::from_json(hasten::core::Value::parse_json(
        std::string(std::istreambuf_iterator<char>(file), {}), o.model + "/config.json"));
    config.num_labels = 2;
  }
  PairTask task{encode_paraphrases(train, pieces, o.max_length, o.limit),
                encode_paraphrases(test, pieces, o.max_length, o.limit),
                hasten::models::BertForSequenceClassification(config)};
  if (!o.model.empty()) hasten::checkpoint::load_weights(*task.net, o.model, {.strict = false});
  return task;
}

inline torch::optim::AdamW pair_optimizer(torch::nn::Module& net, double lr) {
  return torch::optim::AdamW(net.parameters(), torch::optim::AdamWOptions(lr));
}

/// transformers' get_linear_schedule_with_warmup.
inline std::shared_ptr<hasten::optim::LambdaLR> linear_schedule(torch::optim::Optimizer& optimizer, int64_t steps,
                                                                int64_t warm_up) {
  return std::make_shared<hasten::optim::LambdaLR>(
      optimizer, hasten::optim::LambdaLROptions{.lr_lambda = [steps, warm_up](int64_t step) {
        if (step < warm_up) return static_cast<double>(step) / static_cast<double>(std::max<int64_t>(1, warm_up));
        return std::max(0.0,
                        static_cast<double>(steps - step) / static_cast<double>(std::max<int64_t>(1, steps - warm_up)));
      }});
}

struct Judgement {
  double accuracy = 0, f1 = 0;
  std::string text() const { return hasten::text("accuracy ", rounded(accuracy, 4), ", F1 ", rounded(f1, 4)); }
};

/// Over all ranks, each pair once.
inline Judgement judged(const hasten::Accelerator& accelerator, auto& model, auto& test) {
  model->eval();
  const torch::NoGradGuard no_grad;
  hasten::data::ConfusionMatrix matrix({.num_classes = 2});
  for (auto& batch : test)
    matrix.update(accelerator.without_padding(model(batch[0], batch[1], batch[2])),
                  accelerator.without_padding(batch[3]));
  const auto confusion = matrix.compute(accelerator.group());
  return {confusion.accuracy(), confusion.f1()[1].template item<double>()};
}

}  // namespace example
