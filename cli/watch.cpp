// `hasten watch`: a line a rank, each second.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <thread>

#include "commands.h"
#include "hasten/core/text.h"
#include "hasten/flight/report.h"
#include "hasten/flight/stragglers.h"
#include "help.h"
#include "options.h"
#include "runs.h"

namespace hasten::cli {
namespace {

const HelpText kWatchHelp = {
    "hasten watch [RUN] [OPTIONS]", "Shows what the ranks of a run on this machine do, each second until it ends.",
    "own is the time of a step outside of collectives, wait the share inside. The rank that waits "
    "least is the one that "
    "the others wait for."};

constexpr auto kInterval = std::chrono::seconds(1);

std::string digits(const char* format, double value) {
  char words[32];
  std::snprintf(words, sizeof words, format, value);
  return words;
}

std::vector<std::string> row_of(const flight::RankState& now, const flight::RankState& before, double seconds) {
  const auto steps = static_cast<double>(now.step - before.step);
  const double waited = std::clamp(now.waited_s - before.waited_s, 0.0, seconds);
  const double samples = static_cast<double>(now.samples - before.samples) / seconds;
  return {text(now.rank),
          text(now.step),
          steps > 0 ? short_number(samples) : "-",
          steps > 0 ? digits("%.0f ms", 1e3 * (seconds - waited) / steps) : "-",
          digits("%.0f %%", 100 * waited / seconds),
          now.loss ? digits("%.4g", *now.loss) : "-",
          digits("%.1f GB", static_cast<double>(flight::resident_bytes(now.pid)) / 1e9),
          now.life == flight::Life::kRunning ? flight::place_of(now) : flight::process_word(now)};
}

std::string table(const flight::Snapshot& now, const flight::Snapshot& before, double seconds) {
  std::vector<std::vector<std::string>> rows = {
      {"rank", "step", "samples/s", "own", "wait", "loss", "memory", "where"}};
  for (size_t i = 0; i < now.ranks.size(); ++i) rows.push_back(row_of(now.ranks[i], before.ranks[i], seconds));
  return table_of(rows);
}

bool has_ended(const flight::Snapshot& snapshot) {
  return std::all_of(snapshot.ranks.begin(), snapshot.ranks.end(),
                     [](const auto& rank) { return rank.life == flight::Life::kEnded; });
}

}  // namespace

int watch(const std::vector<std::string>& words) {
  const auto line = read_options("watch", watch_options(), run_behind_options(words), 1);
  if (line.help) return std::cout << help_of(kWatchHelp, watch_options(), colours_wanted()), 0;
  std::vector<Run> runs = find_runs();
  const Run& run = choose_run(runs, line.rest.empty() ? std::string_view() : line.rest[0]);
  flight::Snapshot before = run.read();
  flight::StragglerWatch stragglers;
  const bool is_terminal = isatty(STDOUT_FILENO) == 1 && !line.has("once");
  while (true) {
    std::this_thread::sleep_for(kInterval);
    flight::Snapshot now = run.read();
    if (is_terminal) std::cout << "\033[H\033[J";
    std::cout << table(now, before, std::chrono::duration<double>(kInterval).count()) << std::flush;
    stragglers.add(now);
    if (const auto late = stragglers.find()) std::cout << flight::describe(*late) << std::endl;
    if (line.has("once") || has_ended(now) || !std::cout) return 0;
    before = std::move(now);
  }
}

}  // namespace hasten::cli
