#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include "cli/command.h"
#include "support/folder.h"

namespace hasten::test {
namespace {

using ::testing::HasSubstr;

CommandResult hasten_command(std::vector<std::string> words) {
  words.insert(words.begin(), HASTEN_COMMAND);
  return run_command(words);
}

// A run of which no tracker has anything.
void write_run(const std::filesystem::path& folder, const std::string& end) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "journal.jsonl")
      << R"({"op":"start","t":1769000000,"project":"p","run_id":"r","pid":7,"trackers":[{"name":"csv","options":null}]})"
         "\n"
      << R"({"op":"log","t":1769000001,"step":3,"values":{"loss":0.5}})"
         "\n"
      << "rubbish\n"
      << end;
}

class TrackCommands : public hasten::testing::InFolder {};

TEST_F(TrackCommands, StatusTellsWhatIsLeftAndRecoverCompletesIt) {
  write_run(folder_ / "p/r", R"({"op":"finish","t":1769000002,"end":"finished"})"
                             "\n");

  const auto before = hasten_command({"track", "status", folder_});
  const auto recovered = hasten_command({"track", "recover", folder_});
  const auto after = hasten_command({"track", "status", folder_});

  EXPECT_EQ(before.exit_code, 3);
  EXPECT_EQ(before.out,
            "p/r: finished\n  csv: 223 bytes to go\n  journal part 1, byte 167: skipped, line 1, column 1: 'rubbish'; "
            "expected a value: "
            "text in quotes, a number, true, false, null, {…} or […]\n")
      << before.err;
  EXPECT_EQ(recovered.exit_code, 0) << recovered.out << recovered.err;
  EXPECT_THAT(recovered.out, HasSubstr("p/r: complete\n"));
  EXPECT_EQ(after.exit_code, 0);
  EXPECT_THAT(after.out, HasSubstr("csv: has everything"));
  std::ifstream csv(folder_ / "p/r/metrics.csv");
  std::string header, row;
  std::getline(csv, header);
  std::getline(csv, row);
  EXPECT_EQ(row, "3,1769000001.0,loss,0.5");
}

TEST_F(TrackCommands, ARunWithoutAnEndIsEndedAsCrashedAndSyncReplaysItIntoAnotherTracker) {
  write_run(folder_ / "r", "");

  const auto synced = hasten_command({"track", "sync", folder_ / "r", "--to", "tensorboard"});
  const auto status = hasten_command({"track", "status", folder_});

  EXPECT_EQ(synced.exit_code, 0) << synced.err;
  EXPECT_THAT(status.out, HasSubstr("ended without a word"));
  EXPECT_THAT(status.out, HasSubstr("tensorboard: has everything"));
}

TEST_F(TrackCommands, TheBoardIsOneFile) {
  write_run(folder_ / "r", "");

  const auto made = hasten_command({"board", folder_});

  EXPECT_EQ(made.out, path("board.html") + ": 1 run\n") << made.err;
  EXPECT_TRUE(std::filesystem::exists(path("board.html")));
}

// A worker that starts its follower as trackers do: in a session of its own, with a pipe whose end tells of the
// worker's.
TEST_F(TrackCommands, KillingAWorkerOrTheLauncherLeavesNoFollowerAndNothingUnsent) {
  for (const bool kills_launcher : {false, true}) {
    const auto run = folder_ / (kills_launcher ? "launcher" : "worker");
    write_run(run, "");
    const std::string script =
        "mkfifo $RUN/pipe; setsid $HASTEN track follow $RUN/journal.jsonl --drain_timeout 20 < $RUN/pipe & "
        "exec 3> $RUN/pipe; until [ -s $RUN/csv.ack ]; do sleep 0.02; done; echo $$; sleep 1000 3>&-";
    Command command({HASTEN_COMMAND, "launch", "-n", "1", "sh", "-c", script},
                    {{"RUN", run}, {"HASTEN", HASTEN_COMMAND}});
    const pid_t worker = std::stoi(command.read_line());

    kill(kills_launcher ? command.pid() : worker, SIGKILL);

    EXPECT_EQ(command.finish().exit_code, 137);
    Command::wait_for_orphans();  // does not return while the follower is there
    const auto status = hasten_command({"track", "status", run});
    EXPECT_THAT(status.out, HasSubstr("csv: has everything"));
    EXPECT_THAT(status.out, HasSubstr("ended without a word"));
  }
}

TEST_F(TrackCommands, WrongUseIsNamed) {
  const auto word = hasten_command({"track", "statu", folder_});
  const auto tracker = hasten_command({"track", "sync", folder_, "--to", "wand"});
  const auto empty = hasten_command({"track", "status", folder_});
  const auto none = hasten_command({"board"});
  const auto nothing = hasten_command({"track", "status", folder_ / "nothing"});
  const auto without_folder = hasten_command({"track", "status"});

  EXPECT_EQ(word.exit_code, 2);
  EXPECT_THAT(word.err, HasSubstr("did you mean 'status'? Expected status, recover or sync"));
  EXPECT_THAT(without_folder.err, HasSubstr("'status' has no folder. Expected"));
  EXPECT_THAT(hasten_command({"track"}).err, HasSubstr("no action is given. Expected"));
  EXPECT_THAT(nothing.err, HasSubstr("nothing'. Correct the path."));
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_THAT(tracker.err, HasSubstr("did you mean 'wandb'"));
  EXPECT_THAT(empty.err, HasSubstr("holds no journal"));
  EXPECT_EQ(none.exit_code, 2);
}

}  // namespace
}  // namespace hasten::test
