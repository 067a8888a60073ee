// Restarts, signals, stopped processes: what the supervisor decides, with real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "cli/launch_folder.h"
#include "cli/terminal.h"

namespace hasten {
namespace {

using test::Command;
using test::CommandResult;
using test::Terminal;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Supervision : public test::LaunchFolder {};

TEST_F(Supervision, AFailedGroupIsStartedAgainUntilItSucceeds) {
  const CommandResult result =
      launch_script({"--max_restarts", "3", "--monitor_interval", "0"},
                    "echo attempt $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; [ "
                    "$TORCHELASTIC_RESTART_COUNT = 2 ]");

  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "attempt 0 of 3\nattempt 1 of 3\nattempt 2 of 3\n");
  EXPECT_EQ(result.err,
            "hasten: worker 0 failed: exit code 1; restart 1 of 3 in 0 s\n"
            "hasten: worker 0 failed: exit code 1; restart 2 of 3 in 0 s\n");
}

TEST_F(Supervision, AFailedWorkerIsReplacedAloneWhileTheOthersGoOn) {
  auto variables = environment();
  variables["HASTEN_WATCH"] = "0";  // no page tells how far the run has come
  const CommandResult result = test::run_command(
      script_words({"-n", "2", "--survive", "3"},
                   "echo rank $RANK of $HASTEN_SURVIVE replaces ${HASTEN_REPLACES-none}; "
                   "if [ $RANK = 1 ] && mkdir $DIR/died 2>/dev/null; then sleep 1000 & kill -9 $$; fi; "
                   "if [ $RANK = 1 ]; then mkdir $DIR/again; fi; while [ ! -e $DIR/again ]; do sleep 0.01; done"),
      variables);

  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(test::lines_of(result.out),
              ::testing::UnorderedElementsAre("rank 0 of 3 replaces none", "rank 1 of 3 replaces none",
                                              "rank 1 of 3 replaces 1"));
  EXPECT_EQ(result.err, "hasten: rank 1 has ended (killed by SIGKILL) and is replaced, 1 of 3\n");
}

TEST_F(Supervision, BeforeTheFirstStepAReplacedWorkerBeginsAsTheOthersDid) {
  const CommandResult result =
      launch_script({"-n", "2", "--survive", "3"},
                    "if [ $RANK = 1 ] && mkdir $DIR/died 2>/dev/null; then exit 1; fi; echo ${HASTEN_REPLACES-none}; "
                    "if [ $RANK = 1 ]; then mkdir $DIR/again; fi; while [ ! -e $DIR/again ]; do sleep 0.01; done");

  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "none\nnone\n");
}

TEST_F(Supervision, AWorkerThatIsNotReplacedAnyMoreEndsTheRun) {
  const CommandResult used_up =
      launch_script({"-n", "2", "--survive", "1"}, "[ $RANK = 1 ] && exit 3; while :; do sleep 0.01; done");
  const CommandResult wrong_usage =
      launch_script({"-n", "2", "--survive", "5"}, "[ $RANK = 1 ] && exit 2; while :; do sleep 0.01; done");

  EXPECT_EQ(used_up.exit_code, 3);
  EXPECT_THAT(used_up.err, StartsWith("hasten: rank 1 has ended (exit code 3) and is replaced, 1 of 1\n"
                                      "hasten: rank 1 has ended (exit code 3) and is not replaced: the 1 of --survive "
                                      "were used up\n╭ hasten: rank 1 of 2 failed first: exit code 3"));
  EXPECT_EQ(wrong_usage.exit_code, 2);
  EXPECT_THAT(wrong_usage.err, HasSubstr("is not replaced: exit code 2 is wrong usage"));
}

TEST_F(Supervision, ReplacementsNeedOthersWhoseNumberStays) {
  const CommandResult alone = launch_script({"--survive", "2"}, "true");
  const CommandResult elastic = launch_script(
      {"--survive", "2", "--nnodes", "1:2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"}, "true");

  EXPECT_EQ(alone.exit_code, 2);
  EXPECT_THAT(alone.err, HasSubstr("--survive 2 (option --survive) needs at least 2 processes"));
  EXPECT_EQ(elastic.exit_code, 2);
  EXPECT_THAT(elastic.err, HasSubstr("--survive 2 (option --survive) needs a fixed world"));
}

TEST_F(Supervision, TheReportIsAboutTheLastAttempt) {
  const CommandResult result =
      launch_script({"--max_restarts", "1", "--monitor_interval", "0"},
                    "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && echo '{\"message\": \"old\"}' > $TORCHELASTIC_ERROR_FILE; "
                    "echo words of $TORCHELASTIC_RESTART_COUNT >&2; exit $((3 + TORCHELASTIC_RESTART_COUNT))");

  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, HasSubstr("│ restarts: 1 of 1 were made\n"));
  EXPECT_THAT(result.err, EndsWith("│ its last lines on standard error:\n│   words of 1\n╰ exit code 4\n"));
  EXPECT_THAT(result.err, ::testing::Not(HasSubstr("old")));
}

