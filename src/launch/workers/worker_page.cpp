// See worker_page.h.
#include "launch/workers/worker_page.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <map>

#include "hasten/core/text.h"
#include "hasten/flight/page_notes.h"
#include "hasten/flight/pages.h"
#include "hasten/flight/recorder.h"
#include "hasten/flight/report.h"

namespace hasten::launcher {

Environment WorkerPage::hand_over(const WorkerPlace& place, const Environment& environment) const {
  if (!environment.flag("HASTEN_WATCH").value_or(true)) return environment;
  const int restarts = static_cast<int>(environment.integer("TORCHELASTIC_RESTART_COUNT").value_or(0));
  const int port = static_cast<int>(environment.integer("MASTER_PORT").value_or(0));
  const std::string run_id = environment.text("TORCHELASTIC_RUN_ID").value_or("none");
  // As process/run_watch.h names a run of one.
  const std::string run = place.world_size == 1
                              ? flight::run_name("process", getpid(), restarts)
                              : flight::run_name(environment.text("MASTER_ADDR").value_or(""), port, restarts);
  flight::announce(file_, {.run = run,
                           .run_id = run_id == "none" ? "" : run_id,
                           .rank = place.rank,
                           .world_size = place.world_size,
                           .local_rank = place.local_rank,
                           .local_world_size = place.local_world_size,
                           .node_rank = place.node_rank,
                           .restart_count = restarts});
  std::map<std::string, std::string> variables = environment.variables();
  fcntl(file_.descriptor(), F_SETFD, 0);
  variables["HASTEN_FLIGHT_FD"] = text(file_.descriptor());
  return Environment::of(std::move(variables));
}

std::string WorkerPage::where() const {
  try {
    const flight::RankState rank = flight::PageView(file_.descriptor()).read();
    if (rank.state == flight::PageState::kAnnounced || (rank.calls.empty() && rank.step == 0)) return "";
    // The end of its process is in the report already.
    flight::RankState alive = rank;
    alive.life = flight::Life::kRunning;
    return text(rank.step > 0 ? text("step ", rank.step + 1, ", ") : "", flight::place_of(alive));
  } catch (const std::exception&) {
    return "";  // it was not announced
  }
}

bool WorkerPage::ended_by_watch() const {
  try {
    return flight::is_ended_by_watch(flight::PageView(file_.descriptor()).page());
  } catch (const std::exception&) {
    return false;  // it was not announced
  }
}

std::optional<std::chrono::steady_clock::time_point> WorkerPage::left_at() const {
  try {
    const flight::PageView page(file_.descriptor());
    if (page.state() != flight::PageState::kLeft) return std::nullopt;
    const std::chrono::duration<double> ago(page.progress_s());
    return std::chrono::steady_clock::now() - std::chrono::duration_cast<std::chrono::steady_clock::duration>(ago);
  } catch (const std::exception&) {
    return std::nullopt;  // it was not announced
  }
}

int64_t WorkerPage::step() const {
  try {
    return std::max<int64_t>(flight::PageView(file_.descriptor()).read().step, 0);
  } catch (const std::exception&) {
    return 0;  // it was not announced
  }
}

std::vector<WorkerPage> make_worker_pages(int num_workers, const Environment& environment) {
  std::vector<WorkerPage> pages;
  try {
    if (!environment.flag("HASTEN_WATCH").value_or(true)) return pages;
    for (int i = 0; i < num_workers; ++i) {
      pages.emplace_back(MemoryFile::create(flight::kPageLabel, flight::kPageBytes));
    }
  } catch (const std::exception&) {
    pages.clear();  // the ranks make their own, and say what is wrong
  }
  return pages;
}

}  // namespace hasten::launcher
