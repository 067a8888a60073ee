// Runs a command as a real process, with its standard output and error in pipes, for the tests of `hasten`.
//
// The test becomes the subreaper of all that the command starts, so that `wait_for_orphans` can say when the
// last of them has ended, even if the command itself was killed. Nothing here waits by the clock.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace hasten::test {

struct CommandResult {
  int exit_code = -1;  ///< 128 + s for signal s
  std::string out;
  std::string err;
};

/// A running command.
class Command {
 public:
  /// `words[0]` is a path; `environment` is added to the test's own.
  explicit Command(std::vector<std::string> words, const std::map<std::string, std::string>& environment = {}) {
    int out[2], err[2];
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(out[1], STDOUT_FILENO);
      dup2(err[1], STDERR_FILENO);
      for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    close(out[1]);
    close(err[1]);
    out_ = out[0];
    err_ = err[0];
  }
  ~Command() {
    if (!waited_) kill(pid_, SIGKILL);
    close(out_);
    if (err_ >= 0) close_errors();
    wait_for_orphans();
  }
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  pid_t pid() const { return pid_; }

  /// The next line of standard output without its end, "" at the end of the output. Blocks until there is
  /// one.
  std::string read_line() const { return read_line(out_); }
  /// The same of standard error.
  std::string read_error_line() const { return read_line(err_); }

  /// What has been written to standard error by now; "" at its end. Blocks until there is something.
  std::string read_some_errors() const {
    char buffer[64 * 1024];
    const ssize_t size = read(err_, buffer, sizeof buffer);
    return {buffer, static_cast<size_t>(size < 0 ? 0 : size)};
  }

  /// Closes the reading end of standard error: who writes there gets SIGPIPE.
  void close_errors() {
    close(err_);
    err_ = -1;
  }

  /// What is left of both outputs, and the exit code. Blocks until nobody holds the outputs open any more:
  /// not the command, nor its children, nor theirs.
  CommandResult finish() {
    CommandResult result;
    pollfd sources[] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};
    std::string* const texts[] = {&result.out, &result.err};
    while (sources[0].fd >= 0 || sources[1].fd >= 0) {
      poll(sources, 2, -1);
      for (int i = 0; i < 2; ++i) {
        char buffer[4096];
        if (sources[i].fd < 0 || sources[i].revents == 0) continue;
        const ssize_t size = read(sources[i].fd, buffer, sizeof buffer);
        if (size <= 0) sources[i].fd = -1;
        if (size > 0) texts[i]->append(buffer, static_cast<size_t>(size));
      }
    }
    int status = 0;
    waitpid(pid_, &status, 0);
    waited_ = true;
    result.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    return result;
  }

  /// Blocks until every process that was started below the command has ended.
  static void wait_for_orphans() {
    while (waitpid(-1, nullptr, 0) > 0) {
    }
  }

 private:
  static std::string read_line(int handle) {
    std::string line;
    for (char letter = 0; read(handle, &letter, 1) == 1 && letter != '\n';) line += letter;
    return line;
  }

  pid_t pid_ = -1;
  int out_ = -1;
  int err_ = -1;
  bool waited_ = false;
};

/// Runs a command to its end.
inline CommandResult run_command(const std::vector<std::string>& words,
                                 const std::map<std::string, std::string>& environment = {}) {
  return Command(words, environment).finish();
}

}  // namespace hasten::test
