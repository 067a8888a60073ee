#include "hasten/optim/prepared/prepared_optimizer.h"

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

namespace hasten::optim {
namespace {

struct PreparedSgd {
  at::Tensor weight = torch::ones({2}, torch::requires_grad());
  std::shared_ptr<training::GradientState> gradients = std::make_shared<training::GradientState>();
  std::shared_ptr<torch::optim::SGD> sgd = std::make_shared<torch::optim::SGD>(std::vector<at::Tensor>{weight}, 1.0);
  PreparedOptimizer<torch::optim::SGD> optimizer{sgd, gradients};

  void backward() { weight.sum().backward(); }
};

TEST(PreparedOptimizer, StepsWhenGradientsHaveBeenExchanged) {
  PreparedSgd it;
  it.backward();

  it.optimizer.step();

  EXPECT_TRUE(torch::equal(it.weight, torch::zeros({2})));
}

TEST(PreparedOptimizer, KeepsWeightsAndGradientsWhileAccumulating) {
  PreparedSgd it;
  it.backward();
  it.gradients->set_sync_gradients(false);
  it.gradients->optimizers().note_backward(true);

  it.optimizer.step();
  it.optimizer.zero_grad();

  EXPECT_TRUE(torch::equal(it.weight, torch::ones({2})));
  EXPECT_TRUE(it.weight.grad().defined());
}

TEST(PreparedOptimizer, ZeroGradHasBothForms) {
  PreparedSgd it;
  it.backward();

  it.optimizer.zero_grad(false);
  EXPECT_TRUE(torch::equal(it.weight.grad(), torch::zeros({2})));

  it.optimizer.zero_grad();
  EXPECT_FALSE(it.weight.grad().defined());
}

TEST(PreparedOptimizer, AClosureGivesItsLoss) {
  PreparedSgd it;
  const auto closure = [&] {
    it.sgd->zero_grad();
    at::Tensor loss = it.weight.sum();
    loss.backward();
    return loss;
  };

  EXPECT_EQ(it.optimizer.step(closure).item<double>(), 2.0);
  it.gradients->set_sync_gradients(false);
  EXPECT_FALSE(it.optimizer.step(closure).defined());
}

TEST(PreparedOptimizer, ASkippedStepIsRememberedUntilTheNextOne) {
  PreparedSgd it;
  it.backward();

  it.optimizer.skip_step();
  EXPECT_TRUE(it.optimizer.step_was_skipped());
  EXPECT_TRUE(it.gradients->optimizer_step_was_skipped());
  EXPECT_TRUE(torch::equal(it.weight, torch::ones({2})));

  it.optimizer.step();
  EXPECT_FALSE(it.optimizer.step_was_skipped());
}

TEST(PreparedOptimizer, WhileAccumulatingThereIsNoStepToSkip) {
  PreparedSgd it;
  it.gradients->set_sync_gradients(false);

  it.optimizer.skip_step();

  EXPECT_FALSE(it.optimizer.step_was_skipped());
}

TEST(PreparedOptimizer, TheOptimizerItselfStaysReachable) {
  PreparedSgd it;

  EXPECT_EQ(it.optimizer->param_groups().size(), 1u);
  EXPECT_EQ(&it.optimizer.unwrap(), it.sgd.get());
}

}  // namespace
}  // namespace hasten::optim
