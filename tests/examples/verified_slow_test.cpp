// The examples under hasten verify: on several processes they train as on one, or what differs by design is said.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "examples/example_runs.h"
#include "support/folder.h"

namespace hasten::test {
namespace {

using ::testing::HasSubstr;

CommandResult verified(const Words& options, const std::string& all, const Words& words) {
  Words command = {HASTEN_COMMAND, "verify", "--steps", "5"};
  command.insert(command.end(), options.begin(), options.end());
  command.push_back(HASTEN_BINARY_DIR "/examples/" + all);
  command.insert(command.end(), words.begin(), words.end());
  return run_command(command, {{"OMP_NUM_THREADS", "1"}});
}

void expect_same(const Words& options, const std::string& all, const Words& words) {
  const auto result = verified(options, all, words);

  EXPECT_EQ(result.exit_code, 0) << all << ' ' << (words.empty() ? "" : words[0]) << ' ' << options.back() << '\n'
                                 << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("are the same: losses to "));
}

const std::vector<Words> kLayouts = {
    {"-n", "2"}, {"-n", "3"}, {"-n", "2", "--stage", "1"}, {"-n", "3", "--stage", "2"}, {"-n", "2", "--stage", "3"}};

class VerifiedExample : public testing::InFolder, public ::testing::WithParamInterface<const char*> {};

TEST_P(VerifiedExample, TrainsOnSeveralProcessesAsOnOne) {
  const std::string name = GetParam();
  Words words = {name};
  if (name == "resume") words.emplace_back("stop");
  words.push_back(folder_);  // for those that write files

  for (const Words& options : kLayouts) expect_same(options, "all_by_feature", words);
}

INSTANTIATE_TEST_SUITE_P(ByFeature, VerifiedExample,
                         ::testing::Values("base", "automatic_batch_size", "automatic_gradient_accumulation",
                                           "checkpointing", "cross_validation", "early_stopping",
                                           "gradient_accumulation", "gradient_accumulation_for_autoregressive_models",
                                           "metrics", "mixed_precision", "preemption", "profiler", "resume",
                                           "schedule_free", "tracking", "uneven_inputs"));

class VerifiedExamples : public testing::InFolder {};

TEST_F(VerifiedExamples, SyncBatchNormIsThatOfTheWholeBatch) {
  for (const char* processes : {"2", "3"})
    expect_same({"--whole", "-n", processes}, "all_by_feature", {"sync_batch_norm"});
  expect_same({"--whole", "-n", "2"}, "unet3d", {"--small", "--threads", "1", "--epochs", "2"});
}

TEST_F(VerifiedExamples, PicturesAndTextsTrainOnSeveralProcessesAsOnOne) {
  const auto pairs = [](size_t count) {
    std::string lines = "label,sentence1,sentence2\n";
    for (size_t i = 0; i < count; ++i)
      lines += i % 2 == 0 ? "equivalent,it rains,yes it does\n" : "not_equivalent,the sun shines,no it does not\n";
    return lines;
  };
  write("train.csv", pairs(128));
  write("dev.csv", pairs(16));

  for (const Words& options : kLayouts) {
    expect_same(options, "fashion_mnist", {"--epochs", "1", "--limit", "1280", "--threads", "1"});
    expect_same(options, "all_text",
                {"nlp", "--data", folder_, "--hidden", "32", "--layers", "1", "--max_length", "16", "--warm_up", "4",
                 "--lr", "3e-3", "--batch_size", "8", "--epochs", "1"});
  }
}

TEST_F(VerifiedExamples, WhatDiffersByDesignIsNamed) {
  const std::vector<std::tuple<std::string, Words, int, std::string>> expected = {
      {"comm_hooks", {}, 2, "a communication hook changes gradients by design"},
      {"local_sgd", {}, 2, "local_sgd lets the ranks drift apart by design"},
      {"tensor_parallel", {}, 2, "tp -1: runs whose ranks hold parts of a model are not compared"},
      {"pipeline_parallel", {}, 2, "pp -1: runs whose ranks hold parts of a model are not compared"},
      {"context_parallel", {}, 2, "cp -1: runs whose ranks hold parts of a model are not compared"},
      {"three_d", {"-n", "4"}, 2, "runs whose ranks hold parts of a model are not compared"},
      {"gan", {}, 2, "an optimizer has stepped between two backwards of one batch"},
      {"gan", {"--whole"}, 1, "the program draws random numbers for each batch"},
      {"sync_batch_norm", {}, 1, "Compare with hasten verify --whole"},
      {"warm_up", {}, 1, "Where that is meant (scale_lr), this difference is by design"}};
  for (const auto& [program, options, exit_code, words] : expected) {
    const auto result = verified(options, "all_by_feature", {program});

    EXPECT_EQ(result.exit_code, exit_code) << program;
    EXPECT_THAT(result.out + result.err, HasSubstr(words)) << program;
  }
}

}  // namespace
}  // namespace hasten::test
