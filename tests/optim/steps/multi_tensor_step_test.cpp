// The foreach steps, which prepared optimizers take on CUDA, on the CPU: their operations work there too.
#include "optim/steps/multi_tensor_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

#include "hasten/optim/steps/optimizer_step.h"
#include "optim/stepping.h"
#include "support/recipes.h"

namespace hasten::optim::detail {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Key;

constexpr auto kEverywhere = [](c10::Device) { return true; };
constexpr StepChoice kForeach{.fused = false, .foreach_on = kEverywhere};
constexpr StepChoice kOwnStep{.fused = false};
constexpr StepChoice kFusedOrForeach{.fused = true, .foreach_on = kEverywhere};

StepChoice maximizing(StepChoice choice, const json& spec) {
  choice.maximize = spec.value("maximize", false);
  return choice;
}

// With one in half precision.
Tensors leaves_of_all_kinds() {
  Tensors params = leaves();
  params.push_back(random({9, 4}, 6).to(at::kBFloat16).requires_grad_());
  return params;
}

std::vector<json> settings() {
  std::vector<json> all;
  for (const char* text :
       {R"({"type": "SGD", "lr": 0.1})", R"({"type": "SGD", "lr": 0.1, "momentum": 0.9, "dampening": 0.3})",
        R"({"type": "SGD", "lr": 0.1, "momentum": 0.9, "nesterov": true})",
        R"({"type": "Adam", "lr": 0.01, "betas": [0.8, 0.95], "eps": 1e-6})",
        R"({"type": "Adam", "lr": 0.01, "amsgrad": true})", R"({"type": "AdamW", "lr": 0.01})",
        R"({"type": "AdamW", "lr": 0.01, "amsgrad": true})", R"({"type": "Adagrad", "lr": 0.1})",
        R"({"type": "Adagrad", "lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.3})",
        R"({"type": "RMSprop", "lr": 0.01, "alpha": 0.9, "eps": 1e-4})",
        R"({"type": "RMSprop", "lr": 0.01, "momentum": 0.5})", R"({"type": "RMSprop", "lr": 0.01, "centered": true})",
        R"({"type": "RMSprop", "lr": 0.01, "momentum": 0.5, "centered": true})"}) {
    for (const double decay : {0.0, 0.1}) {
      for (const bool maximize : {false, true}) {
        all.push_back(json::parse(text));
        all.back()["weight_decay"] = decay;
        all.back()["maximize"] = maximize;
      }
    }
  }
  return all;
}

template <class State>
const State* state_as(const torch::optim::Optimizer& optimizer, const at::Tensor& param) {
  const auto found = optimizer.state().find(param.unsafeGetTensorImpl());
  return found == optimizer.state().end() ? nullptr : dynamic_cast<const State*>(found->second.get());
}

// Everything that torch::optim keeps for the parameters, the counts of steps too.
Tensors state_of(const torch::optim::Optimizer& optimizer, const Tensors& params) {
  namespace peer = torch::optim;
  Tensors all;
  const auto note = [&](int64_t step, const Tensors& tensors) {
    all.push_back(torch::tensor(step).to(at::kDouble));
    for (const auto& tensor : tensors) all.push_back(tensor.defined() ? tensor : torch::full({}, -1.0));
  };
  for (const auto& param : params) {
    if (const auto* sgd = state_as<peer::SGDParamState>(optimizer, param)) note(0, {sgd->momentum_buffer()});
    if (const auto* adam = state_as<peer::AdamParamState>(optimizer, param)) {
      note(adam->step(), {adam->exp_avg(), adam->exp_avg_sq(), adam->max_exp_avg_sq()});
    }
    if (const auto* adamw = state_as<peer::AdamWParamState>(optimizer, param)) {
      note(adamw->step(), {adamw->exp_avg(), adamw->exp_avg_sq(), adamw->max_exp_avg_sq()});
    }
    if (const auto* adagrad = state_as<peer::AdagradParamState>(optimizer, param)) {
      note(adagrad->step(), {adagrad->sum()});
    }
    if (const auto* rms = state_as<peer::RMSpropParamState>(optimizer, param)) {
      note(rms->step(), {rms->square_avg(), rms->momentum_buffer(), rms->grad_avg()});
    }
  }
  return all;
}

// Parameters and state after `steps` steps, of which `choice(step)` says how each goes.
Tensors trained(const json& spec, int steps, const std::function<StepChoice(int)>& choice) {
  Tensors params = leaves_of_all_kinds();
  const auto optimizer = hasten::testing::optimizer_for(spec, params);
  for (int step = 0; step < steps; ++step) {
    set_gradients(params, static_cast<uint64_t>(step));
    if (step % 4 == 2) params[1].mutable_grad() = at::Tensor();
    optimizer_step(*optimizer, maximizing(choice(step), spec));
  }
  const Tensors state = state_of(*optimizer, params);
  params.insert(params.end(), state.begin(), state.end());
  return params;
}

