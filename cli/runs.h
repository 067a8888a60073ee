// Runs of this user on this machine, by the pages of their ranks (flight/pages.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hasten/flight/pages.h"
#include "hasten/flight/snapshot.h"

namespace hasten::cli {

struct Run {
  std::string name;     ///< by which it is chosen: its run id, else the process of its first rank
  std::string program;  ///< of its first rank
  std::vector<flight::PageView> pages;

  flight::Snapshot read() const;
};

/// Returns the runs whose ranks have not all ended. Problems of single pages go to standard error.
std::vector<Run> find_runs();

/// Returns the run that a word means: a run id, the process id of a rank, or a program. An empty word means the only
/// run. Throws: UsageError with the runs there are if it means none or several.
Run& choose_run(std::vector<Run>& runs, std::string_view word);

/// Returns the words with a leading RUN behind the options, where read_options looks for it.
std::vector<std::string> run_behind_options(std::vector<std::string> words);

/// "1.5k", "23": four characters or so.
std::string short_number(double value);

/// Returns a table whose columns are as wide as their longest cell. The first row is the heading.
std::string table_of(const std::vector<std::vector<std::string>>& rows);

}  // namespace hasten::cli
