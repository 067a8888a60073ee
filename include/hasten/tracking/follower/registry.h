// Registry: which trackers there are under which names. A value, with no global table: a program adds its own to a copy
// and gives that to the Accelerator (AcceleratorOptions.tracking.registry).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "hasten/core/env.h"
#include "hasten/tracking/journal/tracker.h"

namespace hasten::tracking {

/// Accelerate's names, the journal alone, and CSV files.
enum class LoggerType {
  kAll,
  kAim,
  kTensorBoard,
  kWandb,
  kTrackio,
  kCometMl,
  kMlflow,
  kClearMl,
  kDvcLive,
  kSwanLab,
  kJournal,
  kCsv
};

/// Returns "tensorboard", "comet_ml" …
const char* name_of(LoggerType type);

/// An element of `log_with`: a name, a LoggerType, or a tracker of the program's own.
class LogWith {
 public:
  LogWith(const char* name) : what_(std::string(name)) {}
  LogWith(std::string name) : what_(std::move(name)) {}
  LogWith(LoggerType type) : what_(std::string(name_of(type))) {}
  LogWith(std::shared_ptr<Tracker> tracker) : what_(std::move(tracker)) {}
  template <class T>
    requires std::is_base_of_v<Tracker, T>
  LogWith(std::shared_ptr<T> tracker) : LogWith(std::shared_ptr<Tracker>(std::move(tracker))) {}

  /// Returns the tracker, or null if this is a name.
  std::shared_ptr<Tracker> tracker() const;
  std::string name() const;

 private:
  std::variant<std::string, std::shared_ptr<Tracker>> what_;
};

/// The argument of `make`: the options given to init_trackers for this tracker (a map or null), and the environment.
using TrackerFactory =
    std::function<std::unique_ptr<Tracker>(const core::Value& options, const Environment& environment)>;

struct RegistryEntry {
  TrackerTraits traits = {};
  TrackerFactory make = {};
  /// Names of the options that `make` reads; others are refused. Empty: any.
  std::vector<std::string> options = {};
  /// A Python module that shows the runs: the bridge's. `make` is empty then.
  std::string python_module = {};
  /// false: the tracker runs on a thread of the training process, since the command does not have it.
  bool is_built_in = false;
};

class Registry {
 public:
  /// Adds a tracker, which runs on a thread of this process. Replaces an entry of that name; overwritten() reports it.
  /// Throws: UsageError for an empty name or factory.
  void add(const std::string& name, TrackerTraits traits, TrackerFactory make, std::vector<std::string> options = {});
  /// As add, in full.
  void add(RegistryEntry entry);

  /// Returns the entry, or null.
  const RegistryEntry* find(const std::string& name) const noexcept;
  /// Returns the entry. Throws: UsageError with "did you mean" for an unknown name.
  const RegistryEntry& at(const std::string& name) const;
  std::vector<std::string> names() const;
  /// Returns names that were added twice.
  const std::vector<std::string>& overwritten() const noexcept { return overwritten_; }

 private:
  std::map<std::string, RegistryEntry> entries_;
  std::vector<std::string> overwritten_;
};

/// Returns the trackers of this library.
Registry built_in();

}  // namespace hasten::tracking
