// `hasten ps`: the runs of this user on this machine, a line each.
#include <iostream>

#include "commands.h"
#include "hasten/core/text.h"
#include "hasten/flight/report.h"
#include "help.h"
#include "options.h"
#include "runs.h"

namespace hasten::cli {
namespace {

const HelpText kPsHelp = {
    "hasten ps", "Lists the runs of this user on this machine.",
    "RUN is the run's id, or the process of its first rank. hasten watch, stacks and trace take it, a "
    "process of the run, or the program's name."};

double samples_per_second(const flight::Snapshot& snapshot) {
  const double step = flight::median_step_s(snapshot);
  double samples = 0;
  for (const flight::RankState& rank : snapshot.ranks) {
    if (rank.step > 0) samples += static_cast<double>(rank.samples) / static_cast<double>(rank.step);
  }
  return step > 0 ? samples / step : 0;
}

}  // namespace

int ps(const std::vector<std::string>& words) {
  const auto line = read_options("ps", no_options(), words);
  if (line.help) return std::cout << help_of(kPsHelp, no_options(), colours_wanted()), 0;
  std::vector<std::vector<std::string>> rows = {{"RUN", "PROGRAM", "RANKS", "STEP", "SAMPLES/S", "STATE"}};
  for (const Run& run : find_runs()) {
    const flight::Snapshot snapshot = run.read();
    const double speed = samples_per_second(snapshot);
    const bool is_whole = static_cast<int>(snapshot.ranks.size()) == snapshot.world_size;
    rows.push_back({run.name, run.program,
                    is_whole ? text(snapshot.world_size) : text(snapshot.ranks.size(), " of ", snapshot.world_size),
                    snapshot.ranks[0].step > 0 ? text(snapshot.ranks[0].step) : "-",
                    speed > 0 ? short_number(speed) : "-", flight::run_state(snapshot)});
  }
  std::cout << table_of(rows) << std::flush;
  return 0;
}

}  // namespace hasten::cli
