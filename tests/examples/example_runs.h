// Runs of an example program in one or several processes, and the numbers that it prints.
#pragma once

#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

#include "cli/command.h"

namespace hasten::test {

using Words = std::vector<std::string>;

inline CommandResult run_program(int processes, const std::string& all, Words words) {
  words.insert(words.begin(), HASTEN_BINARY_DIR "/examples/" + all);
  if (processes > 1) words.insert(words.begin(), {HASTEN_COMMAND, "launch", "-n", std::to_string(processes)});
  return run_command(words, {{"OMP_NUM_THREADS", "1"}});
}

/// What it prints; it must end well.
inline std::string said_by(int processes, const std::string& all, const Words& words) {
  const auto result = run_program(processes, all, words);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  return result.out;
}

/// The last number behind `word`; -1 if there is none.
inline double last_number(const std::string& text, const std::string& word) {
  const std::regex pattern(word + " ([-0-9.e]+)");
  double number = -1;
  for (std::sregex_iterator found(text.begin(), text.end(), pattern), end; found != end; ++found)
    number = std::stod((*found)[1]);
  return number;
}

}  // namespace hasten::test
