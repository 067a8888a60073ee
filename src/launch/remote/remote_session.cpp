// Both sides of a lifeline; see remote_session.h.
#include "launch/remote/remote_session.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <iostream>

#include "launch/base/signal_queue.h"

namespace hasten::launcher {
namespace {

constexpr char kHeartbeat = 0;  // any other byte is a signal's number
constexpr int kHeartbeatMs = 1000;
constexpr int kSilenceMs = 10'000;

sigset_t all_signals() {
  sigset_t all;
  sigfillset(&all);
  return all;
}

int code_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

// Returns true if the child has ended, and how.
bool has_ended(pid_t child, int& exit_code) {
  int status = 0;
  if (waitpid(child, &status, WNOHANG) != child) return false;
  exit_code = code_of(status);
  return true;
}

bool is_for_the_work(int signal) {
  return signal != SIGCHLD && signal != SIGWINCH && signal != SIGCONT && signal != SIGPIPE && signal != SIGTTIN &&
         signal != SIGTTOU;
}

void write_all(int handle, const std::string& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t size = write(handle, bytes.data() + done, bytes.size() - done);
    if (size <= 0) return;  // the command has ended, as waitpid reports
    done += static_cast<size_t>(size);
  }
}

[[noreturn]] void run_command(std::vector<std::string> command, int input, const sigset_t& mask, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  // The group gets the signal to end. The command has to go on until the far side has answered.
  setsid();
  dup2(input, STDIN_FILENO);
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  std::vector<char*> arguments;
  for (std::string& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  std::cerr << "hasten: cannot execute '" << command[0] << "': " << std::strerror(errno) << std::endl;
  _exit(127);
}

// Reads up to the end of the line, byte by byte, as the later bytes are not ours to read yet.
std::string read_task() {
  std::string line;
  for (char letter = 0; read(STDIN_FILENO, &letter, 1) == 1 && letter != '\n';) line += letter;
  return line;
}

class FarSide {
 public:
  FarSide(RemoteSession kind, pid_t work, const SignalQueue& signals) : kind_(kind), work_(work), signals_(signals) {}

  int run() {
    int exit_code = 0;
    while (!has_ended(work_, exit_code)) {
      pollfd sources[] = {{signals_.handle(), POLLIN, 0}, {broken_ ? -1 : STDIN_FILENO, POLLIN, 0}};
      const bool listens = kind_ == RemoteSession::kFollowed && !broken_;
      if (poll(sources, 2, listens ? kSilenceMs : -1) == 0) break_line();
      for (int signal = 0; (signal = signals_.next()) != 0;) {
        if (is_for_the_work(signal)) kill(work_, signal);
      }
      if (sources[1].revents != 0) hear();
    }
    return exit_code;
  }

 private:
  void hear() {
    char bytes[256];
    const ssize_t size = read(STDIN_FILENO, bytes, sizeof bytes);
    if (size <= 0) return break_line();
    for (ssize_t i = 0; i < size; ++i) {
      if (kind_ == RemoteSession::kFollowed && bytes[i] != kHeartbeat) kill(work_, bytes[i]);
    }
  }

  void break_line() {
    broken_ = true;
    kill(work_, kind_ == RemoteSession::kFollowed ? SIGKILL : SIGTERM);
  }

  const RemoteSession kind_;
  const pid_t work_;
  const SignalQueue& signals_;
  bool broken_ = false;
};

}  // namespace

int hold_lifeline(const std::vector<std::string>& command, const std::string& task) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return 1;
  const SignalQueue signals(all_signals(), all_signals());
  const pid_t self = getpid();
  const pid_t child = fork();
  if (child == 0) run_command(command, ends[0], signals.mask_before(), self);
  close(ends[0]);
  if (child < 0) return 1;
  write_all(ends[1], task + "\n");
  int exit_code = 0;
  while (!has_ended(child, exit_code)) {
    pollfd source = {signals.handle(), POLLIN, 0};
    if (poll(&source, 1, kHeartbeatMs) == 0) write_all(ends[1], std::string(1, kHeartbeat));
    for (int signal = 0; (signal = signals.next()) != 0;) {
      if (is_for_the_work(signal)) write_all(ends[1], std::string(1, static_cast<char>(signal)));
    }
  }
  close(ends[1]);
  return exit_code;
}

int follow_session(RemoteSession kind, const std::string& task,
                   const std::function<int(const std::string& task)>& work) {
  const std::string full_task = kind == RemoteSession::kFollowed ? read_task() : task;
  const SignalQueue signals(all_signals(), all_signals());
  const pid_t self = getpid();
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != self) _exit(1);
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    dup2(nothing, STDIN_FILENO);
    sigprocmask(SIG_SETMASK, &signals.mask_before(), nullptr);
    close(signals.handle());
    const int exit_code = work(full_task);
    std::cout.flush();
    _exit(exit_code);
  }
  if (child < 0) return 1;
  return FarSide(kind, child, signals).run();
}

}  // namespace hasten::launcher
