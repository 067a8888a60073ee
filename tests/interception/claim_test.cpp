// Claims of a parameter: by an interceptor, by a hook on its gradient, and by none any more.
#include "hasten/interception/claim.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

#include "hasten/interception/interceptor.h"

namespace hasten::interception {
namespace {

struct Owner : Interceptor, Claim {
  std::string said = "somewhere else";
  bool intercept(const c10::OperatorHandle&, Stack&) override { return false; }
  std::string words() const override { return said; }
};

struct OwnerByHook : torch::autograd::FunctionPostHook, Claim {
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    return outputs;
  }
  std::string words() const override { return "of a run"; }
};

TEST(ClaimTest, InterceptorsAndHooksOfTheGradientHaveIt) {
  const at::Tensor parameter = torch::ones({2}, torch::requires_grad());
  EXPECT_EQ(claim_of(parameter), "");

  const auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
  accumulator->add_post_hook(std::make_unique<OwnerByHook>());
  EXPECT_EQ(claim_of(parameter), "of a run");

  const auto owner = std::make_shared<Owner>();
  add_interceptor(parameter, owner);
  EXPECT_EQ(claim_of(parameter), "somewhere else");

  owner->said = "";
  EXPECT_EQ(claim_of(parameter), "of a run") << "the next one counts";
  EXPECT_EQ(claim_of(parameter * 2), "") << "a value has no hooks of its own";
}

}  // namespace
}  // namespace hasten::interception
