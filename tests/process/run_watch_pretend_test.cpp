// Calls over a double of NCCL in the watch: open until the device has done them, though their waits have returned.
#include <c10/core/DeviceGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <stdexcept>
#include <string>
#include <vector>

#include "hasten/core/text.h"
#include "hasten/flight/diagnose.h"
#include "hasten/flight/pages.h"
#include "hasten/flight/recorder.h"
#include "hasten/process/process.h"
#include "support/nccl_double.h"
#include "support/processes.h"

namespace hasten::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

/// A rank with a GPU of its own, over the double.
struct RankOnGpu {
  const UsesNcclDouble with_double = {};
  const process::Process process = process::Process();
  const c10::DeviceGuard on_device{process.device()};
  const comm::Group& group = process.group();
  const at::Tensor sum = torch::ones({3}, process.device());

  /// A call that both ranks make, and that their devices have done.
  RankOnGpu() {
    group.all_reduce_(sum);
    if (sum.cpu().sum().item<float>() != 6) throw std::runtime_error("the double gives wrong sums");
  }
};

[[noreturn]] void wait_for_ever() {
  while (true) pause();
}

/// What rank 0 says of the ranks until the end of its report.
std::string report_of_gpus(const std::string& case_name) {
  Processes processes(2, case_name, {{"HASTEN_HANG_AFTER", "1.5"}});
  EXPECT_TRUE(processes.wait_for_output(0, "╰")) << "nothing was said";
  for (int rank = 0; rank < 2; ++rank) processes.signal(rank, SIGKILL);
  return processes.wait()[0].output;
}

HASTEN_PROCESS_CASE(gpu_skips_a_call) {
  const RankOnGpu rank;
  if (rank.process.rank() == 1) wait_for_ever();
  rank.group.all_reduce_(rank.sum);
  (void)rank.sum.cpu();
  return 0;
}

TEST(RunWatchOnGpus, ARankThatSkipsACallIsNamedThoughTheOthersWaitForTheirDeviceAlone) {
  const std::string report = report_of_gpus("gpu_skips_a_call");

  EXPECT_THAT(report, HasSubstr("rank 1 of 2 is missing"));
  EXPECT_THAT(report, HasSubstr("all_reduce 2 of 'world': sum of float32 [3] at run_watch_pretend_test.cpp:"));
}

// The host has gone on: nothing of it stands in the call.
HASTEN_PROCESS_CASE(gpu_goes_on) {
  const RankOnGpu rank;
  if (rank.process.rank() == 1) wait_for_ever();
  auto work = rank.group.all_gather_into_async_(torch::empty({6}, rank.process.device()), rank.sum);
  work.wait();
  wait_for_ever();
}

TEST(RunWatchOnGpus, ACallIsOpenWhileItsHostDoesOtherThings) {
  const std::string report = report_of_gpus("gpu_goes_on");

  EXPECT_THAT(report, HasSubstr("rank 1 of 2 is missing"));
  EXPECT_THAT(report, HasSubstr("all_gather_into 2 of 'world': float32 [3] at run_watch_pretend_test.cpp:"));
}

HASTEN_PROCESS_CASE(gpu_receives_nothing) {
  const RankOnGpu rank;
  if (rank.process.rank() == 1) wait_for_ever();
  rank.group.receive_(rank.sum, 1);
  wait_for_ever();
}

TEST(RunWatchOnGpus, AMessageThatDoesNotComeIsOpen) {
  const std::string report = report_of_gpus("gpu_receives_nothing");

  EXPECT_THAT(report, HasSubstr("rank 1 of 2 is missing"));
  EXPECT_THAT(report, HasSubstr("receive 1 from 1 (tag 0)"));
}

// Rank 0 takes part in the first message of the batch alone.
HASTEN_PROCESS_CASE(gpu_batch_of_messages) {
  const RankOnGpu rank;
  const int other = 1 - rank.process.rank();
  const auto there = torch::ones({4}, rank.process.device()), back = torch::zeros({5}, rank.process.device());
  if (rank.process.rank() == 1) {
    rank.group.receive_(there, 0);
    (void)there.cpu();
    wait_for_ever();
  }
  using Kind = comm::PointToPoint::Kind;
  rank.group.batch_send_recv({{Kind::kSend, there, other}, {Kind::kReceive, back, other}}).wait();
  (void)back.cpu();
  return 0;
}

