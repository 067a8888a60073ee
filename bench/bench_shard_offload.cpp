// The step of Adam whose state rests in files, beside the files' own bandwidth: the same bytes read and written with as
// many requests, past the page cache.
//
// Start it with `hasten launch -n 2`. The main process prints both times and the memory of all processes above their
// start (PSS), with state in a file, in memory, or without any (SGD).
#include <fcntl.h>
#include <hasten/hasten.h>
#include <torch/torch.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "options.h"
#include "support.h"

namespace {

constexpr int64_t kWidth = 1024;

struct Options {
  std::string folder;
  std::string state = "file";
  int64_t layers = 32;
  int steps = 8, warmup = 2;
};

// Milliseconds in which `bytes` of a file are read and written once, in blocks, by as many threads as requests.
double raw_pass_ms(const std::string& folder, int64_t bytes, const hasten::parallel::OffloadOptions& options) {
  const std::string path = folder + "/raw-" + std::to_string(getpid());
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_DIRECT, 0600);
  if (file < 0) throw std::runtime_error(path + " cannot be made with O_DIRECT");
  unlink(path.c_str());
  const int64_t block = options.block_bytes, count = bytes / block;
  const auto pass = [&](bool reads) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < options.queue_depth; ++thread) {
      threads.emplace_back([&, thread] {
        auto* const memory = static_cast<char*>(std::aligned_alloc(4096, static_cast<size_t>(block)));
        for (int64_t i = thread; i < count; i += options.queue_depth) {
          if (reads && pread(file, memory, static_cast<size_t>(block), i * block) != block) std::abort();
          if (pwrite(file, memory, static_cast<size_t>(block), i * block) != block) std::abort();
        }
        std::free(memory);
      });
    }
    for (auto& thread : threads) thread.join();
  };
  pass(false);
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) times.push_back(bench::time_ms([&] { pass(true); }));
  close(file);
  return bench::median(times);
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::vector<at::Tensor>& parameters, bool has_state) {
  if (!has_state) return std::make_unique<torch::optim::SGD>(parameters, 1e-3);
  return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(1e-3));
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Times a step of Adam whose state rests in files.");
  app.add_option("folder", options.folder)->required();
  app.add_option("--state", options.state)->check(CLI::IsMember({"file", "memory", "none"}));
  app.add_option("--layers", options.layers);
  app.add_option("--steps", options.steps);
  bench::parse(app, argc, argv);

  torch::set_num_threads(1);
  hasten::AcceleratorOptions settings{.cpu = true, .seed = 0};
  settings.shard.stage = hasten::ShardStage::kParameters;
  auto& offload = settings.shard.optimizer_offload;
  if (options.state == "file") {
    offload.device = hasten::parallel::OffloadDevice::kFile;
    offload.path = options.folder;
  }
  const hasten::Accelerator accelerator(settings);
  const auto sum = [&](double mine) {
    return accelerator.gather(torch::tensor({mine}, torch::kDouble)).sum().item<double>();
  };
  const double start = sum(bench::pss_mb());

  torch::nn::Sequential net;
  for (int64_t i = 0; i < options.layers; ++i) net->push_back(torch::nn::Linear(kWidth, kWidth));
  const auto adam = make_optimizer(net->parameters(), options.state != "none");
  auto [model, optimizer] = accelerator.prepare(net, *adam);
  accelerator.backward(model(torch::randn({8, kWidth})).pow(2).mean());
  for (int i = 0; i < options.warmup; ++i) optimizer.step();
  accelerator.wait_for_everyone();
  std::vector<double> times;
  for (int i = 0; i < options.steps; ++i)
    times.push_back(bench::time_ms([&, &optimizer = optimizer] { optimizer.step(); }));
  const double pss = sum(bench::pss_mb()) - start;
  const int64_t owned = options.layers * (kWidth * kWidth + kWidth) / accelerator.world_size();
  accelerator.wait_for_everyone();
  const double raw = raw_pass_ms(options.folder, 8 * owned, offload);
  accelerator.wait_for_everyone();
  if (!accelerator.is_main_process()) return 0;
  const double tile_mb = 8.0 * static_cast<double>(offload.tile_numel) / 1048576;
  std::cout << nlohmann::json{{"step_ms", bench::median(times)},
                              {"raw_ms", raw},
                              {"pss_mb", pss},
                              {"tiles_mb", offload.num_buffers * tile_mb * accelerator.world_size()}}
            << std::endl;
}
