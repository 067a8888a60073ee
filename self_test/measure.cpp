// See measure.h. All processes measure at once, since they share memory and cores when they train; the slowest counts.
//
// Sizes begin where a CPU's core needs milliseconds, and grow until the fastest device needs long enough to be
// measured.
#include "measure.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <hasten/hasten.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <functional>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/core/number.h"
#include "hasten/core/text.h"
#include "hasten/plan/cluster.h"
#include "hasten/plan/fit.h"

namespace hasten::self_test {
namespace {

using Clock = std::chrono::steady_clock;
using torch::Tensor;

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
// A call that takes less is too short for what a start of kernels costs.
constexpr double kLongEnough = 5e-4;

class Meter {
 public:
  explicit Meter(const Accelerator& accelerator) : accelerator_(accelerator) {}

  bool on_device() const { return !accelerator_.device().is_cpu(); }
  torch::TensorOptions options() const { return options(on_device() ? torch::kBFloat16 : torch::kFloat); }
  torch::TensorOptions options(torch::ScalarType dtype) const {
    return torch::dtype(dtype).device(accelerator_.device());
  }
  // A tensor of one dimension.
  Tensor filled(int64_t bytes) const {
    return torch::ones({bytes / static_cast<int64_t>(options().dtype().itemsize())}, options());
  }

  // Seconds of one call: the median of several rounds, of the slowest rank.
  double seconds(const std::function<void()>& call) const {
    constexpr int kRounds = 5;
    constexpr double kRoundSeconds = 0.03;
    call();
    const double first = round(call, 1);
    const auto most = accelerator_.reduce(torch::tensor({kRoundSeconds / std::max(first, 1e-9)}, torch::kDouble),
                                          {.op = comm::ReduceOp::kMax});
    const int count = std::clamp(static_cast<int>(most.item<double>()), 1, 1000);
    std::vector<double> rounds;
    for (int i = 0; i < kRounds; ++i) rounds.push_back(round(call, count));
    std::nth_element(rounds.begin(), rounds.begin() + kRounds / 2, rounds.end());
    return accelerator_.reduce(torch::tensor({rounds[kRounds / 2]}, torch::kDouble), {.op = comm::ReduceOp::kMax})
        .item<double>();
  }

 private:
  double round(const std::function<void()>& call, int count) const {
    accelerator_.wait_for_everyone();
    const auto begin = Clock::now();
    for (int i = 0; i < count; ++i) call();
    if (on_device()) torch::cuda::synchronize(accelerator_.device().index());
    return std::chrono::duration<double>(Clock::now() - begin).count() / count;
  }

  const Accelerator& accelerator_;
};

// Returns the smallest of `first`, 2 `first`, 4 `first` … whose call takes long enough, or `most`.
int64_t grown(const Meter& meter, int64_t first, int64_t most, const std::function<void(int64_t)>& call) {
  int64_t size = first;
  while (size < most && meter.seconds([&] { call(size); }) < kLongEnough) size *= 2;
  return size;
}

Tensor square_product(const Meter& meter, torch::ScalarType dtype, int64_t size) {
  const Tensor square = torch::ones({size, size}, meter.options(dtype));
  return at::mm(square, square);
}

plan::ProductFit products(const Meter& meter, torch::ScalarType dtype) {
  constexpr std::array<std::array<int64_t, 3>, 6> kSizes = {
      {{64, 256, 256}, {256, 256, 256}, {256, 512, 512}, {512, 512, 1024}, {256, 1024, 1024}, {1024, 1024, 1024}}};
  const int64_t larger = grown(meter, 1024, 8192, [&](int64_t size) { square_product(meter, dtype, size); }) / 1024;
  std::vector<plan::ProductPoint> points;
  for (const auto& [m, k, n] : kSizes) {
    const Tensor a = torch::ones({m * larger, k * larger}, meter.options(dtype));
    const Tensor b = torch::ones({k * larger, n * larger}, meter.options(dtype));
    const double seconds = meter.seconds([&] { at::mm(a, b); });
    points.push_back(
        {static_cast<double>(m * larger), static_cast<double>(k * larger), static_cast<double>(n * larger), seconds});
  }
  return plan::fit_products(points);
}

// Operations a second of attention with a mask, of which half are left out; the mean over three lengths.
double attention(const Meter& meter) {
  constexpr int64_t kHeads = 8, kWidth = 64, kLongest = 512;
  const auto attend = [](const Tensor& all) { at::scaled_dot_product_attention(all, all, all, {}, 0.0, true); };
  const auto of_length = [&](int64_t length) { return torch::ones({1, kHeads, length, kWidth}, meter.options()); };
  const int64_t longest = grown(meter, kLongest, 8192, [&](int64_t length) { attend(of_length(length)); });
  double sum = 0;
  for (const int64_t part : {4, 2, 1}) {
    const Tensor all = of_length(longest / part);
    const auto size = static_cast<double>(all.size(2));
    sum += 2.0 * size * size * kHeads * kWidth / meter.seconds([&] { attend(all); });
  }
  return sum / 3;
}

// Bytes a second that are read or written in a copy.
double memory(const Meter& meter) {
  Tensor from, to;
  const auto copy = [&](int64_t bytes) {
    if (!from.defined() || static_cast<int64_t>(from.nbytes()) != bytes) {
      from = meter.filled(bytes);
      to = torch::empty_like(from);
    }
    to.copy_(from);
  };
  const int64_t bytes = grown(meter, int64_t{32} << 20, int64_t{1} << 30, copy);
  return 2.0 * static_cast<double>(bytes) / meter.seconds([&] { copy(bytes); });
}

plan::TransferFit exchange(const Meter& meter, const comm::Group& group) {
  Tensor tensor;
  const auto add_up = [&](int64_t bytes) {
    if (!tensor.defined() || static_cast<int64_t>(tensor.nbytes()) != bytes) tensor = meter.filled(bytes).zero_();
    group.all_reduce_(tensor);
  };
  const int64_t largest = grown(meter, int64_t{8} << 20, int64_t{256} << 20, add_up);
  const double ranks = group.world_size();
  std::vector<plan::TransferPoint> points;
  for (const int64_t part : {128, 8, 1}) {
    const double seconds = meter.seconds([&] { add_up(largest / part); });
    points.push_back({2.0 * static_cast<double>(largest / part) * (ranks - 1) / ranks, seconds});
  }
  return plan::fit_transfers(points);
}

struct Result {
  plan::Cluster cluster;
  std::vector<std::string> missed;

