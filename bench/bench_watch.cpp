// What the watch costs a run of two ranks that has no fault: a recorded call, a small sum, a step, the look at
// gradients, the thread that waits, and a profile. With "hang", rank 1 leaves rank 0 alone in a sum, and bench/run
// notes when it is reported.
//
// Both sides of a ratio take turns in one run. A group records if the process had a recorder when it was made.
#include <hasten/flight/recorder.h>
#include <hasten/hasten.h>
#include <hasten/watch/profiler.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "options.h"
#include "support.h"

namespace {

using hasten::Accelerator;

double cpu_ms() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto ms = [](const timeval& time) {
    return 1e3 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_usec);
  };
  return ms(usage.ru_utime) + ms(usage.ru_stime);
}

// Nanoseconds of a call's record: posted, waited for, ended.
double record_ns(hasten::flight::Recorder& recorder) {
  constexpr int kCalls = 200'000;
  const int group = recorder.open_group("bench", 0, 2, 1000);
  std::vector<double> rounds;
  for (int round = 0; round < 9; ++round) {
    rounds.push_back(
        1e6 / kCalls * bench::time_ms([&] {
          for (int i = 0; i < kCalls; ++i) {
            const auto ticket = recorder.post(
                {.group = group, .label = {"all_reduce", "sum", "float32"}, .file = "bench.cpp", .line = 7});
            recorder.wait(ticket);
            recorder.end(ticket);
          }
        }));
  }
  recorder.close_group(group);
  return bench::median(rounds);
}

// Medians of `count` calls of each in turns, in ms a call.
std::pair<double, double> in_turns(int rounds, int count, const std::function<void()>& one,
                                   const std::function<void()>& other) {
  std::vector<double> first, second;
  const auto time = [&](const std::function<void()>& call, std::vector<double>& times) {
    times.push_back(bench::time_ms([&] {
                      for (int i = 0; i < count; ++i) call();
                    }) /
                    count);
  };
  one(), other();
  for (int round = 0; round < rounds; ++round) {
    round % 2 == 0 ? time(one, first) : time(other, second);
    round % 2 == 0 ? time(other, second) : time(one, first);
  }
  return {bench::median(first), bench::median(second)};
}

std::pair<double, double> small_sums_ms(const Accelerator& accelerator) {
  const auto recorder = hasten::flight::process_recorder();
  const auto recorded = *accelerator.group().subgroup({0, 1});
  hasten::flight::set_process_recorder(nullptr);
  const auto unrecorded = *accelerator.group().subgroup({0, 1});
  hasten::flight::set_process_recorder(recorder);
  const torch::Tensor tensor = torch::ones({1024});
  return in_turns(
      41, 2000, [&] { recorded.all_reduce_(tensor); }, [&] { unrecorded.all_reduce_(tensor); });
}

/// A step of an MLP of 1.6 M parameters.
class Training {
 public:
  explicit Training(const Accelerator& accelerator)
      : accelerator_(accelerator),
        net_(torch::nn::Linear(256, 1024), torch::nn::ReLU(), torch::nn::Linear(1024, 1024), torch::nn::ReLU(),
             torch::nn::Linear(1024, 256)),
        sgd_(net_->parameters(), 0.01),
        model_(accelerator_.prepare(net_)),
        optimizer_(accelerator_.prepare(sgd_)) {}

  void step() {
    optimizer_.zero_grad();
    accelerator_.backward(model_(batch_).square().mean());
    optimizer_.step();
  }

 private:
  Accelerator accelerator_;
  torch::nn::Sequential net_;
  torch::optim::SGD sgd_;
  decltype(std::declval<Accelerator>().prepare(std::declval<torch::nn::Sequential&>())) model_;
  decltype(std::declval<Accelerator>().prepare(std::declval<torch::optim::SGD&>())) optimizer_;
  torch::Tensor batch_ = torch::ones({32, 256});
};

int hang(const Accelerator& accelerator) {
  accelerator.wait_for_everyone();
  std::mutex mutex;
  mutex.lock();
  if (!accelerator.is_main_process()) mutex.lock();
  std::cout << "waits" << std::endl;
  accelerator.group().all_reduce_(torch::ones({4}));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times what the watch costs a run of two ranks.");
  std::string mode;
  app.add_option("mode", mode, "hang: rank 1 leaves rank 0 alone in a sum")->check(CLI::IsMember({"hang"}));
  bench::parse(app, argc, argv);
  torch::set_num_threads(1);
  const Accelerator accelerator(hasten::AcceleratorOptions{.cpu = true});
  if (mode == "hang") return hang(accelerator);
  const auto recorder = hasten::flight::process_recorder();
  nlohmann::json line;
  line["record_ns"] = record_ns(*recorder);
  std::tie(line["sum_ms"], line["unrecorded_sum_ms"]) = small_sums_ms(accelerator);

  Training watched(accelerator);
  setenv("HASTEN_WATCH", "off", 1);
  const Accelerator alone(hasten::AcceleratorOptions{.cpu = true});
  hasten::flight::set_process_recorder(nullptr);
  Training unwatched(alone);
  hasten::flight::set_process_recorder(recorder);
  std::tie(line["step_ms"], line["unwatched_step_ms"]) = in_turns(
      41, 10, [&] { watched.step(); }, [&] { unwatched.step(); });
  const auto checked = [&](int64_t every) {
    recorder->set_value_checks({.gradients_every = every});
    for (int i = 0; i < 10; ++i) watched.step();
  };
  std::tie(line["checked_ms"], line["unchecked_ms"]) = in_turns(
      41, 1, [&] { checked(10); }, [&] { checked(0); });
  const auto profiled = [&] {
    hasten::watch::Profiler profiler(accelerator.process(), {.record_shapes = true});
    for (int i = 0; i < 20; ++i) watched.step(), profiler.step();
    profiler.stop();
  };
  const auto plain = [&] {
    for (int i = 0; i < 20; ++i) watched.step();
  };
  std::tie(line["profiled_ms"], line["unprofiled_ms"]) = in_turns(5, 1, profiled, plain);

  accelerator.wait_for_everyone();
  constexpr double kIdleS = 5;
  const double before = cpu_ms();
  std::this_thread::sleep_for(std::chrono::duration<double>(kIdleS));
  line["idle_percent"] = (cpu_ms() - before) / kIdleS / 10;
  accelerator.wait_for_everyone();
  if (accelerator.is_main_process()) std::cout << line << std::endl;
}
