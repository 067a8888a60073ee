// Trains a small transformer language model with sharded parameters and says what it took: memory before, at the
// peak and after each epoch, of all processes (Accelerate's fsdp_with_peak_mem_tracking): the host's, or the devices'.
//
// hasten launch -n 2 examples/fsdp_with_peak_mem --stage 3
//
// The text is made up: each token follows from the one before, with noise, so that the loss has somewhere to go.
#include <c10/core/CachingDeviceAllocator.h>
#include <hasten/hasten.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <cstring>
#include <fstream>

namespace {

constexpr int64_t kVocabulary = 64, kLength = 16, kWidth = 64;

struct TransformerLmImpl : torch::nn::Module {
  TransformerLmImpl() {
    register_module("embedding", embedding);
    positions = register_parameter("positions", torch::randn({kLength, 1, kWidth}) * 0.02);
    register_module("encoder", encoder);
    register_module("head", head);
  }
  // tokens [batch, length] to scores [batch, length, vocabulary] of the next token.
  torch::Tensor forward(const torch::Tensor& tokens) {
    const auto mask = torch::full({kLength, kLength}, -INFINITY, tokens.device()).triu(1);
    const auto hidden = embedding(tokens).transpose(0, 1) + positions;
    return head(encoder(hidden, mask)).transpose(0, 1);
  }
  torch::nn::Embedding embedding{kVocabulary, kWidth};
  torch::Tensor positions;
  torch::nn::TransformerEncoder encoder{
      torch::nn::TransformerEncoderLayer(
          torch::nn::TransformerEncoderLayerOptions(kWidth, 4).dim_feedforward(4 * kWidth).dropout(0.0)),
      2};
  torch::nn::Linear head{kWidth, kVocabulary};
};
TORCH_MODULE(TransformerLm);

// [samples, length + 1] tokens.
torch::Tensor make_text(int64_t samples) {
  auto generator = torch::make_generator<torch::CPUGeneratorImpl>(1);
  const auto start = torch::randint(kVocabulary, {samples, 1}, generator);
  const auto steps = torch::randint(1, 3, {samples, kLength}, generator).cumsum(1);
  return torch::cat({start, (start + steps).remainder(kVocabulary)}, 1);
}

// Megabytes of this process: its device's, or the host's, where pages that several share count by their part.
double memory_mb(torch::Device device) {
  if (!device.is_cpu()) {
    const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
    return static_cast<double>(stats.allocated_bytes[0].current) / 1e6;
  }
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("Pss:", 0) == 0) return std::stod(line.substr(std::strlen("Pss:"))) / 1024;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  int stage = 3, epochs = 2;
  int64_t samples = 512;
  CLI::App app("A language model with sharded parameters, and the memory it takes.");
  app.add_option("--stage", stage, "0: plain data parallelism")->check(CLI::Range(0, 3));
  app.add_option("--epochs", epochs)->check(CLI::NonNegativeNumber);
  app.add_option("--samples", samples)->check(CLI::PositiveNumber);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }

  hasten::AcceleratorOptions options{.seed = 42};
  options.shard.stage = static_cast<hasten::ShardStage>(stage);
  const hasten::Accelerator accelerator(options);
  const auto total_mb = [&] {
    return accelerator.reduce(torch::tensor(memory_mb(accelerator.device()))).item<double>();
  };
  accelerator.print("before the model: ", total_mb(), " MB");

  TransformerLm net;
  torch::optim::AdamW adamw(net->parameters(), 2e-3);
  auto [model, optimizer, train] = accelerator.prepare(
      net, adamw,
      hasten::data::loader<torch::data::samplers::RandomSampler>(hasten::data::TensorDataset(make_text(samples)), 32));
  for (int epoch = 0; epoch < epochs; ++epoch) {
    double sum = 0, peak = 0;
    int64_t steps = 0;
    for (auto& batch : train) {
      const torch::Tensor tokens = batch;
      const auto scores = model(tokens.narrow(1, 0, kLength));
      const auto loss =
          torch::nn::functional::cross_entropy(scores.flatten(0, 1), tokens.narrow(1, 1, kLength).flatten());
      if (steps % 4 == 0) peak = std::max(peak, total_mb());
      accelerator.backward(loss);
      accelerator.clip_grad_norm_(net->parameters(), 1.0);
      optimizer.step();
      optimizer.zero_grad();
      sum += loss.item<double>();
      ++steps;
    }
    const double mean =
        accelerator.reduce(torch::tensor(sum / static_cast<double>(steps)), {.op = hasten::comm::ReduceOp::kMean})
            .item<double>();
    accelerator.print("epoch ", epoch, ": loss ", mean, ", peak ", peak, " MB, now ", total_mb(), " MB");
  }
  // On devices a call of all ranks; on CPUs any rank may make it alone.
  int64_t count = 0;
  for (const auto& [name, value] : accelerator.get_state_dict(net)) count += value.numel();
  accelerator.print("the whole state on one rank: ", count, " numbers");
  accelerator.end_training();
}
