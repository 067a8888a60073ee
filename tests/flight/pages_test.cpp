#include "hasten/flight/pages.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <random>
#include <thread>

#include "hasten/core/memory_file.h"
#include "hasten/flight/recorder.h"

namespace hasten::flight {
namespace {

TEST(Pages, AReaderNeverSeesAHalfWrittenCall) {
  Recorder recorder({.run = "r"});
  const int group = recorder.open_group("world", 0, 2, 1000);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int64_t i = 0; !stop; ++i) {
      const int64_t sizes[] = {i, i, i, i};
      recorder.end(recorder.post(
          {.group = group, .label = {"all_reduce"}, .sizes = sizes, .root = static_cast<int>(i), .file = "a.cpp"}));
    }
  });

  const PageView view(recorder.descriptor());
  int64_t seen = 0;
  while (seen < 20000) {
    for (const CallState& call : view.read().calls) {
      ++seen;
      ASSERT_EQ(call.sizes, std::vector<int64_t>(4, call.sizes[0]));
      ASSERT_EQ(call.root, call.sizes[0]);
      ASSERT_EQ(call.number, static_cast<uint64_t>(call.sizes[0]) + 1);
    }
  }
  stop = true;
  writer.join();
}

/// A process with a page, which waits until it is killed.
class OtherProcess {
 public:
  explicit OtherProcess(const PageIdentity& identity) {
    int ready[2];
    if (pipe(ready) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      Recorder recorder(identity);
      const int group = recorder.open_group("world", identity.rank, 2, 1000);
      recorder.post({.group = group, .label = {"barrier"}, .file = "train.cpp", .line = 7});
      (void)!write(ready[1], "x", 1);
      while (true) pause();
    }
    char byte;
    (void)!read(ready[0], &byte, 1);
    close(ready[0]), close(ready[1]);
  }
  ~OtherProcess() { end(); }
  pid_t pid() const { return pid_; }
  void end() {
    if (pid_ > 0) kill(pid_, SIGKILL), waitpid(std::exchange(pid_, 0), nullptr, 0);
  }

 private:
  pid_t pid_ = 0;
};

std::optional<PageView> find(const std::string& run) {
  FoundPages found = find_pages();
  for (PageView& view : found.pages) {
    if (view.read().run == run) return std::move(view);
  }
  return std::nullopt;
}

TEST(Pages, ThePageOfAnotherProcessIsFoundAndOutlivesIt) {
  const std::string run = "outlives " + std::to_string(getpid());
  OtherProcess other({.run = run, .rank = 1, .world_size = 2});

  auto view = find(run);

  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(view->pid(), other.pid());
  EXPECT_EQ(view->read().life, Life::kRunning);
  other.end();
  const RankState state = view->read();
  EXPECT_EQ(state.life, Life::kEnded);
  ASSERT_EQ(state.calls.size(), 1U);
  EXPECT_EQ(state.calls[0].site, "train.cpp:7");
  EXPECT_FALSE(find(run).has_value()) << "nothing is left behind";
}

TEST(Pages, AStoppedProcessIsKnownAsStopped) {
  const std::string run = "stopped " + std::to_string(getpid());
  OtherProcess other({.run = run, .rank = 1, .world_size = 2});
  const auto view = find(run);
  ASSERT_TRUE(view.has_value());

  kill(other.pid(), SIGSTOP);
  int status;
  waitpid(other.pid(), &status, WUNTRACED);

  EXPECT_EQ(view->read().life, Life::kStopped);
}

TEST(Pages, AFileOfAnotherSizeOrVersionIsRefused) {
  const MemoryFile small = MemoryFile::create(kPageLabel, 4096), empty = MemoryFile::create(kPageLabel, kPageBytes);

  EXPECT_THROW(PageView(small.descriptor()), std::runtime_error);
  EXPECT_THROW(PageView(empty.descriptor()), std::runtime_error);
}

TEST(Pages, AnAnnouncedPageIsItsProcesssUntilARecorderTakesIt) {
  const std::string run = run_name("10.0.0.1", getpid(), 2);
  const MemoryFile file = MemoryFile::create(kPageLabel, kPageBytes);
  EXPECT_FALSE(find(run).has_value());

  announce(file, {.run = run, .rank = 3, .world_size = 4});

  auto view = find(run);
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(view->read().state, PageState::kAnnounced);
  EXPECT_EQ(view->read().pid, getpid());
  EXPECT_EQ(view->read().program, "flight_unit_tests");
  const Recorder recorder({.run = run, .rank = 3, .world_size = 4}, dup(file.descriptor()));
  EXPECT_EQ(view->read().state, PageState::kRunning);
}

TEST(Pages, AScribbledPageGivesValuesAndNoCrash) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    Recorder recorder({.run = "r"});
    auto* const words = reinterpret_cast<uint64_t*>(&recorder.page());
    const uint64_t version = words[1];
    for (size_t i = 0; i < sizeof(Page) / 8; ++i) words[i] = random() >> (random() % 64);
    words[0] = kPageMagic;
    words[1] = version;
    // Sequences that fit, so that every record is read.
    for (uint64_t i = 0; i < kNumRecords; ++i) recorder.page().records[i].sequence = 2 * i + 2;
    recorder.page().num_records = kNumRecords;

    const PageView view(recorder.descriptor());
    const RankState state = view.read();

    EXPECT_LE(state.calls.size(), static_cast<size_t>(kNumRecords));
    EXPECT_LE(view.stacks().size(), static_cast<size_t>(kNumStacks));
    (void)view.facts();
  }
}

TEST(Pages, ARankWithoutAWatchThreadIsNotWaitedFor) {
  Recorder recorder({.run = "r"});
  const PageView view(recorder.descriptor());

  ask_all({&view}, 60);

  EXPECT_TRUE(view.has_answered()) << "it was not asked";
}

}  // namespace
}  // namespace hasten::flight
