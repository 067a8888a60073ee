// A folder of its own for tests that need files; it is removed with the fixture.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "hasten/core/error.h"

namespace hasten::testing {

class InFolder : public ::testing::Test {
 protected:
  InFolder()
      : folder_(std::filesystem::path(::testing::TempDir()) /
                text("hasten_", ::testing::UnitTest::GetInstance()->current_test_info()->test_suite_name(), "_",
                     ::testing::UnitTest::GetInstance()->current_test_info()->name(), "_", ::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~InFolder() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ / name; }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return folder_ / name;
  }

  std::filesystem::path folder_;
};

/// What the error says that `function` throws; "no error" if it throws none.
template <class Error, class Function>
std::string words_of(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace hasten::testing
