// Kineto: libtorch's profiler in the order in which it must be called.
//
// Enabling it without preparing, and ending the process while it is on, ends in a signal. A trace can be saved once.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "hasten/watch/profile_options.h"
#include "hasten/watch/profile_table.h"

namespace hasten::watch {

/// Returns the activities under libtorch's names; those that this libtorch has where none are given. Throws: UsageError
/// for one that is unknown or that is not there.
std::vector<std::string> choose_activities(const std::vector<std::string>& names);

class Kineto {
 public:
  /// `options` with its activities chosen.
  explicit Kineto(const ProfileOptions& options);
  /// Ends what is on.
  ~Kineto();
  Kineto(const Kineto&) = delete;
  Kineto& operator=(const Kineto&) = delete;

  /// Gets ready to record. Throws: UsageError if another profiler is on.
  void prepare();
  /// Records from now on. Throws: as prepare.
  void start();
  bool is_on() const noexcept;
  /// Ends recording, with the events in the order of their begins.
  std::vector<ProfileEvent> stop();
  /// Throws: DataError if the file cannot be written.
  void save(const std::string& path);
  void add_metadata(const std::string& key, const std::string& json);
  void toggle(bool enabled);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hasten::watch
