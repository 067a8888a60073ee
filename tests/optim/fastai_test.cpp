// fastai's optimizers: the one-pass loops against the operators, Lookahead, files, and what they refuse. The formulas
// are checked against fastai's own numbers by the Learner's golden cases.
#include "hasten/optim/fastai.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/serialize.h>

#include <sstream>

#include "hasten/core/error.h"

namespace hasten::optim::fastai {
namespace {

const std::vector<std::pair<const char*, Factory>>& all_rules() {
  static const std::vector<std::pair<const char*, Factory>> kRules = {
      {"sgd", sgd({.wd = 0.1})},
      {"sgd_mom", sgd({.mom = 0.9, .wd = 0.1, .decouple_wd = false})},
      {"rms_prop", rms_prop({.mom = 0.9})},
      {"radam", radam({.wd = 0.1})},
      {"radam_beta", radam({.beta = 50})},
      {"qhadam", qhadam({.wd = 0.1})},
      {"larc", larc({.wd = 0.1})},
      {"lamb", lamb({.wd = 0.1})},
      {"lookahead_adam", lookahead(adam(), {.k = 3})},
      {"ranger", ranger({.lookahead = {.k = 2}})}};
  return kRules;
}

at::Tensor start(at::ScalarType dtype) {
  return at::sin(at::arange(60).to(at::kDouble) + 1).reshape({6, 10}).to(dtype).requires_grad_();
}

void train(torch::optim::Optimizer& optimizer, const at::Tensor& weight, int steps, int from = 0) {
  for (int i = from; i < from + steps; ++i) {
    const auto target = at::cos(at::arange(60).to(at::kDouble) * (i + 1)).reshape({6, 10}).to(weight.scalar_type());
    optimizer.zero_grad();
    (weight - target).pow(2).mean().backward();
    optimizer.step();
  }
}

std::vector<torch::optim::OptimizerParamGroup> groups_of(const at::Tensor& weight) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{weight});
  return groups;
}

TEST(FastaiOptimizers, StepInOnePassAsByOperators) {
  for (const auto& [name, make] : all_rules()) {
    // Loops take float32, operators float64.
    const auto loops = start(at::kFloat), operators = start(at::kDouble);
    const auto a = make(groups_of(loops), 0.05), b = make(groups_of(operators), 0.05);

    train(*a, loops, 12);
    train(*b, operators, 12);

    EXPECT_TRUE(at::allclose(loops.to(at::kDouble), operators, 1e-4, 2e-6))
        << name << " " << (loops.to(at::kDouble) - operators).abs().max();
    EXPECT_FALSE(at::allclose(loops, start(at::kFloat))) << name;
  }
}

TEST(FastaiOptimizers, AStepIsAChangeOfTheParametersVersion) {
  for (const auto& [name, make] : all_rules()) {
    const auto weight = start(at::kFloat);
    const auto optimizer = make(groups_of(weight), 0.05);
    const auto before = weight._version();

    train(*optimizer, weight, 1);

    EXPECT_GT(weight._version(), before) << name;
  }
}

// Layers of several parts, whose norms are sums over all of them.
TEST(FastaiOptimizers, StepLargeLayersAsByOperatorsOnAnyNumberOfThreads) {
  constexpr int64_t kCount = 3 * 65'536 + 5;
  const auto values = [](double factor) { return at::sin(at::arange(kCount).to(at::kDouble) * factor); };
  const auto stepped = [&](const Factory& make, at::ScalarType dtype, int threads) {
    const auto weight = values(0.7).to(dtype).requires_grad_();
    const auto optimizer = make(groups_of(weight), 0.05);
    const int before = at::get_num_threads();
    at::set_num_threads(threads);
    for (int step = 1; step < 4; ++step) {
      weight.mutable_grad() = (values(step) * at::linspace(0.1, 3, kCount, at::kDouble)).to(dtype);
      optimizer->step();
    }
    at::set_num_threads(before);
    return weight.detach();
  };
  for (const auto& [name, make] : {std::pair<const char*, Factory>{"larc", larc({.wd = 0.1})},
                                   {"lamb", lamb({.wd = 0.1})},
                                   {"lamb, decay in the gradient", lamb({.wd = 0.1, .decouple_wd = false})}}) {
    const auto one = stepped(make, at::kFloat, 1);

    EXPECT_TRUE(one.equal(stepped(make, at::kFloat, 3))) << name;
    const auto wanted = stepped(make, at::kDouble, 1);
    EXPECT_TRUE(at::allclose(one.to(at::kDouble), wanted, 1e-5, 1e-6)) << name << (one - wanted).abs().max();
  }
}

TEST(FastaiOptimizers, GoOnFromAFileBitForBit) {
  for (const auto& [name, make] : all_rules()) {
    const auto whole = start(at::kFloat), cut = start(at::kFloat);
    const auto once = make(groups_of(whole), 0.05), first = make(groups_of(cut), 0.05);
    train(*once, whole, 9);
    train(*first, cut, 4);
    torch::serialize::OutputArchive out;
    first->save(out);
    std::stringstream bytes;
    out.save_to(bytes);
    const auto second = make(groups_of(cut), 0.05);
    torch::serialize::InputArchive in;
    in.load_from(bytes);
    second->load(in);

    train(*second, cut, 5, 4);

    EXPECT_TRUE(cut.equal(whole)) << name;
  }
}

TEST(FastaiOptimizers, RefuseWhatTheyCannotDo) {
  const auto weight = start(at::kFloat);

  EXPECT_THROW(lookahead(adam(), {.k = 0})(groups_of(weight), 0.1), UsageError);
  EXPECT_THROW(sgd({.wd = -1})(groups_of(weight), 0.1), UsageError);
  const Factory own = [](const auto& groups, double lr) { return adam()(groups, lr); };
  EXPECT_THROW(lookahead(own)(groups_of(weight), 0.1), UsageError);
}

}  // namespace
}  // namespace hasten::optim::fastai
