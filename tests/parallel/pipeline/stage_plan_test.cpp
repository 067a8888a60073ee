// The stages of modules, by names and by costs.
#include "hasten/parallel/pipeline/stage_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/core/error.h"
#include "support/parallel_models.h"

namespace hasten::parallel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<StageModule>& six_modules() {
  static const std::vector<StageModule> modules = {
      {"embed", "embed", 1},         {"layers.0.a", "layers.0", 4}, {"layers.0.b", "layers.0", 4},
      {"layers.1.a", "layers.1", 8}, {"norm", "norm", 1},           {"head", "head", 8},
  };
  return modules;
}

std::string words_of(int num_stages, const std::vector<std::string>& first) {
  try {
    (void)plan_stages(six_modules(), num_stages, first);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(StagePlan, BalancesCostsAndKeepsBlocksWhole) {
  EXPECT_THAT(plan_stages(six_modules(), 3, {}), ElementsAre(0, 0, 0, 1, 1, 2));
  EXPECT_THAT(plan_stages(six_modules(), 1, {}), ElementsAre(0, 0, 0, 0, 0, 0));
}

TEST(StagePlan, TakesNamesThatMayCutBlocks) {
  EXPECT_THAT(plan_stages(six_modules(), 3, {"layers.0.b", "head"}), ElementsAre(0, 0, 1, 1, 1, 2));
  EXPECT_THAT(plan_stages(six_modules(), 2, {"layers.1"}), ElementsAre(0, 0, 0, 1, 1, 1));
}

TEST(StagePlan, SaysWhichNamesDoNotFit) {
  EXPECT_THAT(words_of(2, {"layer.1"}), HasSubstr("'layer.1' is no module with parameters, did you mean 'layers.1'?"));
  EXPECT_THAT(words_of(3, {"head", "norm"}), HasSubstr("'norm' does not come behind the first module of the stage"));
  EXPECT_THAT(words_of(2, {"embed"}), HasSubstr("'embed' does not come behind"));
  EXPECT_THAT(words_of(3, {"head"}), HasSubstr("stages names 1 modules; expected 2"));
  EXPECT_THAT(words_of(6, {}), HasSubstr("the model has 5 blocks for 6 stages"));
}

TEST(StagePlan, CountsMultiplicationsAndNotTables) {
  torch::manual_seed(0);
  const auto modules = stage_modules(*testing::gpt2_model().make());
  ASSERT_EQ(modules.front().name, "transformer.wte");
  EXPECT_EQ(modules[2].block, "transformer.h.0");
  EXPECT_EQ(modules.back().name, "lm_head");
  EXPECT_LT(modules.front().cost, 0.01 * modules.back().cost);
}

}  // namespace
}  // namespace hasten::parallel
