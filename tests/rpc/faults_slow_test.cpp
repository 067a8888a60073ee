// Many random faults in real processes: a worker is killed, stopped, or cut off, while all call each other, hold each
// other's values and run backward passes, or shut down. No worker hangs, and errors name the right one. In one round of
// ten all that are left also wait until no value, reference or context is left, which takes a timeout at most.
//
// A process that has loaded libtorch and used nothing of it forks the workers of each round, which costs a tenth of a
// start. HASTEN_TEST_SCALE multiplies the rounds: 50 makes a thousand of each fault.
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <iostream>
#include <random>
#include <thread>

#include "hasten/core/env.h"
#include "hasten/rpc/errors.h"
#include "hasten/rpc/rpc.h"
#include "support/processes.h"

namespace hasten::rpc {
namespace {

using FaultClock = std::chrono::steady_clock;
enum class Fault { kKill, kKillInBackward, kKillInShutdown, kStop, kCut };
constexpr int kWorkers = 4;

struct Round {
  Fault fault;
  int victim;
  uint32_t seed;
  bool counts;  // what is left behind
  int port;
  int ready, go;  // pipes
};

class Place {
 public:
  explicit Place(int64_t seed) : weight(torch::full({4, 4}, 0.1f * static_cast<float>(seed + 1)).requires_grad_()) {}
  at::Tensor forward(const at::Tensor& x) { return torch::tanh(x.matmul(weight)); }
  at::Tensor weight;
};
int64_t fault_echo(int64_t x) {
  return x;
}
at::Tensor through_third(const RRef<Place>& place, const at::Tensor& x) {
  return place.sync<&Place::forward>(x);
}

// One random use of the others. Throws as the call does.
void use_others(Agent& agent, std::mt19937& random, bool backward) {
  const auto other = [&] { return static_cast<int>(random() % kWorkers); };
  if (random() % 3 == 0) agent.sync<&fault_echo>(other(), 1);
  const auto place = agent.remote<Place>(other(), random() % 9);
  const auto x = torch::ones({2, 4}).requires_grad_();
  if (!backward) {
    agent.sync<&through_third>(other(), place, x);
    return;
  }
  agent.autograd([&](AutogradContext& context) {
    const auto y = agent.sync<&through_third>(other(), place, x);
    const auto unused = place.sync<&Place::forward>(x);
    context.backward({y.sum()});
  });
}

// Ends one connection to another worker from below: both ends see it close.
void cut_a_connection(std::mt19937& random) {
  std::vector<int> connections;
  DIR* const folder = opendir("/proc/self/fd");
  for (const dirent* entry = readdir(folder); entry != nullptr; entry = readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    sockaddr_un own{}, peer{};
    socklen_t own_size = sizeof own, peer_size = sizeof peer;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0 || peer.sun_family != AF_UNIX) continue;
    getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size);
    const auto is_ours = [](const sockaddr_un& address, socklen_t size) {
      return size > sizeof(sa_family_t) + 8 && std::string(address.sun_path + 1, 7) == "hasten-";
    };
    if (is_ours(own, own_size) || is_ours(peer, peer_size)) connections.push_back(fd);
  }
  closedir(folder);
  if (!connections.empty()) shutdown(connections[random() % connections.size()], SHUT_RDWR);
}

