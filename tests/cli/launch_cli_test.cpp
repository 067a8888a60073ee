// `hasten launch` with real processes: texts, exit codes, the workers' environment, and that nobody is left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/launch_folder.h"
#include "hasten/core/env.h"
#include "hasten/launch/base/port.h"
#include "launch/listener.h"

namespace hasten {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Command;
using test::CommandResult;
using test::lines_of;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

class Launch : public test::LaunchFolder {
 protected:
  CommandResult launch(const std::vector<std::string>& arguments) const {
    return test::run_command(words(arguments), environment());
  }
};

TEST_F(Launch, SaysWhatIsWrongWithTheCommandLine) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "no program is given. Usage: hasten launch [OPTIONS] PROGRAM [ARGUMENTS]"},
      {{"-n", "0", "true"},
       "--num_processes: '0' is not a whole number between 1 and 1048576. See hasten launch --help."},
      {{"-n", "abc", "true"},
       "--num_processes: 'abc' is not a whole number between 1 and 1048576. See hasten launch --help."},
      {{"-n"}, "--num_processes needs a value. See hasten launch --help."},
      {{"--master-port", "65536", "true"},
       "--master_port: '65536' is not a whole number between 0 and 65535. See hasten launch --help."},
      {{"--shutdown_timeout", "-1", "true"},
       "--shutdown_timeout: '-1' is not a number of seconds between 0 and 1000000000. See hasten launch "
       "--help."},
      {{"--num-proceses", "2", "true"},
       "unknown option '--num-proceses', did you mean '--num-processes'? See hasten launch --help."},
      {{"-n", "4", "--nproc_per_node", "2", "true"},
       "--nproc_per_node 2 * 1 machine = 2, but --num_processes is 4. Give one of the two, or the same "
       "number. See hasten launch --help."},
      {{"-n", "2", "./none"}, "'./none' does not exist. Check the name and the current folder."},
      {{"-n", "2", "no_such_program"},
       "program 'no_such_program' is not in PATH. Check the name, or give the program's path."},
  };

  for (const auto& [arguments, message] : cases) {
    const CommandResult result = launch(arguments);
    EXPECT_EQ(result.exit_code, 2) << message;
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(result.err, "[launch] " + message + "\n");
  }
}

TEST_F(Launch, StartsAsManyAsAskedForUnderEachName) {
  for (const std::vector<std::string>& options :
       std::vector<std::vector<std::string>>{{"-n", "2"},
                                             {"-n2"},
                                             {"--num_processes=2"},
                                             {"--num-processes", "2"},
                                             {"--nproc_per_node", "2"},
                                             {"--nproc-per-node=2"},
                                             {"-n", "2", "--nproc_per_node", "2"},
                                             {"-n", "5", "-n", "2"}}) {
    const CommandResult result = launch_script(options, "echo $RANK/$WORLD_SIZE");

    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(lines_of(result.out), UnorderedElementsAre("0/2", "1/2"));
    EXPECT_EQ(result.err, "");
  }
  EXPECT_EQ(launch_script({}, "echo $WORLD_SIZE").out, "1\n");
}

TEST_F(Launch, StartsSixtyFourWorkers) {
  const CommandResult result = launch({"-n", "64", "true"});

  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out + result.err, "");
}

