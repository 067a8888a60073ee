// `hasten launch --nnodes MIN:MAX` with several launchers on this machine, as nodes that come, fail and are
// lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <csignal>

#include "cli/launch_folder.h"
#include "hasten/core/socket.h"
#include "hasten/launch/base/port.h"

namespace hasten {
namespace {

using test::Command;
using test::CommandResult;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

class Elastic : public test::LaunchFolder {
 protected:
  using Words = std::vector<std::string>;

  // One node with `num_workers` workers that run `script`; the window for further nodes is short.
  std::vector<std::string> node(const Words& options, const std::string& script, const std::string& nodes = "1:3",
                                const std::string& conf = "last_call_timeout=0.5") const {
    Words all = {"--nnodes",  nodes, "--rdzv_backend", "c10d", "--rdzv_endpoint",    "127.0.0.1:" + port_,
                 "--rdzv_id", "job", "--rdzv_conf",    conf,   "--shutdown_timeout", "5"};
    all.insert(all.end(), options.begin(), options.end());
    return script_words(all, script);
  }

  // Says where the worker is, then waits to be stopped.
  static constexpr const char* kWork =
      "echo $RANK/$WORLD_SIZE node $GROUP_RANK restart $TORCHELASTIC_RESTART_COUNT; exec sleep 1000";

  static std::string line_with(const Command& command, const std::string& words) {
    while (true) {
      const std::string line = command.read_error_line();
      if (line.empty() || line.find(words) != std::string::npos) return line;
    }
  }
  static void end(Command& command) {
    kill(command.pid(), SIGTERM);
    EXPECT_EQ(command.finish().exit_code, 143);
  }

  const std::string port_ = std::to_string(launcher::free_port());
};

TEST_F(Elastic, AFailureWithALongMessageIsNoLostNode) {
  const auto words = node({"--nproc_per_node", "1"},
                          "[ $GROUP_RANK = 0 ] && exec sleep 1000; (printf '{\"message\": \"'; head -c 300000 "
                          "/dev/zero | tr '\\0' x; printf '\"}') > $TORCHELASTIC_ERROR_FILE; exit 3",
                          "2");
  Command first(words, environment()), second(words, environment());

  const CommandResult one = first.finish(), other = second.finish();

  EXPECT_EQ(one.exit_code, 3);
  EXPECT_EQ(other.exit_code, 3);
  EXPECT_THAT(one.err + other.err, Not(HasSubstr("was lost")));
}

TEST_F(Elastic, OneMachineMayMeetAtItsOwnNameWithoutASecret) {
  const CommandResult result = test::run_command(
      script_words({"--nnodes", "1", "--rdzv_backend", "c10d", "--nproc_per_node", "2", "--rdzv_endpoint",
                    net::host_name() + ":" + port_, "--rdzv_conf", "join_timeout=20"},
                   "echo $WORLD_SIZE"),
      environment());

  EXPECT_EQ(result.out, "2\n2\n");
}

TEST_F(Elastic, NodesFinishTogetherAndLeaveNothingBehind) {
  const auto words = node({"--nproc_per_node", "2"}, "echo $RANK/$WORLD_SIZE $LOCAL_RANK $MASTER_ADDR", "2");
  Command first(words, environment()), second(words, environment());

  const CommandResult one = first.finish(), other = second.finish();

  EXPECT_EQ(one.exit_code, 0);
  EXPECT_EQ(other.exit_code, 0);
  std::vector<std::string> lines = test::lines_of(one.out + other.out);
  EXPECT_THAT(lines, ::testing::UnorderedElementsAre("0/4 0 127.0.0.1", "1/4 1 127.0.0.1", "2/4 0 127.0.0.1",
                                                     "3/4 1 127.0.0.1"));
  EXPECT_THAT(one.err + other.err, HasSubstr("hasten: hosting the rendezvous at 127.0.0.1:" + port_ + "\n"));
  EXPECT_TRUE(std::filesystem::is_empty(temporary()));
}

TEST_F(Elastic, ANewNodeRestartsTheWorkersWithTheNewWorld) {
  Command first(node({}, kWork), environment());
  EXPECT_EQ(first.read_line(), "0/1 node 0 restart 0");

  Command second(node({}, kWork), environment());

  EXPECT_EQ(first.read_line(), "0/2 node 0 restart 0");
  EXPECT_EQ(second.read_line(), "1/2 node 1 restart 0");
  EXPECT_THAT(line_with(first, "joined"), StartsWith("hasten: node "));
  end(second);
  EXPECT_EQ(first.read_line(), "0/1 node 0 restart 0");
  EXPECT_THAT(line_with(first, "left"), HasSubstr(" left: its launcher was sent SIGTERM"));
  end(first);
  EXPECT_TRUE(std::filesystem::is_empty(temporary()));
}

TEST_F(Elastic, AKilledNodeIsLostAndTheOthersGoOn) {
  Command first(node({}, kWork, "2:3"), environment()), second(node({}, kWork, "2:3"), environment());
  Command third(node({}, kWork, "2:3"), environment());
  for (Command* command : {&first, &second, &third}) EXPECT_THAT(command->read_line(), HasSubstr("/3 "));

  kill(third.pid(), SIGKILL);

  EXPECT_THAT(first.read_line(), HasSubstr("/2 "));
  EXPECT_THAT(second.read_line(), HasSubstr("/2 "));
  end(second);
  end(first);
}

TEST_F(Elastic, AnotherNodeTakesOverWhenTheHostIsKilled) {
  Command host(node({}, kWork), environment());
  EXPECT_EQ(host.read_line(), "0/1 node 0 restart 0");
  Command second(node({}, kWork), environment());
  EXPECT_EQ(second.read_line(), "1/2 node 1 restart 0");
  Command third(node({}, kWork), environment());
  EXPECT_EQ(second.read_line(), "1/3 node 1 restart 0");
  EXPECT_EQ(third.read_line(), "2/3 node 2 restart 0");

  kill(host.pid(), SIGKILL);

  EXPECT_EQ(second.read_line(), "0/2 node 0 restart 0");
  EXPECT_EQ(third.read_line(), "1/2 node 1 restart 0");
  EXPECT_THAT(line_with(second, "took"), StartsWith("hasten: took the rendezvous over, at 127.0.0.1:"));
  // Who comes now finds it at the endpoint all the same.
  Command fourth(node({}, kWork), environment());
  EXPECT_EQ(fourth.read_line(), "2/3 node 2 restart 0");
  for (Command* command : {&fourth, &third, &second}) end(*command);
}

TEST_F(Elastic, AFailureIsReportedOnEveryNodeAndSaysWhichNode) {
  const auto words = node({}, "[ $RANK = 0 ] && exec sleep 1000; echo last words >&2; exit 3", "2");
  Command first(words, environment()), second(words, environment());

  for (Command* command : {&first, &second}) {
    const CommandResult result = command->finish();
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.err, HasSubstr("the run is over: rank 1 failed: exit code 3 on node "));
    EXPECT_THAT(result.err, HasSubstr("╭ hasten: rank 1 of 2 failed first: exit code 3\n│ local rank 0, host "));
    EXPECT_THAT(result.err, HasSubstr("│   last words\n╰"));
  }
}

TEST_F(Elastic, AFailedRoundIsStartedAgainOnAllNodesAsOftenAsAllowed) {
  const auto words = node({"--max_restarts", "1", "--monitor_interval", "0"},
                          "echo $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; "
                          "spoke=$DIR/spoke.$TORCHELASTIC_RESTART_COUNT; "
                          "[ $RANK = 0 ] && touch $spoke && exec sleep 1000; "
                          "until [ -e $spoke ]; do sleep 0.01; done; exit 4",
                          "2");
  Command first(words, environment()), second(words, environment());

  for (Command* command : {&first, &second}) {
    const CommandResult result = command->finish();
    EXPECT_EQ(result.exit_code, 4);
    EXPECT_EQ(result.out, "0 of 1\n1 of 1\n");
    EXPECT_THAT(result.err, HasSubstr("rank 1 failed: exit code 4 on node "));
    EXPECT_THAT(result.err, HasSubstr("; restart 1 of 1\n"));
    EXPECT_THAT(result.err, HasSubstr("│ restarts: 1 of 1 were made\n"));
  }
}

TEST_F(Elastic, TooFewNodesEndAfterTheJoinTimeout) {
  const CommandResult result = test::run_command(node({}, "echo never", "2:3", "join_timeout=0.3"), environment());

  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err,
              HasSubstr("hasten: the run is over: only 1 node of at least 2 came within 0.3 s (join_timeout)\n"));
}

