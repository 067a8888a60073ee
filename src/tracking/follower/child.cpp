// See child.h.
#include "tracking/follower/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>
#include <thread>
#include <utility>

#include "hasten/core/error.h"

namespace hasten::tracking {
namespace {

struct Pipe {
  int read = -1, write = -1;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
      throw UsageError(Origin{"tracking"}, "cannot make a pipe: ", std::strerror(errno), ". Raise ulimit -n.");
    }
    read = ends[0];
    write = ends[1];
  }
  ~Pipe() {
    if (read >= 0) close(read);
    if (write >= 0) close(write);
  }
};

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (std::string& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

}  // namespace

Child::Child(const ChildOptions& options) {
  Pipe in, out;
  std::vector<std::string> arguments = options.arguments, variables;
  for (const auto& [name, value] : options.environment.variables()) variables.push_back(name + "=" + value);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, in.read, 0);
  posix_spawn_file_actions_adddup2(&actions, out.write, 1);
  const std::string errors = options.error_file.empty() ? "/dev/null" : options.error_file.string();
  posix_spawn_file_actions_addopen(&actions, 2, errors.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const int failed = posix_spawn(&pid_, arguments.front().c_str(), &actions, &attributes, pointers(arguments).data(),
                                 pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (failed != 0) {
    pid_ = -1;
    throw UsageError(Origin{"tracking"}, arguments.front(), " cannot be started: ", std::strerror(failed),
                     ". Correct its path.");
  }
  input_ = std::exchange(in.write, -1);
  output_ = std::exchange(out.read, -1);
  fcntl(output_, F_SETFL, O_NONBLOCK);
}

Child::~Child() {
  close_input();
  if (output_ >= 0) close(output_);
  if (pid_ > 0 && !exit_code_) waitpid(pid_, nullptr, WNOHANG);
}

void Child::close_input() {
  if (input_ >= 0) close(input_);
  input_ = -1;
}

std::vector<std::string> Child::read_lines(std::chrono::milliseconds timeout) {
  std::vector<std::string> lines;
  if (output_ < 0) return lines;
  pollfd ready{output_, POLLIN, 0};
  poll(&ready, 1, static_cast<int>(timeout.count()));
  char bytes[4096];
  ssize_t n = 0;
  while ((n = read(output_, bytes, sizeof bytes)) > 0) rest_.append(bytes, static_cast<size_t>(n));
  if (n == 0) {
    close(output_);
    output_ = -1;
  }
  size_t end = 0;
  while ((end = rest_.find('\n')) != std::string::npos) {
    lines.push_back(rest_.substr(0, end));
    rest_.erase(0, end + 1);
  }
  if (rest_.size() > 1 << 20) rest_.clear();  // a line without an end is no reply
  return lines;
}

std::optional<int> Child::wait(std::chrono::milliseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  while (!exit_code_ && pid_ > 0) {
    int status = 0;
    const pid_t ended = waitpid(pid_, &status, WNOHANG);
    if (ended == pid_) {
      exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    } else if (ended < 0 && errno == ECHILD) {
      exit_code_ = 0;  // another caller has waited for it
    } else if (std::chrono::steady_clock::now() >= until) {
      break;
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  return exit_code_;
}

void Child::kill() noexcept {
  if (pid_ > 0 && !exit_code_) ::kill(-pid_, SIGKILL);
  if (pid_ > 0 && !exit_code_) ::kill(pid_, SIGKILL);
}

}  // namespace hasten::tracking
