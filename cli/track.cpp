// `hasten track`: follow (started by the training), status, recover, sync. The work is tracking's
// (tracking/board/commands.h).
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <iostream>

#include "commands.h"
#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/number.h"
#include "hasten/core/sentence.h"
#include "hasten/tracking/board/commands.h"
#include "help.h"
#include "options.h"

namespace hasten::cli {
namespace {

const HelpText kTrackHelp = {"hasten track status|recover|sync DIR [OPTIONS]",
                             "Shows how far the trackers of runs have come, completes runs whose process died, or "
                             "hands runs to a further tracker.",
                             "status lists each tracker with what it still lacks. recover hands over what is missing. "
                             "sync --to NAME replays runs into a "
                             "tracker, with the variables of its client. DIR is a run's folder or one above it."};

double number(const launcher::CommandLine& line, const char* name, double fallback) {
  return line.has(name) ? core::real_number(line.text(name)).value() : fallback;
}

void say_line(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

int follow(const launcher::CommandLine& line) {
  std::signal(SIGPIPE, SIG_IGN);  // the training may be gone when a message is to be sent
  close_range(3, ~0U, 0);         // nothing of the training's stays open
  return tracking::follow_until_end(line.rest.at(1), number(line, "drain_timeout", 30), Environment::current(),
                                    say_line);
}

std::string size_text(int64_t bytes) {
  return bytes < 1024 ? count_text(bytes, "byte") : bytes < 1 << 20 ? text(bytes >> 10, " KiB") : text(bytes >> 20,
                                                                                                       " MiB");
}

int show_status(const std::string& folder) {
  bool all = true;
  for (const auto& journal : tracking::find_journals(folder)) {
    const auto status = tracking::read_status(journal);
    std::cout << status.project << '/' << status.run_id << (status.rank > 0 ? text(" rank ", status.rank) : "") << ": "
              << (status.is_running    ? "running"
                  : status.end.empty() ? "ended without a word"
                                       : status.end)
              << '\n';
    for (const auto& [state, left] : status.sinks) {
      const bool has_all = state.done;
      all = all && has_all;
      std::cout << "  " << state.name << ": " << (has_all ? "has everything" : text(size_text(left), " to go"))
                << (state.parked          ? "; given up: "
                    : state.error.empty() ? ""
                                          : "; ")
                << state.error << '\n';
    }
    for (const auto& problem : status.problems) {
      std::cout << "  journal part " << problem.position.part << ", byte " << problem.position.offset << ": skipped, "
                << problem.reason << '\n';
    }
  }
  return all ? 0 : 3;
}

int complete_all(const launcher::CommandLine& line, const std::vector<tracking::SinkConfig>& to) {
  bool all = true;
  const double timeout_s = number(line, "timeout", 600);
  for (const auto& journal : tracking::find_journals(line.rest.at(1))) {
    // Another tracker gets the main process's record.
    if (!to.empty() && tracking::read_status(journal).rank != 0) continue;
    const bool done = tracking::complete(journal, to, timeout_s, Environment::current(), say_line);
    std::cout << journal.parent_path().string() << ": " << (done ? "complete" : "not complete; see hasten track status")
              << '\n';
    all = all && done;
  }
  std::cout.flush();
  return all ? 0 : 3;
}

core::Value options_of(const std::string& json) {
  try {
    core::Value options = core::Value::parse_json(json, "--options");
    if (options.is_map()) return options;
  } catch (const DataError& error) {
    throw UsageError(Origin{"track"}, inner_sentence(error.what()));
  }
  throw UsageError(Origin{"track"}, "--options is '", json,
                   "'; expected an object in JSON, such as {\"project\": \"p\"}.");
}

int sync(const launcher::CommandLine& line) {
  if (!line.has("to")) throw UsageError(Origin{"track"}, "sync without a tracker. Name one: --to wandb.");
  const std::string name = line.text("to");
  tracking::built_in().at(name);
  core::Value options;
  if (line.has("options")) options = options_of(line.text("options"));
  return complete_all(line, {{.name = name, .options = options, .tracker = {}}});
}

// Returns a sentence on words that are no action with its folder.
std::string words_of_wrong(const std::vector<std::string>& rest, const std::vector<std::string>& kinds) {
  if (rest.empty()) return "no action is given.";
  if (std::find(kinds.begin(), kinds.end(), rest.front()) != kinds.end()) {
    return text("'", rest.front(), "' has no folder.");
  }
  return text("unknown action '", rest.front(), "'", guess_end(rest.front(), kinds));
}

}  // namespace

int track(const std::vector<std::string>& words) {
  const auto line = read_options("track", track_options(), words, 2);
  if (line.help) return std::cout << help_of(kTrackHelp, track_options(), colours_wanted()), 0;
  const std::vector<std::string> kinds = {"status", "recover", "sync", "follow"};
  const std::string kind = line.rest.empty() ? "" : line.rest.front();
  if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end() || line.rest.size() != 2) {
    throw UsageError(Origin{"track"}, words_of_wrong(line.rest, kinds),
                     " Expected status, recover or sync, and a folder. See hasten track --help.");
  }
  refuse_options_of_others("track", line, kind,
                           {{"to", {"sync"}},
                            {"options", {"sync"}},
                            {"timeout", {"recover", "sync"}},
                            {"drain_timeout", {"follow"}}});
  int code = 0;
  if (kind == "follow") {
    code = follow(line);
  } else {
    code = kind == "status" ? show_status(line.rest[1]) : kind == "recover" ? complete_all(line, {}) : sync(line);
  }
  std::cout.flush();
  // Threads that hang in a client end with the process.
  _exit(code);
}

}  // namespace hasten::cli
