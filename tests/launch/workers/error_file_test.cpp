#include "launch/workers/error_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace hasten::launcher {
namespace {

class ErrorFile : public ::testing::Test {
 protected:
  ~ErrorFile() override { std::filesystem::remove(path_); }

  std::string file_with(const std::string& content) {
    std::ofstream(path_) << content;
    return path_;
  }

 private:
  std::string path_ = ::testing::TempDir() + "hasten_error_file_test_" + std::to_string(getpid()) + ".json";
};

TEST_F(ErrorFile, ReadsBothOfTorchrunsForms) {
  EXPECT_EQ(read_error_message(file_with(R"({"message": "short"})")), "short");
  EXPECT_EQ(read_error_message(
                file_with(R"({"message": {"message": "long", "extraInfo": {"py_callstack": "…", "timestamp": "1"}}})")),
            "long");
}

TEST_F(ErrorFile, OfALongMessageTheBeginningIsRead) {
  const std::string message(kMaxMessageBytes, 'x');

  EXPECT_EQ(read_error_message(file_with("{\"message\": \"" + message + "\"}")), message);
  EXPECT_EQ(read_error_message(file_with("{\"message\": \"" + message + "yz\"}")),
            message + "\n… (the first 16384 of 16386 bytes)");
}

TEST_F(ErrorFile, WhatIsNoErrorFileHoldsNoMessage) {
  for (const char* content : {"", "{\"message\": {\"mess", "[]", "{}", "{\"message\": 3}", "{\"message\": {}}"}) {
    EXPECT_EQ(read_error_message(file_with(content)), std::nullopt) << content;
  }
  EXPECT_EQ(read_error_message("/nonexistent/file"), std::nullopt);
}

TEST_F(ErrorFile, WritesWhatTorchrunReads) {
  const std::string path = file_with("");

  write_error_file(path, "out of \"paper\"\nand bytes \xff");

  std::ifstream file(path);
  const auto content = nlohmann::json::parse(file);
  EXPECT_EQ(content["message"]["message"], "out of \"paper\"\nand bytes \xef\xbf\xbd");
  EXPECT_GT(std::stoll(content["message"]["extraInfo"]["timestamp"].get<std::string>()), 1'600'000'000);
}

}  // namespace
}  // namespace hasten::launcher
