// Blocking collectives of comm::Group by size: milliseconds per call, as they are and (…_checked) with an
// agreement before the data moves; and what the machine's memory allows: a copy of 25 MB by every rank at
// once.
//
// With --busy N, small all-reduces beside N busy programs: one after the other, and with 2 ms of work between, as a
// step has it. Then the means count, since a waiter that is switched out shows in few of the calls.
//
// The peer is bench/peers/collectives.py; start this with `hasten launch -n 2`. HASTEN_BACKEND chooses the
// backend.
#include <hasten/process/process.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstring>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

#include "options.h"
#include "support.h"

namespace {

constexpr int64_t kKilobyte = 1 << 10, kMegabyte = 1 << 20;

torch::Tensor floats(int64_t num_bytes) {
  return torch::ones(num_bytes / 4);
}

struct Bench {
  const hasten::comm::Group& group;
  int calls;
  nlohmann::json times = {};

  /// The median of `calls` calls, fewer of large ones. Every rank counts alike.
  double median_ms(int64_t num_bytes, const std::function<void()>& operation) const {
    const int count = num_bytes <= kMegabyte ? calls : std::max(3, calls / 10);
    std::vector<double> all;
    for (int i = 0; i < count; ++i) all.push_back(bench::time_ms(operation));
    return bench::median(all);
  }

  void measure(const std::string& name, int64_t num_bytes, const std::function<void()>& operation) {
    group.barrier();
    times[name] = median_ms(num_bytes, operation);
  }

  /// One call after the other of each group in turn, so that what else the machine does meets both alike.
  void measure_checked(const std::string& name, int64_t num_bytes,
                       const std::function<void(const hasten::comm::Group&)>& operation) {
    const auto checked = group.with_check(true);
    std::vector<double> plain_ms, checked_ms;
    for (int i = 0; i < (num_bytes <= kMegabyte ? calls : std::max(3, calls / 10)); ++i) {
      plain_ms.push_back(bench::time_ms([&] { operation(group); }));
      checked_ms.push_back(bench::time_ms([&] { operation(checked); }));
    }
    times[name + "_unchecked"] = bench::median(plain_ms);
    times[name + "_checked"] = bench::median(checked_ms);
  }
};

// Right after their start ranks often share a core for some 20 ms, until the kernel spreads them out.
void warm_up(const Bench& bench) {
  const torch::Tensor tensor = floats(kMegabyte);
  for (int i = 0; i < 5 * bench.calls; ++i) bench.group.all_reduce_(tensor);
}

void all_reduces(Bench& bench) {
  const std::vector<std::pair<std::string, int64_t>> sizes = {{"4KB", 4 * kKilobyte},
                                                              {"64KB", 64 * kKilobyte},
                                                              {"1MB", kMegabyte},
                                                              {"25MB", 25 * kMegabyte},
                                                              {"100MB", 100 * kMegabyte}};
  for (const auto& [name, num_bytes] : sizes) {
    const torch::Tensor tensor = floats(num_bytes);
    bench.measure("all_reduce_" + name, num_bytes, [&] { bench.group.all_reduce_(tensor); });
  }
  const torch::Tensor small = floats(4 * kKilobyte), large = floats(25 * kMegabyte);
  bench.measure_checked("all_reduce_4KB", 4 * kKilobyte, [&](const auto& group) { group.all_reduce_(small); });
  bench.measure_checked("all_reduce_25MB", 25 * kMegabyte, [&](const auto& group) { group.all_reduce_(large); });
}

void others(Bench& bench) {
  const auto world = static_cast<int64_t>(bench.group.world_size());
  const torch::Tensor whole = floats(25 * kMegabyte / world * world), part = floats(25 * kMegabyte / world);
  bench.measure("all_gather_25MB", 25 * kMegabyte, [&] { bench.group.all_gather_into_(whole, part); });
  bench.measure("reduce_scatter_25MB", 25 * kMegabyte, [&] { bench.group.reduce_scatter_into_(part, whole); });
  const torch::Tensor message = floats(25 * kMegabyte), answer = floats(25 * kMegabyte);
  const torch::Tensor received = torch::ones_like(whole);
  bench.measure("all_to_all_25MB", 25 * kMegabyte, [&] { bench.group.all_to_all_into_(received, whole); });
  const int rank = bench.group.rank(), size = bench.group.world_size();
  bench.measure("send_25MB", 25 * kMegabyte, [&] {
    auto sent = bench.group.send_async(message, (rank + 1) % size);
    bench.group.receive_(answer, (rank + size - 1) % size);
    sent.wait();
  });
  const torch::Tensor number = torch::ones({1}, torch::kLong);
  bench.measure("broadcast_8B", 8, [&] { bench.group.broadcast_(number, 0); });
  bench.measure("barrier", 0, [&] { bench.group.barrier(); });
}

// What no all-reduce of 25 MB on these ranks can beat by much: each reads and writes that much memory, all at
// once.
void bounds(Bench& bench) {
  const torch::Tensor from = floats(25 * kMegabyte), to = floats(25 * kMegabyte);
  bench.measure("copy_25MB", 25 * kMegabyte, [&] {
    std::memcpy(to.data_ptr(), from.data_ptr(), from.nbytes());
    bench.group.barrier();
  });
  for (const int64_t megabytes : {1, 25}) {
    const torch::Tensor buffer = bench.group.buffer(megabytes * kMegabyte / 4).fill_(1);
    bench.measure("all_reduce_" + std::to_string(megabytes) + "MB_buffer", megabytes * kMegabyte,
                  [&] { bench.group.all_reduce_(buffer); });
  }
}

// Programs that use a core each, as long as the object exists.
class BusyPrograms {
 public:
  explicit BusyPrograms(int count) {
    for (int i = 0; i < count; ++i) {
      const pid_t child = fork();
      if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) asm volatile("");
      }
      children_.push_back(child);
    }
  }
  ~BusyPrograms() {
    for (const pid_t child : children_) kill(child, SIGKILL), waitpid(child, nullptr, 0);
  }
  BusyPrograms(const BusyPrograms&) = delete;
  BusyPrograms& operator=(const BusyPrograms&) = delete;

 private:
  std::vector<pid_t> children_;
};

