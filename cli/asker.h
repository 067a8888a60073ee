// Asking questions at a terminal or through a pipe.
//
// In a terminal a closed question is a menu: arrow keys (or j and k, or a digit) move, Enter takes. Elsewhere
// the choices are numbered and the answer is a number, so that a script or a test can give it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hasten::cli {

/// Which whole numbers are an answer.
struct Range {
  int64_t least = 0, most = INT64_MAX;
  int64_t multiple_of = 1;
};

class Asker {
 public:
  /// `interactive`: menus. Default: where standard input and output are terminals.
  Asker();
  explicit Asker(bool interactive) : interactive_(interactive) {}

  /// The number of the chosen one. Throws: UsageError at the end of the input (as all functions here).
  size_t choose(const std::string& question, const std::vector<std::string>& choices, size_t fallback = 0);

  /// The answer as it is typed, `fallback` for an empty line.
  std::string ask(const std::string& question, const std::string& fallback = "");

  /// The same without a default; asks again until something is typed.
  std::string need(const std::string& question);

  /// A whole number within the range; asks again until it is one.
  int64_t number(const std::string& question, int64_t fallback, const Range& range);

  /// A number from `least` on; asks again until it is one.
  double real(const std::string& question, double fallback, double least);

  /// Yes or no; asks again until it is one of them.
  bool yes(const std::string& question, bool fallback);

 private:
  size_t choose_in_menu(const std::vector<std::string>& choices, size_t chosen);
  std::string read_line();

  bool interactive_;
};

}  // namespace hasten::cli
