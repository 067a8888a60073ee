// See active_run.h.
#include "tracking/run/active_run.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "hasten/core/text.h"
#include "tracking/journal/json.h"

namespace hasten::tracking {
namespace {

std::chrono::milliseconds in_milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
}

// Resident memory of this process in bytes.
int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace

double unix_time_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

ActiveRun::ActiveRun(const TrackingOptions& options, const std::filesystem::path& path, Logger logger)
    : logger_(std::move(logger)),
      interval_s_(options.metrics_interval_s),
      per_rank_(options.per_rank_metrics),
      journal(std::make_shared<Journal>(path, options.journal)),
      queue(journal),
      images(
          path.parent_path(), options.image_memory_bytes, [this](std::string line) { queue.push(std::move(line)); },
          [this](const std::string& line) { warn(line); }) {}

ActiveRun::~ActiveRun() {
  stop();
  images.drain();
  queue.drain(/*all=*/true);
}

void ActiveRun::look_after() {
  thread_ = std::thread([this] { run(); });
}

void ActiveRun::stop() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ActiveRun::warn(const std::string& line) {
  logger_.warning(line, {.main_process_only = false});
  if (!ended) write_note(line, "warning");
}

void ActiveRun::write_note(const std::string& words, const std::string& level) {
  std::string line;
  append_json(line, core::Value::map({{"op", "note"}, {"t", unix_time_s()}, {"level", level}, {"text", words}}));
  queue.push(line + "\n");
}

void ActiveRun::add_metrics(std::function<Values()> read) {
  const std::lock_guard lock(mutex_);
  sources_.push_back(std::move(read));
}

void ActiveRun::run() {
  auto metrics_at = std::chrono::steady_clock::now() + in_milliseconds(interval_s_);
  std::unique_lock lock(mutex_);
  while (!ends_) {
    lock.unlock();
    queue.drain();
    if (process) process->look();
    warn_of_lost_lines();
    if (per_rank_ && std::chrono::steady_clock::now() >= metrics_at) {
      write_metrics();
      metrics_at += in_milliseconds(interval_s_);
    }
    const auto pause = queue.empty() ? std::min(in_milliseconds(interval_s_), std::chrono::milliseconds(100))
                                     : std::chrono::milliseconds(2);
    lock.lock();
    if (!ends_) changed_.wait_for(lock, pause);
  }
}

void ActiveRun::warn_of_lost_lines() {
  if (said_lost_ || journal->num_lost() == 0) return;
  said_lost_ = true;
  logger_.warning(text("the journal ", journal->path(), " cannot be written: ", journal->error(),
                       ". Lines are dropped until it can; training goes on. Make room."),
                  {.main_process_only = false});
}

void ActiveRun::write_metrics() {
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - counted_at_).count();
  const auto steps = static_cast<double>(num_steps.exchange(0)), samples = static_cast<double>(num_samples.exchange(0));
  const double waited_s = static_cast<double>(wait_ns.exchange(0)) * 1e-9;
  counted_at_ = now;
  core::Value values = core::Value::map({{"memory_bytes", resident_bytes()}});
  if (steps > 0) {
    values["steps_per_s"] = steps / seconds;
    values["step_ms"] = seconds * 1e3 / steps;
    values["data_wait_ms"] = waited_s * 1e3 / steps;
    if (samples > 0) values["samples_per_s"] = samples / seconds;
  }
  std::vector<std::function<Values()>> sources;
  {
    const std::lock_guard lock(mutex_);
    sources = sources_;
  }
  for (const auto& source : sources) {
    for (const auto& [key, value] : source()) {
      if (value.is_number()) values[key] = value.as_number();
    }
  }
  std::string line;
  append_json(line, core::Value::map({{"op", "metrics"}, {"t", unix_time_s()}, {"values", values}}));
  queue.push(line + "\n");
}

}  // namespace hasten::tracking
