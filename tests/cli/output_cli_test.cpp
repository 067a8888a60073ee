// What becomes of the workers' output: in a terminal and in a pipe, with prefixes, in files, and when its
// reader is slow or gone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cli/launch_folder.h"
#include "cli/output_load.h"
#include "cli/terminal.h"

namespace hasten {
namespace {

namespace fs = std::filesystem;
using test::Command;
using test::CommandResult;
using test::lines_of;
using test::Terminal;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

class Output : public test::LaunchFolder {
 protected:
  // The one folder of the attempt in the one run of `logs`.
  fs::path attempt_folder(const fs::path& logs, int attempt = 0) const {
    const fs::directory_iterator runs(logs);
    return runs->path() / ("attempt_" + std::to_string(attempt));
  }
};

constexpr const char* kWhichAreTerminals =
    "for stream in 0 1 2; do test -t $stream && printf 't' || printf 'p'; done; echo";

TEST_F(Output, AWorkerSeesATerminalWhereTheLauncherHasOneAndAPipeOtherwise) {
  Terminal terminal;
  terminal.start(script_words({}, kWhichAreTerminals));

  EXPECT_EQ(terminal.finish(), std::pair(0, std::string("ttt\n")));
  EXPECT_THAT(launch_script({}, kWhichAreTerminals).out, EndsWith("pp\n"));
}

TEST_F(Output, AWorkersTerminalHasTheSizeOfTheLaunchersAlsoAfterAChange) {
  Terminal terminal;
  terminal.start(script_words({}, "trap 'stty size <&1; exit' WINCH; stty size <&1; while :; do sleep 0.01; done"));
  const std::string before = terminal.read_until("\n");

  terminal.set_size(50, 90);

  EXPECT_EQ(before, "40 132\n");
  EXPECT_EQ(terminal.finish(), std::pair(0, std::string("50 90\n")));
}

TEST_F(Output, BytesGoThroughATerminalUnchanged) {
  Terminal terminal;
  terminal.start(script_words({}, R"(printf 'a\r\nb\nc\033[1m\t\001\003\004\021\023\177end')"));

  EXPECT_EQ(terminal.finish(), std::pair(0, std::string("a\r\nb\nc\033[1m\t\001\003\004\021\023\177end")));
}

TEST_F(Output, RankPrefixesAreColouredInATerminalOnly) {
  const auto command = script_words({"--prefix_ranks"}, "echo one; printf two");
  Terminal terminal;
  terminal.start(command);

  EXPECT_EQ(terminal.finish().second, "\x1b[31m[rank 0]\x1b[0m one\n\x1b[31m[rank 0]\x1b[0m two\n");
  EXPECT_EQ(test::run_command(command).out, "[rank 0] one\n[rank 0] two\n");
}

TEST_F(Output, PrefixedLinesOfSeveralRanksStayWhole) {
  const CommandResult result = launch_script(
      {"-n", "4", "--prefix_ranks"},
      "i=0; while [ $i -lt 500 ]; do printf $RANK; printf 'x%.0s' 1 2 3 4 5 6 7 8 9; echo; i=$((i+1)); done");

  const std::vector<std::string> lines = lines_of(result.out);
  EXPECT_EQ(lines.size(), 2000u);
  for (const char rank : {'0', '1', '2', '3'}) {
    const std::string expected = std::string("[rank ") + rank + "] " + rank + "xxxxxxxxx";
    EXPECT_EQ(std::count(lines.begin(), lines.end(), expected), 500);
  }
}

TEST_F(Output, RedirectedStreamsAreInFilesByRankAndAttempt) {
  const CommandResult result = launch_script({"-n", "2", "--log_dir", folder() / "logs", "--redirects", "0:3,1:2",
                                              "--max_restarts", "1", "--monitor_interval", "0"},
                                             "echo out $RANK $TORCHELASTIC_RESTART_COUNT; echo err $RANK >&2; "
                                             "[ $RANK = 0 ] && exec sleep 1000; exit 3");

  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.out, "out 1 0\nout 1 1\n");
  EXPECT_THAT(result.err, HasSubstr("│ its last lines on standard error:\n│   err 1\n"));
  for (const int attempt : {0, 1}) {
    const fs::path files = attempt_folder(folder() / "logs", attempt);
    EXPECT_EQ(content_of(files / "1" / "stderr.log"), "err 1\n");
    EXPECT_FALSE(fs::exists(files / "1" / "stdout.log"));
    EXPECT_TRUE(fs::exists(files / "0" / "stdout.log"));
    EXPECT_TRUE(fs::exists(files / "0" / "stderr.log"));
  }
  EXPECT_THAT(result.err, HasSubstr("│ log file: " + (attempt_folder(folder() / "logs", 1) / "1/stderr.log").string()));
}

TEST_F(Output, TeedStreamsAreInFilesAndAreShown) {
  const CommandResult result =
      launch_script({"-n", "2", "--log-dir", folder() / "logs", "--tee", "3"}, "echo $RANK; echo $RANK >&2");

  EXPECT_THAT(lines_of(result.out), UnorderedElementsAre("[default0]:0", "[default1]:1"));
  EXPECT_THAT(lines_of(result.err), UnorderedElementsAre("[default0]:0", "[default1]:1"));
  EXPECT_EQ(content_of(attempt_folder(folder() / "logs") / "1" / "stdout.log"), "1\n");
  EXPECT_EQ(content_of(attempt_folder(folder() / "logs") / "0" / "stderr.log"), "0\n");
}

TEST_F(Output, LinesWithAWordAreCopiedToOneFileOfAllRanks) {
  const CommandResult result =
      launch_script({"-n", "2", "--log_dir", folder() / "logs", "--tee", "3", "--duplicate-stdout-filters", "loss,end",
                     "--duplicate_stderr_filters=warn"},
                    "echo loss $RANK; echo nothing; echo warn $RANK >&2; printf 'the end'");

  EXPECT_EQ(result.exit_code, 0);
  const fs::path attempt = attempt_folder(folder() / "logs");
  EXPECT_THAT(
      lines_of(content_of(attempt / "filtered_stdout.log")),
      UnorderedElementsAre("[default0]:loss 0", "[default1]:loss 1", "[default0]:the end", "[default1]:the end"));
  EXPECT_THAT(lines_of(content_of(attempt / "filtered_stderr.log")),
              UnorderedElementsAre("[default0]:warn 0", "[default1]:warn 1"));
  EXPECT_EQ(content_of(attempt / "1" / "stdout.log"), "loss 1\nnothing\nthe end");
  EXPECT_THAT(result.out, HasSubstr("[default0]:nothing\n"));
}

TEST_F(Output, OnlyRanksThatPassTheFilterAreShown) {
  const CommandResult result =
      launch_script({"-n", "3", "--local_ranks_filter", "0,2"}, "echo $RANK; echo $RANK >&2; [ $RANK != 1 ] || exit 4");

  EXPECT_THAT(lines_of(result.out), testing::IsSubsetOf({"0", "2"}));
  EXPECT_THAT(result.err, HasSubstr("│ its last lines on standard error:\n│   1\n"));
}

TEST_F(Output, ErrorFilesStandBesideTheLogs) {
  launch_script({"--log_dir", folder() / "logs"},
                R"(echo '{"message": "no paper"}' > $TORCHELASTIC_ERROR_FILE; exit 1)");

  EXPECT_EQ(content_of(attempt_folder(folder() / "logs") / "0" / "error.json"), "{\"message\": \"no paper\"}\n");
}

TEST_F(Output, WithoutALogFolderFilesAreKeptInTheTemporaryOne) {
  const CommandResult result = launch_script({"--redirects", "3"}, "echo out");

  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, StartsWith("hasten: log files are in " + temporary().string() + "/hasten_logs_none_"));
  EXPECT_EQ(content_of(attempt_folder(temporary()) / "0" / "stdout.log"), "out\n");
}

