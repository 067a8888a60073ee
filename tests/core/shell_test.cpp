#include "hasten/core/shell.h"

#include <gtest/gtest.h>

#include <cstdio>

namespace hasten {
namespace {

// What a shell makes of the text.
std::string shell_says(const std::string& word) {
  FILE* const pipe = popen(("printf '%s' " + word).c_str(), "r");
  std::string out;
  for (int c = 0; (c = std::fgetc(pipe)) != EOF;) out += static_cast<char>(c);
  pclose(pipe);
  return out;
}

TEST(ShellWord, PlainWordsStayAsTheyAre) {
  EXPECT_EQ(shell_word("./train_1.2"), "./train_1.2");
  EXPECT_EQ(shell_word("/home/me/run"), "/home/me/run");
}

TEST(ShellWord, AnyWordComesThroughAShell) {
  for (const std::string word : {"", "a b", "it's", "$(reboot)", "a\nb", "*", "~/x", "a;b", "\"x\"", "`x`", "ü"}) {
    EXPECT_EQ(shell_says(shell_word(word)), word);
  }
}

}  // namespace
}  // namespace hasten
