// PinnedRows: a fetch whose rows go to a device gathers them into memory that the device copies from.
//
// Rows in plain memory would be copied a second time on the host, into pinned memory
// (src/data/loader/detail/staging.h).
#pragma once

#include <utility>

namespace hasten::data {

/// While it exists, gather_rows (hasten/data/dataset/rows.h) makes pinned rows on the thread that made it.
class PinnedRows {
 public:
  explicit PinnedRows(bool pins) : before_(std::exchange(pins_, pins)) {}
  ~PinnedRows() { pins_ = before_; }
  PinnedRows(const PinnedRows&) = delete;
  PinnedRows& operator=(const PinnedRows&) = delete;

  static bool are_made() noexcept { return pins_; }

 private:
  static inline thread_local bool pins_ = false;
  bool before_;
};

}  // namespace hasten::data