void work_ms(double milliseconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double, std::milli>(milliseconds);
  while (std::chrono::steady_clock::now() < end) {
  }
}

// The mean of the calls, without the work between them.
void beside_busy_programs(Bench& bench, int count) {
  bench.group.barrier();
  const BusyPrograms programs(bench.group.rank() == 0 ? count : 0);
  const std::vector<std::pair<std::string, int64_t>> sizes = {
      {"4KB", 4 * kKilobyte}, {"64KB", 64 * kKilobyte}, {"1MB", kMegabyte}};
  for (const auto& [name, num_bytes] : sizes) {
    const torch::Tensor tensor = floats(num_bytes);
    for (const double between : {0.0, 2.0}) {
      bench.group.barrier();
      double sum = 0;
      for (int i = 0; i < bench.calls; ++i) {
        work_ms(between);
        sum += bench::time_ms([&] { bench.group.all_reduce_(tensor); });
      }
      bench.times["all_reduce_" + name + (between > 0 ? "_work" : "_row")] = sum / bench.calls;
    }
  }
  bench.group.barrier();
}

}  // namespace

int main(int argc, char** argv) {
  int calls = 200, busy = 0;
  CLI::App app("Times the collectives of two or more ranks.");
  app.add_option("--calls", calls, "of the small ones; the large ones a tenth of it")->check(CLI::PositiveNumber);
  app.add_option("--busy", busy, "small all-reduces beside so many busy programs, and nothing else");
  bench::parse(app, argc, argv);

  torch::set_num_threads(1);
  const hasten::process::Process process({.cpu = true, .check = false});
  Bench bench{process.group(), calls};
  warm_up(bench);
  if (busy > 0) {
    beside_busy_programs(bench, busy);
  } else {
    all_reduces(bench);
    others(bench);
    bounds(bench);
  }

  if (process.is_main_process()) std::cout << bench.times << std::endl;
}
