#include "process/failure_reporter.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

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

}  // namespace
}  // namespace hasten::process
