// Hangs of a run on two hosts, which are network namespaces. The host that the ranks' store lies on names what it sees
// of the other over that store.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>

#include "cli/machines.h"
#include "hasten/core/text.h"
#include "hasten/process/process.h"
#include "support/processes.h"

using hasten::process::Process;

// Outside of hasten's namespace, as a program's own function.
__attribute__((noinline)) void sum_losses_twice(std::mutex& mutex) {
  mutex.lock();
  mutex.lock();
  asm volatile("");
}

namespace hasten {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

// Ends by itself if nothing is said.
Process bounded_process() {
  return Process({.cpu = true, .timeout = std::chrono::seconds(90)});
}

HASTEN_PROCESS_CASE(host_hang_mutex) {
  const Process process = bounded_process();
  process.group().all_reduce_(torch::ones({3}));
  std::mutex mutex;
  if (process.rank() == 3) sum_losses_twice(mutex);
  process.group().all_reduce_(torch::ones({5}));
  return 0;
}

HASTEN_PROCESS_CASE(host_hang_stopped) {
  const Process process = bounded_process();
  process.group().barrier();
  if (process.rank() == 2) raise(SIGSTOP);
  process.group().barrier();
  return 0;
}

HASTEN_PROCESS_CASE(host_hang_cable) {
  const Process process = bounded_process();
  // The hosts tell each other of their ranks every 2 s.
  for (int step = 0;; ++step) {
    process.group().all_reduce_(torch::ones({5}));
    if (step == 300) process.on_main_process([] { std::puts("goes on"), std::fflush(stdout); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

class RunWatchHosts : public test::Machines {
 protected:
  // What the first of two hosts says, up to the end of a report, with two ranks of `case_name` on each. `cut`: the
  // cable of the second is cut when the first says that its ranks go on.
  std::string report_of(const std::string& case_name, const std::string& hang_after, bool cut = false) {
    const auto first = start(0, case_name, hang_after), second = start(1, case_name, hang_after);
    if (cut && first->read_line() == "goes on") cut_cable(1);
    std::string said;
    while (said.find("╰") == std::string::npos) {
      const std::string more = first->read_some_errors();
      if (more.empty()) break;
      said += more;
    }
    for (const int host : {0, 1}) kill_all_on(host, {});
    const auto rest = first->finish(), other = second->finish();
    EXPECT_THAT(other.err, Not(HasSubstr("╭ hasten: no progress"))) << "one host speaks for both";
    return said + rest.err;
  }

 private:
  std::unique_ptr<test::Command> start(int host, const std::string& case_name, const std::string& hang_after) const {
    const std::string program = std::filesystem::read_symlink("/proc/self/exe");
    auto variables = environment();
    variables.insert({{"HASTEN_TEST_CASE", case_name}, {"HASTEN_HANG_AFTER", hang_after}});
    return std::make_unique<test::Command>(
        on_machine(host, words({"--nnodes", "2", "--node_rank", text(host), "--nproc_per_node", "2", "--master_addr",
                                address(0), "--master_port", "29517", "--cpu", "--no_python", program})),
        variables);
  }
};

TEST_F(RunWatchHosts, ARankOfTheOtherHostIsNamedWithItsHostAndItsFunction) {
  ASSERT_NO_FATAL_FAILURE(make_machines(2));
  if (IsSkipped()) return;

  const std::string report = report_of("host_hang_mutex", "1.5");

  EXPECT_THAT(report, HasSubstr("rank 3 of 4 is missing"));
  EXPECT_THAT(report, HasSubstr("all_reduce 2 of 'world': sum of float32 [5] at run_watch_hosts_slow_test.cpp:"));
  EXPECT_THAT(report, HasSubstr("sum_losses_twice ("));
  EXPECT_THAT(report, HasSubstr("rank 3 on node1 sleeps in a lock."));
}

TEST_F(RunWatchHosts, AStoppedRankOfTheOtherHostIsCertain) {
  ASSERT_NO_FATAL_FAILURE(make_machines(2));
  if (IsSkipped()) return;

  const std::string report = report_of("host_hang_stopped", "3600");

  EXPECT_THAT(report, HasSubstr("rank 2 of 4 is missing"));
  EXPECT_THAT(report, HasSubstr("rank 2 on node1 is stopped; kill -CONT "));
}

TEST_F(RunWatchHosts, AHostWhoseCableIsCutIsOutOfReach) {
  ASSERT_NO_FATAL_FAILURE(make_machines(2));
  if (IsSkipped()) return;

  const std::string report = report_of("host_hang_cable", "1.5", true);

  EXPECT_THAT(report, HasSubstr("ranks 2 3 of 4 are missing"));
  EXPECT_THAT(report, HasSubstr("rank 2 on node1 is out of reach: its host tells nothing any more."));
  EXPECT_THAT(report, Not(HasSubstr("rank 1 ")));
}

}  // namespace
}  // namespace hasten
