// prepare of a model of 1 GB (64 x Linear(2048)) with sharded parameters, beside a copy of it; its state dictionary;
// and its export in float32, beside a plain file of as many bytes.
//
// Start it with `hasten launch -n 2`. The main process prints times, and the memory of all processes above their start.
#include <fcntl.h>
#include <hasten/hasten.h>
#include <torch/torch.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "options.h"
#include "support.h"

namespace {

constexpr int64_t kWidth = 2048;

// Milliseconds in which `bytes` are written to a file and synced.
double raw_write_ms(const std::string& path, int64_t bytes) {
  const std::vector<char> block(8 << 20, 1);
  const double time = bench::time_ms([&] {
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    for (int64_t done = 0; done < bytes; done += static_cast<int64_t>(block.size())) {
      if (write(file, block.data(), block.size()) < 0) throw std::runtime_error(path + " cannot be written");
    }
    fsync(file);
    close(file);
  });
  unlink(path.c_str());
  return time;
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder;
  int64_t layers = 64;
  CLI::App app("Times prepare and export of a sharded model of 1 GB.");
  app.add_option("folder", folder)->required();
  app.add_option("--layers", layers);
  bench::parse(app, argc, argv);

  torch::set_num_threads(1);
  hasten::AcceleratorOptions settings{.cpu = true, .seed = 0};
  settings.shard.stage = hasten::ShardStage::kParameters;
  const hasten::Accelerator accelerator(settings);
  const auto gathered = [&](double mine) { return accelerator.gather(torch::tensor({mine}, torch::kDouble)); };
  const double start = gathered(bench::pss_mb()).sum().item<double>();
  const double start_peak = bench::memory_mb("VmHWM");

  // Each rank makes it whole; the constructors' random numbers are no part of what is measured.
  torch::nn::Sequential net;
  for (int64_t i = 0; i < layers; ++i) net->push_back(torch::nn::Linear(kWidth, kWidth));
  std::optional<decltype(accelerator.prepare(net))> model;
  accelerator.wait_for_everyone();
  const double prepare = bench::time_ms([&] {
    model = accelerator.prepare(net);
    accelerator.wait_for_everyone();
  });
  const double peak = gathered(bench::memory_mb("VmHWM") - start_peak).max().item<double>();
  const double pss = gathered(bench::pss_mb()).sum().item<double>() - start;
  int64_t bytes = 0, moved = 0;
  const auto state = accelerator.get_state_dict(*model);
  const auto parameters = net->named_parameters();
  for (const auto& [name, value] : state) {
    bytes += static_cast<int64_t>(value.nbytes());
    if (value.const_data_ptr() != parameters[name].const_data_ptr()) moved += static_cast<int64_t>(value.nbytes());
  }
  accelerator.wait_for_everyone();
  const double save = bench::time_ms([&] { accelerator.save_model(*model, folder + "/export"); });
  accelerator.wait_for_everyone();
  if (accelerator.is_main_process()) {
    std::vector<at::Tensor> copies;
    const double copy = bench::time_ms([&] {
      for (const auto& parameter : net->parameters()) copies.push_back(parameter.detach().clone());
    });
    copies.clear();
    std::cout << nlohmann::json{{"prepare_ms", prepare},
                                {"copy_ms", copy},
                                {"peak_mb", peak},
                                {"pss_mb", pss},
                                {"model_mb", static_cast<double>(bytes) / 1048576},
                                {"state_dict_moved_mb", static_cast<double>(moved) / 1048576},
                                {"save_ms", save},
                                {"raw_write_ms", raw_write_ms(folder + "/raw", bytes)}}
              << std::endl;
  }
  accelerator.wait_for_everyone();
}