TEST(ForeachStep, GivesParametersAndStateOfTorchOptimInAllSettings) {
  const auto all = settings();
  ASSERT_GE(all.size(), 40U);
  for (const auto& spec : all) {
    SCOPED_TRACE(spec.dump());
    const Tensors plain = trained(spec, 12, [](int) { return kOwnStep; });
    const bool has_state = spec.at("type") != "SGD" || spec.contains("momentum");

    expect_near(trained(spec, 12, [](int) { return kForeach; }), plain);

    EXPECT_EQ(plain.size() > leaves_of_all_kinds().size(), has_state);
  }
}

TEST(ForeachStep, TakesTurnsWithTheFusedKernelsAndTheOwnStep) {
  constexpr StepChoice kTurns[] = {kForeach, kOwnStep, kFusedOrForeach};
  for (const auto& spec : settings()) {
    SCOPED_TRACE(spec.dump());

    expect_near(trained(spec, 9, [&](int step) { return kTurns[step % 3]; }),
                trained(spec, 9, [](int) { return kOwnStep; }));
  }
}

TEST(ForeachStep, StateIsSavedAndLoadedByTorchAcrossAChange) {
  for (const auto& spec : settings()) {
    for (const bool foreach_first : {true, false}) {
      SCOPED_TRACE(spec.dump());
      const Tensors params = leaves_of_all_kinds();
      const auto optimizer = hasten::testing::optimizer_for(spec, params);
      const auto before = maximizing(foreach_first ? kForeach : kOwnStep, spec);
      for (uint64_t step = 0; step < 3; ++step) set_gradients(params, step), optimizer_step(*optimizer, before);
      std::stringstream file;
      torch::save(*optimizer, file);
      Tensors copies;
      for (const auto& param : params) copies.push_back(param.detach().clone().requires_grad_());
      const auto loaded = hasten::testing::optimizer_for(spec, copies);
      torch::load(*loaded, file);

      const auto after = maximizing(foreach_first ? kOwnStep : kForeach, spec);
      for (uint64_t step = 3; step < 6; ++step) {
        set_gradients(params, step), optimizer_step(*optimizer, before);
        set_gradients(copies, step), optimizer_step(*loaded, after);
      }

      expect_near(copies, params);
      expect_near(state_of(*loaded, copies), state_of(*optimizer, params));
    }
  }
}

int foreach_calls(const json& spec, int64_t num_params) {
  Tensors params;
  for (int64_t k = 0; k < num_params; ++k) params.push_back(random({3, k + 1}, 7).requires_grad_());
  const auto optimizer = hasten::testing::optimizer_for(spec, params);
  set_gradients(params, 0);
  int calls = 0;
  for (const auto& [name, count] : operators_of([&] { optimizer_step(*optimizer, kForeach); })) {
    if (name.starts_with("aten::_foreach_")) calls += count;
  }
  return calls;
}

TEST(ForeachStep, CallsNoMoreOperationsForTenParametersThanForOne) {
  for (const auto& spec : settings()) {
    const int one = foreach_calls(spec, 1);

    EXPECT_GE(one, 1) << spec;
    EXPECT_EQ(foreach_calls(spec, 10), one) << spec;
  }
}

TEST(ForeachStep, LeavesGradientsAsTheyWere) {
  for (const auto& spec : settings()) {
    const Tensors params = leaves_of_all_kinds();
    const auto optimizer = hasten::testing::optimizer_for(spec, params);
    for (uint64_t step = 0; step < 2; ++step) {
      set_gradients(params, step);
      Tensors grads, values;
      for (const auto& param : params) {
        grads.push_back(param.grad());
        values.push_back(param.grad().clone());
      }

      optimizer_step(*optimizer, maximizing(kForeach, spec));

      for (size_t k = 0; k < params.size(); ++k) {
        EXPECT_TRUE(params[k].grad().is_same(grads[k]) && torch::equal(grads[k], values[k])) << spec;
      }
    }
  }
}

TEST(ForeachStep, TakesHalfPrecisionBesideFusedKernels) {
  const json spec = json::parse(R"({"type": "Adam", "lr": 0.01})");
  const Tensors params = {random({3, 4}, 1).requires_grad_(), random({3, 4}, 1).to(at::kBFloat16).requires_grad_()};
  const auto optimizer = hasten::testing::optimizer_for(spec, params);
  set_gradients(params, 0);
  MultiTensorStep done;

  const auto names = operators_of([&] { done = multi_tensor_step(*optimizer, kFusedOrForeach); });

  EXPECT_EQ(done.num_left, 0U);
  EXPECT_EQ(done.stepped.size(), 2U);
  EXPECT_THAT(names, AllOf(Contains(Key("aten::_fused_adam_")), Contains(Key("aten::_foreach_addcdiv_"))));
}

