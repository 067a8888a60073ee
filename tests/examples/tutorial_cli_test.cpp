// docs/tutorial.md: its code blocks stand in examples/tutorial.cpp, and its commands print what the page shows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "cli/command.h"
#include "support/folder.h"

namespace hasten::test {
namespace {

using ::testing::HasSubstr;

std::string text_of(const std::string& file) {
  std::ifstream stream(HASTEN_SOURCE_DIR "/" + file);
  EXPECT_TRUE(stream) << file;
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

// The page's blocks that open with this fence.
std::vector<std::string> blocks(const std::string& fence) {
  std::istringstream page(text_of("docs/tutorial.md"));
  std::vector<std::string> found;
  bool inside = false, wanted = false;
  for (std::string line; std::getline(page, line);) {
    if (line.rfind("```", 0) == 0) {
      inside = !inside;
      wanted = inside && line == fence;
      if (wanted) found.emplace_back();
    } else if (inside && wanted) {
      found.back() += line + '\n';
    }
  }
  return found;
}

// The words of a command, with the programs' paths in the place of their names.
std::vector<std::string> words_of(const std::string& command) {
  std::istringstream stream(command);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) {
    if (word == "hasten") word = HASTEN_COMMAND;
    if (word == "./tutorial") word = HASTEN_BINARY_DIR "/examples/tutorial";
    words.push_back(word);
  }
  return words;
}

// How many of the 250 are right may differ by the processor.
std::string without_counts(const std::string& text) {
  return std::regex_replace(text, std::regex(R"(\d+ of 250)"), "N of 250");
}

TEST(Tutorial, CodeBlocksStandInTheProgram) {
  const auto program = text_of("examples/tutorial.cpp");
  const auto code = blocks("```cpp");

  EXPECT_GE(code.size(), 12u);
  for (const auto& block : code) EXPECT_THAT(program, HasSubstr(block));
}

using TutorialRuns = testing::InFolder;

TEST_F(TutorialRuns, CommandsPrintWhatThePageShows) {
  int num_commands = 0;
  for (const auto& block : blocks("```")) {
    if (block.rfind("$ ", 0) != 0) continue;
    const auto end = block.find('\n');
    const auto command = block.substr(2, end - 2), shown = block.substr(end + 1);

    auto words = words_of(command);
    words.insert(words.begin(), {"/usr/bin/env", "-C", folder_.string()});
    const auto result = run_command(words, {{"OMP_NUM_THREADS", "1"}});

    EXPECT_EQ(result.exit_code, 0) << command << '\n' << result.err;
    EXPECT_THAT(without_counts(result.out), HasSubstr(without_counts(shown))) << command;
    ++num_commands;
  }
  EXPECT_EQ(num_commands, 6);
}

}  // namespace
}  // namespace hasten::test