  void set(const std::string& name, double value, const std::string& source, double residual = 0) {
    *plan::find_constant(cluster.constants, name) = value;
    cluster.sources[name] = source;
    if (residual > 0) cluster.residuals[name] = residual;
  }
  bool is_measured(const std::string& name) const {
    const auto source = cluster.sources.find(name);
    return source != cluster.sources.end() && source->second.starts_with("measured");
  }
  void miss(const std::string& what, const std::vector<std::string>& points) {
    for (const auto& point : points) missed.push_back(text(what, " ", point));
  }
};

// Memory of the device, or of the host for one of its processes.
double memory_gib(const Accelerator& accelerator) {
  const c10::Device device = accelerator.device();
  if (!device.is_cpu()) {
    const auto [free, total] = c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index());
    return static_cast<double>(total) / kGiB;
  }
  const double bytes = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  return bytes / kGiB / accelerator.process().local_world_size();
}

void measure_device(const Accelerator& accelerator, const Meter& meter, const std::string& source, Result& result) {
  const auto product = products(meter, meter.options().dtype().toScalarType());
  auto& machine = result.cluster.machine;
  machine.peak_flops = product.flops;
  machine.peak_flops_float32 = meter.on_device() ? products(meter, torch::kFloat).flops : product.flops;
  machine.memory_gib = memory_gib(accelerator);
  machine.memory_bandwidth = memory(meter);
  result.set("product_share", 1, source, product.residual);
  result.set("small_size_cost", product.small_size_cost, source, product.residual);
  result.set("attention_share", attention(meter) / product.flops, source);
  result.set("memory_share", 1, source);
  result.miss("product", product.missed);
}

// Inside a host, and between ranks of one number on all hosts.
void measure_links(const Accelerator& accelerator, const Meter& meter, const std::string& source, Result& result) {
  const auto& process = accelerator.process();
  auto& machine = result.cluster.machine;
  machine.devices_per_host = process.local_world_size();
  const auto host = *accelerator.group().split(process.node_rank());
  if (host.world_size() > 1) {
    const auto link = exchange(meter, host);
    machine.link_bandwidth = link.bandwidth;
    result.set("link_share", 1, source, link.residual);
    result.set("link_latency_s", link.latency_s, source, link.residual);
    result.miss("all-reduce in a host,", link.missed);
  }
  const auto hosts = *accelerator.group().split(process.local_rank());
  if (hosts.world_size() > 1) {
    const auto network = exchange(meter, hosts);
    machine.network_bandwidth = network.bandwidth;
    result.set("network_share", 1, source, network.residual);
    result.set("network_latency_s", network.latency_s, source, network.residual);
    result.miss("all-reduce over hosts,", network.missed);
  }
}

void tell(const Accelerator& accelerator, const Result& result, const std::string& path) {
  const auto& machine = result.cluster.machine;
  const auto short_text = [](double number) { return core::general_text(number, 3); };
  accelerator.print(
      "products ", short_text(machine.peak_flops / 1e9), " GFLOP/s",
      accelerator.device().is_cpu() ? ""
                                    : " in bf16 and " + short_text(machine.peak_flops_float32 / 1e9) + " in float32",
      ", memory ", short_text(machine.memory_bandwidth / 1e9), " GB/s",
      result.is_measured("link_share") ? ", all-reduce in a host " + short_text(machine.link_bandwidth / 1e9) + " GB/s"
                                       : "",
      ", a process");
  if (!result.is_measured("link_share"))
    accelerator.print("rates of links are a preset's: measure with two processes or more (-n)");
  for (const auto& point : result.missed) accelerator.print("off the line by more than 10 %: ", point);
  accelerator.print("written to '", path, "': hasten plan MODEL --cluster ", path);
}

}  // namespace

int measure(const std::string& path) {
  const torch::NoGradGuard no_grad;
  const Accelerator accelerator;
  const Meter meter(accelerator);
  const bool on_device = meter.on_device();
  Result result{.cluster = plan::preset_cluster(on_device ? "h100_80gb" : "cpu"), .missed = {}};
  result.cluster.machine.device = on_device ? "measured device" : "measured CPU";
  const std::string source =
      text("measured on ", accelerator.world_size(), accelerator.world_size() == 1 ? " process" : " processes");
  measure_device(accelerator, meter, source, result);
  measure_links(accelerator, meter, source, result);
  if (!accelerator.is_main_process()) return 0;
  std::ofstream file(path, std::ios::trunc);
  file << plan::cluster_json(result.cluster).to_json(1) << '\n' << std::flush;
  if (!file) throw UsageError({"plan"}, "'", path, "' cannot be written. Give -o another file.");
  tell(accelerator, result, path);
  return 0;
}

}  // namespace hasten::self_test