TEST_F(Supervision, SigtermEndsTheWaitingForARestart) {
  Command command(script_words({"--max_restarts", "1", "--monitor_interval", "1000"}, "exit 3"), environment());
  EXPECT_THAT(command.read_error_line(), StartsWith("hasten: worker 0 failed: exit code 3; restart 1 of 1"));

  kill(command.pid(), SIGTERM);
  const CommandResult result = command.finish();

  EXPECT_EQ(result.exit_code, 143);
  EXPECT_EQ(result.err, "");
}

TEST_F(Supervision, Sigusr1ReachesTheWorkersAndDoesNotStopTheRun) {
  Command command(script_words({"-n", "2"}, "trap 'echo saved; exit 0' USR1; echo ready; while :; do sleep 0.01; done"),
                  environment());
  EXPECT_EQ(command.read_line(), "ready");
  EXPECT_EQ(command.read_line(), "ready");

  kill(command.pid(), SIGUSR1);
  const CommandResult result = command.finish();

  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "saved\nsaved\n");
  EXPECT_EQ(result.err, "");
}

TEST_F(Supervision, TheSignalsToHandleAreThoseOfTheOption) {
  Command command(
      script_words({"--signals-to-handle", "sigusr2,SIGTERM"},
                   "trap 'exit 5' USR2; echo $TORCHELASTIC_SIGNALS_TO_HANDLE; while :; do sleep 0.01; done"),
      environment());
  EXPECT_EQ(command.read_line(), "SIGUSR2,SIGTERM");

  kill(command.pid(), SIGUSR2);

  EXPECT_EQ(command.finish().exit_code, 5);
}

TEST_F(Supervision, ASignalThatOnlyPassesIsTheWorkersAlone) {
  Command command(script_words({"--signals_to_handle", "SIGTERM,SIGXCPU"},
                               "sleep 1000 & c=$!; trap 'kill $c; wait $c; echo child $?; exit 0' XCPU; "
                               "echo ready; while :; do sleep 0.01; done"),
                  environment());
  EXPECT_EQ(command.read_line(), "ready");

  kill(command.pid(), SIGXCPU);

  EXPECT_EQ(command.finish().out, "child 143\n");
}

TEST_F(Supervision, ARestartNeedsNothingThatATidyHostTakesAway) {
  const CommandResult result =
      launch_script({"--max_restarts", "1", "--monitor_interval", "0"}, "rm -rf $TMPDIR/hasten_*; exit 5");

  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.err, HasSubstr("│ restarts: 1 of 1 were made\n"));
}

TEST_F(Supervision, ASignalThatIsNotHandledEndsTheLauncherAndItsWorkers) {
  Command command(script_words({"--signals_to_handle", "SIGTERM"}, "echo ready; sleep 1000 & wait"), environment());
  EXPECT_EQ(command.read_line(), "ready");

  kill(command.pid(), SIGINT);

  EXPECT_EQ(command.finish().exit_code, 130);
  Command::wait_for_orphans();
}

TEST_F(Supervision, AStoppedWorkerEndsInOrderAllTheSame) {
  Command command(
      script_words({"--shutdown_timeout", "1000"},
                   "trap 'echo saved; exit 0' TERM; echo ready; kill -STOP $$; while :; do sleep 0.01; done"),
      environment());
  EXPECT_EQ(command.read_line(), "ready");

  kill(command.pid(), SIGTERM);
  const CommandResult result = command.finish();

  EXPECT_EQ(result.exit_code, 143);
  EXPECT_EQ(result.out, "saved\n");
}

TEST_F(Supervision, AStoppedShimObeysAllTheSame) {
  Command command(script_words({}, "kill -STOP $PPID; echo ready; exec sleep 1000"), environment());
  EXPECT_EQ(command.read_line(), "ready");

  kill(command.pid(), SIGTERM);

  EXPECT_EQ(command.finish().exit_code, 143);
}

TEST_F(Supervision, AKilledWorkerIsExplainedByTheKernelsCounters) {
  const CommandResult result = launch_script({}, "kill -KILL $$");

  EXPECT_EQ(result.exit_code, 137);
  EXPECT_THAT(result.err, HasSubstr("failed first: killed by SIGKILL\n"));
  EXPECT_THAT(result.err, HasSubstr("│ hint: "));
}

TEST_F(Supervision, WhoIsToldToEndDoesNotWaitForAStoppedTerminal) {
  make_meeting_point("written");
  Terminal terminal;
  terminal.start(words({"--shutdown_timeout", "0.05", "sh", "-c", "seq 100000; echo > $0", folder() / "written"}));
  content_of(folder() / "written");

  kill(terminal.pid(), SIGTERM);  // nobody has read the terminal, and nobody will

  EXPECT_THAT(terminal.wait(), ::testing::AnyOf(0, 143));  // the worker may have been quicker
}

}  // namespace
}  // namespace hasten
