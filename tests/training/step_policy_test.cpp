// Policies round steps of prepared optimizers: their order, a step of their own, skipped steps.
#include "hasten/training/step_policy.h"

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <string>

#include "hasten/optim/prepared/prepared_optimizer.h"
#include "hasten/training/gradient_state.h"

namespace hasten::training {
namespace {

struct Noted : StepPolicy {
  Noted(std::string& log, char name) : log(&log), name(name) {}
  void before_step(StepContext& context) override {
    *log += name;
    context.skip = context.skip || skips;
    context.gradient_factor *= factor;
  }
  bool step(StepContext&) override {
    *log += 's';
    return steps;
  }
  void after_step(StepContext& context) override { *log += context.skip ? 'x' : 'a'; }
  std::string* log;
  char name;
  bool skips = false, steps = false;
  double factor = 1;
};

struct PolicyLoop {
  PolicyLoop()
      : parameter(at::zeros({2}).requires_grad_()),
        sgd(std::make_shared<torch::optim::SGD>(std::vector<at::Tensor>{parameter}, torch::optim::SGDOptions(1.0))) {
    parameter.mutable_grad() = at::ones({2});
  }
  at::Tensor parameter;
  std::shared_ptr<torch::optim::SGD> sgd;
  std::shared_ptr<GradientState> state = std::make_shared<GradientState>();
  optim::PreparedOptimizer<torch::optim::SGD> optimizer{sgd, state};
  std::string log;
};

TEST(StepPolicy, KindsDecideTheOrderThenTheOrderOfAdding) {
  PolicyLoop loop;
  for (const auto& [order, name] : {std::pair(StepOrder::kAfter, 'd'),
                                    {StepOrder::kUnscale, 'a'},
                                    {StepOrder::kStep, 'c'},
                                    {StepOrder::kUnscale, 'b'}}) {
    loop.state->step_policies().add(order, std::make_shared<Noted>(loop.log, name));
  }
  loop.optimizer.step();
  EXPECT_EQ(loop.log, "abcdssssaaaa");
  EXPECT_EQ(loop.parameter[0].item<float>(), -1.0F);
}

TEST(StepPolicy, ASkippedStepLeavesParametersAndIsReported) {
  PolicyLoop loop;
  auto policy = std::make_shared<Noted>(loop.log, 'a');
  policy->skips = true;
  loop.state->step_policies().add(StepOrder::kUnscale, policy);
  loop.optimizer.step();
  EXPECT_EQ(loop.log, "ax");
  EXPECT_EQ(loop.parameter[0].item<float>(), 0.0F);
  EXPECT_TRUE(loop.optimizer.step_was_skipped());
  loop.state->step_policies().remove(policy.get());
  loop.optimizer.step();
  EXPECT_FALSE(loop.optimizer.step_was_skipped());
  EXPECT_EQ(loop.parameter[0].item<float>(), -1.0F);
}

TEST(StepPolicy, AStepOfAPolicysOwnTakesTheOptimizersPlaceAndFactorsMultiply) {
  PolicyLoop loop;
  auto half = std::make_shared<Noted>(loop.log, 'a'), own = std::make_shared<Noted>(loop.log, 'b');
  half->factor = 0.5;
  own->steps = true;
  loop.state->step_policies().add(StepOrder::kClip, half);
  loop.optimizer.step();
  EXPECT_EQ(loop.parameter[0].item<float>(), -0.5F);
  loop.state->step_policies().add(StepOrder::kStep, own, loop.sgd.get());
  loop.optimizer.step();
  EXPECT_EQ(loop.parameter[0].item<float>(), -0.5F);
  PolicyLoop other;
  EXPECT_EQ(loop.state->step_policies().of(*other.sgd).size(), 1U);
}

}  // namespace
}  // namespace hasten::training
