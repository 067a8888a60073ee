// hasten trace, about ranks that are forks of this test and answer its wishes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "cli/beside_ranks.h"
#include "hasten/core/text.h"
#include "hasten/core/value.h"
#include "hasten/flight/recorder.h"

namespace hasten::test {
namespace {

using ::testing::HasSubstr;

/// What the ranks do with a wish.
enum class Answers { kTraces, kRefuses, kMakesNoStep };

/// Two ranks of a run.
class TracedRun {
 public:
  explicit TracedRun(Answers answers) {
    EXPECT_EQ(pipe(ends_), 0);
    char name[] = "/tmp/hasten-trace-test-XXXXXX";
    folder = mkdtemp(name);
    for (int rank = 0; rank < 2; ++rank) {
      const pid_t child = fork();
      if (child == 0) run(rank, answers);
      pids_.push_back(child);
    }
    char byte;
    for (size_t i = 0; i < pids_.size(); ++i) EXPECT_EQ(read(ends_[0], &byte, 1), 1);
  }
  ~TracedRun() {
    for (const pid_t pid : pids_) kill(pid, SIGKILL);
    for (const pid_t pid : pids_) waitpid(pid, nullptr, 0);
    close(ends_[0]), close(ends_[1]);
    std::filesystem::remove_all(folder);
  }
  std::string run_id() const { return text("traced-", getpid()); }

  std::filesystem::path folder;

 private:
  [[noreturn]] void run(int rank, Answers answers) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    flight::Recorder recorder({.run = text("traced ", getppid()),
                               .run_id = text("traced-", getppid()),
                               .rank = rank,
                               .world_size = 2,
                               .local_rank = rank,
                               .local_world_size = 2});
    (void)!write(ends_[1], "r", 1);
    for (;; usleep(1000)) {
      if (answers == Answers::kMakesNoStep) continue;
      recorder.step(1);
      const auto wish = recorder.new_wish();
      if (!wish) continue;
      const std::string file = text(wish->folder, "/rank_", rank, ".json");
      std::ofstream(file) << "{\"traceEvents\": [{\"name\": \"steps " << wish->steps << "\", \"pid\": 5, \"ts\": 1}]}";
      if (answers == Answers::kTraces) {
        recorder.answer_wish(flight::WishState::kWritten, file);
      } else {
        recorder.answer_wish(flight::WishState::kRefused, "another profiler is on");
      }
    }
  }

  int ends_[2] = {-1, -1};
  std::vector<pid_t> pids_;
};

TEST(Trace, OfAllRanksIsOneFile) {
  const TracedRun run(Answers::kTraces);
  const auto output = run.folder / "all.json";

  const Told told = run_beside_ranks(text("trace ", run.run_id(), " --steps 3 -o ", output.string()));

  EXPECT_EQ(told.exit_code, 0) << told.out;
  EXPECT_EQ(told.out, output.string() + ": 2 events of 2 ranks\n");
  std::ifstream file(output);
  const auto all = core::Value::parse_json(std::string(std::istreambuf_iterator<char>(file), {}));
  const auto& events = all.at("traceEvents").as_list();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].at("name").as_string(), "steps 3");
  EXPECT_NE(events[0].at("pid"), events[1].at("pid"));
}

TEST(Trace, ARanksRefusalIsTheError) {
  const TracedRun run(Answers::kRefuses);

  const Told told = run_beside_ranks("trace -o /dev/null " + run.run_id());

  EXPECT_EQ(told.exit_code, 2);
  EXPECT_THAT(told.out, HasSubstr("rank 0: another profiler is on"));
}

TEST(Trace, RanksThatMakeNoStepEndIt) {
  const TracedRun run(Answers::kMakesNoStep);

  const Told told = run_beside_ranks("trace --timeout 1 " + run.run_id());

  EXPECT_EQ(told.exit_code, 2);
  EXPECT_THAT(told.out, HasSubstr("no rank has made a step for 1 s"));
}

}  // namespace
}  // namespace hasten::test