TEST(RunWatchOnGpus, AMessageOfABatchThatDoesNotComeIsOpenAndNamed) {
  const std::string report = report_of_gpus("gpu_batch_of_messages");

  EXPECT_THAT(report, HasSubstr("rank 1 of 2 is missing"));
  EXPECT_THAT(report, HasSubstr("receive 1 from 1 (tag 0) of 'world': float32 [5] at run_watch_pretend_test.cpp:"));
}

HASTEN_PROCESS_CASE(gpu_batches_end) {
  const RankOnGpu rank;
  const int other = 1 - rank.process.rank();
  const auto there = torch::ones({4}, rank.process.device()), back = torch::zeros({4}, rank.process.device());
  using Kind = comm::PointToPoint::Kind;
  for (int i = 0; i < 2; ++i) {
    rank.group.batch_send_recv({{Kind::kReceive, back, other}, {Kind::kSend, there, other}}).wait();
  }
  if (back.cpu().sum().item<float>() != 4) throw std::runtime_error("the messages have other values");
  std::vector<std::string> messages;
  bool has_open = true;
  while (has_open) {  // the group's thread ends the records
    usleep(1000);
    messages.clear();
    has_open = false;
    for (const auto& call : flight::PageView(flight::process_recorder()->descriptor()).read().calls) {
      if (call.kind == flight::CallKind::kCollective || call.kind == flight::CallKind::kMeeting) continue;
      messages.push_back(flight::short_call(call));
      has_open = has_open || !call.ended;
    }
  }
  const std::string at = " (tag 0)", from = text(" from ", other, at), to = text(" to ", other, at);
  const std::vector<std::string> expected = {"receive 1" + from, "send 1" + to, "receive 2" + from, "send 2" + to};
  if (messages != expected) throw std::runtime_error("other records: " + join(messages, "; "));
  return 0;
}

TEST(RunWatchOnGpus, EachMessageOfABatchHasARecordThatEndsOnTheDevice) {
  for (const auto& result : run_processes(2, "gpu_batches_end")) EXPECT_EQ(result.exit_code, 0) << result.output;
}

// Both say how long their devices took: rank 1 comes last to each call, so it waits least.
HASTEN_PROCESS_CASE(gpu_straggles) {
  const RankOnGpu rank;
  UsesNcclDouble::set_call_time(std::chrono::milliseconds(rank.process.rank() == 0 ? 40 : 10));
  const auto recorder = flight::process_recorder();
  while (true) {
    for (int bucket = 0; bucket < 2; ++bucket) rank.group.all_reduce_(rank.sum);
    usleep(5000);
    recorder->step(1);
  }
}

TEST(RunWatchOnGpus, TheRankWhoseCallsAreShortOnItsDeviceIsTheStraggler) {
  Processes processes(2, "gpu_straggles");

  EXPECT_TRUE(processes.wait_for_output(0, " a step for it")) << "nothing was said";
  for (int rank = 0; rank < 2; ++rank) processes.signal(rank, SIGKILL);
  // A window may end between the last call of a step and its end on the device.
  EXPECT_THAT(processes.wait()[0].output,
              ContainsRegex("hasten: rank 1 costs the run [0-9]+ %: the others wait [23][0-9] ms a step for it"));
}

/// The last call of this rank in its page.
flight::CallState last_call() {
  const auto state = flight::PageView(flight::process_recorder()->descriptor()).read();
  return state.calls.back();
}

HASTEN_PROCESS_CASE(gpu_calls_end) {
  const RankOnGpu rank;
  rank.group.all_reduce_(rank.sum);
  const flight::CallState open = last_call();
  if (open.ended || !open.waits_s || open.number != 2) throw std::runtime_error("the call is not open");
  (void)rank.sum.cpu();
  // Nothing else is called: the group's thread ends the record.
  while (!last_call().ended) usleep(1000);

  // One that nothing waits for.
  (void)rank.group.all_reduce_async_(rank.sum);
  if (last_call().ended || last_call().waits_s) throw std::runtime_error("a call without a waiter has ended");
  rank.group.all_reduce_(rank.sum);
  (void)rank.sum.cpu();
  rank.group.barrier();  // a call looks after those before it
  const auto calls = flight::PageView(flight::process_recorder()->descriptor()).read().calls;
  for (const auto& call : calls) {
    if (!call.ended) throw std::runtime_error("a call is open that the device has done: " + flight::short_call(call));
  }
  return 0;
}

TEST(RunWatchOnGpus, ACallEndsWhenItsDeviceHasDoneItWaitedForOrNot) {
  for (const auto& result : run_processes(2, "gpu_calls_end")) EXPECT_EQ(result.exit_code, 0) << result.output;
}

}  // namespace
}  // namespace hasten::testing