// Waits until nothing of the others is held here, and nothing of this worker elsewhere. Returns what is left.
std::string wait_for_nothing_left(const Agent& agent) {
  const auto until = FaultClock::now() + std::chrono::seconds(20);
  for (;;) {
    const AgentStats stats = agent.stats();
    if (stats.num_objects + stats.num_references + stats.num_contexts == 0) return "";
    if (FaultClock::now() > until) {
      return "left behind: " + std::to_string(stats.num_objects) + " values, " + std::to_string(stats.num_references) +
             " references, " + std::to_string(stats.num_contexts) + " contexts";
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// What a worker does in a round; returns what is wrong, "" if nothing is.
std::string live(const Round& round, int rank) {
  auto variables = Environment::current().variables();
  variables["RANK"] = variables["LOCAL_RANK"] = std::to_string(rank);
  variables["WORLD_SIZE"] = variables["LOCAL_WORLD_SIZE"] = std::to_string(kWorkers);
  variables["MASTER_ADDR"] = "127.0.0.1";
  variables["MASTER_PORT"] = std::to_string(round.port);
  at::set_num_threads(1);
  const process::Process process({.cpu = true, .change_process = false}, Environment::of(variables));
  std::mt19937 random(round.seed + static_cast<uint32_t>(rank));
  Functions functions;
  functions.add_class<Place, int64_t>().add<&Place::forward>().add<&fault_echo>().add<&through_third>();
  const bool stops = round.fault == Fault::kStop;
  Agent agent(process, functions,
              {.name = "w" + std::to_string(rank),
               .timeout_s = stops          ? 1.0
                            : round.counts ? 3.0
                                           : 8.0});
  if (write(round.ready, "r", 1) != 1) return "the test has gone";
  char go = 0;
  if (read(round.go, &go, 1) != 1) return "the test has gone";
  const auto named = [&](const std::string& words) {
    for (int other = 0; other < kWorkers; ++other) {
      if (words.find("'w" + std::to_string(other) + "'") != std::string::npos) return other;
    }
    return -1;
  };
  const bool cuts = round.fault == Fault::kCut;
  const auto cut_at = FaultClock::now() + std::chrono::microseconds(random() % 30'000);
  const auto until = FaultClock::now() + std::chrono::milliseconds(round.fault == Fault::kKillInShutdown ? 5
                                                                   : stops                               ? 250
                                                                                                         : 80);
  bool has_cut = false;
  while (FaultClock::now() < until) {
    if (cuts && rank == round.victim && !has_cut && FaultClock::now() > cut_at) {
      cut_a_connection(random);
      has_cut = true;
    }
    try {
      use_others(agent, random, round.fault == Fault::kKillInBackward || random() % 4 == 0);
    } catch (const Error& error) {
      const std::string words = error.what();
      if (!cuts && words.find("'w" + std::to_string(round.victim) + "'") == std::string::npos)
        return "an error that does not name w" + std::to_string(round.victim) + ": " + words;
      if (cuts && named(words) < 0) return "an error that names no worker: " + words;
    }
  }
  if (round.counts) {
    if (const std::string left = wait_for_nothing_left(agent); !left.empty()) return left;
  }
  try {
    agent.shutdown(round.counts ? 40 : 20);
    // A worker that died after its last word at shutdown is not missed by the others.
    if (!stops && !cuts && round.fault != Fault::kKillInShutdown && rank != round.victim)
      return "shutdown() missed nobody";
  } catch (const CommError& error) {
    const std::string words = error.what();
    if (words.find("within") != std::string::npos) return "shutdown() hung: " + words;
    if (stops) return "shutdown() failed although the worker went on: " + words;
    if (!cuts && words.find("'w" + std::to_string(round.victim) + "'") == std::string::npos)
      return "shutdown() names another worker: " + words;
  }
  return "";
}

void wait_until_ready(int pipe) {
  char bytes[kWorkers];
  for (ssize_t have = 0; have < kWorkers;) {
    pollfd source{pipe, POLLIN, 0};
    if (poll(&source, 1, 20'000) <= 0) return;
    const ssize_t size = read(pipe, bytes, static_cast<size_t>(kWorkers - have));
    if (size <= 0) return;
    have += size;
  }
}

// Forks the workers of one round. Returns what is wrong.
std::string play(Round round, std::mt19937& random) {
  int ready[2], go[2];
  if (pipe(ready) != 0 || pipe(go) != 0) return "no pipes";
  round.ready = ready[1];
  round.go = go[0];
  std::vector<pid_t> workers;
  for (int rank = 0; rank < kWorkers; ++rank) {
    const pid_t worker = fork();
    if (worker == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      std::string problem;
      try {
        problem = live(round, rank);
      } catch (const std::exception& error) {
        problem = error.what();
      }
      if (!problem.empty()) std::cout << "w" << rank << ": " << problem << std::endl;
      _exit(problem.empty() ? 0 : 1);
    }
    workers.push_back(worker);
  }
  wait_until_ready(ready[0]);
  if (write(go[1], "gggg", kWorkers) != kWorkers) return "no pipe";
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 40'000));
  const pid_t victim = workers[static_cast<size_t>(round.victim)];
  if (round.fault == Fault::kStop) {
    kill(victim, SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    kill(victim, SIGCONT);
  } else if (round.fault != Fault::kCut) {
    kill(victim, SIGKILL);
  }
  std::string problem;
  const auto deadline = FaultClock::now() + std::chrono::seconds(round.counts ? 80 : 40);
  for (int rank = 0; rank < kWorkers; ++rank) {
    int status = 0;
    pid_t ended = 0;
    while ((ended = waitpid(workers[static_cast<size_t>(rank)], &status, WNOHANG)) == 0 && FaultClock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (ended == 0) {
      problem += " w" + std::to_string(rank) + " hung;";
      kill(workers[static_cast<size_t>(rank)], SIGKILL);
      waitpid(workers[static_cast<size_t>(rank)], &status, 0);
    } else if (!(WIFEXITED(status) && WEXITSTATUS(status) == 0) && !(rank == round.victim && WIFSIGNALED(status))) {
      problem += " w" + std::to_string(rank) + " failed;";
    }
  }
  for (const int end : {ready[0], ready[1], go[0], go[1]}) close(end);
  return problem;
}

HASTEN_PROCESS_CASE(fault_rounds) {
  const auto environment = Environment::current();
  const auto fault = static_cast<Fault>(environment.integer("HASTEN_TEST_FAULT").value_or(0));
  const int64_t rounds = 20 * environment.integer("HASTEN_TEST_SCALE").value_or(1);
  const auto seed = static_cast<uint32_t>(environment.integer("HASTEN_TEST_SEED").value_or(1));
  std::mt19937 random(seed);
  int num_wrong = 0;
  for (int64_t i = 0; i < rounds && num_wrong < 5; ++i) {
    const bool counts = i % 10 == 0 && fault != Fault::kKillInShutdown;
    const Round round{fault,  static_cast<int>(random() % kWorkers), static_cast<uint32_t>(random()),
                      counts, hasten::testing::free_port(),          -1,
                      -1};
    const std::string problem = play(round, random);
    if (problem.empty()) continue;
    ++num_wrong;
    std::cout << "seed " << seed << ", round " << i << ", w" << round.victim << ":" << problem << std::endl;
  }
  std::cout << rounds << " rounds" << std::endl;
  return num_wrong == 0 ? 0 : 1;
}

class Faults : public ::testing::TestWithParam<std::pair<const char*, Fault>> {};

TEST_P(Faults, EndWellHoweverTheyFall) {
  hasten::testing::Processes zygote(1, "fault_rounds",
                                    {{"HASTEN_TEST_FAULT", std::to_string(static_cast<int>(GetParam().second))}});

  const auto results = zygote.wait(std::chrono::minutes(15));

  EXPECT_EQ(results[0].exit_code, 0) << results[0].output;
  EXPECT_THAT(results[0].output, ::testing::HasSubstr(" rounds"));
}

INSTANTIATE_TEST_SUITE_P(Of, Faults,
                         ::testing::Values(std::pair("AKilledWorker", Fault::kKill),
                                           std::pair("AKilledWorkerInBackward", Fault::kKillInBackward),
                                           std::pair("AKilledWorkerInShutdown", Fault::kKillInShutdown),
                                           std::pair("AStoppedWorker", Fault::kStop),
                                           std::pair("ACutConnection", Fault::kCut)),
                         [](const auto& info) { return info.param.first; });

}  // namespace
}  // namespace hasten::rpc
