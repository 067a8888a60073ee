#include "hasten/flight/facts.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "hasten/core/text.h"
#include "support/folder.h"

namespace hasten::flight {
namespace {

/// Collects facts until a thread of this process does what is expected, in words.
std::string doing_of(const std::function<void(std::atomic<int>&)>& body, const std::string& expected,
                     const std::function<void()>& release) {
  std::atomic<int> id{0};
  std::thread thread([&] { body(id); });
  std::string doing;
  for (int i = 0; i < 20000 && doing.find(expected) == std::string::npos; ++i) {
    FactsBefore before;
    for (const ThreadFacts& one : collect_facts(before).threads) {
      if (one.thread == id && !one.doing.empty()) doing = one.doing;
    }
  }
  release();
  thread.join();
  return doing;
}

void set_id(std::atomic<int>& id) {
  id = static_cast<int>(syscall(SYS_gettid));
}

using FactsOf = testing::InFolder;

TEST_F(FactsOf, AThreadThatReadsNamesItsFile) {
  const std::string fifo = path("samples.fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const int end = open(fifo.c_str(), O_RDWR);

  const std::string doing = doing_of(
      [&](std::atomic<int>& id) {
        set_id(id);
        char byte;
        (void)!::read(end, &byte, 1);
      },
      "samples.fifo", [&] { (void)!::write(end, "x", 1); });

  EXPECT_EQ(doing, "reads " + fifo);
  close(end);
}

TEST_F(FactsOf, AThreadThatOpensNamesThePath) {
  const std::string fifo = path("model.fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);

  const std::string doing = doing_of(
      [&](std::atomic<int>& id) {
        set_id(id);
        close(open(fifo.c_str(), O_RDONLY));
      },
      "model.fifo", [&] { close(open(fifo.c_str(), O_WRONLY)); });

  EXPECT_EQ(doing, "opens " + fifo);
}

TEST(Facts, AThreadThatWaitsForALockOrAChildSaysSo) {
  std::mutex mutex;
  mutex.lock();
  EXPECT_EQ(doing_of(
                [&](std::atomic<int>& id) {
                  set_id(id);
                  const std::lock_guard lock(mutex);
                },
                "lock", [&] { mutex.unlock(); }),
            "sleeps in a lock");

  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte;
    (void)!::read(ends[0], &byte, 1);
    _exit(0);
  }
  EXPECT_EQ(doing_of(
                [&](std::atomic<int>& id) {
                  set_id(id);
                  waitpid(child, nullptr, 0);
                },
                "child", [&] { (void)!::write(ends[1], "x", 1); }),
            text("waits for child ", child));
  close(ends[0]), close(ends[1]);
}

TEST(Facts, AFullPipeAtStandardOutputIsNamed) {
  EXPECT_TRUE(describe_syscall(text(SYS_write, " 0x1 0x0 0x0 0x0 0x0 0x0 0x0 0x0")).starts_with("writes fd 1, "));
  EXPECT_EQ(describe_syscall("running"), "");
  EXPECT_EQ(describe_syscall(""), "");
  EXPECT_EQ(describe_syscall("-1 0x0 0x0"), "");
}

TEST(Facts, TravelAsText) {
  const Facts facts{.pid = 12,
                    .threads = {{12, "train me", 'S', "reads /data/a b"}, {13, "", 0, ""}},
                    .connections = {{"10.0.0.2:99", 4096, 3, 1.5}},
                    .cpu_share = 0.25,
                    .delayed_share = 0.5,
                    .throttled_periods = 7,
                    .memory_share = 0.75,
                    .is_at_memory_limit = true};

  const Facts same = read_facts(write_facts(facts) + "a new line of a later version\n");

  EXPECT_EQ(same.pid, 12);
  ASSERT_NE(same.main_thread(), nullptr);
  EXPECT_EQ(same.main_thread()->name, "train_me");
  EXPECT_EQ(same.main_thread()->doing, "reads /data/a b");
  EXPECT_EQ(same.threads.size(), 2U);
  EXPECT_EQ(same.connections.at(0).peer, "10.0.0.2:99");
  EXPECT_EQ(same.connections.at(0).unacknowledged_bytes, 4096);
  EXPECT_EQ(same.cpu_share, 0.25);
  EXPECT_EQ(same.throttled_periods, 7);
  EXPECT_EQ(same.memory_share, 0.75);
  EXPECT_TRUE(same.is_at_memory_limit);
}

TEST(Facts, OfAnotherProcessSayWhatItGetsUnlessItSleeps) {
  const pid_t computes = fork();
  if (computes == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (volatile unsigned count = 0;;) count = count + 1;
  }
  const pid_t sleeps = fork();
  if (sleeps == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (true) pause();
  }
  FactsBefore before, before_sleep;
  std::optional<Facts> facts, asleep = Facts{};
  // Until each has had its core once.
  for (int i = 0; i < 20000 && (!facts || facts->cpu_share <= 0 || asleep); ++i) {
    facts = collect_facts_of(computes, before);
    asleep = collect_facts_of(sleeps, before_sleep);
  }

  for (const pid_t child : {computes, sleeps}) kill(child, SIGKILL), waitpid(child, nullptr, 0);
  ASSERT_TRUE(facts);
  EXPECT_GT(facts->cpu_share, 0);
  EXPECT_EQ(facts->main_thread()->state, 'R');
  EXPECT_EQ(facts->main_thread()->doing, "");
  EXPECT_FALSE(asleep) << "its call is not known";
}

}  // namespace
}  // namespace hasten::flight
