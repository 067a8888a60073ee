// See verify_run.h.
#include "verify_run.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <iostream>

#include "hasten/core/env.h"
#include "hasten/core/error.h"
#include "hasten/core/file.h"
#include "hasten/core/text.h"
#include "hasten/core/value.h"

namespace hasten::cli {
namespace {

// While it exists, signals that end a run go to the launcher, whose end this process waits for.
class SignalsToChild {
 public:
  SignalsToChild() {
    struct sigaction action = {};
    action.sa_handler = [](int signal) {
      if (child_ > 0) kill(child_, signal);
    };
    sigaction(SIGTERM, &action, &before_term_);
    // A terminal sends it to the launcher as well.
    action.sa_handler = SIG_IGN;
    sigaction(SIGINT, &action, &before_interrupt_);
  }
  ~SignalsToChild() {
    child_ = 0;
    sigaction(SIGTERM, &before_term_, nullptr);
    sigaction(SIGINT, &before_interrupt_, nullptr);
  }
  void forward_to(pid_t child) noexcept { child_ = child; }

 private:
  static inline volatile sig_atomic_t child_ = 0;
  struct sigaction before_term_ = {};
  struct sigaction before_interrupt_ = {};
};

std::string record_of(const std::filesystem::path& path, int num_processes) {
  std::string all;
  for (int rank = 0; rank < num_processes; ++rank) {
    std::string lines = core::read_file(text(path.string(), ".rank", rank)).value_or("");
    // A rank that was killed may have left half a line.
    lines.resize(lines.rfind('\n') == std::string::npos ? 0 : lines.rfind('\n') + 1);
    all += lines;
  }
  return all;
}

[[noreturn]] void become(std::vector<std::string> words, const Environment& environment, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);
  signal(SIGINT, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
  environment.apply();
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execv("/proc/self/exe", arguments.data());
  _exit(127);
}

int wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

VerifyFolder::VerifyFolder() {
  std::string path = Environment::current().text("TMPDIR").value_or("/tmp") + "/hasten-verify-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) {
    throw UsageError({"verify"}, "no folder can be made for the records ('", path, "': ", std::strerror(errno),
                     "). Set TMPDIR to a folder that can be written to.");
  }
  path_ = path;
}

VerifyFolder::~VerifyFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

VerifyRunResult run_recorded(const VerifyFolder& folder, const std::string& name, const VerifyRunOptions& options,
                             const std::vector<std::string>& program) {
  const auto path = folder.path() / name;
  const auto recorder = core::Value::map({{"path", path.string()},
                                          {"steps", options.num_steps},
                                          {"shares", options.num_shares},
                                          {"whole", options.whole},
                                          {"seed", options.seed}});
  // Sums of several threads depend on their number.
  const auto environment =
      Environment::of({{"HASTEN_VERIFY", recorder.to_json()}, {"OMP_NUM_THREADS", "1"}, {"MKL_NUM_THREADS", "1"}});
  std::vector<std::string> words = {"hasten", "launch", "--num_processes", text(options.num_processes)};
  words.insert(words.end(), options.launch_options.begin(), options.launch_options.end());
  words.insert(words.end(), program.begin(), program.end());
  std::cout.flush();
  const pid_t parent = getpid();
  SignalsToChild signals;
  const pid_t child = fork();
  if (child < 0) throw UsageError({"verify"}, "hasten launch cannot be started: ", std::strerror(errno), ".");
  if (child == 0) become(std::move(words), environment, parent);
  signals.forward_to(child);
  VerifyRunResult result{wait_for(child), {}};
  result.record = record_of(path, options.num_processes);
  return result;
}

}  // namespace hasten::cli
