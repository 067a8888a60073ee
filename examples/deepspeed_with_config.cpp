// Trains a small transformer language model as a DeepSpeed configuration says: stage, batch sizes, optimizer, schedule
// and clipping come from the file, "auto" from the program (Accelerate's deepspeed_with_config_support).
//
// hasten launch -n 2 examples/deepspeed_with_config --deepspeed_config ds.json
//
// Without a file it uses kConfig below. The text is made up: each token follows from the one before, with noise.
#include <hasten/hasten.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>

namespace {

constexpr int64_t kVocabulary = 64, kLength = 16, kWidth = 64;

constexpr const char* kConfig = R"({
  "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"},
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": 1.0,
  "bf16": {"enabled": "auto"},
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
  "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto",
                                                    "total_num_steps": "auto"}},  // all from DummyScheduler
})";

struct LanguageModelImpl : torch::nn::Module {
  LanguageModelImpl() {
    register_module("embedding", embedding);
    register_module("encoder", encoder);
    register_module("head", head);
  }
  // What "auto" sizes are computed from.
  int64_t hidden_size() const { return kWidth; }
  // tokens [batch, length] to scores [batch, length, vocabulary] of the next token.
  torch::Tensor forward(const torch::Tensor& tokens) {
    const auto mask = torch::full({kLength, kLength}, -INFINITY, tokens.device()).triu(1);
    return head(encoder(embedding(tokens).transpose(0, 1), mask)).transpose(0, 1);
  }
  torch::nn::Embedding embedding{kVocabulary, kWidth};
  torch::nn::TransformerEncoder encoder{
      torch::nn::TransformerEncoderLayer(
          torch::nn::TransformerEncoderLayerOptions(kWidth, 4).dim_feedforward(4 * kWidth).dropout(0.0)),
      2};
  torch::nn::Linear head{kWidth, kVocabulary};
};
TORCH_MODULE(LanguageModel);

// [samples, length + 1] tokens.
torch::Tensor make_text(int64_t samples) {
  auto generator = torch::make_generator<torch::CPUGeneratorImpl>(1);
  const auto start = torch::randint(kVocabulary, {samples, 1}, generator);
  const auto steps = torch::randint(1, 3, {samples, kLength}, generator).cumsum(1);
  return torch::cat({start, (start + steps).remainder(kVocabulary)}, 1);
}

}  // namespace

int main(int argc, char** argv) {
  std::string file;
  int epochs = 2;
  int64_t samples = 512;
  CLI::App app("A language model that is trained as a DeepSpeed configuration says.");
  app.add_option("--deepspeed_config", file, "the configuration");
  app.add_option("--epochs", epochs)->check(CLI::NonNegativeNumber);
  app.add_option("--samples", samples)->check(CLI::PositiveNumber);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }

  const hasten::Accelerator accelerator(
      {.seed = 42, .deepspeed = hasten::DeepSpeedPlugin{.hf_ds_config = file.empty() ? kConfig : file.c_str()}});
  LanguageModel net;
  const int64_t batch = 16, total = epochs * samples / batch;
  hasten::parallel::DummyOptim dummy(net->parameters(), {.lr = 2e-3, .weight_decay = 0.01});
  auto [model, optimizer, train, scheduler] = accelerator.prepare(
      net, dummy,
      hasten::data::loader<torch::data::samplers::RandomSampler>(hasten::data::TensorDataset(make_text(samples)),
                                                                 batch),
      hasten::parallel::DummyScheduler(dummy, {.total_num_steps = total, .warmup_num_steps = total / 10}));
  // The configuration with what it leaves out: defaults, and the batch number that follows from the others.
  const auto settings =
      hasten::plan::resolve_deepspeed(accelerator.deepspeed_plugin().config, accelerator.num_processes());
  accelerator.print("stage ", settings.stage, ", batches of ", settings.batch.train);

  for (int epoch = 0; epoch < epochs; ++epoch) {
    double sum = 0;
    int64_t steps = 0;
    for (auto& tokens : train) {
      const torch::Tensor text = tokens;
      const auto scores = model(text.narrow(1, 0, kLength));
      const auto loss =
          torch::nn::functional::cross_entropy(scores.flatten(0, 1), text.narrow(1, 1, kLength).flatten());
      accelerator.backward(loss);
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      sum += loss.item<double>();
      ++steps;
    }
    const auto mean =
        accelerator.reduce(torch::tensor(sum / static_cast<double>(steps)), {.op = hasten::comm::ReduceOp::kMean});
    accelerator.print("epoch ", epoch, ": loss ", mean.item<double>(), ", rate ", scheduler.rates()[0]);
  }
  accelerator.end_training();
}
