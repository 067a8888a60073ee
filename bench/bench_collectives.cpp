// Blocking collectives of comm::Group by size, and the barrier: milliseconds per call, as they are and
// (…_checked) with an agreement before the data moves. The peer is bench/peers/collectives.py; start this
// with `hasten launch -n 2`.
#include <hasten/state/process.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "support.h"

namespace {

constexpr int64_t kMegabyte = 1 << 20;
const std::map<std::string, int64_t> kSizes = {
    {"all_reduce_4KB", 4 << 10}, {"all_reduce_1MB", kMegabyte}, {"all_reduce_25MB", 25 * kMegabyte}};

// One call after the other of each group in turn, so that what else the machine does meets both alike.
void measure(const std::string& name, int calls, const hasten::comm::Group& group, nlohmann::json& times,
             const std::function<void(const hasten::comm::Group&)>& operation) {
  const auto checked = group.with_check(true);
  std::vector<double> plain_ms, checked_ms;
  for (int i = 0; i < calls; ++i) {
    plain_ms.push_back(bench::time_ms([&] { operation(group); }));
    checked_ms.push_back(bench::time_ms([&] { operation(checked); }));
  }
  times[name] = bench::median(plain_ms);
  times[name + "_checked"] = bench::median(checked_ms);
}

}  // namespace

int main(int argc, char** argv) {
  int calls = 200;
  CLI::App app("Times the collectives of two or more ranks.");
  app.add_option("--calls", calls, "of the small ones; the large ones a tenth of it")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);

  torch::set_num_threads(1);
  const hasten::state::Process process({.cpu = true, .check = false});
  nlohmann::json times;
  for (const auto& [name, num_bytes] : kSizes) {
    const torch::Tensor tensor = torch::ones(num_bytes / 4);
    measure(name, num_bytes <= kMegabyte ? calls : std::max(1, calls / 10), process.group(), times,
            [&](const hasten::comm::Group& group) { group.all_reduce_(tensor); });
  }
  measure("barrier", calls, process.group(), times,
          [](const hasten::comm::Group& group) { group.barrier(); });

  if (process.is_main_process()) std::cout << times << std::endl;
}
