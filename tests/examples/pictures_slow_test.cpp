// The examples of pictures that train for a minute; see pictures_and_texts_cli_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "examples/example_runs.h"
#include "support/folder.h"

namespace hasten::test {
namespace {

using ::testing::HasSubstr;

class SlowPictureExamples : public testing::InFolder {};

TEST_F(SlowPictureExamples, ImagenetteTrainsWithMixUpAndLabelSmoothing) {
  const auto out = said_by(2, "all_vision",
                           {"train_imagenette",
                            "--arch",
                            "xresnet18",
                            "--size",
                            "32",
                            "--limit",
                            "1000",
                            "--bs",
                            "20",
                            "--epochs",
                            "2",
                            "--lr",
                            "4e-3",
                            "--sh",
                            "0.2",
                            "--sa",
                            "--act_fn",
                            "Mish",
                            "--opt",
                            "ranger"});

  EXPECT_THAT(out, HasSubstr("top_k_accuracy"));
  EXPECT_GE(last_number(out, "run 0: accuracy"), 0.35);
}

TEST_F(SlowPictureExamples, ImagenetteTakesTheOptionsOfFastaisScript) {
  const Words small = {"--arch", "xresnet18", "--size", "32", "--bs", "20", "--epochs", "1"};
  const auto with = [&](const Words& more) {
    Words words = {"train_imagenette"};
    words.insert(words.end(), small.begin(), small.end());
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };

  const auto out = said_by(
      1, "all_vision",
      with({"--limit", "160",     "--opt",    "sgd",  "--mom",  "0.8",    "--mixup", "0",      "--sa",      "--sym",
            "--pool",  "MaxPool", "--act_fn", "SiLU", "--dump", "--runs", "2",       "--woof", "--workers", "1"}));
  const auto other =
      said_by(1, "all_vision",
              with({"--limit", "40", "--opt", "rms", "--sqrmom", "0.9", "--eps", "1e-5", "--sh", "0.3", "--fp16"}));

  EXPECT_THAT(out, HasSubstr("trainable")) << "--dump";
  EXPECT_GE(last_number(out, "run 0: accuracy"), 0);
  EXPECT_GE(last_number(out, "run 1: accuracy"), 0);
  EXPECT_GE(last_number(other, "run 0: accuracy"), 0);
  EXPECT_EQ(run_program(1, "all_vision", {"train_imagenette", "--arch", "vgg"}).exit_code, 2);
  EXPECT_THAT(run_program(1, "all_vision", with({"--data", folder_})).err, HasSubstr("no images below"));
}

TEST_F(SlowPictureExamples, CvLearnsAndCompleteCvGoesOnBitForBit) {
  const Words small = {"--size", "32", "--limit", "400", "--batch_size", "20", "--epochs", "2", "--lr", "1e-2"};
  const auto with = [&](Words words, const Words& more) {
    words.insert(words.end(), small.begin(), small.end());
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };

  EXPECT_GE(last_number(said_by(2, "all_vision", with({"cv"}, {})), "epoch 1:"),
            5);  // percent of 37 classes; 7.5 was seen
  const auto whole =
      said_by(1, "all_vision",
              with({"complete_cv"}, {"--checkpointing_steps", "20", "--with_tracking", "--output_dir", folder_}));
  const auto resumed = said_by(
      1, "all_vision", with({"complete_cv"}, {"--resume_from_checkpoint", path("step_20"), "--output_dir", folder_}));
  EXPECT_THAT(resumed, HasSubstr("resumed from checkpoint"));
  EXPECT_DOUBLE_EQ(last_number(resumed, "epoch 1:"), last_number(whole, "epoch 1:"));
  size_t events = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_))
    events += entry.path().filename().string().find("tfevents") != std::string::npos ? 1 : 0;
  EXPECT_EQ(events, 1u);
}

TEST_F(SlowPictureExamples, DeepLabFindsGarmentsInScenes) {
  const auto out = said_by(2, "all_vision",
                           {"deeplab", "--layers", "18", "--crop", "48", "--width", "32", "--scenes", "120", "--epochs",
                            "12", "--lr", "0.1", "--mixed_precision", "bf16", "--local_rank", "0"});

  EXPECT_GE(last_number(out, "mIoU"), 0.18);  // 0.207 was seen
  EXPECT_THAT(run_program(1, "all_vision", {"deeplab", "--data", folder_}).err,
              HasSubstr("expected leftImg8bit/SPLIT/CITY"));
}

}  // namespace
}  // namespace hasten::test
