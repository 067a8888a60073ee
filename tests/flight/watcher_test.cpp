#include "hasten/flight/watcher.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <mutex>
#include <vector>

#include "hasten/core/memory_file.h"
#include "hasten/core/text.h"
#include "hasten/flight/page_notes.h"
#include "hasten/flight/pages.h"
#include "hasten/flight/stacks.h"

// Outside of hasten's namespace, as the runtime's own function.
extern "C" [[gnu::noinline]] void cudaStreamSynchronize() {
  while (true) pause();
}

namespace hasten::flight {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// Ranks as forks of the test, each with a page and a watcher, whose reports come through one pipe.
class Ranks {
 public:
  using Body = void (*)(Recorder& recorder, int group);

  /// `per_host`: ranks of a host; 0: all are on one.
  Ranks(const std::vector<Body>& bodies, WatchOptions options, int per_host = 0) : per_host_(per_host) {
    EXPECT_EQ(pipe(ends_), 0);
    options.stack_signal = default_stack_signal();
    for (size_t rank = 0; rank < bodies.size(); ++rank) {
      const pid_t child = fork();
      if (child == 0) run(static_cast<int>(rank), static_cast<int>(bodies.size()), bodies[rank], options);
      pids_.push_back(child);
    }
    close(ends_[1]);
    // A rank that is stopped before it has a page is a rank that has not come.
    std::string ready;
    char byte;
    while (ready.size() < bodies.size() && read(ends_[0], &byte, 1) == 1) ready += byte;
  }
  ~Ranks() {
    for (const pid_t pid : pids_) kill(pid, SIGKILL);
    for (const pid_t pid : pids_) waitpid(pid, nullptr, 0);
    close(ends_[0]);
  }
  pid_t pid(int rank) const { return pids_[static_cast<size_t>(rank)]; }

  /// What is reported until a text with `words` was, or a minute is over.
  std::string reported(const std::string& words) {
    std::string all;
    pollfd source{ends_[0], POLLIN, 0};
    while (all.find(words) == std::string::npos && poll(&source, 1, 60000) > 0) {
      char part[4096];
      const ssize_t count = read(ends_[0], part, sizeof part);
      if (count <= 0) break;
      all.append(part, static_cast<size_t>(count));
    }
    return all;
  }

 private:
  [[noreturn]] void run(int rank, int size, Body body, WatchOptions options) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ends_[0]);
    const int null = open("/dev/null", O_WRONLY);
    dup2(null, STDERR_FILENO);
    const auto recorder = std::make_shared<Recorder>(PageIdentity{.run = text("watcher ", getppid(), ' ', ends_[1]),
                                                                  .rank = rank,
                                                                  .world_size = size,
                                                                  .local_rank = per_host_ ? rank % per_host_ : rank,
                                                                  .local_world_size = per_host_ ? per_host_ : size,
                                                                  .node_rank = per_host_ ? rank / per_host_ : 0});
    options.on_report = [end = ends_[1]](const std::string& report) {
      (void)!write(end, report.data(), report.size());
    };
    const int group = recorder->open_group("world", rank, size, 1800000);
    const Watcher watcher(recorder, options);
    (void)!write(ends_[1], "r", 1);
    body(*recorder, group);
    while (true) pause();
  }

  const int per_host_;
  int ends_[2] = {-1, -1};
  std::vector<pid_t> pids_;
};

