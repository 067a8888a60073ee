// Runs a command in a terminal of its own (a pty), for the tests of what only a terminal sees.
#pragma once

#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

namespace hasten::test {

class Terminal {
 public:
  /// `words[0]` is a path.
  explicit Terminal(std::vector<std::string> words) {
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_ = forkpty(&terminal_, nullptr, nullptr, nullptr);
    if (pid_ < 0) throw std::runtime_error("no terminal");
    if (pid_ == 0) {
      unsetenv("NO_COLOR");
      setenv("TERM", "xterm", 1);
      execv(arguments[0], arguments.data());
      _exit(127);
    }
  }
  ~Terminal() { close(terminal_); }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  /// Waits until `text` is shown, or nothing more comes.
  void wait_for(const std::string& text) {
    std::string shown;
    for (char letter = 0; shown.find(text) == std::string::npos && read(terminal_, &letter, 1) == 1;)
      shown += letter;
  }

  void type(const std::string& keys) {
    if (write(terminal_, keys.data(), keys.size()) < 0) throw std::runtime_error("nobody at the terminal");
  }

  /// What else is shown until the command ends, lines ending in "\r\n".
  std::string finish() {
    std::string shown;
    for (char letter = 0; read(terminal_, &letter, 1) == 1;) shown += letter;
    waitpid(pid_, &status_, 0);
    return shown;
  }

  /// After finish.
  int exit_code() const { return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_); }

 private:
  pid_t pid_ = -1;
  int terminal_ = -1;
  int status_ = 0;
};

}  // namespace hasten::test
