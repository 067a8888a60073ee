// The example that trains as a DeepSpeed configuration says: every stage the same losses; errors of the file by its
// name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "cli/command.h"

namespace hasten::test {
namespace {

using ::testing::HasSubstr;

constexpr const char* kExample = HASTEN_BINARY_DIR "/examples/deepspeed_with_config";

std::string configured(const std::string& name, const std::string& zero) {
  const std::string path = ::testing::TempDir() + name;
  std::ofstream(path)
      << R"({"zero_optimization": )" << zero
      << R"(, "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}, "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto", "warmup_max_lr": "auto", "warmup_min_lr": "auto"}}})";
  return path;
}

TEST(DeepSpeedWithConfig, every_stage_gives_the_same_losses) {
  std::string first;
  for (const std::string stage : {"0", "2", "3"}) {
    const auto file = configured("hasten_ds_stage.json", "{\"stage\": " + stage + "}");
    const CommandResult result =
        run_command({HASTEN_COMMAND, "launch", "-n", "2", kExample, "--deepspeed_config", file, "--samples", "256"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("stage " + stage + ", batches of 32"));
    const std::string losses = result.out.substr(result.out.find("epoch 0"));
    if (first.empty()) first = losses;
    EXPECT_EQ(losses, first) << "stage " << stage;
  }
}

TEST(DeepSpeedWithConfig, a_batch_size_that_is_not_written_follows_from_the_micro_batch_or_is_asked_for) {
  const auto words_with = [](const std::string& batch, bool fails) {
    const std::string path = ::testing::TempDir() + "hasten_ds_batch.json";
    std::ofstream(path) << R"({"zero_optimization": {"stage": 2}, )" << batch
                        << R"("optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
      "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto", "warmup_max_lr": "auto", "warmup_min_lr": "auto"}}})";
    const CommandResult result = run_command({HASTEN_COMMAND, "launch", "-n", "2", kExample, "--deepspeed_config", path,
                                              "--samples", "64", "--epochs", "1"});
    EXPECT_EQ(result.exit_code != 0, fails) << result.err;
    return fails ? result.err : result.out;
  };

  EXPECT_THAT(words_with(R"("train_micro_batch_size_per_gpu": 16, )", false), HasSubstr("stage 2, batches of 32"));
  EXPECT_THAT(words_with("", true),
              ::testing::AllOf(HasSubstr("expected train_batch_size or train_micro_batch_size_per_gpu"),
                               ::testing::Not(HasSubstr("of kind"))));
}

TEST(DeepSpeedWithConfig, a_wrong_key_is_named_with_its_file) {
  const auto file = configured("hasten_ds_wrong.json", "{\"stage\": 3, \"stage3_max_live_paramters\": 1}");
  const CommandResult result = run_command({kExample, "--deepspeed_config", file});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("stage3_max_live_paramters"));
  EXPECT_THAT(result.err, HasSubstr("hasten_ds_wrong.json"));
  EXPECT_THAT(result.err, HasSubstr("stage3_max_live_parameters"));
}

}  // namespace
}  // namespace hasten::test
