// What logging costs the training: log of two scalars, images, a loop of short steps, memory; how fast a follower
// catches up, and how fast the board of ten runs of a million points is made and opened in chromium (if there is one on
// PATH).
#include <ATen/Functions.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hasten/tracking/board/board.h"
#include "hasten/tracking/follower/follower.h"
#include "hasten/tracking/run/trackers.h"
#include "hasten/training/image_values.h"
#include "support.h"
#include "tracking/sinks/event_file.h"

namespace {

using namespace hasten;

// With a server that does not answer, so that its tracker is busy all the time.
Environment environment() {
  auto variables = Environment::current().variables();
  variables["MLFLOW_TRACKING_URI"] = "http://127.0.0.1:9";
  variables["WANDB_MODE"] = "offline";
  variables["WANDB_SILENT"] = "true";
  return Environment::of(variables);
}

tracking::Trackers make(const std::filesystem::path& folder, std::vector<tracking::LogWith> with) {
  return tracking::Trackers({.log_with = std::move(with),
                             .options = {},
                             .logging_dir = folder,
                             .run_key = "run",
                             .environment = environment()});
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
         }) /
         num_steps;
}

double catch_up_per_s(const std::filesystem::path& folder) {
  auto trackers = make(folder, {"journal"});
  trackers.init("many");
  constexpr int kLines = 100000;
  for (int step = 0; step < kLines; ++step) trackers.log({{"loss", 1.0 / (step + 1)}, {"lr", 1e-3}}, step);
  trackers.finish();
  const double ms = bench::time_ms([&] {
    tracking::Follower follower({.journal = folder / "many/run/journal.jsonl",
                                 .sinks = {{.name = "tensorboard", .options = {}, .tracker = {}}},
                                 .environment = Environment::current()});
    follower.close();
    follower.wait(std::chrono::minutes(1));
  });
  return 2 * kLines / (ms * 1e-3);
}

double encode_ns(const std::filesystem::path& folder) {
  tracking::EventFile file(folder / "events", 0, 1);
  constexpr int kEvents = 1000000;
  return 1e6 / kEvents * bench::time_ms([&] {
           for (int step = 0; step < kEvents; ++step)
             file.append_scalar(1e9, step, "train/loss", static_cast<float>(step));
           file.flush();
         });
}

// Resident memory of another process in MB: its own pages, without those of shared libraries.
double own_memory_mb(const std::string& pid) {
  std::ifstream status("/proc/" + pid + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("RssAnon:", 0) == 0) return std::stod(line.substr(8)) / 1024;
  }
  return 0;
}

struct OpenedBoard {
  double make_s = 0, drawn_ms = 0;
};

OpenedBoard open_board(const std::filesystem::path& folder) {
  constexpr int kRuns = 10, kPoints = 1000000;
  for (int run = 0; run < kRuns; ++run) {
    const auto place = folder / text("run", run);
    std::filesystem::create_directories(place);
    std::FILE* file = std::fopen((place / "journal.jsonl").c_str(), "w");
    std::fputs("{\"op\":\"start\",\"t\":1000,\"project\":\"p\",\"run_id\":\"r\"}\n", file);
    for (int step = 0; step < kPoints; ++step) {
      std::fprintf(file, "{\"op\":\"log\",\"t\":%d,\"step\":%d,\"values\":{\"loss\":%.6g}}\n", 1000 + step, step,
                   run + 1.0 / (1 + step));
    }
    std::fclose(file);
  }
  OpenedBoard result;
  const auto page = folder / "board.html";
  result.make_s =
      1e-3 * bench::time_ms([&] {
        std::ofstream(page) << tracking::board_page(tracking::board_data(tracking::read_runs({folder}), 0, false));
      });
  const std::string command =
      "HOME=" + folder.string() +
      " chromium --headless --no-sandbox --disable-gpu --user-data-dir=" + (folder / "profile").string() +
      " --dump-dom file://" + page.string() + " 2>/dev/null | grep -o -m1 'data-drawn-ms=\"[0-9]*' | cut -d'\"' -f2";
  if (std::FILE* pipe = popen(command.c_str(), "r")) {
    if (std::fscanf(pipe, "%lf", &result.drawn_ms) != 1) result.drawn_ms = 0;
    pclose(pipe);
  }
  return result;
}

}  // namespace

int main() {
  const auto folder = std::filesystem::temp_directory_path() / text("hasten_bench_tracking_", getpid());
  std::vector<tracking::LogWith> all = {"tensorboard", "csv", "mlflow"};
  if (Environment::current().text("HASTEN_TRACKER_PYTHON")) all.emplace_back("wandb");
  const double memory_before = bench::memory_mb("RssAnon");
  auto trackers = make(folder, all);
  trackers.init("p", {{"lr", 1e-3}, {"opt", "adam"}});
  std::vector<double> times;
  for (int step = 0; step < 3000; ++step) {
    times.push_back(1e3 * bench::time_ms([&] { trackers.log({{"loss", 1.0 / (step + 1)}, {"lr", 1e-3}}, step); }));
  }
  std::sort(times.begin(), times.end());
  const double memory_after = bench::memory_mb("RssAnon");
  const at::Tensor images = at::rand({8, 3, 224, 224});
  trackers.log_images({{"im", images}}, 3000);  // the first touch of memory is not the tracker's
  const double images_ms = bench::time_ms([&] { trackers.log_images({{"im", images}}, 3001); });
  std::vector<double> with, without;
  for (int round = 0; round < 5; ++round) {
    without.push_back(loop_ms(nullptr, 200));
    with.push_back(loop_ms(&trackers, 200));
  }
  std::string follower;
  std::ifstream(folder / "p/run/journal.follow") >> follower;
  const double follower_mb = own_memory_mb(follower);
  trackers.finish();
  const OpenedBoard board = open_board(folder / "board");
  const nlohmann::json result = {{"log_median_us", times[times.size() / 2]},
                                 {"log_p99_us", times[times.size() * 99 / 100]},
                                 {"images_ms", images_ms},
                                 {"step_ms", bench::median(without)},
                                 {"step_with_log_ms", bench::median(with)},
                                 {"catch_up_per_s", catch_up_per_s(folder)},
                                 {"encode_ns", encode_ns(folder)},
                                 {"trainer_mb", memory_after - memory_before},
                                 {"follower_mb", follower_mb},
                                 {"board_make_s", board.make_s},
                                 {"board_open_ms", board.drawn_ms},
                                 {"num_trackers", all.size()}};
  std::cout << result.dump() << std::endl;
  std::filesystem::remove_all(folder);
}
