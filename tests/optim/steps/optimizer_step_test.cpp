#include "hasten/optim/steps/optimizer_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

#include "optim/stepping.h"
#include "support/recipes.h"

namespace hasten::optim {
namespace {

using ::testing::Contains;
using ::testing::Key;
using ::testing::Not;

// All options against PyTorch are in optimizer_reference_golden_test.cpp.

using Optimizer = std::unique_ptr<torch::optim::Optimizer>;
using Make = std::function<Optimizer(const Tensors&)>;

constexpr PreparedOptimizerOptions kPlain{.fused = false};

Make make(const std::string& spec) {
  return [spec](const Tensors& params) { return hasten::testing::optimizer_for(nlohmann::json::parse(spec), params); };
}

const Make kAdam = make(R"({"type": "Adam", "lr": 0.01, "weight_decay": 0.1, "amsgrad": true})");
const Make kSgd = make(R"({"type": "SGD", "lr": 0.1, "momentum": 0.9, "nesterov": true})");

// Parameters after `steps` steps, of which `options(step)` says how each goes.
Tensors train(const Make& make_optimizer, int steps, const std::function<PreparedOptimizerOptions(int)>& options) {
  const Tensors params = leaves();
  const Optimizer optimizer = make_optimizer(params);
  for (int step = 0; step < steps; ++step) {
    set_gradients(params, static_cast<uint64_t>(step));
    optimizer_step(*optimizer, options(step));
  }
  return params;
}

class EveryKernel : public ::testing::TestWithParam<const char*> {};

TEST_P(EveryKernel, GivesWhatTorchOptimGives) {
  const Make optimizer = make(GetParam());

  const Tensors fused = train(optimizer, 20, [](int) { return PreparedOptimizerOptions{}; });
  const Tensors plain = train(optimizer, 20, [](int) { return kPlain; });

  expect_near(fused, plain);
}

TEST_P(EveryKernel, RefusesAGraphFromBeforeTheStep) {
  for (const bool fused : {true, false}) {
    const at::Tensor param = torch::ones({3}).requires_grad_();
    const Optimizer optimizer = make(GetParam())({param});
    const at::Tensor loss = param.square().sum();
    loss.backward({}, true);

    optimizer_step(*optimizer, {.fused = fused});

    EXPECT_THROW(loss.backward(), c10::Error) << "fused " << fused;
  }
}

TEST_P(EveryKernel, StepsAGroupThatIsAddedLate) {
  for (const bool fused : {true, false}) {
    for (const auto dtype : {at::kFloat, at::kHalf}) {
      const at::Tensor first = torch::ones({3}, dtype).requires_grad_(),
                       late = torch::ones({2}, dtype).requires_grad_();
      const Optimizer optimizer = make(GetParam())({first});
      optimizer->add_param_group(torch::optim::OptimizerParamGroup({late}, optimizer->defaults().clone()));
      first.mutable_grad() = torch::full_like(first, 0.5);
      late.mutable_grad() = torch::full_like(late, 0.5);

      optimizer_step(*optimizer, {.fused = fused});

      EXPECT_FALSE(late.equal(torch::ones({2}, dtype))) << "fused " << fused;
      for (const auto& [parameter, state] : optimizer->state()) EXPECT_NE(state, nullptr) << "fused " << fused;
    }
  }
}

TEST_P(EveryKernel, SharesItsStateWithTorchOptimSoThatTheTwoMayTakeTurns) {
  const Make optimizer = make(GetParam());

  const Tensors turns = train(optimizer, 9, [](int step) { return PreparedOptimizerOptions{.fused = step % 3 != 1}; });
  const Tensors plain = train(optimizer, 9, [](int) { return kPlain; });

  expect_near(turns, plain);
}

TEST_P(EveryKernel, LeavesAStateThatTorchSavesAndLoads) {
  const Tensors params = leaves();
  const Optimizer optimizer = make(GetParam())(params);
  for (uint64_t step = 0; step < 3; ++step) set_gradients(params, step), optimizer_step(*optimizer);
  std::stringstream file;
  torch::save(*optimizer, file);
  Tensors copies;
  for (const auto& param : params) copies.push_back(param.detach().clone().requires_grad_());
  const Optimizer loaded = make(GetParam())(copies);
  torch::load(*loaded, file);

  for (uint64_t step = 3; step < 6; ++step) {
    set_gradients(params, step), optimizer_step(*optimizer);
    set_gradients(copies, step), optimizer_step(*loaded, kPlain);
  }

  expect_near(params, copies);
}

TEST_P(EveryKernel, IsOneCallForAllParametersAlike) {
  const Tensors params = leaves();
  const Optimizer optimizer = make(GetParam())(params);
  set_gradients(params, 0);

  const auto names = operators_of([&] { optimizer_step(*optimizer); });

  const std::string type = nlohmann::json::parse(GetParam()).at("type");
  std::string kernel = "aten::_fused_" + type + "_";
  std::transform(kernel.begin(), kernel.end(), kernel.begin(), [](unsigned char c) { return std::tolower(c); });
  EXPECT_THAT(names, Contains(Key(kernel)));
  EXPECT_THAT(names, Not(Contains(Key("aten::addcdiv_"))));
  EXPECT_THAT(names, Not(Contains(Key("aten::add_"))));
}

TEST_P(EveryKernel, TreatsLargeParametersAsSmallOnes) {
  const at::Tensor large = random({300, 201}, 1), grad = random({300, 201}, 2);
  const auto row = [&](bool alone, bool maximize) {
    const Tensors params = {(alone ? large[7].clone() : large.clone()).requires_grad_()};
    const Optimizer optimizer = make(GetParam())(params);
    params[0].mutable_grad() = alone ? grad[7] : grad;
    for (int step = 0; step < 3; ++step) optimizer_step(*optimizer, {.maximize = maximize});
    return alone ? params[0] : params[0][7];
  };

  for (const bool maximize : {false, true}) expect_near({row(true, maximize)}, {row(false, maximize)});
}

INSTANTIATE_TEST_SUITE_P(OptimizerStep, EveryKernel,
                         ::testing::Values(R"({"type": "SGD", "lr": 0.1})",
                                           R"({"type": "SGD", "lr": 0.1, "weight_decay": 0.1})",
                                           R"({"type": "SGD", "lr": 0.1, "momentum": 0.9, "dampening": 0.3})",
                                           R"({"type": "SGD", "lr": 0.1, "momentum": 0.9, "nesterov": true})",
                                           R"({"type": "Adam", "lr": 0.01})",
                                           R"({"type": "Adam", "lr": 0.01, "amsgrad": true, "weight_decay": 0.1})",
                                           R"({"type": "AdamW", "lr": 0.01, "amsgrad": true})",
                                           R"({"type": "Adagrad", "lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1})"));

TEST(OptimizerStep, TheNumberOfThreadsIsAsBefore) {
  const Tensors params = leaves();
  torch::set_num_threads(3);
  set_gradients(params, 0);

  optimizer_step(*kAdam(params));

  EXPECT_EQ(torch::get_num_threads(), 3);
}

TEST(OptimizerStep, EachParameterGroupHasItsOwnOptions) {
  const auto run = [](const PreparedOptimizerOptions& options) {
    const Tensors params = leaves();
    using torch::optim::AdamOptions;
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(Tensors{params[0], params[1]}, std::make_unique<AdamOptions>(0.1));
    groups.emplace_back(Tensors{params[2], params[3], params[4]},
                        std::make_unique<AdamOptions>(AdamOptions(0.01).weight_decay(0.5)));
    torch::optim::Adam adam(groups);
    for (uint64_t step = 0; step < 5; ++step) set_gradients(params, step), optimizer_step(adam, options);
    return params;
  };

  expect_near(run({}), run(kPlain));
}

TEST(OptimizerStep, ParametersWithoutAGradientKeepTheirValuesAndTheirOwnCount) {
  const auto run = [](const Make& optimizer_of, const PreparedOptimizerOptions& options) {
    const Tensors params = leaves();
    const Optimizer optimizer = optimizer_of(params);
    for (uint64_t step = 0; step < 6; ++step) {
      set_gradients(params, step);
      if (step < 2) params[1].mutable_grad() = at::Tensor();
      if (step % 2 == 1) params[0].mutable_grad() = at::Tensor();
      const at::Tensor before = params[1].detach().clone();
      optimizer_step(*optimizer, options);
      EXPECT_EQ(torch::equal(params[1], before), step < 2);
    }
    return params;
  };

  expect_near(run(kAdam, {}), run(kAdam, kPlain));
  expect_near(run(kSgd, {}), run(kSgd, kPlain));
}

TEST(OptimizerStep, AGradientThatLiesInMemoryInAnotherOrderIsUsedElementByElement) {
  const auto run = [](const PreparedOptimizerOptions& options) {
    const Tensors params = leaves();
    const Optimizer adam = kAdam(params);
    for (uint64_t step = 0; step < 3; ++step) {
      set_gradients(params, step);
      params[0].mutable_grad() = params[0].grad().t().contiguous().t();
      params[1].mutable_grad() = torch::ones({1}).expand({5});
      params[3].mutable_grad() = params[3].grad().contiguous();
      optimizer_step(*adam, options);
    }
    return params;
  };

  expect_near(run({}), run(kPlain));
}

TEST(OptimizerStep, AParameterWithGapsInMemoryTakesTheOptimizersOwnStepBesideFusedOnes) {
  const auto run = [](const Make& optimizer_of, const PreparedOptimizerOptions& options) {
    const at::Tensor whole = random({4, 6}, 1);
    const Tensors params = {whole.slice(1, 0, 6, 2).detach().requires_grad_(), random({3}, 2).requires_grad_()};
    const Optimizer optimizer = optimizer_of(params);
    for (uint64_t step = 0; step < 3; ++step) set_gradients(params, step), optimizer_step(*optimizer, options);
    EXPECT_TRUE(torch::equal(whole.slice(1, 1, 6, 2), random({4, 6}, 1).slice(1, 1, 6, 2)));
    EXPECT_TRUE(params[0].grad().defined() && params[1].grad().defined());
    return params;
  };

  const Make without_state = make(R"({"type": "SGD", "lr": 0.1})");
  for (const Make& optimizer : {kAdam, without_state}) expect_near(run(optimizer, {}), run(optimizer, kPlain));
}

TEST(OptimizerStep, SparseGradientsTakeTheOptimizersOwnStepBesideFusedOnes) {
  const auto run = [](const PreparedOptimizerOptions& options) {
    const Tensors params = {random({5, 3}, 1).requires_grad_(), random({3}, 2).requires_grad_()};
    torch::optim::Adagrad adagrad(params, 0.1);
    const at::Tensor rows = torch::tensor({{1, 3, 1}});
    for (uint64_t step = 0; step < 3; ++step) {
      params[0].mutable_grad() = torch::sparse_coo_tensor(rows, random({3, 3}, step), {5, 3});
      params[1].mutable_grad() = random({3}, 50 + step);
      optimizer_step(adagrad, options);
    }
    EXPECT_TRUE(params[0].grad().is_sparse());
    return params;
  };
  const Tensors plain = run(kPlain);

  expect_near(run({}), plain);
  EXPECT_FALSE(torch::allclose(run({.maximize = true})[0], plain[0]));
}

TEST(OptimizerStep, HalfPrecisionIsSteppedAsTorchOptimStepsIt) {
  const auto run = [](const PreparedOptimizerOptions& options) {
    const Tensors params = {random({40, 3}, 1).to(at::kBFloat16).requires_grad_(), random({3}, 2).requires_grad_()};
    const Optimizer sgd = kSgd(params);
    for (uint64_t step = 0; step < 5; ++step) set_gradients(params, step), optimizer_step(*sgd, options);
    return params;
  };
  const Tensors fused = run({}), plain = run(kPlain);

  EXPECT_TRUE(torch::equal(fused[0], plain[0]));
  expect_near({fused[1]}, {plain[1]});
}

struct CountingAdam : torch::optim::Adam {
  using Adam::Adam;
  at::Tensor step(LossClosure closure = nullptr) override {
    ++steps;
    return Adam::step(std::move(closure));
  }
  int steps = 0;
};

TEST(OptimizerStep, ADerivedClassStepsInItsOwnWay) {
  const Tensors params = leaves();
  CountingAdam adam(params);
  set_gradients(params, 0);

  optimizer_step(adam);

  EXPECT_EQ(adam.steps, 1);
}

TEST(OptimizerStep, MaximizeOfAnyOptimizerLeavesTheGradientsAsTheyWere) {
  for (const bool fused : {true, false}) {
    const Tensors up = leaves(), down = leaves();
    const Optimizer maximizing = kAdam(up), minimizing = kAdam(down);
    for (uint64_t step = 0; step < 3; ++step) {
      set_gradients(up, step);
      set_gradients(down, step);
      for (const auto& param : down) param.mutable_grad() = param.grad().neg();
      const at::Tensor grad = up[0].grad(), values = grad.clone();

      optimizer_step(*maximizing, {.fused = fused, .maximize = true});
      optimizer_step(*minimizing, {.fused = fused});

      EXPECT_TRUE(up[0].grad().is_same(grad) && torch::equal(grad, values));
    }
    expect_near(up, down);
  }
}

at::Tensor hill(const at::Tensor& x) {
  return -(x - 3).pow(2).sum();
}

TEST(OptimizerStep, AClosureIsEvaluatedWithGradientsAndItsLossComesBack) {
  for (const bool fused : {true, false}) {
    const at::Tensor x = torch::zeros({2}, torch::requires_grad());
    torch::optim::SGD sgd({x}, 0.1);
    const torch::NoGradGuard no_grad;
    int evaluations = 0;

    const at::Tensor loss = optimizer_step(sgd, {.fused = fused, .maximize = true}, [&] {
      ++evaluations;
      sgd.zero_grad();
      const at::Tensor height = hill(x);
      height.backward();
      return height;
    });

    EXPECT_EQ(evaluations, 1);
    EXPECT_EQ(loss.item<double>(), -18.0);
    EXPECT_TRUE(torch::allclose(x, torch::full({2}, 0.6)));
    EXPECT_TRUE(torch::equal(x.grad(), torch::full({2}, 6.0)));
  }
}

TEST(OptimizerStep, LbfgsClimbsWhereItIsToMaximize) {
  const at::Tensor x = torch::zeros({2}, torch::requires_grad());
  torch::optim::LBFGS lbfgs({x}, torch::optim::LBFGSOptions(1).line_search_fn("strong_wolfe"));

  const at::Tensor loss = optimizer_step(lbfgs, {.maximize = true}, [&] {
    lbfgs.zero_grad();
    const at::Tensor height = hill(x);
    height.backward();
    return height;
  });

  EXPECT_EQ(loss.item<double>(), -18.0) << "the first evaluation's";
  EXPECT_TRUE(torch::allclose(x, torch::full({2}, 3.0), 1e-3));
}

TEST(OptimizerStep, AClosureThatThrowsLeavesTheGradientsAsTheyWere) {
  const at::Tensor x = torch::zeros({2}, torch::requires_grad());
  torch::optim::LBFGS lbfgs({x}, 1);
  const at::Tensor grad = torch::ones({2});
  x.mutable_grad() = grad;
  int evaluations = 0;
  const auto closure = [&]() -> at::Tensor {
    if (++evaluations > 1) throw std::runtime_error("no loss");
    return torch::ones({});
  };

  EXPECT_THROW(optimizer_step(lbfgs, {.maximize = true}, closure), std::runtime_error);

  EXPECT_TRUE(x.grad().is_same(grad));
  EXPECT_TRUE(torch::equal(grad, torch::ones({2})));
}

}  // namespace
}  // namespace hasten::optim
