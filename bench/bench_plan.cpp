// A step of a small GPT-2 under a layout of two ranks, which bench/run holds against what hasten plan predicts of it.
//
// --tp, --pp: ranks along an axis; --stage: of sharding. The sizes are those of kSizes; --sizes prints them as the
// plan's fields.
#include <hasten/hasten.h>
#include <hasten/models/gpt2.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "options.h"
#include "support.h"

namespace {

constexpr int64_t kHidden = 384, kLayers = 6, kHeads = 6, kVocabulary = 4096, kSequence = 128, kBatch = 8;

nlohmann::json sizes() {
  return {{"layers", kLayers},         {"hidden", kHidden},     {"heads", kHeads},
          {"vocabulary", kVocabulary}, {"sequence", kSequence}, {"tied", false}};
}

struct Layout {
  int tp = 1, pp = 1, stage = 0;
};

double step_ms(const Layout& o, bool& is_main) {
  hasten::AcceleratorOptions options{.cpu = true, .seed = 1, .parallel = {.tp = o.tp, .pp = o.pp}};
  if (o.pp > 1) options.parallel.microbatches = 4;
  options.shard.stage = static_cast<hasten::parallel::ShardStage>(o.stage);
  const hasten::Accelerator accelerator(options);
  is_main = accelerator.is_main_process();
  hasten::models::Gpt2 net(hasten::models::Gpt2Config{.vocab_size = kVocabulary,
                                                      .n_positions = kSequence,
                                                      .n_embd = kHidden,
                                                      .n_layer = kLayers,
                                                      .n_head = kHeads,
                                                      .tie_word_embeddings = false});
  torch::optim::AdamW adam(net->parameters(), 1e-4);
  auto [model, optimizer] = accelerator.prepare(net, adam);
  // Ranks of one model share a batch, the others have shares of it.
  const int64_t rows = kBatch / (o.tp * o.pp > 1 ? 1 : accelerator.world_size());
  const torch::Tensor ids = torch::randint(kVocabulary, {rows, kSequence}, torch::kLong);
  const std::pair<torch::Tensor, torch::Tensor> batch{ids, ids};
  const auto loss = [&, &model = model](const auto& part) {
    return torch::nn::functional::cross_entropy(model(part.first, torch::Tensor(), nullptr).flatten(0, 1),
                                                part.second.flatten());
  };
  std::vector<double> times;
  for (int step = 0; step < 7; ++step) {
    accelerator.wait_for_everyone();
    const double ms = bench::time_ms([&, &optimizer = optimizer] {
      optimizer.zero_grad();
      if (o.pp > 1) {
        accelerator.forward_backward(batch, loss);
      } else {
        accelerator.backward(loss(batch));
      }
      optimizer.step();
    });
    if (step > 1) times.push_back(ms);
  }
  return bench::median(times);
}

}  // namespace

int main(int argc, char** argv) {
  Layout o;
  bool prints_sizes = false, is_main = false;
  CLI::App app("Times a step of a small GPT-2 under a layout.");
  app.add_option("--tp", o.tp, "ranks of tensor parallelism");
  app.add_option("--pp", o.pp, "ranks of a pipeline");
  app.add_option("--stage", o.stage, "of sharding")->check(CLI::Range(0, 3));
  app.add_flag("--sizes", prints_sizes, "print the model's sizes alone");
  bench::parse(app, argc, argv);
  if (prints_sizes) return std::cout << sizes() << std::endl, 0;
  torch::set_num_threads(1);
  const double ms = step_ms(o, is_main);
  if (is_main) std::cout << nlohmann::json{{"step_ms", ms}, {"batch", kBatch}} << std::endl;
}
