// A terminal for a command under test: what the command writes to it, and keys that are pressed.
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.h"

namespace hasten::test {

class Terminal {
 public:
  /// 40 rows, 132 columns; bytes reach the test as the command wrote them.
  Terminal() : master_(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
    if (master_ < 0 || grantpt(master_) != 0 || unlockpt(master_) != 0) throw std::runtime_error("no pty");
    slave_ = open(ptsname(master_), O_RDWR | O_NOCTTY | O_CLOEXEC);
    termios settings = {};
    tcgetattr(slave_, &settings);
    settings.c_oflag &= ~static_cast<tcflag_t>(OPOST);
    settings.c_lflag &= ~static_cast<tcflag_t>(ECHO);
    tcsetattr(slave_, TCSANOW, &settings);
    set_size(40, 132);
  }
  ~Terminal() {
    hang_up();
    if (slave_ >= 0) close(slave_);
    if (!waited_ && pid_ > 0) kill(pid_, SIGKILL);
    Command::wait_for_orphans();
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void set_size(unsigned short rows, unsigned short columns) const {
    const winsize size = {.ws_row = rows, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    ioctl(master_, TIOCSWINSZ, &size);
  }

  /// Starts `words` in a session of its own with this as its terminal; once.
  void start(std::vector<std::string> words) {
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_ = fork();
    if (pid_ == 0) {
      setsid();
      ioctl(slave_, TIOCSCTTY, 0);
      for (const int target : {0, 1, 2}) dup2(slave_, target);
      unsetenv("NO_COLOR");
      setenv("TERM", "xterm", 1);
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    close(std::exchange(slave_, -1));
  }

  void type(const std::string& keys) const {
    for (const char key : keys) press(key);
  }

  void press(char key) const {
    if (write(master_, &key, 1) != 1) throw std::runtime_error("nobody at the terminal");
  }

  /// The window is closed, the connection lost.
  void hang_up() {
    if (master_ >= 0) close(std::exchange(master_, -1));
  }

  pid_t pid() const { return pid_; }

  /// What is written, up to and with `end`. Blocks until it has come, or nobody holds the terminal any more.
  std::string read_until(const std::string& end) {
    while (seen_.find(end) == std::string::npos) {
      const std::string more = read_more();
      if (more.empty()) break;
      seen_ += more;
    }
    const size_t at = seen_.find(end);
    const size_t size = at == std::string::npos ? seen_.size() : at + end.size();
    std::string result = seen_.substr(0, size);
    seen_.erase(0, size);
    return result;
  }

  /// What has been written by now. Blocks until there is something; "" if nobody holds the terminal any more.
  std::string read_some() { return seen_.empty() ? read_more() : std::exchange(seen_, {}); }

  /// Blocks until the command has ended; its exit code.
  int wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    waited_ = true;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

  /// The exit code, and all that is written until nobody holds the terminal any more.
  std::pair<int, std::string> finish() {
    std::string all;
    for (std::string some; !(some = read_some()).empty();) all += some;
    return {wait(), all};
  }

 private:
  std::string read_more() {
    char buffer[64 * 1024];
    const ssize_t size = read(master_, buffer, sizeof buffer);
    return {buffer, static_cast<size_t>(std::max<ssize_t>(size, 0))};
  }

  int master_;
  int slave_ = -1;
  pid_t pid_ = -1;
  bool waited_ = false;
  std::string seen_;
};

}  // namespace hasten::test
