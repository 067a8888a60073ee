// Elastic runs on three machines (network namespaces): a cable is pulled, the machine of the endpoint is
// lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <memory>

#include "cli/machines.h"

namespace hasten {
namespace {

using test::Command;
using ::testing::EndsWith;
using ::testing::StartsWith;

class ElasticMachines : public test::Machines {
 protected:
  // Commands wait for all children when they are destroyed, so they all live as long as the test.
  ~ElasticMachines() override {
    for (const auto& command : commands_) kill(command->pid(), SIGKILL);
  }

  Command& start(std::vector<std::string> words) {
    auto variables = environment();
    variables["HASTEN_RDZV_SECRET"] = "a secret of the three machines";
    commands_.push_back(std::make_unique<Command>(std::move(words), variables));
    return *commands_.back();
  }
  Command& node(int machine) {
    return start(on_machine(
        machine, script_words({"--nnodes", "2:3", "--rdzv_backend", "c10d", "--rdzv_endpoint", address(0) + ":29400",
                               "--rdzv_conf", "last_call_timeout=1,keep_alive_interval=0.1,keep_alive_max_attempt=8"},
                              "echo $MASTER_ADDR $RANK/$WORLD_SIZE; exec sleep 1000")));
  }
  void set_cable(int machine, const std::string& state) {
    EXPECT_EQ(start(on_machine(machine, shell("ip link set eth0 " + state))).finish().exit_code, 0);
  }
  // The next world in which a node has workers.
  static std::string world_after(const Command& command, const std::string& world) {
    std::string line;
    do line = command.read_line();
    while (!line.empty() && line.ends_with(world));
    return line;
  }

  std::vector<std::unique_ptr<Command>> commands_;
};

TEST_F(ElasticMachines, ANodeWhoseCableIsPulledIsLostAndComesBack) {
  ASSERT_NO_FATAL_FAILURE(make_machines(3));
  if (IsSkipped()) return;
  Command &first = node(0), &second = node(1), &third = node(2);
  for (const Command* command : {&first, &second, &third}) EXPECT_THAT(command->read_line(), EndsWith("/3"));

  set_cable(2, "down");

  EXPECT_THAT(world_after(first, "/3"), EndsWith("/2"));
  EXPECT_THAT(world_after(second, "/3"), EndsWith("/2"));
  set_cable(2, "up");
  for (const Command* command : {&first, &second, &third}) EXPECT_THAT(world_after(*command, "/2"), EndsWith("/3"));
  for (Command* command : {&first, &second, &third}) kill(command->pid(), SIGTERM);
  for (Command* command : {&first, &second, &third}) EXPECT_EQ(command->finish().exit_code, 143);
}

TEST_F(ElasticMachines, TheEndpointsMachineCanBeLostAndComeBack) {
  ASSERT_NO_FATAL_FAILURE(make_machines(3));
  if (IsSkipped()) return;
  Command& first = node(0);
  EXPECT_THAT(first.read_error_line(), EndsWith("hosting the rendezvous at 10.77.0.1:29400"));
  Command &second = node(1), &third = node(2);
  EXPECT_THAT(second.read_line(), EndsWith("/3"));
  EXPECT_THAT(third.read_line(), EndsWith("/3"));

  kill(first.pid(), SIGKILL);

  const std::string next = world_after(second, "/3");
  EXPECT_THAT(next, EndsWith("/2"));
  EXPECT_THAT(next, ::testing::AnyOf(StartsWith("10.77.0.2 "), StartsWith("10.77.0.3 ")));
  EXPECT_THAT(world_after(third, "/3"), EndsWith("/2"));
  Command& back = node(0);  // it finds nobody at its own address, hosts a run, and is told of the other
  for (const Command* command : {&second, &third, &back}) EXPECT_THAT(world_after(*command, "/2"), EndsWith("/3"));
  for (Command* command : {&second, &third, &back}) kill(command->pid(), SIGTERM);
  for (Command* command : {&second, &third, &back}) EXPECT_EQ(command->finish().exit_code, 143);
}

}  // namespace
}  // namespace hasten
