// Programs of examples/ and bench/ end as the command does where an option is wrong: exit code 2, and words that name
// it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <vector>

#include "bench/options.h"
#include "examples/example_runs.h"

namespace hasten::test {
namespace {

using ::testing::HasSubstr;

TEST(WrongOptions, EndAProgramWithTwoAndTheNameOfTheOption) {
  for (const char* program : {"tutorial", "generate", "deepspeed_with_config", "fsdp_with_peak_mem",
                              "megatron_lm_gpt_pretraining", "unet3d", "resnet", "fashion_mnist"}) {
    const auto result = run_program(1, program, {"--nonsense", "1"});

    EXPECT_EQ(result.exit_code, 2) << program << result.err;
    const std::string named = std::string(program) == "resnet" ? "--data" : "--nonsense";
    EXPECT_THAT(result.err, HasSubstr(named)) << program;
    EXPECT_EQ(run_program(1, program, {"--help"}).exit_code, 0) << program;
  }
}

TEST(WrongOptions, NumbersThatMakeNoSenseAreNamed) {
  const std::vector<std::pair<const char*, Words>> runs = {{"tutorial", {"--stage", "7"}},
                                                           {"tutorial", {"--epochs", "-1"}},
                                                           {"deepspeed_with_config", {"--samples", "0"}},
                                                           {"fsdp_with_peak_mem", {"--samples", "-5"}},
                                                           {"megatron_lm_gpt_pretraining", {"--batch", "0"}}};
  for (const auto& [program, words] : runs) {
    const auto result = run_program(1, program, words);

    EXPECT_EQ(result.exit_code, 2) << program << " " << words[0] << result.err;
    EXPECT_THAT(result.err, HasSubstr(words[0])) << program;
  }
}

TEST(WrongOptions, WordsOfAProgramByPlaceAreNamedWithItsUsage) {
  const std::vector<std::pair<Words, const char*>> features = {{{"tracking"}, "usage: tracking FOLDER"},
                                                               {{"checkpointing", "a", "b"}, "no place for 'b'"},
                                                               {{"profiler", ""}, "FOLDER is empty"},
                                                               {{"resume", "end", "x"}, "'end' is neither stop nor"},
                                                               {{"preemption"}, "a word is missing"},
                                                               {{"survive", "x"}, "BATCH is 'x'; expected a whole"},
                                                               {{"three_d", "2", "-1"}, "TP is '-1'; expected a"}};
  const std::vector<std::pair<Words, const char*>> remote = {{{"hogwild", "many"}, "STEPS is 'many'"},
                                                             {{"reinforce", "5", "0.5"}, "SEED is '0.5'; expected"},
                                                             {{"rnn", "0"}, "usage: rnn [STEPS]"},
                                                             {{"pipeline_resnet50", "3x"}, "IMAGES is '3x'"},
                                                             {{"averaging", "1", "2"}, "no place for '2'"}};
  for (const auto& [program, runs] : {std::pair("all_by_feature", features), std::pair("all_rpc", remote)}) {
    for (const auto& [words, expected] : runs) {
      const auto result = run_program(1, program, words);

      EXPECT_EQ(result.exit_code, 2) << words[0];
      EXPECT_THAT(result.err, HasSubstr(expected)) << words[0];
    }
    EXPECT_EQ(run_program(1, program, {runs[0].first[0], "--help"}).exit_code, 0);
  }
}

// A benchmark with one option.
void run_benchmark(const std::vector<const char*>& words) {
  CLI::App app("Times nothing.");
  int steps = 1;
  app.add_option("--steps", steps)->check(CLI::PositiveNumber);
  bench::parse(app, static_cast<int>(words.size()), words.data());
  std::exit(77);
}

TEST(WrongOptionsDeathTest, EndABenchmarkWithTwoAndTheNameOfTheOption) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  using ::testing::ExitedWithCode;

  EXPECT_EXIT(run_benchmark({"bench", "--nonsense"}), ExitedWithCode(2), "--nonsense");
  EXPECT_EXIT(run_benchmark({"bench", "--steps", "0"}), ExitedWithCode(2), "--steps");
  EXPECT_EXIT(run_benchmark({"bench", "--help"}), ExitedWithCode(0), "");
  EXPECT_EXIT(run_benchmark({"bench", "--steps", "2"}), ExitedWithCode(77), "");
}

}  // namespace
}  // namespace hasten::test
