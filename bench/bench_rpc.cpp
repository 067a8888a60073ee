// Remote calls between two processes of one host: round trips, calls in flight, echoes by size, references, one
// autograd step. The peer is bench/peers/rpc.py; start this with `hasten launch -n 2`. `call_limit_us` is what the
// machine allows: 100 bytes there and back over a Unix socket, by blocking reads.
//
// `reinforce ROUNDS` and `reinforce_batched ROUNDS`, started with more processes: observers of CartPole ask rank 0 for
// each action, one by one or all at once, as bench/peers/rpc_examples.py.
#include <hasten/process/process.h>
#include <hasten/rpc/rpc.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <torch/torch.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "../examples/rpc/cartpole.h"
#include "options.h"
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

// Chooses actions for observers; the batched form answers when all have asked.
class Chooser {
 public:
  explicit Chooser(int64_t num_observers) : num_observers_(num_observers) {}
  int64_t select(int64_t observer, const at::Tensor& state) {
    const auto chances = torch::softmax(policy_->forward(state.unsqueeze(0)), 1);
    const auto action = torch::multinomial(chances.detach(), 1);
    chosen_[observer].push_back(torch::log(chances.gather(1, action)));
    return action.item<int64_t>();
  }
  void report(int64_t, double) {}
  rpc::Future<int64_t> select_batched(int64_t observer, const at::Tensor& state) {
    states_[observer] = state;
    const auto future = waiting_[observer].future();
    if (static_cast<int64_t>(waiting_.size()) < num_observers_) return future;
    std::vector<at::Tensor> all;
    for (const auto& [number, one] : states_) all.push_back(one);
    const auto actions = torch::multinomial(torch::softmax(policy_->forward(torch::stack(all)), 1).detach(), 1);
    states_.clear();
    int64_t row = 0;
    for (const auto& [number, promise] : std::exchange(waiting_, {})) promise.set(actions[row++].item<int64_t>());
    return future;
  }
  void forget() { chosen_.clear(); }

 private:
  const int64_t num_observers_;
  torch::nn::Sequential policy_{torch::nn::Linear(4, 128), torch::nn::Dropout(0.6), torch::nn::ReLU(),
                                torch::nn::Linear(128, 2)};
  std::map<int64_t, std::vector<at::Tensor>> chosen_;
  std::map<int64_t, at::Tensor> states_;
  std::map<int64_t, rpc::Promise<int64_t>> waiting_;
};

template <bool kBatched>
void play(const rpc::RRef<Chooser>& chooser, int64_t observer, int64_t seed, int64_t num_steps) {
  CartPole game(static_cast<unsigned>(seed));
  auto state = game.reset();
  for (int64_t i = 0; i < num_steps; ++i) {
    int64_t action = 0;
    if constexpr (kBatched) {
      action = chooser.sync<&Chooser::select_batched>(observer, state);
    } else {
      action = chooser.sync<&Chooser::select>(observer, state);
    }
    const auto [next, reward, done] = game.step(action);
    if constexpr (!kBatched) chooser.sync<&Chooser::report>(observer, reward);
    state = done ? game.reset() : next;
  }
}

int reinforce(bool batched, int64_t rounds) {
  constexpr int64_t kSteps = 200;
  const hasten::process::Process process({.cpu = true});
  rpc::Functions functions;
  functions.add<&play<false>>().add<&play<true>>();
  const rpc::FunctionOptions one_by_one{.where = rpc::Where::kPerObject};
  functions.add<&Chooser::select>(one_by_one)
      .add<&Chooser::select_batched>(one_by_one)
      .add<&Chooser::report>(one_by_one);
  rpc::Agent agent(process, functions, {.timeout_s = 600});
  if (process.rank() == 0) {
    const auto chooser = agent.rref(std::make_shared<Chooser>(process.world_size() - 1));
    const double ms = bench::time_ms([&] {
      for (int64_t round = 0; round < rounds; ++round) {
        std::vector<rpc::Future<void>> games;
        for (int rank = 1; rank < process.world_size(); ++rank) {
          const int64_t seed = 1000 * round + rank;
          games.push_back(batched ? agent.async<&play<true>>(rank, chooser, rank, seed, kSteps)
                                  : agent.async<&play<false>>(rank, chooser, rank, seed, kSteps));
        }
        rpc::wait_all(games);
        chooser.local_value().forget();
      }
    });
    std::cout << nlohmann::json{{"steps_per_s",
                                 1000.0 * static_cast<double>(rounds * kSteps * (process.world_size() - 1)) / ms}}
              << std::endl;
  }
  agent.shutdown();
  return 0;
}

