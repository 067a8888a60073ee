#include "launch/remote/remote_session.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace hasten::launcher {
namespace {

// Runs the far side in a process of its own, with a pipe as its standard input. `near` is what the near side
// does; then its end is closed. Returns the exit code.
int far_side(RemoteSession kind, const std::function<int(const std::string&)>& work,
             const std::function<void(int pipe)>& near) {
  int ends[2];
  if (pipe(ends) != 0) return -1;
  const pid_t far = fork();
  if (far == 0) {
    dup2(ends[0], STDIN_FILENO);
    close(ends[0]);
    close(ends[1]);
    _exit(follow_session(kind, "told", work));
  }
  close(ends[0]);
  near(ends[1]);
  close(ends[1]);
  int status = 0;
  waitpid(far, &status, 0);
  return WEXITSTATUS(status);
}

void send_text(int pipe, const std::string& bytes) {
  EXPECT_EQ(write(pipe, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
}

// Keeps the line until the far side has ended.
void send_and_stay(int pipe, const std::string& bytes) {
  send_text(pipe, bytes);
  pollfd end = {pipe, 0, 0};
  poll(&end, 1, -1);
}

int wait_for_ever(const std::string&) {
  while (true) pause();
}

TEST(RemoteSession, BringsTheTaskAndTheExitCodeBack) {
  EXPECT_EQ(hold_lifeline({"/bin/sh", "-c", "read task; [ \"$task\" = hello ] && exit 5"}, "hello"), 5);
  EXPECT_EQ(hold_lifeline({"/bin/sh", "-c", "kill -SEGV $$"}, "hello"), 128 + SIGSEGV);
  EXPECT_EQ(far_side(
                RemoteSession::kFollowed, [](const std::string& task) { return task == "hello" ? 6 : 1; },
                [](int pipe) { send_and_stay(pipe, "hello\n"); }),
            6);
}

TEST(RemoteSession, HandsSignalsOn) {
  EXPECT_EQ(far_side(RemoteSession::kFollowed, wait_for_ever,
                     [](int pipe) { send_and_stay(pipe, std::string("hello\n\0\0", 8) + static_cast<char>(SIGUSR1)); }),
            128 + SIGUSR1);
}

TEST(RemoteSession, ItsEndIsTheEndOfTheWork) {
  EXPECT_EQ(far_side(RemoteSession::kFollowed, wait_for_ever, [](int pipe) { send_text(pipe, "hello\n"); }),
            128 + SIGKILL);
  EXPECT_EQ(far_side(RemoteSession::kWatched, wait_for_ever, [](int) {}), 128 + SIGTERM);
}

}  // namespace
}  // namespace hasten::launcher
