// Remote calls between two processes of one host: round trips, calls in flight, echoes by size, references, one autograd
// step. The peer is bench/peers/rpc.py; start this with `hasten launch -n 2`.
#include <hasten/process/process.h>
#include <hasten/rpc/rpc.h>
#include <torch/torch.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "support.h"

namespace rpc = hasten::rpc;

namespace {

int64_t plus_one(int64_t x) {
  return x + 1;
}
int64_t plus_one_inline(int64_t x) {
  return x + 1;
}
at::Tensor echo(const at::Tensor& x) {
  return x;
}
at::Tensor multiply(const at::Tensor& x, const at::Tensor& y) {
  return x.mm(y);
}

template <class F>
double median_us(int count, const F& function) {
  for (int i = 0; i < std::min(count, 50); ++i) function();
  std::vector<double> times;
  for (int i = 0; i < count; ++i) times.push_back(1000 * bench::time_ms(function));
  return bench::median(times);
}

}  // namespace

int main() {
  at::set_num_threads(1);
  hasten::process::Process process({.cpu = true});
  rpc::Functions functions;
  functions.add<&plus_one>().add<&echo>().add<&multiply>().add<&plus_one_inline>({.where = rpc::Where::kInline});
  process.wait_for_everyone();
  std::unique_ptr<rpc::Agent> agent;
  nlohmann::json line;
  line["start_ms"] = bench::time_ms([&] { agent = std::make_unique<rpc::Agent>(process, functions); });
  if (process.rank() == 0) {
    line["call_us"] = median_us(5000, [&] { agent->sync<&plus_one>(1, 1); });
    line["call_inline_us"] = median_us(5000, [&] { agent->sync<&plus_one_inline>(1, 1); });
    for (const int64_t kb : {64, 1024, 25 * 1024, 100 * 1024}) {
      const auto x = torch::ones({kb * 256});
      line["echo_" + std::to_string(kb) + "_kb_us"] = median_us(kb < 5000 ? 200 : 10, [&] { agent->sync<&echo>(1, x); });
    }
    constexpr int kCalls = 20000;
    std::vector<rpc::Future<int64_t>> futures;
    const double in_flight_ms = bench::time_ms([&] {
      for (int i = 0; i < kCalls; ++i) futures.push_back(agent->async<&plus_one>(1, i));
      rpc::wait_all(futures);
    });
    line["calls_per_s"] = kCalls / (in_flight_ms / 1000);
    constexpr int kReferences = 1000;
    std::vector<rpc::RRef<at::Tensor>> references;
    const auto one = torch::ones({1});
    line["remote_us"] = 1000 * bench::time_ms([&] {
                          for (int i = 0; i < kReferences; ++i) references.push_back(agent->remote<&echo>(1, one));
                          for (const auto& reference : references) reference.to_here();
                        }) / kReferences;
    references.clear();
    const auto w = torch::ones({4, 4}, torch::requires_grad());
    line["autograd_us"] = median_us(300, [&] {
      agent->autograd([&](rpc::AutogradContext& context) { context.backward({agent->sync<&multiply>(1, w, w).sum()}); });
    });
  }
  const double end_ms = bench::time_ms([&] { agent->shutdown(); });
  if (process.rank() != 0) return 0;
  line["shutdown_ms"] = end_ms;
  std::cout << line << std::endl;
}
