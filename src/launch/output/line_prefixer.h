// Puts a rank's name before each line of its output, so that lines of several ranks are distinguishable.
//
// Lines are passed on whole: ranks write to one terminal, and half a line would be continued by another rank. `flush`
// passes on a line that stays without its end (a prompt, a long computation's "working ... ").
#pragma once

#include <string>
#include <string_view>

namespace hasten::launcher {

class LinePrefixer {
 public:
  /// With an empty prefix bytes pass unchanged and at once.
  explicit LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}

  /// Returns the text that can be shown now that `bytes` have come. A line ends with \n or \r (a progress bar), or when
  /// it is longer than kLongLine.
  std::string add(std::string_view bytes);

  /// Returns true if an unfinished line waits.
  bool waiting() const { return !line_.empty(); }

  /// Returns true if that line began with the bytes that were added last, and not before.
  bool is_new() const { return is_new_; }

  /// Returns the unfinished line, whose rest will follow without a prefix.
  std::string flush();

  /// flush() for a stream that has ended: with a newline if the last line lacks one.
  std::string finish();

  static constexpr size_t kLongLine = 64 * 1024;

 private:
  void hand_on(std::string& result);

  std::string prefix_;
  std::string line_;
  bool inside_ = false;  // the beginning of this line was passed on
  bool is_new_ = false;
  bool after_return_ = false;  // the last line passed on ended in \r
};

}  // namespace hasten::launcher
