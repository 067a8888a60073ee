#include "process/failure_reporter.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "hasten/core/error.h"
#include "hasten/process/report_errors.h"

namespace hasten::process {
namespace {

TEST(ErrorFile, HasTorchrunsFormat) {
  const auto content = nlohmann::json::parse(error_file_text("it \"failed\"\n", 1700000000));

  EXPECT_EQ(content["message"]["message"], "it \"failed\"\n");
  EXPECT_EQ(content["message"]["extraInfo"]["timestamp"], "1700000000");
  EXPECT_EQ(content["message"]["extraInfo"]["py_callstack"], "it \"failed\"\n");
}

TEST(ErrorFile, TakesWordsThatAreNoUtf8) {
  EXPECT_TRUE(nlohmann::json::accept(error_file_text("\xff\xfe", 0)));
}

TEST(ReportErrorsDeathTest, AnUncaughtErrorEndsTheProcessWithItsMessage) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fails = [](const auto& fail) {
    const auto reporter = report_errors(Environment::of({}));
    std::thread(fail).join();  // where googletest does not catch it
  };
  EXPECT_EXIT(fails([] { throw UsageError(Origin{"data"}, "no rows."); }), ::testing::ExitedWithCode(2),
              "^hasten: .*no rows");
  EXPECT_EXIT(fails([] { throw std::runtime_error("it is over"); }), ::testing::ExitedWithCode(1),
              "^hasten: it is over");
}

}  // namespace
}  // namespace hasten::process
