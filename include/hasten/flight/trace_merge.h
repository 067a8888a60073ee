// TraceMerger: the traces of all ranks of a run as one, for Perfetto and chrome://tracing.
//
// Each rank's trace has processes, flows and numbers of its own that are equal to other ranks'. They get numbers of
// their own here, and names that begin with the rank. Works on the text of libtorch's traces, an event at a time.
#pragma once

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <string_view>

namespace hasten::flight {

class TraceMerger {
 public:
  /// Writes to `out`, which must outlive it.
  explicit TraceMerger(std::ostream& out) : out_(out) {}

  /// Adds a rank's trace. Returns the number of its events. Times are made to count from the first trace's base.
  /// Throws: DataError, naming `name`, for a text without events or that ends inside of one.
  int64_t add(int rank, std::string_view trace, const std::string& name);
  /// Ends the file.
  void end();

 private:
  std::string renumbered(int rank, std::string_view event);
  std::string process_of(int rank, std::string_view process);

  std::ostream& out_;
  bool has_begun_ = false;
  bool has_events_ = false;
  int64_t base_ns_ = 0;
  int64_t shift_ns_ = 0;
  std::map<std::string, int64_t> processes_ = {};
};

}  // namespace hasten::flight
