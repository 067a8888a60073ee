// A step of eight blocks (LayerNorm, 256 -> 1024 -> 256, with the residual sum): on one process, with its layers cut
// over two (tensor parallelism), or with its blocks on two stages (a pipeline of eight microbatches), and what an
// operator on a cut value costs more than on a plain one.
//
// --way: one (128 rows at once), parts (512 rows in eight parts), tensor, or the name of a pipeline's order
// (plan/orders.h). "llama" is a step of a Llama of four layers on four processes: its layers cut over two, the parts
// sharded over two others. Prints the median and the best of the steps, in milliseconds; of "tensor" also the operator.
#include <hasten/hasten.h>
#include <hasten/models.h>
#include <hasten/parallel/pipeline/pipeline.h>
#include <hasten/parallel/tensor/tensor_parallel.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "options.h"
#include "support.h"

namespace {

constexpr int64_t kWidth = 256, kInner = 1024, kBlocks = 8;
constexpr int kParts = 8;

struct FeedForwardImpl : torch::nn::Module {
  FeedForwardImpl() {
    register_module("norm", norm);
    register_module("up", up);
    register_module("down", down);
  }
  torch::Tensor forward(const torch::Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({kWidth})};
  torch::nn::Linear up{kWidth, kInner}, down{kInner, kWidth};
};

torch::nn::Sequential make_net() {
  torch::manual_seed(0);
  torch::nn::Sequential net;
  for (int64_t i = 0; i < kBlocks; ++i) net->push_back(std::make_shared<FeedForwardImpl>());
  return net;
}

template <class Step>
nlohmann::json timed(const hasten::process::Process& process, int steps, const Step& step) {
  std::vector<double> times;
  for (int i = 0; i < steps + 5; ++i) {
    process.wait_for_everyone();
    const double time = bench::time_ms(step);
    if (i >= 5) times.push_back(time);
  }
  return {{"median_ms", bench::median(times)},
          {"best_ms", *std::min_element(times.begin(), times.end())},
          {"main", process.is_main_process()}};
}

// Microseconds of an addition of small tensors, without gradients.
double addition_us(const torch::Tensor& value) {
  constexpr int kTimes = 2000;
  const torch::NoGradGuard no_grad;
  std::vector<double> times;
  for (int round = 0; round < 15; ++round) {
    times.push_back(bench::time_ms([&] {
      for (int i = 0; i < kTimes; ++i) torch::Tensor sum = value.add(value);
    }));
  }
  return 1000 * bench::median(times) / kTimes;
}

nlohmann::json measure_llama() {
  constexpr int64_t kSamples = 8, kTokens = 64, kVocabulary = 1024;
  hasten::models::LlamaConfig config;
  config.vocab_size = kVocabulary, config.hidden_size = 256, config.intermediate_size = 1024;
  config.num_hidden_layers = 4, config.num_attention_heads = 8, config.num_key_value_heads = 4;
  torch::manual_seed(0);
  hasten::models::Llama net(config);
  const hasten::Accelerator accelerator({.cpu = true, .parallel = {.dp_shard = 2, .tp = 2}});
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-4));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  const auto ids = torch::randint(kVocabulary, {kSamples, kTokens + 1}, at::detail::createCPUGenerator(1), torch::kLong)
                       .chunk(2)[static_cast<size_t>(accelerator.rank() / 2)];
  return timed(accelerator.process(), 20, [&] {
    optimizer.zero_grad();
    const at::Tensor logits = model(ids.narrow(1, 0, kTokens), at::Tensor(), nullptr);
    accelerator.backward(torch::nn::functional::cross_entropy(logits.flatten(0, 1), ids.narrow(1, 1, kTokens).flatten()));
    optimizer.step();
  });
}

nlohmann::json measure(const std::string& way) {
  if (way == "llama") return measure_llama();
  const hasten::process::Process process({.cpu = true});
  auto net = make_net();
  const bool is_pipeline = way != "one" && way != "parts" && way != "tensor";
  const int64_t rows = is_pipeline || way == "parts" ? 512 : 128;
  const auto x = torch::randn({rows, kWidth}, at::detail::createCPUGenerator(1));
  const auto loss_of = [&](const torch::Tensor& part) { return net->forward(part).pow(2).mean(); };
  if (is_pipeline) {
    const auto order = hasten::plan::parse_order(way);
    const bool has_two = order != hasten::plan::OrderKind::kGPipe && order != hasten::plan::OrderKind::k1F1B;
    const hasten::parallel::Pipeline pipeline(*net, process.group(),
                                              {.chunks = has_two ? 2 : 1, .microbatches = kParts, .order = order});
    torch::optim::SGD sgd(net->parameters(), 1e-3);
    return timed(process, 20, [&] {
      sgd.zero_grad();
      pipeline.forward_backward(x, loss_of);
      sgd.step();
    });
  }
  std::optional<hasten::parallel::TensorParallel> cut;
  if (way == "tensor")
    cut.emplace(*net, process.group(),
                hasten::parallel::TensorParallelOptions{.plan = {{"*.up", "colwise"}, {"*.down", "rowwise"}}});
  torch::optim::SGD sgd(net->parameters(), 1e-3);
  auto result = timed(process, 30, [&] {
    sgd.zero_grad();
    if (way == "parts") {
      for (const auto& part : x.chunk(kParts)) (loss_of(part) / kParts).backward();
    } else {
      loss_of(x).backward();
    }
    sgd.step();
  });
  if (!cut) return result;
  const torch::Tensor value = net->ptr<FeedForwardImpl>(0)->up(x.narrow(0, 0, 1)).detach();
  result["operator_us"] = addition_us(value);
  result["plain_us"] = addition_us(hasten::parallel::local_value(value).clone());
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  std::string way = "one";
  CLI::App app("Times steps of tensor parallelism and of pipelines.");
  app.add_option("--way", way, "one, parts, tensor, llama, or the name of a pipeline's order");
  bench::parse(app, argc, argv);
  torch::set_num_threads(1);
  const auto result = measure(way);
  if (result["main"]) std::cout << result << std::endl;
  return 0;
}
