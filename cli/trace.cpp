// `hasten trace`: a profile of the next steps of all ranks, in one file.
#include "trace.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>
#include <utility>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/file.h"
#include "hasten/core/number.h"
#include "hasten/flight/report.h"
#include "hasten/flight/trace_merge.h"
#include "help.h"
#include "options.h"
#include "runs.h"

namespace hasten::cli {
namespace {

namespace fs = std::filesystem;
using flight::WishState;

const HelpText kTraceHelp = {
    "hasten trace [RUN] [OPTIONS]",
    "Writes a profile of the next steps of a run's ranks on this machine into one file.",
    "The file is for Perfetto (ui.perfetto.dev) and chrome://tracing. Each rank's processes begin "
    "with its number. The ranks look for the wish behind a step of an Accelerator's optimizer."};

constexpr auto kLook = std::chrono::milliseconds(50);

/// The ranks' own files, which are gone with it.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "hasten-trace-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      throw DataError({"trace"}, name, "no folder can be made in ", fs::temp_directory_path(), "; set TMPDIR.");
    }
    path_ = name;
  }
  ~Folder() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// Those that can answer: ranks of hasten's that go on.
std::vector<const flight::PageView*> pages_to_ask(const Run& run) {
  std::vector<const flight::PageView*> pages;
  for (const flight::PageView& page : run.pages) {
    const flight::RankState rank = page.read();
    const bool answers = rank.life == flight::Life::kRunning && rank.state == flight::PageState::kRunning;
    if (answers) pages.push_back(&page);
    if (answers && page.wish_answer().state == WishState::kRecording) {
      throw UsageError({"trace"}, "rank ", rank.rank, " of ", run.name,
                       " records another profile. Try again when it has ended.");
    }
  }
  if (pages.empty()) throw UsageError({"trace"}, "no rank of ", run.name, " runs with hasten inside. See hasten ps.");
  return pages;
}

int rank_of(const flight::PageView& page) {
  return page.page().head.rank;
}

bool has_ended(const flight::PageView& page) {
  const flight::RankState rank = page.read();
  return rank.life == flight::Life::kEnded || rank.state == flight::PageState::kLeft;
}

bool is_done(const flight::PageView& page) {
  const WishState state = page.wish_answer().state;
  return state == WishState::kWritten || state == WishState::kRefused;
}

/// Waits until all have answered. Returns what is wrong, "" if nothing.
std::string wait_for(const std::vector<const flight::PageView*>& pages, std::chrono::seconds limit) {
  int64_t steps = -1;
  auto deadline = std::chrono::steady_clock::now() + limit;
  while (true) {
    int64_t now = 0;
    bool all = true;
    for (const flight::PageView* page : pages) {
      now += page->step();
      if (is_done(*page)) continue;
      all = false;
      if (has_ended(*page)) return text("rank ", rank_of(*page), " has ended before its profile.");
    }
    if (all) return "";
    if (std::exchange(steps, now) != now) deadline = std::chrono::steady_clock::now() + limit;
    if (std::chrono::steady_clock::now() > deadline) {
      return text("no rank has made a step for ", limit.count(),
                  " s. Steps are those of an Accelerator's prepared optimizer; hasten stacks shows where the ranks "
                  "stand, --timeout waits longer.");
    }
    std::this_thread::sleep_for(kLook);
  }
}

int64_t number_of(const launcher::CommandLine& line, const std::string& name, int64_t fallback) {
  return core::whole_number<int64_t>(line.text(name)).value_or(fallback);
}

std::string contents(const fs::path& path) {
  auto bytes = core::read_file(path);
  if (!bytes) throw DataError({"trace"}, path, path, " cannot be read. Look at its folder and at ulimit -n.");
  return *std::move(bytes);
}

void merge(const std::vector<const flight::PageView*>& pages, const std::string& output) {
  std::ofstream file(output, std::ios::binary);
  flight::TraceMerger merger(file);
  int64_t events = 0;
  for (const flight::PageView* page : pages) {
    const std::string path = page->wish_answer().words;
    events += merger.add(rank_of(*page), contents(path), path);
  }
  merger.end();
  file.close();
  if (!file) throw DataError({"trace"}, output, output, " cannot be written. Look at its folder and its disk.");
  std::cout << text(output, ": ", count_text(events, "event"), " of ", count_text(pages.size(), "rank"), '\n');
}

}  // namespace

const std::vector<launcher::OptionGroup>& trace_options() {
  using enum launcher::OptionKind;
  static const std::vector<launcher::OptionGroup> groups = {{"Options",
                                                             "",
                                                             {{.name = "steps",
                                                               .kind = kInteger,
                                                               .peers = launcher::kHasten,
                                                               .fallback = "5",
                                                               .least = 1,
                                                               .most = 100000,
                                                               .help = "How many steps of each rank"},
                                                              {.name = "output",
                                                               .letter = 'o',
                                                               .peers = launcher::kHasten,
                                                               .fallback = "trace.json",
                                                               .value = "FILE",
                                                               .help = "Where the trace goes"},
                                                              {.name = "record_shapes",
                                                               .kind = kSwitch,
                                                               .peers = launcher::kHasten,
                                                               .help = "With the shapes of operators' inputs"},
                                                              {.name = "timeout",
                                                               .kind = kInteger,
                                                               .peers = launcher::kHasten,
                                                               .fallback = "60",
                                                               .least = 1,
                                                               .most = 1 << 20,
                                                               .value = "SECONDS",
                                                               .help = "How long no rank may make a step"}}}};
  return groups;
}

int trace(const std::vector<std::string>& words) {
  const auto line = read_options("trace", trace_options(), run_behind_options(words), 1);
  if (line.help) return std::cout << help_of(kTraceHelp, trace_options(), colours_wanted()), 0;
  std::vector<Run> runs = find_runs();
  const Run& run = choose_run(runs, line.rest.empty() ? std::string_view() : line.rest[0]);
  const auto pages = pages_to_ask(run);
  const Folder folder;
  const int64_t steps = number_of(line, "steps", 5);
  const std::chrono::seconds limit(number_of(line, "timeout", 60));
  for (const flight::PageView* page : pages) {
    page->wish({.steps = steps, .with_shapes = line.has("record_shapes"), .folder = folder.path().string()});
  }
  if (const std::string wrong = wait_for(pages, limit); !wrong.empty()) throw UsageError({"trace"}, wrong);
  for (const flight::PageView* page : pages) {
    const auto answer = page->wish_answer();
    if (answer.state == WishState::kRefused) throw UsageError({"trace"}, "rank ", rank_of(*page), ": ", answer.words);
  }
  merge(pages, line.has("output") ? line.text("output") : "trace.json");
  return 0;
}

}  // namespace hasten::cli
