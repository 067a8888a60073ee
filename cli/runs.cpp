// See runs.h.
#include "runs.h"

#include <algorithm>
#include <iostream>
#include <map>

#include "hasten/core/error.h"
#include "hasten/core/number.h"
#include "hasten/core/sentence.h"

namespace hasten::cli {
namespace {

std::string width_padded(std::string word, size_t width) {
  word.resize(std::max(width, word.size()), ' ');
  return word;
}

}  // namespace

flight::Snapshot Run::read() const {
  flight::Snapshot snapshot;
  for (const flight::PageView& page : pages) {
    snapshot.ranks.push_back(page.read());
    snapshot.world_size = snapshot.ranks.back().world_size;
  }
  return snapshot;
}

std::vector<Run> find_runs() {
  flight::FoundPages found = flight::find_pages();
  for (const std::string& problem : found.problems) std::cerr << "hasten: " << problem << "\n";
  std::map<std::string, Run> by_name;
  for (flight::PageView& page : found.pages) by_name[page.read().run].pages.push_back(std::move(page));
  std::vector<Run> runs;
  for (auto& [_, run] : by_name) {
    const flight::Snapshot snapshot = run.read();
    const bool ended = std::all_of(snapshot.ranks.begin(), snapshot.ranks.end(),
                                   [](const auto& rank) { return rank.life == flight::Life::kEnded; });
    if (ended) continue;
    const flight::RankState& first = snapshot.ranks[0];
    run.name = first.run_id.empty() ? std::to_string(first.pid) : first.run_id;
    run.program = first.program;
    runs.push_back(std::move(run));
  }
  return runs;
}

Run& choose_run(std::vector<Run>& runs, std::string_view word) {
  std::vector<Run*> meant;
  std::vector<std::string> names;
  for (Run& run : runs) {
    const bool has_process = std::any_of(run.pages.begin(), run.pages.end(), [&](const flight::PageView& page) {
      return std::to_string(page.pid()) == word;
    });
    if (word.empty() || word == run.name || word == run.program || has_process) meant.push_back(&run);
    names.push_back(run.name);
    names.push_back(run.program);
  }
  if (meant.size() == 1) return *meant[0];
  if (runs.empty()) {
    throw UsageError({"watch"},
                     "no run of yours is on this machine. A program of one process has a page under hasten launch "
                     "alone, and none with HASTEN_WATCH=off.");
  }
  std::vector<std::string> list;
  for (const Run* run : meant) list.push_back(text(run->name, " (", run->program, ')'));
  if (!meant.empty()) {
    throw UsageError({"watch"}, word.empty() ? "no run is named" : text("'", word, "' means several runs"),
                     "; there are ", join(list), ". Name one.");
  }
  throw UsageError({"watch"}, "there is no run '", word, "'", guess_end(word, names), " See hasten ps.");
}

std::vector<std::string> run_behind_options(std::vector<std::string> words) {
  if (!words.empty() && !words.front().starts_with("-")) std::rotate(words.begin(), words.begin() + 1, words.end());
  return words;
}

std::string short_number(double value) {
  if (value >= 1e6) return core::fixed_text(value / 1e6, 1) + "M";
  if (value >= 1e4) return core::fixed_text(value / 1e3, 1) + "k";
  return core::fixed_text(value, value < 10 && value != 0 ? 1 : 0);
}

std::string table_of(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string lines;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      lines += i + 1 == row.size() ? row[i] : width_padded(row[i], widths[i]) + "  ";
    }
    lines += '\n';
  }
  return lines;
}

}  // namespace hasten::cli
