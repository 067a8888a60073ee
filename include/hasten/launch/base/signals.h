// Signals by name: "SIGTERM" as users write them and reports show them.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace hasten::launcher {

/// "SIGTERM", or "signal 40" for one that has no name.
std::string signal_name(int signal);

/// "SIGTERM,SIGUSR1", the other way round than signals_of.
std::string signal_names(const std::vector<int>& signals);

/// Returns the signal of this name ("SIGUSR1", "usr1"); nothing if there is none.
std::optional<int> signal_of(const std::string& name);

/// Why the signal of this name cannot be passed on to workers, "" if it can.
std::string problem_with_signal(const std::string& name);

/// Returns the signals of a list like "SIGTERM,SIGUSR1", in any case, with or without SIG. Throws: UsageError for a
/// name that is none, or a signal that cannot be handled.
std::vector<int> signals_of(const std::string& names);

}  // namespace hasten::launcher
