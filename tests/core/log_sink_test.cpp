#include "hasten/core/log_sink.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "hasten/core/log.h"

namespace hasten {
namespace {

class LogSinkTest : public ::testing::Test {
 protected:
  LogSinkTest() {
    set_log_sink([this](LogLevel level, std::string_view line) { lines_.emplace_back(level, line); });
  }
  ~LogSinkTest() override { set_log_sink(nullptr); }

  std::vector<std::pair<LogLevel, std::string>> lines_;
};

TEST_F(LogSinkTest, LinesOfEveryLoggerGoToTheProcesssSinkAndNotToStandardError) {
  ::testing::internal::CaptureStderr();

  Logger("one", {1, 4}, LogLevel::kInfo).info("here", {.main_process_only = false});
  Logger("two", {}, LogLevel::kInfo).error("there");

  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(lines_, (std::vector<std::pair<LogLevel, std::string>>{{LogLevel::kInfo, "[one] rank 1/4: here"},
                                                                   {LogLevel::kError, "[two] there"}}));
}

TEST_F(LogSinkTest, LinesBelowTheLevelAndThoseOfARedirectedLoggerStayAway) {
  std::vector<std::string> own;
  Logger redirected("own", {}, LogLevel::kInfo);
  redirected.redirect([&own](std::string_view line) { own.emplace_back(line); });

  Logger("one", {}, LogLevel::kError).warning("quiet");
  redirected.info("mine");

  EXPECT_TRUE(lines_.empty());
  EXPECT_EQ(own, std::vector<std::string>{"[own] mine"});
}

TEST_F(LogSinkTest, StandardErrorHasTheLinesAgainWithoutASink) {
  set_log_sink(nullptr);
  ::testing::internal::CaptureStderr();

  Logger("one", {}, LogLevel::kInfo).warning("back");

  EXPECT_NE(::testing::internal::GetCapturedStderr().find("[one] back"), std::string::npos);
  EXPECT_TRUE(lines_.empty());
}

}  // namespace
}  // namespace hasten
