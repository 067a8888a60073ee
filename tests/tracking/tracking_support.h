// What tests of trackers share: a run that is set up without an Accelerator, and a tracker that keeps what it is given.
#pragma once

#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "hasten/core/env.h"
#include "hasten/tracking/follower/follower.h"
#include "hasten/tracking/run/trackers.h"
#include "support/folder.h"
#include "tracking/board/event_reader.h"

namespace hasten::tracking {

/// The environment of this process, so that programs are found, with further variables.
inline Environment environment_with(const std::map<std::string, std::string>& more = {}) {
  auto variables = Environment::current().variables();
  for (const char* name : {"MLFLOW_TRACKING_URI", "HASTEN_TRACKER_PYTHON"}) variables.erase(name);
  for (const auto& [name, value] : more) variables[name] = value;
  return Environment::of(variables);
}

inline TrackersSetup setup_in(const std::filesystem::path& folder, std::vector<LogWith> log_with) {
  TrackersSetup setup{.log_with = std::move(log_with),
                      .options = {},
                      .logging_dir = folder,
                      .run_key = "run",
                      .environment = environment_with()};
  setup.options.program = HASTEN_COMMAND;
  return setup;
}

/// The values of all event files in a folder, in the order of the files' names.
inline std::vector<EventValue> events_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  std::vector<EventValue> values;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(folder, failed)) {
    if (entry.path().string().find("tfevents") != std::string::npos) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const auto& file : files) read_events(file, [&](EventValue value) { values.push_back(std::move(value)); });
  return values;
}

inline std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return std::move(bytes).str();
}

/// Keeps one line a call.
class KeepingTracker : public Tracker {
 public:
  const TrackerTraits& traits() const noexcept override { return traits_; }
  void start(const RunInfo& run) override { keep("start " + run.project); }
  void store_init_configuration(const core::Value& config) override { keep("config " + config.to_json()); }
  void log(const Values& values, int64_t step, const core::Value& kwargs) override {
    if (fail_next > 0 && fail_next-- > 0) throw std::runtime_error("not now");
    std::string line = text("log ", step);
    for (const auto& [key, value] : flatten(values))
      line += value.kind() == Value::Kind::kString ? " " + key + "=" + value.as_string()
                                                   : text(' ', key, '=', value.as_number());
    keep(line + (kwargs.is_null() ? "" : " " + kwargs.to_json()));
  }
  bool log_images(const ImageFiles& images, int64_t step, const core::Value&) override {
    for (const auto& [key, files] : images)
      keep(text("images ", step, ' ', key, ' ', files.size(), ' ', std::filesystem::exists(files.front())));
    return true;
  }
  bool rewind(int64_t step) override { return keep(text("rewind ", step)), true; }
  bool note(const std::string& words) override { return keep("note " + words), true; }
  void finish(RunEnd end) override { keep(text("finish ", static_cast<int>(end))); }

  std::vector<std::string> lines() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }
  std::atomic<int> fail_next = 0;

 private:
  void keep(std::string line) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
  }
  const TrackerTraits traits_ = {"keeping"};
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

}  // namespace hasten::tracking