template <class F>
double median_us(int count, const F& function) {
  for (int i = 0; i < std::min(count, 50); ++i) function();
  std::vector<double> times;
  for (int i = 0; i < count; ++i) times.push_back(1000 * bench::time_ms(function));
  return bench::median(times);
}

// One end of a socket to the other rank; the abstract name holds the run's port.
int connect_ranks(const hasten::process::Process& process) {
  const char* const port = std::getenv("MASTER_PORT");
  const std::string name = std::string("hasten-bench-rpc-") + (port != nullptr ? port : "0");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(sizeof(sa_family_t) + 1 + name.size());
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto* const plain = reinterpret_cast<const sockaddr*>(&address);
  const bool listens = process.rank() == 1;
  if (listens && (bind(socket, plain, size) != 0 || listen(socket, 1) != 0)) throw std::runtime_error("cannot listen");
  process.wait_for_everyone();
  if (!listens) {
    if (connect(socket, plain, size) != 0) throw std::runtime_error("cannot connect");
    return socket;
  }
  const int accepted = accept(socket, nullptr, nullptr);
  close(socket);
  return accepted;
}

double round_trip_us(const hasten::process::Process& process) {
  constexpr int kCount = 5000;
  std::array<char, 100> bytes{};
  const int socket = connect_ranks(process);
  const auto write_all = [&] {
    if (write(socket, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
      throw std::runtime_error("the other rank has gone");
  };
  const auto read_all = [&] {
    if (recv(socket, bytes.data(), bytes.size(), MSG_WAITALL) != static_cast<ssize_t>(bytes.size()))
      throw std::runtime_error("the other rank has gone");
  };
  double us = 0;
  if (process.rank() == 0) {
    us = median_us(kCount, [&] {
      write_all();
      read_all();
    });
  } else {
    for (int i = 0; i < kCount + 50; ++i) {
      read_all();
      write_all();
    }
  }
  close(socket);
  return us;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times remote calls between two processes.");
  std::string mode;
  int64_t rounds = 3;
  app.add_option("mode", mode, "Observers of CartPole ask rank 0, one by one or all at once")
      ->check(CLI::IsMember({"reinforce", "reinforce_batched"}));
  app.add_option("rounds", rounds, "Of the observers")->check(CLI::PositiveNumber);
  bench::parse(app, argc, argv);
  at::set_num_threads(1);
  if (!mode.empty()) return reinforce(mode == "reinforce_batched", rounds);
  hasten::process::Process process({.cpu = true});
  rpc::Functions functions;
  functions.add<&plus_one>().add<&echo>().add<&multiply>().add<&plus_one_inline>({.where = rpc::Where::kInline});
  nlohmann::json line;
  line["call_limit_us"] = round_trip_us(process);
  process.wait_for_everyone();
  std::unique_ptr<rpc::Agent> agent;
  line["start_ms"] = bench::time_ms([&] { agent = std::make_unique<rpc::Agent>(process, functions); });
  if (process.rank() == 0) {
    line["call_us"] = median_us(5000, [&] { agent->sync<&plus_one>(1, 1); });
    line["call_inline_us"] = median_us(5000, [&] { agent->sync<&plus_one_inline>(1, 1); });
    for (const int64_t kb : {64, 1024, 25 * 1024, 100 * 1024}) {
      const auto x = torch::ones({kb * 256});
      line["echo_" + std::to_string(kb) + "_kb_us"] =
          median_us(kb < 5000 ? 200 : 10, [&] { agent->sync<&echo>(1, x); });
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
                        }) /
                        kReferences;
    references.clear();
    const auto w = torch::ones({4, 4}, torch::requires_grad());
    line["autograd_us"] = median_us(300, [&] {
      agent->autograd(
          [&](rpc::AutogradContext& context) { context.backward({agent->sync<&multiply>(1, w, w).sum()}); });
    });
  }
  const double end_ms = bench::time_ms([&] { agent->shutdown(); });
  if (process.rank() != 0) return 0;
  line["shutdown_ms"] = end_ms;
  std::cout << line << std::endl;
}
