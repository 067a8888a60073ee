// Much output of 8 workers at once: every line of every rank arrives whole and in order.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>

#include "cli/terminal.h"

namespace hasten::test {

/// Takes the output of 8 workers that count from 1, "[rank 3] 1234" a line, in pieces.
class CountingCheck {
 public:
  void add(std::string_view bytes) {
    rest_ += bytes;
    size_t begin = 0;
    for (size_t end = 0; (end = rest_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      check(rest_.substr(begin, end - begin));
    }
    rest_.erase(0, begin);
  }

  void expect_everything(int last) const {
    for (const int seen : last_) EXPECT_EQ(seen, last);
    EXPECT_EQ(num_wrong_, 0) << "first: " << first_wrong_;
    EXPECT_EQ(rest_, "");
  }

 private:
  void check(const std::string& line) {
    int rank = -1, number = -1;
    const size_t name = line.find("[rank ");
    const size_t space = line.rfind(' ');
    if (name != std::string::npos) rank = std::atoi(line.c_str() + name + 6);
    if (space != std::string::npos) number = std::atoi(line.c_str() + space + 1);
    const bool right = rank >= 0 && rank < 8 && number == last_[static_cast<size_t>(rank)] + 1;
    if (right) ++last_[static_cast<size_t>(rank)];
    if (!right && ++num_wrong_ == 1) first_wrong_ = "'" + line + "' after '" + before_ + "'";
    before_ = line;
  }

  std::array<int, 8> last_ = {};
  std::string rest_;
  std::string before_, first_wrong_;
  int num_wrong_ = 0;
};

/// Each worker counts up to `last`, on its output in a terminal, then on its error in a pipe.
inline void check_output_of_eight_workers(int last) {
  const std::string count = "seq " + std::to_string(last);
  const std::vector<std::string> words = {HASTEN_COMMAND, "launch", "-n", "8", "--prefix_ranks", "sh", "-c"};
  std::vector<std::string> in_terminal = words, in_pipe = words;
  in_terminal.push_back(count);
  in_pipe.push_back(count + " >&2");

  CountingCheck of_terminal;
  Terminal terminal;
  terminal.start(in_terminal);
  for (std::string some; !(some = terminal.read_some()).empty();) of_terminal.add(some);
  EXPECT_EQ(terminal.wait(), 0);
  of_terminal.expect_everything(last);

  CountingCheck of_pipe;
  Command command(in_pipe);
  for (std::string some; !(some = command.read_some_errors()).empty();) of_pipe.add(some);
  EXPECT_EQ(command.finish().exit_code, 0);
  of_pipe.expect_everything(last);
}

}  // namespace hasten::test