TEST_F(Launch, HandsTheProgramsArgumentsOnUntouched) {
  const std::vector<std::string> arguments = {"-n", "3", "--help", "", "a b", "--", "-n=1", "\"'$HOME\n"};
  std::vector<std::string> all = {"-n", "1", "printf", "[%s]"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  const std::string expected = "[-n][3][--help][][a b][--][-n=1][\"'$HOME\n]";

  EXPECT_EQ(launch(all).out, expected);
  all.insert(all.begin() + 2, "--");
  EXPECT_EQ(launch(all).out, expected);
}

TEST_F(Launch, RunsAPythonScriptWithThePython3OfPath) {
  std::ofstream(folder() / "python3") << "#!/bin/sh\necho \"$@\"\n";
  fs::permissions(folder() / "python3", fs::perms::owner_all);
  const std::string script = folder() / "train.py";
  std::ofstream(script) << "";
  auto variables = environment();
  variables["PATH"] = folder().string() + ":/usr/bin:/bin";

  const CommandResult result = test::run_command(words({script, "--lr", "1"}), variables);

  EXPECT_EQ(result.out, "-u " + script + " --lr 1\n");
}

TEST_F(Launch, KeepsTheTwoOutputsApart) {
  const CommandResult result = launch_script({"-n", "1"}, "echo out; echo err >&2");

  EXPECT_EQ(result.out, "out\n");
  EXPECT_EQ(result.err, "err\n");
}

TEST_F(Launch, EndsWithTheFirstFailuresExitCodeAndLetsTheOthersEndInOrder) {
  make_meeting_point("rank_0_runs");

  const CommandResult result = launch_script({"-n", "2"}, R"(
    if [ $RANK = 0 ]; then trap 'echo saved; exit 9' TERM; (echo > $DIR/rank_0_runs; exec sleep 1000) & wait; fi
    read line < $DIR/rank_0_runs; exit 7)");

  EXPECT_EQ(result.exit_code, 7);
  EXPECT_EQ(result.out, "saved\n");
  EXPECT_THAT(result.err, MatchesRegex("╭ hasten: rank 1 of 2 failed first: exit code 7\n"
                                       "│ local rank 1, host .*, pid [0-9]+, 20..-..-.. ..:..:..\n"
                                       "╰ exit code 7; the others: exit code 9 \\(rank 0\\)\n"));
}

TEST_F(Launch, ReportsTheWorkersOwnWords) {
  const CommandResult result = launch_script(
      {"-n", "1"},
      R"(echo '{"message": {"message": "no paper", "extraInfo": {}}}' > $TORCHELASTIC_ERROR_FILE; exit 1)");

  EXPECT_THAT(result.err, MatchesRegex("╭ hasten: rank 0 of 1 failed first: exit code 1\n"
                                       "│ local rank 0, host .*\n"
                                       "│ message: no paper\n"
                                       "╰ exit code 1\n"));
}

TEST_F(Launch, AWorkerKilledByASignalGives128PlusTheSignal) {
  const CommandResult result = launch_script({"-n", "1"}, "kill -SEGV $$");

  EXPECT_EQ(result.exit_code, 139);
  EXPECT_THAT(result.err, HasSubstr("killed by SIGSEGV"));
  EXPECT_THAT(result.err, HasSubstr("\n│ hint: invalid memory access"));
}

TEST_F(Launch, AScriptWithoutAnInterpreterLineIsRunByShAsInAShell) {
  const std::string script = folder() / "bare";
  std::ofstream(script) << "echo from sh\n";
  fs::permissions(script, fs::perms::owner_all);

  EXPECT_EQ(launch({script}).out, "from sh\n");
}

TEST_F(Launch, AMissingInterpreterIsExitCode127) {
  const std::string script = folder() / "broken";
  std::ofstream(script) << "#!/nonexistent/interpreter\n";
  fs::permissions(script, fs::perms::owner_all);

  const CommandResult result = launch({script});

  EXPECT_EQ(result.exit_code, 127);
  EXPECT_THAT(result.err, StartsWith("hasten: cannot execute '" + script + "': No such file or directory\n"));
}

TEST_F(Launch, StopsTheChildrenOfTheOthersToo) {
  make_meeting_point("child_runs");

  // finish() returns only when nobody holds the output any more, so it would wait for the child's 1000
  // seconds.
  const CommandResult result = launch_script({"-n", "2"}, R"(
    if [ $RANK = 0 ]; then (echo > $DIR/child_runs; exec sleep 1000) & wait; fi
    read line < $DIR/child_runs; exit 3)");

  EXPECT_EQ(result.exit_code, 3);
}

TEST_F(Launch, KillsWhoeverIgnoresTheRequestToEnd) {
  make_meeting_point("child_runs");

  const CommandResult result = launch_script({"-n", "2", "--shutdown_timeout", "0.05"}, R"(
    if [ $RANK = 0 ]; then trap '' TERM; (echo > $DIR/child_runs; exec sleep 1000) & wait; fi
    read line < $DIR/child_runs; exit 3)");

  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, EndsWith("╰ exit code 3; the others: killed by SIGKILL (rank 0)\n"));
}

TEST_F(Launch, StopsWhatASuccessfulWorkerLeavesBehind) {
  EXPECT_EQ(launch_script({"-n", "2"}, "sleep 1000 & exit 0").exit_code, 0);
}

TEST_F(Launch, LeavesNobodyAndNothingBehindWhenItIsKilledItself) {
  Command command(words({"-n", "2", "sh", "-c", "trap '' TERM; sleep 1000 & echo ready; wait"}), environment());
  EXPECT_EQ(command.read_line(), "ready");
  EXPECT_EQ(command.read_line(), "ready");

  kill(command.pid(), SIGKILL);
  const CommandResult result = command.finish();
  command.wait_for_orphans();

  EXPECT_EQ(result.exit_code, 137);
  EXPECT_TRUE(fs::is_empty(temporary()));
}

TEST_F(Launch, RemovesItsTemporaryFolder) {
  const CommandResult result =
      launch_script({"-n", "2"}, "echo x > $TORCHELASTIC_ERROR_FILE; ls -d $TMPDIR/*; exit $RANK");

  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, StartsWith(temporary().string() + "/hasten_"));
  EXPECT_TRUE(fs::is_empty(temporary()));
}

TEST_F(Launch, CtrlCEndsTheRunInOrderWith130) {
  Command command(words({"-n", "1", "sh", "-c", "trap 'echo saved; exit 0' INT; (echo ready; exec sleep 1000) & wait"}),
                  environment());
  EXPECT_EQ(command.read_line(), "ready");

  kill(command.pid(), SIGINT);
  const CommandResult result = command.finish();

  EXPECT_EQ(result.exit_code, 130);
  EXPECT_EQ(result.out, "saved\n");
  EXPECT_EQ(result.err, "hasten: stopping the workers; Ctrl-C again ends them at once\n");
}

