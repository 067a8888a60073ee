#include "launch/workers/local_processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>

#include "hasten/core/error.h"

namespace hasten::launcher {
namespace {

// A pipe whose read end says end-of-file once nobody holds the other end any more: all who inherited it have
// ended.
class Pipe {
 public:
  Pipe() {
    if (pipe(ends_) != 0) throw std::runtime_error(std::strerror(errno));
  }
  ~Pipe() {
    close(ends_[0]);
    close_writing();
  }
  void write(char letter) const { EXPECT_EQ(::write(ends_[1], &letter, 1), 1); }
  // Blocks until there is a letter; 0 at end-of-file.
  char read() const {
    char letter = 0;
    return ::read(ends_[0], &letter, 1) == 1 ? letter : '\0';
  }
  void close_writing() {
    if (ends_[1] >= 0) close(ends_[1]);
    ends_[1] = -1;
  }

 private:
  int ends_[2];
};

// Blocks until the shim has said all it had to say; the launcher can still reap it.
void wait_for_end_of(pid_t shim) {
  siginfo_t info = {};
  EXPECT_EQ(waitid(P_PID, static_cast<id_t>(shim), &info, WEXITED | WNOWAIT), 0);
}

// The parent of `pid`, which for a worker is its shim.
pid_t parent_of(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string id, name, state;
  pid_t parent = 0;
  stat >> id >> name >> state >> parent;
  return parent;
}

// The workers' output is not shown among the test's own.
LocalProcessesOptions unseen() {
  return {.output = [](int) { return OutputPlan{.out = {.shown = false}, .err = {.shown = false}}; }};
}

TEST(LocalProcesses, TellsHowAWorkerEndedAndThenThatNobodyIsLeft) {
  LocalProcesses processes([](int local_rank) { return 40 + local_rank; });

  const std::vector<pid_t> pids = processes.start(1);

  const Event first = processes.wait({});
  EXPECT_EQ(pids.size(), 1u);
  EXPECT_EQ(first.kind, Event::Kind::kExited);
  EXPECT_EQ(first.local_rank, 0);
  EXPECT_EQ(exit_code_of(first.value), 40);
  EXPECT_EQ(processes.wait({}).kind, Event::Kind::kGone);
}

TEST(LocalProcesses, EveryWorkerLeadsASessionAndAGroupOfItsOwn) {
  LocalProcesses processes([](int) { return getsid(0) == getpid() && getpgrp() == getpid() ? 0 : 1; });

  processes.start(1);

  EXPECT_EQ(processes.wait({}).value, 0);
}

TEST(LocalProcesses, SignalsReachTheWorkersWholeGroup) {
  Pipe pipe;
  LocalProcesses processes([&](int) {
    if (fork() == 0) pipe.write('c');
    return pause();
  });
  processes.start(1);
  EXPECT_EQ(pipe.read(), 'c');
  pipe.close_writing();

  processes.signal(0, SIGTERM);

  EXPECT_EQ(pipe.read(), '\0');
  EXPECT_EQ(exit_code_of(processes.wait({}).value), 128 + SIGTERM);
}

TEST(LocalProcesses, Sigusr1ReachesTheWorkerAndNotItsChildren) {
  Pipe question, answer;
  LocalProcesses processes([&](int) {
    sigset_t usr1;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    if (fork() == 0) {  // to which SIGUSR1 would be the end
      question.read();
      answer.write('c');
      return pause();
    }
    sigprocmask(SIG_BLOCK, &usr1, nullptr);
    answer.write('r');
    int signal = 0;
    sigwait(&usr1, &signal);
    question.write('?');
    return pause();
  });
  processes.start(1);
  EXPECT_EQ(answer.read(), 'r');

  processes.signal(0, SIGUSR1);

  EXPECT_EQ(answer.read(), 'c');
}

TEST(LocalProcesses, KeepTheLastLinesOfStandardErrorForEachStart) {
  LocalProcesses processes(
      [](int local_rank) {
        const std::string words = "words of " + std::to_string(local_rank);
        return write(STDERR_FILENO, words.data(), words.size()) > 0 ? 1 : 0;
      },
      unseen());
  const auto run_to_the_end = [&] {
    processes.start(2);
    for (int num_gone = 0; num_gone < 2;) {
      if (processes.wait({}).kind == Event::Kind::kGone) ++num_gone;
    }
  };

  for (int start = 0; start < 2; ++start) {
    run_to_the_end();
    EXPECT_EQ(processes.error_tail(0), "words of 0\n");
    EXPECT_EQ(processes.error_tail(1), "words of 1\n");
  }
  processes.finish_output(std::chrono::seconds(0));
}

TEST(LocalProcesses, AnOrderThatCrossesTheShimsEndDoesNotHideItsLastWords) {
  // Much to read, so that the shim has still to do when the order is sent.
  const std::string words = std::string(60000, '\n') + "words\n";
  const auto body = [&](int) { return write(STDERR_FILENO, words.data(), words.size()) > 0 ? 1 : 0; };
  LocalProcesses processes(body, unseen());

  for (int start = 0; start < 100; ++start) {
    processes.start(1);
    const Event exited = processes.wait({});
    processes.signal(0, SIGTERM);
    const Event gone = processes.wait({});

    EXPECT_EQ(exit_code_of(exited.value), 1);
    EXPECT_EQ(gone.kind, Event::Kind::kGone);
    ASSERT_THAT(processes.error_tail(0), ::testing::EndsWith("words\n"));
  }
}

TEST(LocalProcesses, AGroupIsGoneOnlyWhenTheWorkersChildrenAreToo) {
  LocalProcesses processes([](int) {
    if (fork() == 0) pause();
    return 0;
  });
  processes.start(1);
  EXPECT_EQ(processes.wait({}).kind, Event::Kind::kExited);

  EXPECT_EQ(processes.wait(processes.now()).kind, Event::Kind::kDeadline);
  processes.signal(0, SIGTERM);

  EXPECT_EQ(processes.wait({}).kind, Event::Kind::kGone);
}

TEST(LocalProcesses, DestroyingThemLeavesNobody) {
  Pipe pipe;
  {
    LocalProcesses processes([&](int) {
      signal(SIGTERM, SIG_IGN);
      if (fork() == 0) pipe.write('c');
      return pause();
    });
    processes.start(2);
    EXPECT_EQ(pipe.read(), 'c');
    EXPECT_EQ(pipe.read(), 'c');
  }
  pipe.close_writing();

  EXPECT_EQ(pipe.read(), '\0');
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);  // no zombie either
}

TEST(LocalProcesses, AWorkerWhoseShimIsKilledEndsWithItsChildren) {
  Pipe pipe;
  LocalProcesses processes([&](int) {
    if (fork() == 0) pipe.write('c');
    return pause();
  });
  const pid_t pid = processes.start(1)[0];
  EXPECT_EQ(pipe.read(), 'c');
  pipe.close_writing();

  kill(parent_of(pid), SIGKILL);

  EXPECT_EQ(exit_code_of(processes.wait({}).value), 128 + SIGKILL);
  EXPECT_EQ(processes.wait({}).kind, Event::Kind::kGone);
  EXPECT_EQ(pipe.read(), '\0');
}

TEST(LocalProcesses, AWorkerEndsWithItsShimEvenIfTheLauncherDoesNothing) {
  Pipe pipe;
  LocalProcesses processes([](int) { return pause(); });
  const pid_t pid = processes.start(1)[0];
  pipe.close_writing();

  kill(parent_of(pid), SIGKILL);

  EXPECT_EQ(pipe.read(), '\0');
}

TEST(LocalProcesses, SimultaneousEndsComeInTheOrderInWhichTheyHappened) {
  Pipe first_may_end, second_may_end;
  LocalProcesses processes([&](int local_rank) { return (local_rank == 1 ? first_may_end : second_may_end).read(); });
  const std::vector<pid_t> pids = processes.start(2);
  const pid_t shims[] = {parent_of(pids[0]), parent_of(pids[1])};

  first_may_end.write('x');
  wait_for_end_of(shims[1]);
  second_may_end.write('x');
  wait_for_end_of(shims[0]);

  EXPECT_EQ(processes.wait({}).local_rank, 1);
}

TEST(LocalProcesses, SignalsToTheLauncherAreEvents) {
  LocalProcesses processes([](int) { return 0; });

  raise(SIGTERM);

  const Event event = processes.wait({});
  EXPECT_EQ(event.kind, Event::Kind::kSignal);
  EXPECT_EQ(event.value, SIGTERM);
}

TEST(LocalProcesses, AnIgnoredSignalStaysIgnored) {
  signal(SIGHUP, SIG_IGN);
  LocalProcesses processes([](int) { return 0; });

  raise(SIGHUP);
  processes.start(1);

  EXPECT_EQ(processes.wait({}).kind, Event::Kind::kExited);
  signal(SIGHUP, SIG_DFL);
}

TEST(LocalProcesses, TheWorkerGetsTheSignalMaskFromBefore) {
  LocalProcesses processes([](int) {
    raise(SIGTERM);
    return 0;
  });

  processes.start(1);

  EXPECT_EQ(exit_code_of(processes.wait({}).value), 128 + SIGTERM);
}

TEST(LocalProcesses, AnExhaustedSystemIsAnErrorThatNamesTheLimits) {
  LocalProcesses processes([](int) { return pause(); });
  rlimit before = {};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);

  std::string message;
  try {
    processes.start(3);
  } catch (const UsageError& error) {
    setrlimit(RLIMIT_NOFILE, &before);  // sanitizers open files when they look at an object
    message = error.what();
  }
  setrlimit(RLIMIT_NOFILE, &before);

  EXPECT_EQ(message,
            "[launch] cannot start worker 0 of 3: Too many open files. Start fewer, or raise the limits (ulimit -u "
            "for processes, ulimit -n for files).");
}

}  // namespace
}  // namespace hasten::launcher
