#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "cli/command.h"

namespace hasten::test {
namespace {

using ::testing::MatchesRegex;
using Words = std::vector<std::string>;

CommandResult run_unet(int num_processes, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {HASTEN_BINARY_DIR "/examples/unet3d", "--small", "--threads", "1"};
  if (num_processes > 1) {
    words.insert(words.begin(), {HASTEN_COMMAND, "launch", "-n", std::to_string(num_processes)});
  }
  words.insert(words.end(), arguments.begin(), arguments.end());
  return run_command(words);
}

// The dice of the last epoch.
double last_dice(const CommandResult& result) {
  const std::regex form("dice ([0-9.]+)");
  double dice = -1;
  for (auto found = std::sregex_iterator(result.out.begin(), result.out.end(), form); found != std::sregex_iterator();
       ++found) {
    dice = std::stod((*found)[1]);
  }
  return dice;
}

TEST(UNet3dExample, FindsTheBallsAndSaysSoOnceAnEpoch) {
  const CommandResult result = run_unet(1, {"--epochs", "2"});

  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::string facts = "training loss [0-9.]+, validation loss [0-9.]+, dice 0.[0-9]+, IoU 0.[0-9]+ of 9 volumes";
  EXPECT_THAT(result.out,
              MatchesRegex("epochs 2, batch size 4, learning rate 0.01, training size 48, validation size 9, "
                           "device cpu\nEpoch 1/2: " +
                           facts + "\nEpoch 2/2: " + facts + "\n"));
  EXPECT_THAT(result.err, MatchesRegex("Epoch 1/2: 48/48 \\[[^\n]*img/s, loss \\(batch\\) [0-9.]+\\]\n"
                                       "Epoch 2/2: 48/48 \\[[^\n]*img/s, loss \\(batch\\) [0-9.]+\\]\n"));
  EXPECT_GT(last_dice(result), 0.6);
}

// Ten steps of four volumes, together or two by two: batch normalisation sees all four either way.
TEST(UNet3dExample, TwoProcessesFindWhatOneFindsWithTheSameGlobalBatches) {
  const std::vector<std::string> both = {"--epochs", "1", "--train", "40", "--channels", "4"};
  auto whole = both, halves = both;
  whole.insert(whole.end(), {"--batch", "4"});
  halves.insert(halves.end(), {"--batch", "2"});

  const CommandResult one = run_unet(1, whole), two = run_unet(2, halves);

  EXPECT_EQ(two.exit_code, 0) << two.err;
  EXPECT_GT(last_dice(one), 0.1);
  EXPECT_NEAR(last_dice(two), last_dice(one), 0.02);
}

// The head of Debian's mricron-data, its back third for the test.
TEST(UNet3dExample, FindsTheBrainInAHead) {
  const Words words = {"--data", "brain",      "--shrink", "4",       "--epochs", "2",           "--train",
                       "40",     "--channels", "4",        "--batch", "2",        "--opt_level", "O1"};

  const CommandResult result = run_unet(2, words);

  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_GT(last_dice(result), 0.6);
  EXPECT_THAT(run_unet(1, {"--data", "brain", "--image", "/none.nii"}).err,
              ::testing::HasSubstr("cannot read /none.nii"));
}

TEST(UNet3dExample, ApexsLevelsFindWhatFloat32Finds) {
  const auto dice_at = [](const std::string& level) {
    const CommandResult result =
        run_unet(1, {"--epochs", "1", "--train", "24", "--channels", "4", "--batch", "2", "--opt_level", level});
    EXPECT_EQ(result.exit_code, 0) << level << ": " << result.err;
    return last_dice(result);
  };
  const double float32 = dice_at("O0");

  EXPECT_GT(float32, 0.1);
  EXPECT_NEAR(dice_at("O1"), float32, 0.03);
  EXPECT_NEAR(dice_at("O2"), float32, 0.03);
}

TEST(UNet3dExample, LogsGroupsAndThreeImagesAnEpochAndSavesEachNetwork) {
  const std::string folder = ::testing::TempDir() + "hasten_unet3d_" + std::to_string(getpid());
  const CommandResult result = run_unet(2, {"--epochs", "1", "--train", "8", "--channels", "4", "--batch", "2",
                                            "--size", "8,12,16", "--runs", folder, "--save", folder + "/nets"});

  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(std::filesystem::exists(folder + "/nets/unet3d-epoch1.pth"));
  std::set<std::string> groups;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder + "/unet3d_8x12x16_batch2")) {
    if (entry.is_directory()) groups.insert(entry.path().filename());
  }
  for (const char* group : {"Loss_training_train_loss", "Loss_training_val_loss", "Metrics_validation_dice"})
    EXPECT_TRUE(groups.count(group)) << group;
  std::filesystem::remove_all(folder);
}

TEST(UNet3dExample, AnUnknownLevelIsAUsageErrorWithTheLevels) {
  const CommandResult result = run_unet(1, {"--opt_level", "O4"});

  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("O4"), std::string::npos) << result.err;
}

TEST(UNet3dExample, AnUnknownOptionIsAUsageError) {
  EXPECT_EQ(run_unet(1, {"--epoch", "1"}).exit_code, 2);
}

}  // namespace
}  // namespace hasten::test
