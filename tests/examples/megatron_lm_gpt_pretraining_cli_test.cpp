// The example of Megatron-LM: one process and several ranks give the same losses, for each model.
#include <gtest/gtest.h>

#include <string>

#include "cli/command.h"
#include "examples/example_runs.h"
#include "support/folder.h"

namespace hasten::test {
namespace {

class MegatronLmGptPretraining : public testing::InFolder {};

const std::string kPretrainingProgram = HASTEN_BINARY_DIR "/examples/megatron_lm_gpt_pretraining";

std::string said(const Words& launch, const Words& words) {
  Words all = launch;
  all.push_back(kPretrainingProgram);
  all.insert(all.end(), words.begin(), words.end());
  const auto result = run_command(all, {{"OMP_NUM_THREADS", "1"}});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  return result.out;
}

Words launched(int processes, const Words& options) {
  Words words = {HASTEN_COMMAND, "launch", "-n", std::to_string(processes), "--use_megatron_lm"};
  words.insert(words.end(), options.begin(), options.end());
  return words;
}

TEST_F(MegatronLmGptPretraining, LearnsAlikeOnStagesAndCutLayers) {
  for (const std::string model : {"gpt", "bert", "t5"}) {
    const Words words = {"--model", model, "--epochs", "2", "--samples", "96"};
    const auto one = said({}, words);
    const double loss = last_number(one, "loss");

    EXPECT_GT(loss, 0) << one;
    EXPECT_LT(loss, model == "bert" ? 4.1 : 4.0) << one;  // ln 64 is 4.16
    for (const auto& launch :
         {launched(2, {"--megatron_lm_pp_degree", "2", "--megatron_lm_num_micro_batches", "4"}),
          launched(2, {"--megatron_lm_tp_degree", "2", "--megatron_lm_sequence_parallelism", "true"})}) {
      EXPECT_NEAR(last_number(said(launch, words), "loss"), loss, 1e-4) << model;
    }
  }
}

TEST_F(MegatronLmGptPretraining, GoesOnInAnotherLayoutAndReadsIndexedTokens) {
  said({}, {"--make", path("text"), "--samples", "96"});
  const Words data = {"--data", path("text"), "--epochs", "2"};
  const auto with = [&](Words more) {
    more.insert(more.end(), data.begin(), data.end());
    return more;
  };
  said(launched(2, {"--megatron_lm_pp_degree", "2", "--megatron_lm_num_micro_batches", "2"}),
       with({"--save", path("state")}));

  const auto on_one = said({}, with({"--load", path("state")}));
  const auto on_two = said(launched(2, {"--megatron_lm_tp_degree", "2"}), with({"--load", path("state")}));
  const auto anew = said({}, data);

  EXPECT_NEAR(last_number(on_two, "loss"), last_number(on_one, "loss"), 2e-3);
  EXPECT_LT(last_number(on_one, "loss"), last_number(anew, "loss"));
}

}  // namespace
}  // namespace hasten::test
