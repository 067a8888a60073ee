// The table of trackers, and what a tracker does by default; see registry.h and tracker.h.
#include "hasten/tracking/follower/registry.h"

#include <algorithm>

#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "tracking/sinks/csv.h"
#include "tracking/sinks/mlflow.h"
#include "tracking/sinks/tensorboard.h"

namespace hasten::tracking {

bool Tracker::log_images(const ImageFiles&, int64_t, const core::Value&) {
  return false;
}
bool Tracker::log_table(const std::string&, const Table&, int64_t, const core::Value&) {
  return false;
}
bool Tracker::log_histogram(const std::string&, const Histogram&, int64_t) {
  return false;
}
bool Tracker::log_artifact(const std::filesystem::path&, const std::string&) {
  return false;
}
bool Tracker::log_embedding(const std::string&, const EmbeddingFiles&, int64_t) {
  return false;
}
bool Tracker::log_graph(const std::vector<GraphNode>&) {
  return false;
}
bool Tracker::call(const std::string&, const core::Value&, const core::Value&) {
  return false;
}

const char* name_of(LoggerType type) {
  switch (type) {
    case LoggerType::kAll:
      return "all";
    case LoggerType::kAim:
      return "aim";
    case LoggerType::kTensorBoard:
      return "tensorboard";
    case LoggerType::kWandb:
      return "wandb";
    case LoggerType::kTrackio:
      return "trackio";
    case LoggerType::kCometMl:
      return "comet_ml";
    case LoggerType::kMlflow:
      return "mlflow";
    case LoggerType::kClearMl:
      return "clearml";
    case LoggerType::kDvcLive:
      return "dvclive";
    case LoggerType::kSwanLab:
      return "swanlab";
    case LoggerType::kJournal:
      return "journal";
    case LoggerType::kCsv:
      return "csv";
  }
  return "";
}

std::shared_ptr<Tracker> LogWith::tracker() const {
  const auto* tracker = std::get_if<std::shared_ptr<Tracker>>(&what_);
  return tracker != nullptr ? *tracker : nullptr;
}

std::string LogWith::name() const {
  const auto own = tracker();
  return own ? own->traits().name : std::get<std::string>(what_);
}

void Registry::add(const std::string& name, TrackerTraits traits, TrackerFactory make,
                   std::vector<std::string> options) {
  RegistryEntry entry;
  entry.traits = std::move(traits);
  entry.traits.name = name;
  entry.make = std::move(make);
  entry.options = std::move(options);
  add(std::move(entry));
}

void Registry::add(RegistryEntry entry) {
  const std::string name = entry.traits.name;
  if (name.empty() || (!entry.make && entry.python_module.empty() && !entry.is_built_in)) {
    throw UsageError(Origin{"tracking"}, "a tracker '", name, "' without ", name.empty() ? "a name" : "a factory",
                     "; expected both. Give them to Registry::add.");
  }
  if (!entries_.insert_or_assign(name, std::move(entry)).second) overwritten_.push_back(name);
}

const RegistryEntry* Registry::find(const std::string& name) const noexcept {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

const RegistryEntry& Registry::at(const std::string& name) const {
  if (const auto* entry = find(name)) return *entry;
  auto known = names();
  known.push_back("all");
  throw UsageError(Origin{"tracking"}, "unknown tracker '", name, "'", guess_end(name, known),
                   " Known are: ", join(known), ".");
}

std::vector<std::string> Registry::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

Registry built_in() {
  Registry registry;
  const auto add = [&](const char* name, bool needs_directory, const char* module, TrackerFactory make,
                       std::vector<std::string> options) {
    RegistryEntry entry;
    entry.traits.name = name;
    entry.traits.requires_logging_directory = needs_directory;
    entry.make = std::move(make);
    entry.options = std::move(options);
    entry.python_module = module;
    entry.is_built_in = true;
    registry.add(std::move(entry));
  };
  add("journal", false, "", {}, {});
  add("tensorboard", true, "", make_tensorboard, tensorboard_options());
  add("csv", true, "", make_csv, csv_options());
  add("mlflow", false, "mlflow", make_mlflow, mlflow_options());
  add("aim", true, "aim", {}, {});
  for (const char* name : {"wandb", "comet_ml", "clearml", "dvclive", "swanlab", "trackio"})
    add(name, false, name, {}, {});
  return registry;
}

}  // namespace hasten::tracking
