// Real processes for tests; see processes.h. Also the main() of all test programs that use libtorch.
#include "support/processes.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <random>
#include <stdexcept>

#include "hasten/core/env.h"

namespace hasten::testing {
namespace {

using Clock = std::chrono::steady_clock;

std::map<std::string, std::function<int()>>& cases() {
  static std::map<std::string, std::function<int()>> registered;
  return registered;
}

struct Child {
  pid_t pid = -1;
  int pipe = -1;
  bool open = true;
  std::string output;
};

std::vector<std::string> environment_of(int rank, int world_size, int port, const std::string& case_name,
                                        const std::map<std::string, std::string>& changes) {
  auto variables = Environment::current().variables();
  const std::string r = std::to_string(rank), n = std::to_string(world_size);
  const std::map<std::string, std::string> torchrun = {{"RANK", r},
                                                       {"LOCAL_RANK", r},
                                                       {"WORLD_SIZE", n},
                                                       {"LOCAL_WORLD_SIZE", n},
                                                       {"GROUP_RANK", "0"},
                                                       {"OMP_NUM_THREADS", "1"},
                                                       {"MASTER_ADDR", "127.0.0.1"},
                                                       {"MASTER_PORT", std::to_string(port)},
                                                       {"HASTEN_TEST_CASE", case_name}};
  for (const auto& [name, value] : torchrun) variables[name] = value;
  for (const auto& [name, value] : changes) {
    if (value.empty()) {
      variables.erase(name);
    } else {
      variables[name] = value;
    }
  }
  std::vector<std::string> lines;
  for (const auto& [name, value] : variables) lines.push_back(name + "=" + value);
  return lines;
}

Child spawn(std::vector<std::string> environment) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  std::vector<char*> variables;
  for (auto& line : environment) variables.push_back(line.data());
  variables.push_back(nullptr);
  std::string self = "/proc/self/exe";
  char* arguments[] = {self.data(), nullptr};
  Child child;
  const int failed = posix_spawn(&child.pid, self.c_str(), &actions, nullptr, arguments, variables.data());
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  child.pipe = ends[0];
  if (failed != 0) throw std::runtime_error("posix_spawn of the test binary failed");
  return child;
}

}  // namespace

bool register_process_case(const std::string& name, std::function<int()> body) {
  return cases().emplace(name, std::move(body)).second;
}

namespace {

// Returns a socket that is bound, -1 if the address is taken.
int bound_socket(int family, const sockaddr* address, socklen_t size) {
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && bind(fd, address, size) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

// Returns a socket whose name keeps other test programs from the port, -1 if one of them has it.
int claim_port(int port) {
  const std::string name = "hasten-test-port-" + std::to_string(port);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), address.sun_path + 1);  // an abstract name
  return bound_socket(AF_UNIX, reinterpret_cast<const sockaddr*>(&address),
                      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size()));
}

bool is_port_free(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  const int fd = bound_socket(AF_INET, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

}  // namespace

// The system gives ports from 32768 on to connections and to programs that ask for any, so those are left alone. The
// claims of the latest ports are kept: their users have them by then.
int free_port() {
  constexpr int kFirst = 15'000, kEnd = 32'000;
  constexpr size_t kMostClaims = 64;
  static std::mutex mutex;
  static std::mt19937 random(std::random_device{}());
  static std::deque<int> claims;
  const std::lock_guard lock(mutex);
  for (int tries = 0; tries < 1000; ++tries) {
    const int port = kFirst + static_cast<int>(random() % (kEnd - kFirst));
    const int claim = claim_port(port);
    if (claim < 0) continue;
    if (!is_port_free(port)) {
      close(claim);
      continue;
    }
    claims.push_back(claim);
    if (claims.size() > kMostClaims) {
      close(claims.front());
      claims.pop_front();
    }
    return port;
  }
  throw std::runtime_error("no free port on the loopback address");
}

struct Processes::Impl {
  std::vector<Child> children;

  // Reads what has come, for at most `time`; false when every pipe is closed.
  bool read_some(std::chrono::milliseconds time) {
    std::vector<pollfd> waiting;
    std::vector<Child*> owners;
    for (Child& child : children) {
      if (!child.open) continue;
      waiting.push_back({child.pipe, POLLIN, 0});
      owners.push_back(&child);
    }
    if (waiting.empty()) return false;
    poll(waiting.data(), waiting.size(), static_cast<int>(time.count()));
    for (size_t i = 0; i < waiting.size(); ++i) {
      if (waiting[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t count = read(waiting[i].fd, buffer, sizeof(buffer));
      if (count > 0) {
        owners[i]->output.append(buffer, count);
      } else {
        owners[i]->open = false;
      }
    }
    return true;
  }
};

Processes::Processes(int world_size, const std::string& case_name,
                     const std::map<std::string, std::string>& environment)
    : impl_(std::make_unique<Impl>()) {
  const int port = free_port();
  for (int rank = 0; rank < world_size; ++rank) {
    impl_->children.push_back(spawn(environment_of(rank, world_size, port, case_name, environment)));
  }
}

Processes::~Processes() {
  for (Child& child : impl_->children) {
    if (child.pid > 0) {
      kill(child.pid, SIGKILL);
      waitpid(child.pid, nullptr, 0);
    }
    close(child.pipe);
  }
}

pid_t Processes::pid(int rank) const {
  return impl_->children.at(rank).pid;
}

void Processes::signal(int rank, int number) const {
  kill(pid(rank), number);
}

bool Processes::wait_for_output(int rank, const std::string& text, std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  const Child& child = impl_->children.at(rank);
  while (child.output.find(text) == std::string::npos) {
    if (!child.open || Clock::now() > deadline) return false;
    impl_->read_some(std::chrono::milliseconds(100));
  }
  return true;
}

std::vector<ProcessResult> Processes::wait(std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (Clock::now() < deadline && impl_->read_some(std::chrono::milliseconds(100))) {
  }
  std::vector<ProcessResult> results;
  for (Child& child : impl_->children) {
    int status = 0;
    const bool late = child.open;
    if (late) kill(child.pid, SIGKILL);
    waitpid(child.pid, &status, 0);
    child.pid = -1;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    results.push_back({late ? -1 : code, child.output});
  }
  return results;
}

std::vector<ProcessResult> run_processes(int world_size, const std::string& case_name,
                                         const std::map<std::string, std::string>& environment) {
  return Processes(world_size, case_name, environment).wait();
}

namespace {

int run_case(const std::string& name) {
  const auto found = cases().find(name);
  if (found != cases().end()) return found->second();
  fprintf(stderr, "no process case '%s' in this test program\n", name.c_str());
  return 97;
}

}  // namespace
}  // namespace hasten::testing

int main(int argc, char** argv) {
  const auto process_case = hasten::Environment::current().text("HASTEN_TEST_CASE");
  if (process_case) return hasten::testing::run_case(*process_case);
  ::testing::InitGoogleTest(&argc, argv);
  const int result = RUN_ALL_TESTS();
  if (HASTEN_SANITIZED) return result;  // sanitizers report at exit
  // libtorch takes back its registrations at exit, a third of the time that an empty program takes.
  std::fflush(nullptr);
  std::_Exit(result);
}
