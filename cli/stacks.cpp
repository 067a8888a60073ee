// `hasten stacks`: where the threads of the ranks stand now.
#include <algorithm>
#include <iostream>

#include "commands.h"
#include "hasten/core/error.h"
#include "hasten/flight/report.h"
#include "hasten/flight/symbols.h"
#include "help.h"
#include "options.h"
#include "runs.h"

namespace hasten::cli {
namespace {

const HelpText kStacksHelp = {
    "hasten stacks [RUN] [OPTIONS]", "Prints where the threads of a run's ranks on this machine stand now.",
    "~ marks functions that were found on the stack without unwinding. For Python workers the command "
    "of py-spy is printed."};

constexpr double kAnswerS = 5;
constexpr size_t kMostFrames = 12;

void print_threads(const flight::PageView& page, const flight::RankState& rank) {
  const flight::Facts facts = page.facts();
  for (const flight::StackState& stack : page.stacks()) {
    const auto known = std::find_if(facts.threads.begin(), facts.threads.end(),
                                    [&](const auto& thread) { return thread.thread == stack.thread; });
    std::string name = stack.thread == rank.pid ? "main" : text("thread ", stack.thread);
    std::string doing;
    if (known != facts.threads.end()) {
      if (stack.thread != rank.pid) name += text(" (", known->name, ')');
      doing = known->doing.empty() ? (known->state == 'R' ? "computes" : "sleeps") : known->doing;
    }
    std::cout << "  " << name << ": " << doing << "\n    " << flight::stack_text(rank.pid, stack, kMostFrames) << "\n";
  }
}

void print_rank(const flight::PageView& page) {
  const flight::RankState rank = page.read();
  std::cout << "rank " << rank.rank << " (pid " << rank.pid << "): ";
  if (rank.state == flight::PageState::kAnnounced) {
    std::cout << "no hasten inside; py-spy dump --pid " << rank.pid << " shows a Python program\n";
  } else if (rank.life != flight::Life::kRunning) {
    std::cout << flight::why(rank) << "\n";
  } else if (!page.has_answered()) {
    std::cout << flight::place_of(rank) << "; its watch thread does not answer\n";
  } else {
    std::cout << flight::place_of(rank) << "\n";
    print_threads(page, rank);
  }
}

}  // namespace

int stacks(const std::vector<std::string>& words) {
  const auto line = read_options("stacks", stacks_options(), run_behind_options(words), 1);
  if (line.help) return std::cout << help_of(kStacksHelp, stacks_options(), colours_wanted()), 0;
  std::vector<Run> runs = find_runs();
  const Run& run = choose_run(runs, line.rest.empty() ? std::string_view() : line.rest[0]);
  std::vector<const flight::PageView*> chosen;
  for (const flight::PageView& page : run.pages) {
    if (!line.has("rank") || line.text("rank") == text(page.page().head.rank)) chosen.push_back(&page);
  }
  if (chosen.empty()) {
    throw UsageError({"stacks"}, "run ", run.name, " has no rank ", line.text("rank"), " on this machine.");
  }
  flight::ask_all(chosen, kAnswerS);
  for (const flight::PageView* page : chosen) print_rank(*page);
  std::cout << std::flush;
  return 0;
}

}  // namespace hasten::cli
