// A server that a test needs (sshd, slurmd): lives as long as this object, and not longer than this program.
#pragma once

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "hasten/core/text.h"

namespace hasten::test {

/// It runs below a guard, which is no child of this program (Command::wait_for_orphans would wait for it) and
/// adopts all that the server starts. When this program closes its pipe, even by dying, the guard kills them
/// all.
class Daemon {
 public:
  /// `words[0]` is a path; output and errors go to the file `log`.
  Daemon(std::vector<std::string> words, const std::string& log) {
    int lifeline[2], gone[2];
    if (pipe2(lifeline, O_CLOEXEC) != 0 || pipe2(gone, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    prctl(PR_SET_CHILD_SUBREAPER, 0);  // so that the guard goes to init; Command sets it again
    const pid_t between = fork();
    if (between == 0) {
      if (fork() == 0) guard(words, log, lifeline, gone);
      _exit(0);
    }
    waitpid(between, nullptr, 0);
    close(lifeline[0]);
    close(gone[1]);
    lifeline_ = lifeline[1];
    gone_ = gone[0];
  }
  /// Kills all that is left of it, and waits until it is gone.
  ~Daemon() {
    close(lifeline_);
    char nothing;
    while (read(gone_, &nothing, 1) > 0) {
    }
    close(gone_);
  }
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

 private:
  [[noreturn]] static void guard(std::vector<std::string>& words, const std::string& log, const int* lifeline,
                                 const int* gone) {
    setsid();
    // Whatever else is open here was meant for others: the lifelines of earlier servers, above all.
    const auto [first, last] = std::minmax({static_cast<unsigned>(lifeline[0]), static_cast<unsigned>(gone[1])});
    close_range(3, first - 1, 0);
    close_range(first + 1, last - 1, 0);
    close_range(last + 1, ~0U, 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (fork() == 0) {
      const int output = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      const int input = open("/dev/null", O_RDONLY);
      dup2(input, STDIN_FILENO);
      dup2(output, STDOUT_FILENO);
      dup2(output, STDERR_FILENO);
      close_range(3, ~0U, 0);
      std::vector<char*> arguments;
      for (std::string& word : words) arguments.push_back(word.data());
      arguments.push_back(nullptr);
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    signal(SIGCHLD, SIG_IGN);  // nobody below becomes a zombie
    char nothing;
    while (read(lifeline[0], &nothing, 1) < 0) {
    }
    signal(SIGCHLD, SIG_DFL);
    // Whoever loses its parent comes here: in the end nobody is left.
    do {
      std::ifstream children(text("/proc/self/task/", getpid(), "/children"));
      for (pid_t child = 0; children >> child;) kill(child, SIGKILL);
    } while (waitpid(-1, nullptr, 0) > 0);
    _exit(0);
  }

  int lifeline_;
  int gone_;
};

}  // namespace hasten::test
