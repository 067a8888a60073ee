// Saving and loading a run's state, beside Accelerate and DCP: 10 Linear layers of 2,880 (83 M parameters) with AdamW.
//
// Prints the pause of save_state, the time until the files are durable, the time of a load from the disk and of a
// cached one, and a memcpy of the state.
#include <hasten/hasten.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "options.h"
#include "support.h"

// Brings the files of a folder into the page cache, where the peer's buffered save leaves its own.
void read_files(const std::string& folder) {
  std::vector<char> piece(1 << 20);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    while (file.read(piece.data(), static_cast<std::streamsize>(piece.size()))) {
    }
  }
}

int main(int argc, char** argv) {
  CLI::App app("Pause, time until durable and load of a saved state");
  std::string folder = "/tmp/hasten_bench_checkpoint";
  int64_t width = 2880, saves = 4;
  app.add_option("--folder", folder, "An empty folder on the disk to be measured");
  app.add_option("--width", width, "Of the layers");
  app.add_option("--saves", saves, "Saves; the median counts");
  bench::parse(app, argc, argv);
  hasten::AcceleratorOptions options;
  options.project = {.project_dir = folder, .automatic_checkpoint_naming = true, .total_limit = 1};
  hasten::Accelerator accelerator(options);
  torch::nn::Sequential net;
  for (int i = 0; i < 10; ++i) net->push_back(torch::nn::Linear(width, width));
  torch::optim::AdamW adam(net->parameters());
  auto [model, optimizer] = accelerator.prepare(net, adam);
  for (auto& parameter : net->parameters()) parameter.mutable_grad() = torch::zeros_like(parameter);
  optimizer.step();
  optimizer.zero_grad();

  int64_t numel = 0;
  for (const auto& parameter : net->parameters()) numel += parameter.numel();
  const auto bytes = static_cast<size_t>(numel) * 4 * 3 / static_cast<size_t>(accelerator.world_size());
  std::vector<char> from(bytes, 1), to(bytes, 2);
  std::vector<double> copies, pauses, totals, loads, cold_loads;
  double first = 0;
  for (int64_t i = 0; i < saves; ++i) {
    copies.push_back(bench::time_ms([&] { std::memcpy(to.data(), from.data(), bytes); }));
    accelerator.wait_for_everyone();
    hasten::checkpoint::Save save;
    const double pause = bench::time_ms([&] { save = accelerator.save_state(); });
    const double rest = bench::time_ms([&] { save.wait(); });
    if (i == 0) first = pause;
    pauses.push_back(pause);
    totals.push_back(pause + rest);
    cold_loads.push_back(bench::time_ms([&] { accelerator.load_state(); }));
    read_files(folder);
    loads.push_back(bench::time_ms([&] { accelerator.load_state(); }));
  }
  accelerator.end_training();
  if (!accelerator.is_main_process()) return 0;
  std::filesystem::remove_all(folder);
  std::cout << nlohmann::json{{"memcpy_ms", bench::median(copies)},
                              {"pause_ms", bench::median(pauses)},
                              {"first_pause_ms", first},
                              {"durable_ms", bench::median(totals)},
                              {"load_ms", bench::median(loads)},
                              {"cold_load_ms", bench::median(cold_loads)},
                              {"bytes", bytes}}
            << std::endl;
  return 0;
}
