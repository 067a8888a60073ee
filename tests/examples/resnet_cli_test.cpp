#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cli/command.h"

namespace hasten::test {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// Two classes of the data room's test images, some of them larger than the crops.
class ResnetExample : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "resnet_XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    for (const std::string part : {"train", "val"}) {
      add(part + "/colour", {"photo.jpg", "photo.png", "progressive.jpg"});
      add(part + "/gray", {"gray.jpg", "gray.png", "gray16.png"});
    }
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void add(const std::string& to, const std::vector<std::string>& images) const {
    std::filesystem::create_directories(folder_ + "/" + to);
    for (const auto& image : images) {
      std::filesystem::copy(HASTEN_SOURCE_DIR "/tests/data/images/" + image, folder_ + "/" + to + "/" + image);
    }
  }

  CommandResult run(int num_processes, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {HASTEN_BINARY_DIR "/examples/resnet"};
    if (num_processes > 1) {
      words.insert(words.begin(), {HASTEN_COMMAND, "launch", "-n", std::to_string(num_processes)});
    }
    words.insert(words.end(), {"--data", folder_, "--epochs", "1", "--size", "32", "--batch", "2", "--threads", "1",
                               "--save", folder_ + "/net.pt"});
    words.insert(words.end(), more.begin(), more.end());
    return run_command(words);
  }

  std::string folder_;
};

TEST_F(ResnetExample, TrainsOnAFolderAndCountsEachTestImageOnce) {
  for (const int num_processes : {1, 2}) {
    const CommandResult result = run(num_processes);

    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, MatchesRegex("epoch 0: accuracy [01]\\.[0-9]+ of 6\n"));
    // 21.3 million numbers of four bytes.
    EXPECT_GT(std::filesystem::file_size(folder_ + "/net.pt"), 85'000'000);
    std::filesystem::remove(folder_ + "/net.pt");
  }
}

TEST_F(ResnetExample, ApexsSecondLevelTrainsHalfPrecisionWeights) {
  const CommandResult result = run(1, {"--opt_level", "O2"});

  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, MatchesRegex("epoch 0: accuracy [01]\\.[0-9]+ of 6\n"));
  // Two bytes a number; batch normalisation keeps four.
  EXPECT_LT(std::filesystem::file_size(folder_ + "/net.pt"), 45'000'000);
}

TEST_F(ResnetExample, DifferentClassesInTrainAndValAreRefused) {
  std::filesystem::remove_all(folder_ + "/val/gray");

  const CommandResult result = run(1);

  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("different classes"));
}

}  // namespace
}  // namespace hasten::test
