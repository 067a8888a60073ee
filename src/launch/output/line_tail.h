// The last lines of a stream, in bounded memory, for the report of a failure.
//
// Stores the text that a terminal would show. Of a line that was written over (a progress bar's \r) it has the last
// state. Escape sequences are left out, since they would tear the report's frame.
#pragma once

#include <deque>
#include <string>
#include <string_view>

namespace hasten::launcher {

class LineTail {
 public:
  static constexpr size_t kNumLines = 20;
  /// The rest of a longer line is left out.
  static constexpr size_t kLineBytes = 1000;

  void add(std::string_view bytes);

  /// Returns the last lines, each ending in a newline, an unfinished one too.
  std::string lines() const;

 private:
  void end_line();

  std::deque<std::string> finished_;
  std::string current_;
  bool returned_ = false;  // the last byte was a \r: the next one begins the line anew, unless it ends it
};

}  // namespace hasten::launcher
