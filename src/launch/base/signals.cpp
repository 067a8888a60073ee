// See signals.h.
#include "hasten/launch/base/signals.h"

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstring>
#include <sstream>

#include "hasten/core/error.h"
#include "hasten/core/strings.h"

namespace hasten::launcher {
namespace {

std::vector<std::string> known_names() {
  std::vector<std::string> names;
  for (int signal = 1; signal < SIGRTMIN; ++signal) {
    if (sigabbrev_np(signal) != nullptr) names.push_back(signal_name(signal));
  }
  return names;
}

std::string in_full(std::string name) {
  std::erase_if(name, [](unsigned char c) { return std::isspace(c) != 0; });
  name = core::upper(name);
  return name.starts_with("SIG") ? name : "SIG" + name;
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? text("SIG", name) : text("signal ", signal);
}

std::string signal_names(const std::vector<int>& signals) {
  std::vector<std::string> names;
  for (const int signal : signals) names.push_back(signal_name(signal));
  return join(names, ",");
}

std::optional<int> signal_of(const std::string& name) {
  for (int signal = 1; signal < SIGRTMIN; ++signal) {
    if (sigabbrev_np(signal) != nullptr && signal_name(signal) == in_full(name)) return signal;
  }
  return std::nullopt;
}

std::string problem_with_signal(const std::string& name) {
  const auto signal = signal_of(name);
  if (!signal) {
    const std::string guess = did_you_mean(in_full(name), known_names());
    return text("'", name, "' is no signal", guess.empty() ? "." : guess, " Expected a list like SIGTERM,SIGUSR1");
  }
  // The first two cannot be handled. The others report the state of the launcher itself and its children.
  for (const int not_handled : {SIGKILL, SIGSTOP, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGCHLD, SIGPIPE}) {
    if (*signal == not_handled) return text(signal_name(*signal), " cannot be handed on to the workers. Leave it out");
  }
  return "";
}

std::vector<int> signals_of(const std::string& names) {
  std::vector<int> signals;
  for (const std::string& word : core::split(names, ',')) {
    const std::string problem = problem_with_signal(word);
    if (!problem.empty()) throw UsageError({"launch"}, problem, ".");
    signals.push_back(*signal_of(word));
  }
  return signals;
}

}  // namespace hasten::launcher