/// Keys as files of a folder, which appear whole.
class FolderLink : public HostLink {
 public:
  explicit FolderLink(std::filesystem::path folder) : folder_(std::move(folder)) {}
  void set(const std::string& key, const std::string& value) override {
    const auto part = file_of(text(key, ".part ", getpid()));
    std::ofstream(part) << value;
    std::filesystem::rename(part, file_of(key));
  }
  std::optional<std::string> get(const std::string& key) override {
    std::ifstream file(file_of(key));
    if (!file) return std::nullopt;
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

 private:
  std::filesystem::path file_of(std::string key) const {
    std::replace(key.begin(), key.end(), '/', '_');
    return folder_ / key;
  }
  const std::filesystem::path folder_;
};

void wait_in_a_barrier(Recorder& recorder, int group) {
  recorder.post({.group = group, .label = {"barrier"}, .rule = SizesRule::kNone, .file = "train.cpp", .line = 5});
}

void lock_twice(Recorder&, int) {
  static std::mutex mutex;
  mutex.lock();
  mutex.lock();
}

void do_nothing(Recorder&, int) {}

TEST(Watcher, AStoppedRankIsReportedByAnother) {
  Ranks ranks({do_nothing, wait_in_a_barrier, wait_in_a_barrier}, {.limits = {.after_s = 3600}});

  kill(ranks.pid(0), SIGSTOP);

  const std::string report = ranks.reported("╰");
  EXPECT_THAT(report, HasSubstr("rank 0 of 3 is missing"));
  EXPECT_THAT(report, HasSubstr(text("rank 0 is stopped; kill -CONT ", ranks.pid(0))));
  EXPECT_THAT(report, HasSubstr("barrier 1 of 'world' at train.cpp:5"));
}

TEST(Watcher, ARankInALockIsReportedWithItsStack) {
  Ranks ranks({wait_in_a_barrier, lock_twice}, {.limits = {.after_s = 1.5}});

  const std::string report = ranks.reported("╰");

  EXPECT_THAT(report, HasSubstr("rank 1 of 2 is missing"));
  EXPECT_THAT(report, HasSubstr("rank 1 sleeps in a lock."));
  EXPECT_THAT(report, HasSubstr("rank 1, main thread: "));
}

void wait_for_a_device(Recorder&, int) {
  cudaStreamSynchronize();
}

TEST(Watcher, ARankWhoseHostWaitsForItsDeviceIsALineWithWhatItWaitsFor) {
  Ranks ranks({wait_in_a_barrier, wait_for_a_device}, {.limits = {.after_s = 1.5}});

  const std::string report = ranks.reported("\n");

  EXPECT_THAT(report, HasSubstr("hasten: rank 0 waits for rank 1 in barrier 1 of 'world' for "));
  EXPECT_THAT(report, HasSubstr("it waits for a stream of its device (cudaStreamSynchronize)"));
}

TEST(Watcher, ARankOfAnotherHostIsReportedWithItsStack) {
  char folder[] = "/tmp/hasten-hosts-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  WatchOptions options{.limits = {.after_s = 2}};
  options.connect_hosts = [folder = std::string(folder)] { return std::make_unique<FolderLink>(folder); };

  std::string report;
  {
    Ranks ranks({wait_in_a_barrier, wait_in_a_barrier, wait_in_a_barrier, lock_twice}, options, 2);
    report = ranks.reported("╰");
  }

  std::filesystem::remove_all(folder);
  EXPECT_THAT(report, HasSubstr("rank 3 of 4 is missing"));
  EXPECT_THAT(report, AllOf(HasSubstr("rank 3 on "), HasSubstr(" sleeps in a lock.")));
  EXPECT_THAT(report, HasSubstr("rank 3, main thread: "));
}

TEST(Watcher, ARankThatHasNotTakenItsPageIsReportedIfItIsStopped) {
  const std::string run = text("announced ", getpid());
  const MemoryFile page = MemoryFile::create(kPageLabel, kPageBytes);
  const auto identity = [&](int rank) {
    return PageIdentity{.run = run, .rank = rank, .world_size = 2, .local_rank = rank, .local_world_size = 2};
  };
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    announce(page, identity(1));
    raise(SIGSTOP);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  const auto recorder = std::make_shared<Recorder>(identity(0));
  std::promise<std::string> report;
  std::atomic<bool> is_told{false};
  WatchOptions options{.limits = {.after_s = 3600}, .stack_signal = default_stack_signal()};
  options.on_report = [&](const std::string& words) {
    if (!is_told.exchange(true)) report.set_value(words);
  };
  {
    const Watcher watcher(recorder, options);
    wait_in_a_barrier(*recorder, recorder->open_group("world", 0, 2, 1800000));

    EXPECT_THAT(report.get_future().get(), HasSubstr(text("rank 1 is stopped; kill -CONT ", child)));
  }
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
}

void lose_a_value(Recorder& recorder, int) {
  for (int i = 0; i < 40; ++i) recorder.step(1);
  recorder.set_bad(BadValue::kLoss, "loss");
}

TEST(Watcher, AValueThatIsNotFiniteIsALineWithItsStep) {
  Ranks ranks({do_nothing, lose_a_value}, {});

  EXPECT_THAT(ranks.reported("\n"), HasSubstr("hasten: values are not finite; rank 1: loss in step 41 of epoch 0\n"));
}

TEST(Watcher, AValueOfARunShorterThanASecondIsSaidAtItsEnd) {
  std::vector<std::string> reports;
  const auto recorder = std::make_shared<Recorder>(PageIdentity{.run = text("short ", getpid()), .world_size = 2});
  {
    const Watcher watcher(recorder, {.on_report = [&](const std::string& words) { reports.push_back(words); }});
    recorder->set_bad(BadValue::kLoss, "loss");
    recorder->clear_bad(BadValue::kLoss);
  }

  EXPECT_EQ(reports, std::vector<std::string>{"hasten: values are not finite; rank 0: loss in step 1 of epoch 0\n"});
}

TEST(Watcher, TheCulpritIsKilledWhereThatIsWanted) {
  Ranks ranks({wait_in_a_barrier, lock_twice}, {.limits = {.after_s = 1.5}, .kill = true});
  FoundPages found = find_pages();
  const auto page = std::find_if(found.pages.begin(), found.pages.end(),
                                 [&](const PageView& view) { return view.pid() == ranks.pid(1); });
  ASSERT_NE(page, found.pages.end());

  ranks.reported("╰");

  int status = 0;
  siginfo_t info = {};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(ranks.pid(1)), &info, WEXITED | WNOWAIT), 0);
  status = info.si_status;
  EXPECT_EQ(status, SIGKILL);
  EXPECT_TRUE(is_ended_by_watch(page->page())) << "the launcher tells it from another's kill";
}

}  // namespace
}  // namespace hasten::flight
