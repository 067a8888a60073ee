// How soon a dead rank is noticed: the last rank ends itself with SIGKILL in the middle of all-reduces of 25
// MB, and each of the others notes when it has its CommError, and ends. Clocks of one machine are the same in
// every process.
//
// bench/run starts the ranks itself, since a launcher would end the others; HASTEN_BACKEND chooses the
// backend.
#include <hasten/core/error.h>
#include <hasten/process/process.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

namespace {

// Enough for everybody to be past the start.
constexpr int kCallsBefore = 10;

void print_now(const char* name) {
  const std::chrono::duration<double, std::milli> now = std::chrono::steady_clock::now().time_since_epoch();
  nlohmann::json line;
  line[name] = now.count();
  std::cout << line << std::endl;
}

}  // namespace

int main() {
  torch::set_num_threads(1);
  const hasten::process::Process process({.cpu = true, .check = false});
  std::atomic<int> calls = 0;
  std::thread killer;
  if (process.is_last_process()) {
    killer = std::thread([&] {
      for (int now = calls; now < kCallsBefore; now = calls) calls.wait(now);
      print_now("died_ms");
      std::raise(SIGKILL);
    });
  }
  const torch::Tensor tensor = torch::ones({25 << 18});
  try {
    for (;; calls.notify_all()) {
      process.group().all_reduce_(tensor);
      ++calls;
    }
  } catch (const hasten::CommError& error) {
    print_now("noticed_ms");
    std::cerr << error.what() << std::endl;
  }
}