TEST_F(Elastic, WhoHasAnotherSecretIsRefusedAndLogged) {
  auto with_secret = environment();
  with_secret["HASTEN_RDZV_SECRET"] = std::string(32, 'a');
  const std::string work = "echo ${HASTEN_RDZV_SECRET:-no secret}; exec sleep 1000";
  Command first(node({}, work), with_secret);
  EXPECT_EQ(first.read_line(), "no secret");

  with_secret["HASTEN_RDZV_SECRET"] = std::string(32, 'b');
  Command stranger(node({}, work), with_secret);
  const CommandResult refused = stranger.finish();

  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("it refused this node: the run's secret differs"));
  EXPECT_THAT(line_with(first, "refused"), HasSubstr(": it does not know the run's secret"));
  end(first);
}

TEST_F(Elastic, AStoppedNodeIsLostByItsHeartbeats) {
  const std::string conf = "last_call_timeout=0.5,keep_alive_interval=0.1,keep_alive_max_attempt=10";
  Command first(node({}, kWork, "1:2", conf), environment());
  EXPECT_EQ(first.read_line(), "0/1 node 0 restart 0");
  Command second(node({}, kWork, "1:2", conf), environment());
  EXPECT_EQ(first.read_line(), "0/2 node 0 restart 0");

  kill(second.pid(), SIGSTOP);

  EXPECT_EQ(first.read_line(), "0/1 node 0 restart 0");
  EXPECT_THAT(line_with(first, "lost"), HasSubstr(" was lost: nothing heard for 1 s"));
  kill(second.pid(), SIGCONT);  // it finds that it was lost, and joins again
  EXPECT_EQ(first.read_line(), "0/2 node 0 restart 0");
  end(second);
  end(first);
}

TEST_F(Elastic, AHostWithoutOthersDoesNotLoseItself) {
  const std::string conf = "last_call_timeout=0,keep_alive_interval=0.02,keep_alive_max_attempt=5";

  const CommandResult result = test::run_command(node({}, "sleep 0.5", "1:2", conf), environment());

  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, Not(HasSubstr("lost")));
}

TEST_F(Elastic, NodesOnTheNetworkNeedASecret) {
  const CommandResult result = test::run_command(
      script_words({"--nnodes", "1:2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "192.0.2.1:29400"}, "true"),
      environment());

  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("nodes on several machines need a secret that they share"));
}

TEST_F(Elastic, ARangeOfNodesNeedsARendezvous) {
  const CommandResult result =
      test::run_command(script_words({"--nnodes", "1:2", "--master_addr", "h"}, "true"), environment());

  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--nnodes 1:2 needs --rdzv_backend c10d or etcd"));
}

}  // namespace
}  // namespace hasten