TEST(ForeachStep, EachParameterGroupHasItsOwnOptions) {
  const auto run = [](const StepChoice& choice) {
    const Tensors params = leaves();
    using torch::optim::RMSpropOptions;
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(Tensors{params[0], params[1]}, std::make_unique<RMSpropOptions>(0.1));
    groups.emplace_back(
        Tensors{params[2], params[3], params[4]},
        std::make_unique<RMSpropOptions>(RMSpropOptions(0.01).weight_decay(0.5).centered(true).momentum(0.9)));
    torch::optim::RMSprop rmsprop(groups);
    for (uint64_t step = 0; step < 5; ++step) set_gradients(params, step), optimizer_step(rmsprop, choice);
    return params;
  };

  expect_near(run(kForeach), run(kOwnStep));
}

TEST(ForeachStep, SparseGradientsAndGapsInMemoryTakeTheOptimizersOwnStepBesideIt) {
  const auto run = [](const StepChoice& choice, size_t num_left) {
    const at::Tensor whole = random({4, 6}, 1);
    const Tensors params = {whole.slice(1, 0, 6, 2).detach().requires_grad_(), random({5, 3}, 2).requires_grad_(),
                            random({3}, 3).requires_grad_()};
    torch::optim::Adagrad adagrad(params, 0.1);
    const at::Tensor rows = torch::tensor({{1, 3, 1}});
    for (uint64_t step = 0; step < 3; ++step) {
      set_gradients(params, step);
      params[1].mutable_grad() = torch::sparse_coo_tensor(rows, random({3, 3}, step), {5, 3});
      if (step == 2) {
        EXPECT_EQ(multi_tensor_step(adagrad, choice).num_left, num_left);
      } else {
        optimizer_step(adagrad, choice);
      }
      EXPECT_TRUE(params[0].grad().defined() && params[1].grad().is_sparse() && params[2].grad().defined());
    }
    EXPECT_TRUE(torch::equal(whole.slice(1, 1, 6, 2), random({4, 6}, 1).slice(1, 1, 6, 2)));
    return params;
  };

  const Tensors foreach = run(kForeach, 2), plain = run(kOwnStep, 3);

  expect_near({foreach[0], foreach[1]}, {plain[0], plain[1]});
  EXPECT_FALSE(torch::allclose(foreach[2], plain[2])) << "the third step is foreach's only";
}

TEST(ForeachStep, AGradientThatLiesInMemoryInAnotherOrderIsUsedElementByElement) {
  const auto run = [](const StepChoice& choice) {
    const Tensors params = leaves();
    torch::optim::RMSprop rmsprop(params, torch::optim::RMSpropOptions(0.01).momentum(0.5));
    for (uint64_t step = 0; step < 3; ++step) {
      set_gradients(params, step);
      params[0].mutable_grad() = params[0].grad().t().contiguous().t();
      params[1].mutable_grad() = torch::ones({1}).expand({5});
      optimizer_step(rmsprop, choice);
    }
    return params;
  };

  expect_near(run(kForeach), run(kOwnStep));
}

TEST(ForeachStep, IsTakenOnCudaUnlessItOrFusedIsForbidden) {
  const auto takes = [](const PreparedOptimizerOptions& options, c10::DeviceType device) {
    const auto choice = choice_of(options);
    return choice.foreach_on != nullptr && choice.foreach_on(device);
  };

  EXPECT_TRUE(takes({}, c10::kCUDA));
  EXPECT_TRUE(takes({.fused = false, .foreach = true}, c10::kCUDA));
  EXPECT_FALSE(takes({.fused = false}, c10::kCUDA));
  EXPECT_FALSE(takes({.foreach = false}, c10::kCUDA));
  EXPECT_FALSE(takes({.foreach = true}, c10::kCPU));
  EXPECT_FALSE(choice_of({.fused = false, .foreach = true}).fused);
}

TEST(ForeachStep, IsNotTakenOnACpu) {
  const Tensors params = leaves_of_all_kinds();
  torch::optim::RMSprop rmsprop(params);
  for (const PreparedOptimizerOptions& options :
       {PreparedOptimizerOptions{}, PreparedOptimizerOptions{.fused = false, .foreach = true}}) {
    set_gradients(params, 0);

    const auto names = operators_of([&] { hasten::optim::optimizer_step(rmsprop, options); });

    for (const auto& [name, count] : names) EXPECT_FALSE(name.starts_with("aten::_foreach_")) << name;
    EXPECT_THAT(names, Contains(Key("aten::addcdiv_")));
  }
}

}  // namespace
}  // namespace hasten::optim::detail