TEST_F(Launch, CtrlCIsOrderlyEvenIfNobodyReadsTheLaunchersWordsAnyMore) {
  Command command(words({"sh", "-c", "trap 'echo saved; exit 0' INT; (echo ready; exec sleep 1000) & wait"}),
                  environment());
  EXPECT_EQ(command.read_line(), "ready");

  command.close_errors();
  kill(command.pid(), SIGINT);
  const CommandResult result = command.finish();

  EXPECT_EQ(result.exit_code, 130);
  EXPECT_EQ(result.out, "saved\n");
  EXPECT_TRUE(fs::is_empty(temporary()));
}

TEST_F(Launch, ASecondCtrlCEndsTheRunAtOnce) {
  Command command(words({"--shutdown_timeout", "1000", "sh", "-c", "trap '' INT TERM; echo ready; sleep 1000 & wait"}),
                  environment());
  EXPECT_EQ(command.read_line(), "ready");

  kill(command.pid(), SIGINT);
  EXPECT_THAT(command.read_error_line(), StartsWith("hasten: stopping the workers"));
  kill(command.pid(), SIGINT);

  EXPECT_EQ(command.finish().exit_code, 130);
}

TEST_F(Launch, HandsSigtermOnAndEndsWith143) {
  Command command(words({"-n", "2", "sh", "-c", "echo ready; exec sleep 1000"}), environment());
  EXPECT_EQ(command.read_line(), "ready");
  EXPECT_EQ(command.read_line(), "ready");

  kill(command.pid(), SIGTERM);
  const CommandResult result = command.finish();

  EXPECT_EQ(result.exit_code, 143);
  EXPECT_EQ(result.err, "");
}

TEST_F(Launch, RefusesAPortThatIsInUse) {
  const test::Listener listener;
  const std::string port = std::to_string(listener.port());

  const CommandResult result = launch({"--master_port", port, "true"});

  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.err,
            "[launch] master_port " + port +
                " is in use on this machine. Give another, or leave it out: hasten then takes a free one.\n");
}

TEST_F(Launch, TakesAFreePortUnlessOneIsGiven) {
  const std::string given = std::to_string(launcher::free_port());

  EXPECT_TRUE(launcher::port_is_free(std::stoi(launch_script({}, "echo $MASTER_PORT").out)));
  EXPECT_EQ(launch_script({"--master-port", given}, "echo $MASTER_PORT").out, given + "\n");
}

// The variables that a worker of `hasten launch` sees and its launcher does not, ports and paths as in the
// golden file.
std::map<std::string, std::string> new_variables(const std::string& dump, const std::string& port) {
  const auto before = Environment::current();
  std::map<std::string, std::string> added;
  for (const std::string& line : lines_of(dump)) {
    const size_t equals = line.find('=');
    const std::string name = line.substr(0, equals);
    if (before.variables().count(name) == 0) added[name] = line.substr(equals + 1);
  }
  for (const char* ours : {"TMPDIR", "DIR", "HF_HOME", "PWD", "OLDPWD", "SHLVL", "_"}) added.erase(ours);
  if (added["MASTER_PORT"] == port) added["MASTER_PORT"] = "<port>";
  if (added["TORCHELASTIC_ERROR_FILE"].starts_with("/")) added["TORCHELASTIC_ERROR_FILE"] = "<path>";
  return added;
}

// Accelerate's variables come on top of torchrun's.
TEST_F(Launch, WorkersSeeWhatTorchrunsWorkersSeeButForTheAgentStore) {
  std::ifstream file(Environment::current().text("HASTEN_GOLDEN_DIR").value_or(HASTEN_SOURCE_DIR "/tests/golden") +
                     "/launch_env.json");
  const std::string port = std::to_string(launcher::free_port());
  int num_workers = 0;

  const json golden = json::parse(file);
  for (const json& one : golden["cases"]) {
    if (one["case"] != "real/torchrun_1" && one["case"] != "real/torchrun_2") continue;
    const json& workers = one["expected"]["workers"];
    const std::string count = std::to_string(workers.size());
    ASSERT_EQ(launch_script({"--nproc_per_node", count, "--master_port", port}, "env > $DIR/$RANK").exit_code, 0);
    for (size_t rank = 0; rank < workers.size(); ++rank, ++num_workers) {
      std::ifstream dump(folder() / std::to_string(rank));
      std::map<std::string, std::string> expected = workers[rank]["env"];
      expected["TORCHELASTIC_USE_AGENT_STORE"] = "False";
      const auto given = new_variables({std::istreambuf_iterator<char>(dump), {}}, port);
      for (const auto& [name, value] : expected) EXPECT_THAT(given, ::testing::Contains(::testing::Pair(name, value)));
      for (const auto& [name, value] : given) {
        EXPECT_TRUE(expected.count(name) == 1 || name.starts_with("ACCELERATE_") || name == "HASTEN_RUN_KEY" ||
                    name == "HASTEN_FLIGHT_FD")
            << name;
      }
    }
  }

  EXPECT_EQ(num_workers, 3);
}

}  // namespace
}  // namespace hasten
