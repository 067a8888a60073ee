// EventReader: TensorBoard files of any program, record by record; also damaged and hostile ones.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "hasten/tracking/journal/value.h"

namespace hasten::tracking {

/// A value of an event.
struct EventValue {
  enum class Kind { kScalar, kText, kImage, kConfig, kRestart };
  Kind kind = Kind::kScalar;
  std::string tag = {};
  int64_t step = 0;
  double time_s = 0;
  double number = 0;        ///< of kScalar
  std::string bytes = {};   ///< text, or an image's PNG
  core::Value config = {};  ///< hyper-parameters
};

struct EventFileReport {
  int64_t num_records = 0;
  /// Why reading ended before the end of the file; "" if it did not.
  std::string problem = {};
};

/// Hands each value of the file to `take`. A torn last record ends the file without a problem.
/// Throws: DataError if the file cannot be read.
EventFileReport read_events(const std::filesystem::path& path, const std::function<void(EventValue)>& take);

}  // namespace hasten::tracking
