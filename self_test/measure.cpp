// See measure.h. All processes measure at once, since they share memory and cores when they train; the slowest counts.
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

class Meter {
 public:
  explicit Meter(const Accelerator& accelerator) : accelerator_(accelerator) {}

  bool on_device() const { return !accelerator_.device().is_cpu(); }
  torch::TensorOptions options() const {
    return torch::dtype(on_device() ? torch::kBFloat16 : torch::kFloat).device(accelerator_.device());
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

plan::ProductFit products(const Meter& meter) {
  constexpr std::array<std::array<int64_t, 3>, 6> kSizes = {
      {{64, 256, 256}, {256, 256, 256}, {256, 512, 512}, {512, 512, 1024}, {256, 1024, 1024}, {1024, 1024, 1024}}};
  const int64_t larger = meter.on_device() ? 4 : 1;
  std::vector<plan::ProductPoint> points;
  for (const auto& [m, k, n] : kSizes) {
    const Tensor a = torch::ones({m * larger, k * larger}, meter.options());
    const Tensor b = torch::ones({k * larger, n * larger}, meter.options());
    const double seconds = meter.seconds([&] { at::mm(a, b); });
    points.push_back(
        {static_cast<double>(m * larger), static_cast<double>(k * larger), static_cast<double>(n * larger), seconds});
  }
  return plan::fit_products(points);
}

// Operations a second of attention with a mask, of which half are left out; the mean over three lengths.
double attention(const Meter& meter) {
  constexpr int64_t kHeads = 8, kWidth = 64;
  constexpr std::array<int64_t, 3> kLengths = {128, 256, 512};
  double sum = 0;
  for (const int64_t length : kLengths) {
    const Tensor all = torch::ones({1, kHeads, length * (meter.on_device() ? 4 : 1), kWidth}, meter.options());
    const auto size = static_cast<double>(all.size(2));
    const double seconds = meter.seconds([&] { at::scaled_dot_product_attention(all, all, all, {}, 0.0, true); });
    sum += 2.0 * size * size * kHeads * kWidth / seconds;
  }
  return sum / kLengths.size();
}

// Bytes a second that are read or written in a copy.
double memory(const Meter& meter) {
  const int64_t bytes = meter.on_device() ? int64_t{1} << 30 : int64_t{32} << 20;
  const Tensor from = torch::ones({bytes / static_cast<int64_t>(meter.options().dtype().itemsize())}, meter.options());
  Tensor to = torch::empty_like(from);
  return 2.0 * static_cast<double>(bytes) / meter.seconds([&] { to.copy_(from); });
}

plan::TransferFit exchange(const Meter& meter, const comm::Group& group) {
  constexpr std::array<int64_t, 3> kBytes = {int64_t{64} << 10, int64_t{1} << 20, int64_t{8} << 20};
  const double ranks = group.world_size();
  std::vector<plan::TransferPoint> points;
  for (const int64_t bytes : kBytes) {
    Tensor tensor = torch::zeros({bytes / static_cast<int64_t>(meter.options().dtype().itemsize())}, meter.options());
    const double seconds = meter.seconds([&] { group.all_reduce_(tensor); });
    points.push_back({2.0 * static_cast<double>(bytes) * (ranks - 1) / ranks, seconds});
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
  const auto product = products(meter);
  auto& machine = result.cluster.machine;
  machine.peak_flops = machine.peak_flops_float32 = product.flops;
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
  accelerator.print("products ", short_text(machine.peak_flops / 1e9), " GFLOP/s, memory ",
                    short_text(machine.memory_bandwidth / 1e9), " GB/s, all-reduce in a host ",
                    short_text(machine.link_bandwidth / 1e9), " GB/s, a process");
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
