// The programs of examples/vision and examples/text on the data of Debian's packages, each small, on one process and two. Floors are the
// mean of seeds 1 to 5 less three deviations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <string>
#include <vector>

#include "cli/command.h"
#include "support/folder.h"

namespace hasten::test {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using Words = std::vector<std::string>;

CommandResult run_program(int processes, const std::string& all, Words words) {
  words.insert(words.begin(), HASTEN_BINARY_DIR "/examples/" + all);
  if (processes > 1) words.insert(words.begin(), {HASTEN_COMMAND, "launch", "-n", std::to_string(processes)});
  return run_command(words, {{"OMP_NUM_THREADS", "1"}});
}

/// What it prints; it must end well.
std::string said_by(int processes, const std::string& all, const Words& words) {
  const auto result = run_program(processes, all, words);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  return result.out;
}

/// The last number behind `word`; -1 if there is none.
double last_number(const std::string& text, const std::string& word) {
  const std::regex pattern(word + " ([-0-9.e]+)");
  double number = -1;
  for (std::sregex_iterator found(text.begin(), text.end(), pattern), end; found != end; ++found) number = std::stod((*found)[1]);
  return number;
}

class PictureExamples : public testing::InFolder {};

TEST_F(PictureExamples, FashionMnistFunctionsTrainFromInsideAndSaveEachEpoch) {
  const auto out = said_by(1, "all_vision", {"fashion_mnist_functions", "--processes", "2", "--evaluate", "--epochs", "1", "--limit", "12800", "--save", path("net_")});

  EXPECT_THAT(out, HasSubstr("device 0: epoch 1, step 100, loss "));
  EXPECT_THAT(out, HasSubstr("device 1: epoch 1, step 100, loss "));
  EXPECT_GE(last_number(out, "epoch 1: accuracy"), 0.78);
  EXPECT_TRUE(std::filesystem::exists(path("net_1.pt")));
}

TEST_F(PictureExamples, PetsAreToldApartByFineTuning) {
  const Words words = {"pets", "--size", "32", "--limit", "500", "--batch_size", "20", "--epochs", "2", "--layers", "18"};

  EXPECT_LE(last_number(said_by(1, "all_vision", words), "error_rate"), 0.15);
  EXPECT_LE(last_number(said_by(2, "all_vision", words), "error_rate"), 0.15);
}

TEST_F(PictureExamples, ImagenetteTrainsWithMixUpAndLabelSmoothing) {
  const auto out = said_by(2, "all_vision", {"train_imagenette", "--arch", "xresnet18", "--size", "32", "--limit", "1000", "--bs", "20", "--epochs", "2", "--lr", "4e-3",
                                             "--sh", "0.2", "--sa", "--act_fn", "Mish", "--opt", "ranger"});

  EXPECT_THAT(out, HasSubstr("top_k_accuracy"));
  EXPECT_GE(last_number(out, "run 0: accuracy"), 0.35);
}

TEST_F(PictureExamples, CvLearnsAndCompleteCvGoesOnBitForBit) {
  const Words small = {"--size", "32", "--limit", "400", "--batch_size", "20", "--epochs", "2", "--lr", "1e-2"};
  const auto with = [&](Words words, const Words& more) {
    words.insert(words.end(), small.begin(), small.end());
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };

  EXPECT_GE(last_number(said_by(2, "all_vision", with({"cv"}, {})), "epoch 1:"), 25);
  const auto whole = said_by(1, "all_vision", with({"complete_cv"}, {"--checkpointing_steps", "20", "--with_tracking", "--output_dir", folder_}));
  const auto resumed = said_by(1, "all_vision", with({"complete_cv"}, {"--resume_from_checkpoint", path("step_20"), "--output_dir", folder_}));
  EXPECT_THAT(resumed, HasSubstr("resumed from checkpoint"));
  EXPECT_DOUBLE_EQ(last_number(resumed, "epoch 1:"), last_number(whole, "epoch 1:"));
  size_t events = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) events += entry.path().filename().string().find("tfevents") != std::string::npos ? 1 : 0;
  EXPECT_EQ(events, 1u);
}

TEST_F(PictureExamples, DeepLabFindsGarmentsInScenes) {
  const auto out = said_by(2, "all_vision", {"deeplab", "--layers", "18", "--crop", "48", "--width", "32", "--scenes", "120", "--epochs", "3", "--mixed_precision", "bf16",
                                             "--local_rank", "0"});

  EXPECT_GE(last_number(out, "mIoU"), 0.2);
  EXPECT_THAT(run_program(1, "all_vision", {"deeplab", "--data", folder_}).err, HasSubstr("expected leftImg8bit/SPLIT/CITY"));
}

class TextExamples : public testing::InFolder {};

TEST_F(TextExamples, TheClassifierLearnsBehindItsLanguageModel) {
  const Words words = {"text_classifier", "--classes", "definitions", "startrek", "--limit", "220", "--embedding", "32", "--hidden", "48", "--layers", "1", "--epochs", "3",
                       "--language_epochs", "1", "--batch_size", "16", "--lr", "1e-2"};

  EXPECT_GE(last_number(said_by(1, "all_text", words), "\naccuracy"), 0.7);
  EXPECT_GE(last_number(said_by(2, "all_text", words), "\naccuracy"), 0.7);
}

TEST_F(TextExamples, BertReadsMrpcsFilesAndGoesOnFromACheckpoint) {
  const auto pairs = [](size_t count) {
    std::string lines = "label,sentence1,sentence2\n";
    for (size_t i = 0; i < count; ++i) lines += (i % 2 == 0 ? "equivalent,\"yes, it rains\",yes it does\n" : "not_equivalent,the sun shines,no it does not\n");
    return lines;
  };
  write("mrpc/train.csv", pairs(64));
  write("mrpc/dev.csv", pairs(16));
  const Words small = {"--data", path("mrpc"), "--hidden", "32", "--layers", "1", "--max_length", "16", "--warm_up", "4", "--lr", "3e-3", "--epochs", "3"};
  const auto with = [&](Words words, const Words& more) {
    words.insert(words.end(), small.begin(), small.end());
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };

  EXPECT_THAT(said_by(2, "all_text", with({"nlp"}, {"--batch_size", "8"})), HasSubstr("epoch 2: accuracy 1.0000, F1 1.0000"));
  EXPECT_THAT(said_by(1, "all_text", with({"nlp"}, {"--batch_size", "32"})), HasSubstr("epoch 2: accuracy"));
  const auto whole = said_by(2, "all_text", with({"complete_nlp"}, {"--batch_size", "8", "--checkpointing_steps", "epoch", "--output_dir", folder_}));
  const auto resumed = said_by(2, "all_text", with({"complete_nlp"}, {"--batch_size", "8", "--resume_from_checkpoint", path("epoch_0"), "--output_dir", folder_}));
  EXPECT_THAT(whole, HasSubstr(resumed.substr(resumed.find("epoch 1:"))));
  EXPECT_EQ(run_program(1, "all_text", with({"complete_nlp"}, {"--checkpointing_steps", "often"})).exit_code, 2);
}

TEST_F(TextExamples, BertLearnsFromVerses) {
  const auto out = said_by(2, "all_text", {"nlp", "--limit", "1600", "--epochs", "2", "--max_length", "48", "--hidden", "64", "--layers", "1", "--lr", "2e-3", "--vocabulary", "1000",
                                           "--batch_size", "16"});

  EXPECT_GE(last_number(out, "epoch 1: accuracy"), 0.5);
}

}  // namespace
}  // namespace hasten::test