// The launcher's own sockets would else be the workers' output.
TEST_F(Output, ALauncherWhoseDescriptorsAreClosedRunsAsOneWithout) {
  const auto launch = script_words({"-n", "3", "--log_dir", folder() / "logs", "--tee", "3"},
                                   "test $RANK = 0 || exec sleep 1000; "
                                   "for i in 1 2 3; do echo words $i >&2; done; exit 7");
  std::vector<std::string> closed = {"/bin/sh", "-c", "exec \"$@\" <&- >&- 2>&-", "sh"};
  closed.insert(closed.end(), launch.begin(), launch.end());

  const CommandResult result = test::run_command(closed, environment());

  EXPECT_EQ(result.exit_code, 7);
  EXPECT_EQ(content_of(attempt_folder(folder() / "logs") / "0" / "stderr.log"), "words 1\nwords 2\nwords 3\n");
}

TEST_F(Output, TheRoleStandsInTheEnvironmentAndInThePrefix) {
  const CommandResult result =
      launch_script({"--role", "trainer", "--rdzv_id", "job", "--log_dir", folder() / "logs", "--tee", "1"},
                    "echo $ROLE_NAME $TORCHELASTIC_RUN_ID");

  EXPECT_EQ(result.out, "[trainer0]:trainer job\n");
  EXPECT_EQ(result.exit_code, 0);
}

