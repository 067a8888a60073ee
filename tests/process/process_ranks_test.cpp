// Processes from the environment, and how they end: everything that belongs to a whole process.
#include "hasten/process/process.h"

#include <ATen/Parallel.h>
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>

#include "hasten/comm/nested/nested_operations.h"
#include "hasten/core/error.h"
#include "support/processes.h"

namespace hasten::process {
namespace {

using hasten::testing::Processes;
using hasten::testing::run_processes;
using ::testing::HasSubstr;

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

/// Steps until a peer's failure ends them.
void step_for_ever(const Process& process) {
  while (true) comm::reduce(process.group(), torch::ones({4}));
}

HASTEN_PROCESS_CASE(state_meets) {
  const Process process;
  const auto sum = comm::reduce(process.group(), torch::tensor(process.rank() + 1));
  std::printf("rank %d of %d on %s, sum %d\n", process.rank(), process.world_size(), process.device().str().c_str(),
              sum.item<int>());
  return 0;
}

TEST(ProcessFromEnvironment, MeetsTheOthersOverTorchrunsVariables) {
  const auto results = run_processes(3, "state_meets", {{"ACCELERATE_USE_CPU", "1"}});

  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(results[rank].exit_code, 0) << results[rank].output;
    EXPECT_THAT(results[rank].output, HasSubstr(text("rank ", rank, " of 3 on cpu, sum 6")));
  }
}

// As a program that makes an Accelerator in each of its functions.
HASTEN_PROCESS_CASE(state_meets_again) {
  const auto sum = [](const Process& process) {
    return comm::reduce(process.group(), torch::tensor(process.rank() + 1)).item<int>();
  };
  std::optional<Process> first(std::in_place);
  const Process beside;
  const int sums = sum(*first) + sum(beside);
  first.reset();
  const Process after;
  std::printf("rank %d, sums %d\n", after.rank(), sums + sum(after) + sum(beside));
  return 0;
}

TEST(ProcessFromEnvironment, SeveralInOneProgramMeetTheOthersEach) {
  const auto results = run_processes(3, "state_meets_again", {{"ACCELERATE_USE_CPU", "1"}});

  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(results[rank].exit_code, 0) << results[rank].output;
    EXPECT_THAT(results[rank].output, HasSubstr(text("rank ", rank, ", sums 24")));
  }
}

