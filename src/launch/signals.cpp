// See signals.h.
#include "hasten/launch/signals.h"

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstring>
#include <sstream>

#include "hasten/core/error.h"

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
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
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

std::vector<int> signals_of(const std::string& names) {
  std::vector<int> signals;
  std::istringstream words(names);
  for (std::string word; std::getline(words, word, ',');) {
    const std::string name = in_full(word);
    const auto signal = signal_of(word);
    if (!signal) {
      const std::string guess = did_you_mean(name, known_names());
      throw UsageError({"launch"}, "'", word, "' is no signal", guess.empty() ? "." : guess,
                       " Expected a list like SIGTERM,SIGUSR1.");
    }
    // The first two nobody can, the others say what happened to the launcher itself and its children.
    for (const int not_handled :
         {SIGKILL, SIGSTOP, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGCHLD, SIGPIPE}) {
      if (*signal == not_handled) {
        throw UsageError({"launch"}, name, " cannot be handed on to the workers. Leave it out.");
      }
    }
    signals.push_back(*signal);
  }
  return signals;
}

}  // namespace hasten::launcher