TEST_F(Output, AFullDiskUnderTheLogsIsReportedAndTheWorkerGoesOn) {
  if (!disks_can_be_made()) GTEST_SKIP() << "this machine has no user namespaces, so no disk can be made";
  const auto launch = script_words({"-n", "2", "--log_dir", folder() / "disk", "--tee", "1"},
                                   "head -c 1000000 /dev/zero | tr '\\0' 'x'; echo; echo $RANK goes on");

  const CommandResult result = test::run_command(on_a_disk_of("256k", launch), environment());

  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), 'x'), 2000000);
  EXPECT_THAT(result.out, AllOf(HasSubstr("0 goes on\n"), HasSubstr("1 goes on\n")));
  EXPECT_THAT(result.err, HasSubstr("stdout.log: No space left on device; output is missing there from here on, "
                                    "the worker goes on\n"));
}

TEST_F(Output, AStoppedTerminalStopsNoWorkerAndLosesNothing) {
  constexpr size_t kBytes = 20 * 1000 * 1000;
  make_meeting_point("written");
  Terminal terminal;
  terminal.start(words({"sh", "-c", "yes | head -c " + std::to_string(kBytes) + "; echo > $0", folder() / "written"}));

  content_of(folder() / "written");  // though nobody has read the terminal yet
  const auto [exit_code, shown] = terminal.finish();

  EXPECT_EQ(exit_code, 0);
  EXPECT_EQ(shown.size(), kBytes);
  EXPECT_EQ(shown.find_first_not_of("y\n"), std::string::npos);
}

TEST_F(Output, CtrlCAtATerminalIsOrderly) {
  Terminal terminal;
  terminal.start(script_words({}, "trap 'echo saved; exit 0' INT; echo ready; while :; do sleep 0.01; done"));
  terminal.read_until("ready\n");

  terminal.press('\x03');
  const auto [exit_code, shown] = terminal.finish();

  EXPECT_EQ(exit_code, 130);
  EXPECT_THAT(shown, HasSubstr("saved\n"));
  EXPECT_THAT(shown, HasSubstr("hasten: stopping the workers; Ctrl-C again ends them at once\n"));
}

TEST_F(Output, AClosedTerminalEndsTheRunAndLeavesNobody) {
  Terminal terminal;
  terminal.start(script_words({"-n", "2"}, "echo ready; sleep 1000 & wait"));
  terminal.read_until("ready\n");

  terminal.hang_up();

  EXPECT_EQ(terminal.wait(), 129);
  Command::wait_for_orphans();
}

TEST_F(Output, AWorkerDoesNotNoticeThatNobodyReadsItsErrorsAnyMore) {
  make_meeting_point("closed");
  Command command(script_words({}, "read line < $DIR/closed; seq 100000 >&2; echo alive"), environment());

  command.close_errors();
  std::ofstream(folder() / "closed") << "\n";
  const CommandResult result = command.finish();

  EXPECT_EQ(result.out, "alive\n");
  EXPECT_EQ(result.exit_code, 0);
}

TEST_F(Output, TheRunDoesNotWaitForADaemonThatHoldsAWorkersErrors) {
  make_meeting_point("daemon_runs");
  Command command(script_words({},
                               "setsid sh -c 'echo > $DIR/daemon_runs; exec sleep 1000' > /dev/null & "
                               "read line < $DIR/daemon_runs; echo $!; echo last words >&2; exit 3"),
                  environment());
  const pid_t daemon = std::stoi(command.read_line());

  const CommandResult result = command.finish();

  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, StartsWith("last words\n"));
  EXPECT_EQ(kill(daemon, SIGKILL), 0);
}

TEST_F(Output, TheReportShowsTheLastTwentyLinesOfStandardError) {
  const CommandResult result = launch_script({}, "seq 100000 >&2; printf unfinished >&2; exit 1");

  EXPECT_THAT(result.err, HasSubstr("99999\n100000\nunfinished╭ hasten: rank 0"));
  EXPECT_THAT(result.err, HasSubstr("│ its last lines on standard error:\n│   99982\n"));
  EXPECT_THAT(result.err, EndsWith("│   100000\n│   unfinished\n╰ exit code 1\n"));
}

TEST_F(Output, OfEightWorkersArrivesWholeInATerminalAndInAPipe) {
  test::check_output_of_eight_workers(600000);
}

}  // namespace
}  // namespace hasten
