// The last lines of a stream, in bounded memory, for the report of a failure.
//
// Keeps what a terminal would show: of a line that was written over (a progress bar's \r) its last state,
// without escape sequences, which would tear the report's frame.
#pragma once

#include <deque>
#include <string>
#include <string_view>

namespace hasten::launcher {

class LineTail {
 public:
  static constexpr size_t kNumLines = 20;
  /// What a longer line has beyond is left out.
  static constexpr size_t kLineBytes = 1000;

  void add(std::string_view bytes);

  /// The last lines, each ending in a newline, an unfinished one too. Collective: no. Blocks: no. Throws:
  /// nothing.
  std::string lines() const;

 private:
  void end_line();

  std::deque<std::string> finished_;
  std::string current_;
  bool returned_ = false;  // the last byte was a \r: the next one begins the line anew, unless it ends it
};

}  // namespace hasten::launcher
