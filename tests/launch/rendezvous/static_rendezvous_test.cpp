#include "launch/rendezvous/static_rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>

#include "hasten/core/error.h"
#include "hasten/launch/base/port.h"
#include "launch/listener.h"

namespace hasten::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

MachineFacts machine(int rank, int num_machines = 3) {
  return {.machine_rank = rank,
          .num_machines = num_machines,
          .num_processes = 2 * num_machines,
          .num_local_processes = 2,
          .host = "node" + std::to_string(rank)};
}

MeetingOptions at(int port, double timeout_s = 60) {
  return {.address = "127.0.0.1", .port = port, .timeout = std::chrono::duration<double>(timeout_s)};
}

// What came of it: "met", or the words of the error.
std::future<std::string> start(const MachineFacts& mine, const MeetingOptions& options) {
  return std::async(std::launch::async, [=]() -> std::string {
    try {
      return join_static(mine, options) ? "met" : "interrupted";
    } catch (const Error& error) {
      return error.what();
    }
  });
}

TEST(Meeting, MachinesThatAgreeHaveNothingToSay) {
  EXPECT_EQ(disagreement({machine(0), machine(2), machine(1)}), "");
}

TEST(Meeting, MachinesMayHaveDifferentNumbersOfProcessesThatAllKnow) {
  auto first = machine(0, 2), second = machine(1, 2);
  first.processes_of_machines = second.processes_of_machines = {1, 3};
  first.num_local_processes = 1;
  second.num_local_processes = 3;

  EXPECT_EQ(disagreement({first, second}), "");
  second.processes_of_machines = {2, 2};
  EXPECT_EQ(disagreement({first, second}),
            "machines disagree on who has how many processes: machine 0 (node0) has --nproc_per_node 1,3, "
            "machine 1 "
            "(node1) has 2,2. Give all the same.");
}

TEST(Meeting, NamesWhatMachinesDisagreeOn) {
  auto other = machine(1);
  other.num_processes = 8;
  auto of_another_run = machine(1);
  of_another_run.run_id = "night";
  auto later = machine(1);
  later.attempt = 1;

  EXPECT_EQ(disagreement({machine(0), other}),
            "machines disagree on the number of processes: machine 0 (node0) has 6, machine 1 (node1) has 8. "
            "Give all the same --nnodes, --num_processes and --nproc_per_node.");
  EXPECT_THAT(disagreement({machine(0), machine(1, 2)}), HasSubstr("the number of machines: machine 0"));
  EXPECT_THAT(disagreement({machine(0), of_another_run}), HasSubstr("--rdzv_id none, machine 1 (node1) has night"));
  EXPECT_THAT(disagreement({machine(0), later}), HasSubstr("begins number 0, machine 1 (node1) number 1"));
  EXPECT_THAT(disagreement({machine(0), machine(3)}), HasSubstr("machine 3 (node3) is none of the 3 machines"));
  EXPECT_THAT(disagreement({machine(0), machine(1), machine(1)}),
              HasSubstr("two launchers say that they are machine 1: on node1 and on node1"));
}

TEST(Meeting, EndsWhenAllAreThereInWhateverOrderTheyCome) {
  const int port = free_port();
  auto second = start(machine(2), at(port));
  auto first = start(machine(1), at(port));

  auto host = start(machine(0), at(port));

  EXPECT_EQ(host.get(), "met");
  EXPECT_EQ(first.get(), "met");
  EXPECT_EQ(second.get(), "met");
  EXPECT_TRUE(port_is_free(port));
}

TEST(Meeting, ADisagreementIsToldToAllInTheSameWords) {
  const int port = free_port();
  auto wrong = machine(1);
  wrong.num_processes = 4;
  auto guest = start(wrong, at(port));

  const std::string told = start(machine(0), at(port)).get();

  EXPECT_THAT(told, StartsWith("[launch] machines disagree on the number of processes: "));
  EXPECT_EQ(guest.get(), told);
}

TEST(Meeting, WhoIsMissingIsToldToThoseWhoCame) {
  const int port = free_port();
  auto guest = start(machine(1), at(port));

  const std::string told = start(machine(0), at(port, 0.5)).get();

  EXPECT_THAT(told, StartsWith("[launch] 1 of 3 machines did not come to 127.0.0.1:" + std::to_string(port) +
                               " within 0.5 s: machine 2. "));
  EXPECT_EQ(guest.get(), told);
}

TEST(Meeting, AGuestWithoutAHostSaysWhereItLooked) {
  const int port = free_port();

  EXPECT_THAT(start(machine(1), at(port, 0.1)).get(),
              ::testing::AllOf(HasSubstr("machine 1 of 3 found no meeting at 127.0.0.1:" + std::to_string(port)),
                             HasSubstr("Connection refused")));
}

TEST(Meeting, AHostCanOnlyListenAtItsOwnAddressAndAFreePort) {
  const test::Listener taken;

  EXPECT_THAT(start(machine(0), {.address = "192.0.2.1", .port = free_port()}).get(),
              HasSubstr("machine 0 cannot listen on 192.0.2.1:"));
  EXPECT_THAT(start(machine(0), at(taken.port())).get(), HasSubstr("Address already in use"));
}

TEST(Meeting, AStrangerIsTurnedAwayAndTheRunGoesOn) {
  const int port = free_port();
  std::promise<std::string> noticed;
  auto options = at(port);
  options.notice = [&](const std::string& line) { noticed.set_value(line); };
  auto host = start(machine(0, 2), options);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  const int stranger = socket(AF_INET, SOCK_STREAM, 0);
  while (connect(stranger, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
  }

  EXPECT_EQ(write(stranger, "GET / HTTP/1.0\n", 15), 15);

  EXPECT_EQ(noticed.get_future().get(), "turned someone away at 127.0.0.1 who is no launcher of this run");
  EXPECT_EQ(start(machine(1, 2), at(port)).get(), "met");
  EXPECT_EQ(host.get(), "met");
  close(stranger);
}

TEST(Meeting, CanBeInterrupted) {
  auto options = at(free_port());
  options.interrupted = [] { return true; };

  EXPECT_EQ(start(machine(0), options).get(), "interrupted");
  EXPECT_EQ(start(machine(1), options).get(), "interrupted");
}

}  // namespace
}  // namespace hasten::launcher