// A child has its parent's memory, but none of its threads.
int exit_code_of_a_child() {
  const pid_t child = fork();
  if (child == 0) std::exit(3);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

HASTEN_PROCESS_CASE(state_forks) {
  std::optional<Process> process(std::in_place);
  const int beside = exit_code_of_a_child();
  process->wait_for_everyone();
  process.reset();
  std::printf("children's exit codes: %d, %d\n", beside, exit_code_of_a_child());
  return 0;
}

HASTEN_PROCESS_CASE(state_forks_and_calls) {
  Process process;
  std::array<int, 2> words{};
  if (pipe(words.data()) != 0) return 1;
  const pid_t child = fork();
  if (child == 0) {
    std::string said = "nothing";
    try {
      process.group().barrier();
    } catch (const std::exception& error) {
      said = error.what();
    }
    if (write(words[1], said.data(), said.size()) < 0) _exit(1);
    _exit(0);
  }
  close(words[1]);
  std::string said(4096, ' ');
  said.resize(static_cast<size_t>(std::max<ssize_t>(read(words[0], said.data(), said.size()), 0)));
  waitpid(child, nullptr, 0);
  process.wait_for_everyone();
  std::printf("the child: %s\n", said.c_str());
  return 0;
}

TEST(ProcessFromEnvironment, AForkedChildThatCallsACollectiveIsRefused) {
  for (const auto& result : run_processes(2, "state_forks_and_calls", {{"ACCELERATE_USE_CPU", "1"}})) {
    EXPECT_THAT(result.output, HasSubstr("barrier in a child that fork() made of this rank"));
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

TEST(ProcessFromEnvironment, AForkedChildEndsByItself) {
  for (const auto& result : run_processes(2, "state_forks", {{"ACCELERATE_USE_CPU", "1"}})) {
    EXPECT_THAT(result.output, HasSubstr("children's exit codes: 3, 3"));
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

TEST(ProcessFromEnvironment, MeetsTheOthersOfASlurmStep) {
  const auto port = std::to_string(hasten::testing::free_port());
  const std::map<std::string, std::string> step = {{"RANK", ""},
                                                   {"LOCAL_RANK", ""},
                                                   {"WORLD_SIZE", ""},
                                                   {"LOCAL_WORLD_SIZE", ""},
                                                   {"GROUP_RANK", ""},
                                                   {"SLURM_STEP_ID", "0"},
                                                   {"SLURM_STEP_NUM_TASKS", "2"},
                                                   {"SLURM_JOB_ID", "7"},
                                                   {"SLURM_NODEID", "0"},
                                                   {"MASTER_PORT", port},
                                                   {"SLURM_STEP_TASKS_PER_NODE", "2"}};
  auto first = step, second = step;
  first["SLURM_PROCID"] = first["SLURM_LOCALID"] = "0";
  second["SLURM_PROCID"] = second["SLURM_LOCALID"] = "1";

  Processes one(1, "state_meets", first);
  Processes other(1, "state_meets", second);

  EXPECT_THAT(one.wait()[0].output, HasSubstr("rank 0 of 2 on"));
  EXPECT_THAT(other.wait()[0].output, HasSubstr("rank 1 of 2 on"));
}

TEST(ProcessFromEnvironment, AMissingVariableEndsEveryRankWithItsNameAndCode2) {
  const auto results = run_processes(2, "state_meets", {{"MASTER_PORT", ""}});

  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, 2) << result.output;
    EXPECT_THAT(result.output, HasSubstr("hasten: [state] the environment of torchrun is half set"));
    EXPECT_THAT(result.output, HasSubstr("but not MASTER_PORT"));
  }
}

/// A port of the loopback address that somebody else listens on.
class BusyPort {
 public:
  BusyPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    const bool listening = bind(fd_, reinterpret_cast<sockaddr*>(&address), size) == 0 && listen(fd_, 1) == 0 &&
                           getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0;
    if (!listening) throw std::runtime_error("no port to listen on");
    port_ = ntohs(address.sin_port);
  }
  ~BusyPort() { close(fd_); }
  int port() const { return port_; }

 private:
  int fd_;
  int port_ = 0;
};

TEST(ProcessFromEnvironment, ABusyPortEndsTheMainProcessWithItsNumberAndCode2) {
  const BusyPort busy;
  const std::string port = std::to_string(busy.port());

  Processes main(1, "state_meets", {{"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_PORT", port}});
  const auto result = main.wait()[0];

  EXPECT_EQ(result.exit_code, 2) << result.output;
  EXPECT_THAT(result.output, HasSubstr("127.0.0.1:" + port));
}

HASTEN_PROCESS_CASE(state_throws) {
  auto variables = Environment::current().variables();
  const std::string rank = variables["RANK"];
  if (!variables["TORCHELASTIC_ERROR_FILE"].empty()) variables["TORCHELASTIC_ERROR_FILE"] += rank;
  const Process process({}, Environment::of(variables));
  std::printf("before the end");  // no line break, no flush
  comm::reduce(process.group(), torch::ones({1}));
  if (rank == variables["FAILING_RANK"]) {
    if (variables["FAILING_WITH"] == "usage") throw UsageError({"test"}, "the option is wrong");
    throw std::runtime_error("the loss is NaN");
  }
  step_for_ever(process);
  return 0;
}

TEST(FailureReporter, SurvivorsSayWhoFailedAndWhy) {
  const auto results = run_processes(3, "state_throws", {{"FAILING_RANK", "1"}});

  EXPECT_THAT(results[1].output, HasSubstr("hasten: rank 1/3: the loss is NaN\n"));
  for (const int survivor : {0, 2}) {
    EXPECT_THAT(results[survivor].output, HasSubstr("rank 1 failed: the loss is NaN")) << survivor;
  }
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 1) << result.output;
}

TEST(FailureReporter, AreHeardFromTheRankThatServesTheStoreToo) {
  const auto results = run_processes(3, "state_throws", {{"FAILING_RANK", "0"}, {"FAILING_WITH", "usage"}});

  EXPECT_EQ(results[0].exit_code, 2) << results[0].output;
  for (const int survivor : {1, 2}) {
    EXPECT_EQ(results[survivor].exit_code, 1) << results[survivor].output;
    EXPECT_THAT(results[survivor].output, HasSubstr("rank 0 failed: [test] the option is wrong")) << survivor;
  }
}

TEST(FailureReporter, ArePrintedOnceAfterWhatWasPrintedBeforeWithoutACoreDump) {
  const auto results = run_processes(2, "state_throws", {{"FAILING_RANK", "1"}});

  EXPECT_EQ(results[1].output, "before the endhasten: rank 1/2: the loss is NaN\n");
  EXPECT_EQ(count(results[0].output, "hasten: "), 1u) << results[0].output;
}

TEST(FailureReporter, GoToTheLaunchersErrorFile) {
  const auto folder = std::filesystem::temp_directory_path() / text("hasten_last_words_", getpid());
  std::filesystem::create_directory(folder);

  run_processes(2, "state_throws", {{"FAILING_RANK", "1"}, {"TORCHELASTIC_ERROR_FILE", folder / "error"}});
  std::ifstream own(folder / "error1"), survivors(folder / "error0");
  const auto failing = nlohmann::json::parse(own), surviving = nlohmann::json::parse(survivors);
  std::filesystem::remove_all(folder);

  EXPECT_EQ(failing["message"]["message"], "the loss is NaN");
  EXPECT_THAT(surviving["message"]["message"].get<std::string>(), HasSubstr("rank 1 failed: the loss is NaN"));
}

// The second process of the program has ended, or is there; the others wait in the group of the first, or of the
// second.
HASTEN_PROCESS_CASE(state_has_two) {
  const auto variables = Environment::current().variables();
  const Process first;
  auto second = std::make_optional<Process>();
  comm::reduce(second->group(), torch::ones({1}));
  if (variables.at("ENDS") == "second") second.reset();
  if (first.rank() == 1) throw std::runtime_error("the loss is NaN");
  step_for_ever(variables.at("WAITS_IN") == "second" ? *second : first);
  return 0;
}

TEST(FailureReporter, OfAProgramWithTwoProcessesAreHeardInTheGroupsOfBoth) {
  using Case = std::map<std::string, std::string>;
  for (const auto& variables :
       {Case{{"ENDS", "second"}, {"WAITS_IN", "first"}}, Case{{"ENDS", "none"}, {"WAITS_IN", "first"}},
        Case{{"ENDS", "none"}, {"WAITS_IN", "second"}}}) {
    const auto results = run_processes(2, "state_has_two", variables);

    EXPECT_THAT(results[1].output, HasSubstr("hasten: rank 1/2: the loss is NaN\n"));
    EXPECT_THAT(results[0].output, HasSubstr("rank 1 failed: the loss is NaN"));
    for (const auto& result : results) EXPECT_EQ(result.exit_code, 1) << result.output;
  }
}

HASTEN_PROCESS_CASE(state_throws_an_int) {
  const Process process;
  process.wait_for_everyone();
  throw 7;
}

TEST(FailureReporter, WhatIsNoStdExceptionIsNamedByItsType) {
  for (const auto& result : run_processes(2, "state_throws_an_int")) {
    EXPECT_EQ(result.exit_code, 1) << result.output;
    EXPECT_THAT(result.output, HasSubstr("an exception that is no std::exception (int)"));
  }
}

HASTEN_PROCESS_CASE(state_alone_throws) {
  const Process process;
  throw std::runtime_error("alone");
}

TEST(FailureReporter, AWorldOfOneEndsWithItsWordsAndAnExitCodeToo) {
  const auto results = run_processes(1, "state_alone_throws",
                                     {{"RANK", ""}, {"WORLD_SIZE", ""}, {"LOCAL_RANK", ""}, {"LOCAL_WORLD_SIZE", ""}});

  EXPECT_EQ(results[0].exit_code, 1);
  EXPECT_EQ(results[0].output, "hasten: alone\n");
}

HASTEN_PROCESS_CASE(state_has_a_quota) {
  const Process process;
  std::printf("%d threads\n", at::get_num_threads());
  return 0;
}

TEST(ProcessFromEnvironment, AQuotaOfTheControlGroupBoundsTheThreads) {
  const auto root = std::filesystem::temp_directory_path() / text("hasten_quota_", getpid());
  std::filesystem::create_directories(root / "proc/self");
  std::filesystem::create_directories(root / "sys/fs/cgroup/job");
  std::ofstream(root / "proc/self/cgroup") << "0::/job\n";
  std::ofstream(root / "sys/fs/cgroup/job/cpu.max") << "100000 100000\n";

  const auto bounded = run_processes(1, "state_has_a_quota", {{"HASTEN_MACHINE_ROOT", root}, {"OMP_NUM_THREADS", ""}});
  const auto chosen = run_processes(1, "state_has_a_quota", {{"HASTEN_MACHINE_ROOT", root}, {"OMP_NUM_THREADS", "2"}});
  std::filesystem::remove_all(root);

  EXPECT_EQ(bounded[0].output, "1 threads\n");
  EXPECT_EQ(chosen[0].output, "2 threads\n");
}

HASTEN_PROCESS_CASE(state_thread_throws) {
  const Process process;
  std::thread other([] { throw std::runtime_error("from a thread"); });
  other.join();
  return 0;
}

TEST(FailureReporter, OfAnyThreadAreHeard) {
  const auto results = run_processes(2, "state_thread_throws");

  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, 1) << result.output;
    EXPECT_THAT(result.output, HasSubstr("from a thread"));
  }
}

}  // namespace
}  // namespace hasten::process
