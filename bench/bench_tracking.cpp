// What logging costs the training: log of two scalars, images, a loop of short steps, and how fast a follower catches up.
#include <ATen/Functions.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "hasten/tracking/follower.h"
#include "hasten/tracking/trackers.h"
#include "hasten/training/image_values.h"
#include "support.h"

namespace {

using namespace hasten;

tracking::Trackers make(const std::filesystem::path& folder, std::vector<tracking::LogWith> with) {
  return tracking::Trackers({.log_with = std::move(with), .options = {}, .logging_dir = folder, .run_key = "run", .environment = Environment::current()});
}

// One millisecond of work.
void spin() {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
  while (std::chrono::steady_clock::now() < until) {
  }
}

double loop_ms(tracking::Trackers* trackers, int num_steps) {
  return bench::time_ms([&] {
           for (int step = 0; step < num_steps; ++step) {
             spin();
             if (trackers != nullptr) trackers->log({{"loss", 1.0 / (step + 1)}, {"lr", 1e-3}}, step + 100000);
           }
         }) / num_steps;
}

double catch_up_per_s(const std::filesystem::path& folder) {
  auto trackers = make(folder, {"journal"});
  trackers.init("many");
  constexpr int kLines = 100000;
  for (int step = 0; step < kLines; ++step) trackers.log({{"loss", 1.0 / (step + 1)}, {"lr", 1e-3}}, step);
  trackers.finish();
  const double ms = bench::time_ms([&] {
    tracking::Follower follower({.journal = folder / "many/run/journal.jsonl", .sinks = {{.name = "tensorboard", .options = {}, .tracker = {}}}, .environment = Environment::current()});
    follower.close();
    follower.wait(std::chrono::minutes(1));
  });
  return 2 * kLines / (ms * 1e-3);
}

}  // namespace

int main() {
  const auto folder = std::filesystem::temp_directory_path() / text("hasten_bench_tracking_", getpid());
  auto trackers = make(folder, {"tensorboard", "csv"});
  trackers.init("p", {{"lr", 1e-3}, {"opt", "adam"}});
  std::vector<double> times;
  for (int step = 0; step < 3000; ++step) {
    times.push_back(1e3 * bench::time_ms([&] { trackers.log({{"loss", 1.0 / (step + 1)}, {"lr", 1e-3}}, step); }));
  }
  std::sort(times.begin(), times.end());
  const at::Tensor images = at::rand({8, 3, 224, 224});
  trackers.log_images({{"im", images}}, 3000);  // the first touch of memory is not the tracker's
  const double images_ms = bench::time_ms([&] { trackers.log_images({{"im", images}}, 3001); });
  std::vector<double> with, without;
  for (int round = 0; round < 5; ++round) {
    without.push_back(loop_ms(nullptr, 200));
    with.push_back(loop_ms(&trackers, 200));
  }
  trackers.finish();
  const nlohmann::json result = {{"log_median_us", times[times.size() / 2]}, {"log_p99_us", times[times.size() * 99 / 100]}, {"images_ms", images_ms},
                                 {"step_ms", bench::median(without)}, {"step_with_log_ms", bench::median(with)}, {"catch_up_per_s", catch_up_per_s(folder)}};
  std::cout << result.dump() << std::endl;
  std::filesystem::remove_all(folder);
}
