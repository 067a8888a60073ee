// Picks the lines of a stream with any of some words: torchrun's --duplicate_stdout_filters.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hasten::launcher {

class LineFilter {
 public:
  /// `prefix` comes before each line that is picked. Without words no line is.
  explicit LineFilter(std::vector<std::string> words = {}, std::string prefix = {})
      : words_(std::move(words)), prefix_(std::move(prefix)) {}

  /// Returns the picked ones of the lines that `bytes` end, whole. A line longer than kLongLine is taken for several.
  std::string add(std::string_view bytes);

  /// Returns the last line, if the stream has ended without a newline and the line is picked.
  std::string finish();

  static constexpr size_t kLongLine = 64 * 1024;

 private:
  void end_line(std::string& picked);

  std::vector<std::string> words_;
  std::string prefix_;
  std::string line_;
};

}  // namespace hasten::launcher
