// One command a machine, with its number: on two and three machines, with the real self-test program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "cli/machines.h"

namespace hasten {
namespace {

using test::Command;
using test::CommandResult;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Words = std::vector<std::string>;

class Static : public test::Machines {
 protected:
  // `hasten launch` on machine i, with the numbers as torchrun's users give them.
  Words torchrun_words(int i, int num_machines, const Words& more) const {
    return launch_words(
        i,
        {"--nnodes", text(num_machines), "--node_rank", text(i), "--master_addr", address(0), "--master_port", "29511"},
        more);
  }
  // The same as Accelerate's do.
  Words accelerate_words(int i, int num_machines, const Words& more) const {
    return launch_words(i,
                        {"--num_machines", text(num_machines), "--machine_rank", text(i), "--main_process_ip",
                         address(0), "--main_process_port", "29511"},
                        more);
  }

  std::unique_ptr<Command> start(const Words& words) const { return std::make_unique<Command>(words, environment()); }

  static Words self_test() {
    return {"--no_python", std::filesystem::path(HASTEN_COMMAND).replace_filename("hasten-self-test")};
  }

 private:
  Words launch_words(int i, Words options, const Words& more) const {
    options.insert(options.end(), {"--cpu"});
    options.insert(options.end(), more.begin(), more.end());
    return on_machine(i, words(options));
  }
};

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST_F(Static, TwoMachinesAreOneRunOverTheNetwork) {
  ASSERT_NO_FATAL_FAILURE(make_machines(2));
  if (IsSkipped()) return;

  const auto second = start(torchrun_words(1, 2, Words{"--nproc_per_node", "2"} + self_test()));
  const auto first = start(torchrun_words(0, 2, Words{"--nproc_per_node", "2"} + self_test()));
  const CommandResult of_first = first->finish(), of_second = second->finish();

  EXPECT_THAT(of_first.out, StartsWith("hasten test on 4 processes, cpu\n")) << of_first.err;
  EXPECT_THAT(of_first.out, HasSubstr("\n4 of 4 hold\n"));
  EXPECT_EQ(of_first.exit_code, 0);
  EXPECT_EQ(of_second.out, of_first.out) << of_second.err;  // the first rank of every machine prints
  EXPECT_EQ(of_second.exit_code, 0);
}

TEST_F(Static, MachinesWithDifferentNumbersOfProcessesAreOneRun) {
  ASSERT_NO_FATAL_FAILURE(make_machines(2));
  if (IsSkipped()) return;

  const auto second = start(torchrun_words(1, 2, Words{"--nproc_per_node", "1,3"} + self_test()));
  const auto first = start(torchrun_words(0, 2, Words{"--nproc_per_node", "1,3"} + self_test()));
  const CommandResult of_first = first->finish(), of_second = second->finish();

  EXPECT_THAT(of_first.out, StartsWith("hasten test on 4 processes, cpu\n")) << of_first.err;
  EXPECT_THAT(of_first.out, HasSubstr("\n4 of 4 hold\n"));
  EXPECT_EQ(of_first.exit_code, 0);
  EXPECT_EQ(of_second.exit_code, 0) << of_second.err;
}

TEST_F(Static, ThreeMachinesWithAcceleratesNamesAreOneRun) {
  ASSERT_NO_FATAL_FAILURE(make_machines(3));
  if (IsSkipped()) return;

  const auto third = start(accelerate_words(2, 3, Words{"-n", "3"} + self_test()));
  const auto second = start(accelerate_words(1, 3, Words{"-n", "3"} + self_test()));
  const auto first = start(accelerate_words(0, 3, Words{"-n", "3"} + self_test()));
  const CommandResult of_first = first->finish();

  EXPECT_THAT(of_first.out, StartsWith("hasten test on 3 processes, cpu\n")) << of_first.err;
  EXPECT_THAT(of_first.out, HasSubstr("\n4 of 4 hold\n"));
  EXPECT_EQ(second->finish().exit_code, 0);
  EXPECT_EQ(third->finish().exit_code, 0);
}

TEST_F(Static, AWorkerKnowsItsPlaceAmongAllAndTheWayToTheOthers) {
  ASSERT_NO_FATAL_FAILURE(make_machines(2));
  if (IsSkipped()) return;
  const std::string show =
      "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE "
      "$MASTER_ADDR:$MASTER_PORT $GLOO_SOCKET_IFNAME";

  const auto second = start(torchrun_words(1, 2, {"-n", "2", "sh", "-c", show}));
  const auto first = start(torchrun_words(0, 2, {"-n", "2", "sh", "-c", show}));

  EXPECT_EQ(first->finish().out, "0/2 0/1 0/2 10.77.0.1:29511 eth0\n");
  EXPECT_EQ(second->finish().out, "1/2 0/1 1/2 10.77.0.1:29511 eth0\n");
}

TEST_F(Static, MachinesThatWereToldDifferentNumbersEndWithTheSameWords) {
  ASSERT_NO_FATAL_FAILURE(make_machines(2));
  if (IsSkipped()) return;

  const auto second = start(torchrun_words(1, 2, {"--nproc_per_node", "3", "true"}));
  const auto first = start(torchrun_words(0, 2, {"--nproc_per_node", "2", "true"}));
  const CommandResult of_first = first->finish(), of_second = second->finish();

  EXPECT_EQ(of_first.err,
            "[launch] machines disagree on the number of processes: machine 0 (node0) has 4, machine 1 (node1) "
            "has 6. Give all the same --nnodes, --num_processes and --nproc_per_node.\n");
  EXPECT_EQ(of_second.err, of_first.err);
  EXPECT_EQ(of_first.exit_code, 2);
  EXPECT_EQ(of_second.exit_code, 2);
}

TEST_F(Static, AMachineThatDoesNotComeIsNamedInTime) {
  ASSERT_NO_FATAL_FAILURE(make_machines(3));
  if (IsSkipped()) return;
  const Words job = {"--nproc_per_node", "1", "--rdzv_conf", "join_timeout=1", "true"};

  const auto second = start(torchrun_words(2, 3, job));
  const auto first = start(torchrun_words(0, 3, job));
  const CommandResult of_first = first->finish();

  EXPECT_THAT(of_first.err, HasSubstr("1 of 3 machines did not come to 10.77.0.1:29511 within 1 s: machine 1."));
  EXPECT_EQ(of_first.exit_code, 1);
  EXPECT_EQ(second->finish().exit_code, 1);
  EXPECT_TRUE(std::filesystem::is_empty(temporary()));
}

TEST_F(Static, ARestartedRunMeetsAgain) {
  ASSERT_NO_FATAL_FAILURE(make_machines(2));
  if (IsSkipped()) return;
  const Words job = {"--nproc_per_node",
                     "1",
                     "--max_restarts",
                     "1",
                     "--monitor_interval",
                     "0",
                     "sh",
                     "-c",
                     "echo attempt $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 1 ]"};

  const auto second = start(torchrun_words(1, 2, job));
  const auto first = start(torchrun_words(0, 2, job));
  const CommandResult of_first = first->finish();

  EXPECT_EQ(of_first.out, "attempt 0\nattempt 1\n") << of_first.err;
  EXPECT_EQ(of_first.exit_code, 0);
  EXPECT_EQ(second->finish().out, "attempt 0\nattempt 1\n");
}

}  // namespace
}  // namespace hasten
