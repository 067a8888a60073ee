#include "hasten/launch/options/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hasten/core/error.h"

namespace hasten::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Words = std::vector<std::string>;

CommandLine read(const Words& words) {
  return read_command_line(launch_options(), words);
}

TEST(CommandLine, TakesAValueInAllFormsAndUnderBothSpellings) {
  for (const Words& words : std::vector<Words>{{"-n", "2"},
                                               {"-n2"},
                                               {"-n=2"},
                                               {"--num_processes", "2"},
                                               {"--num-processes", "2"},
                                               {"--num_processes=2"},
                                               {"-n", "5", "-n", "2"}}) {
    const CommandLine line = read(words);

    EXPECT_EQ(line.text("num_processes"), "2");
    EXPECT_THAT(line.problems, IsEmpty());
    EXPECT_THAT(line.rest, IsEmpty());
  }
}

TEST(CommandLine, OptionsEndWhereTheProgramBegins) {
  const Words program = {"train", "-n", "3", "--help", "--", "-x"};

  EXPECT_EQ(read({"-n", "2", "train", "-n", "3", "--help", "--", "-x"}).rest, program);
  EXPECT_EQ(read({"-n", "2", "--", "train", "-n", "3", "--help", "--", "-x"}).rest, program);
  EXPECT_THAT(read({"-m", "--", "--odd"}).rest, ElementsAre("--odd"));
  EXPECT_THAT(read({"-"}).rest, ElementsAre("-"));
}

TEST(CommandLine, SwitchesTakeNoWordAndMayStandTogether) {
  const CommandLine line = read({"-mq", "--cpu", "train"});

  EXPECT_EQ(line.text("module"), "True");
  EXPECT_EQ(line.text("quiet"), "True");
  EXPECT_EQ(line.text("cpu"), "True");
  EXPECT_THAT(line.rest, ElementsAre("train"));
  EXPECT_THAT(read({"--cpu=no"}).problems, ElementsAre("--cpu takes no value, but got 'no'"));
}

TEST(CommandLine, ListsKeepAllTheirValuesAndOthersTheLast) {
  const CommandLine line = read({"--vm", "a", "--role", "x", "--vm", "b", "--role", "y"});

  EXPECT_THAT(line.options.at("vm").values, ElementsAre("a", "b"));
  EXPECT_THAT(line.options.at("role").values, ElementsAre("y"));
}

TEST(CommandLine, CollectsAllMistakes) {
  const CommandLine line = read({"-n", "x", "--max_restarts", "-1", "--monitor_interval=soon", "--fsdp_use_orig_params",
                                 "maybe", "--mixed_precision", "bf61", "--num-proceses=2", "-z", "--gpu_ids"});

  EXPECT_THAT(line.problems,
              ElementsAre("--num_processes: 'x' is not a whole number between 1 and 1048576",
                          "--max_restarts: '-1' is not a whole number of at least 0",
                          "--monitor_interval: 'soon' is not a number of seconds between 0 and 1000000000",
                          "--fsdp_use_orig_params: 'maybe' is neither true nor false",
                          "--mixed_precision: 'bf61' is not one of no, fp16, bf16, fp8, did you mean 'bf16'?",
                          "unknown option '--num-proceses', did you mean '--num-processes'?", "unknown option '-z'",
                          "--gpu_ids needs a value"));
}

TEST(CommandLine, OneMistakeIsASentenceAndSeveralAreAList) {
  const auto message = [](const Words& problems) -> std::string {
    try {
      refuse("launch", problems, "See the help.");
    } catch (const UsageError& error) {
      return error.what();
    }
  };

  EXPECT_EQ(message({"a is b"}), "[launch] a is b. See the help.");
  EXPECT_EQ(message({"a, did you mean 'b'?"}), "[launch] a, did you mean 'b'? See the help.");
  EXPECT_EQ(message({"a", "b"}), "[launch] 2 things are wrong:\n  a\n  b\nSee the help.");
}

}  // namespace
}  // namespace hasten::launcher
