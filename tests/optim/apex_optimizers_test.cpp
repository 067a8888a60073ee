// ApexAdam, ApexSgd, Lamb, NovoGrad, Larc: loops against operators, half-precision parameters, archives, bad input.
// Their numbers are in the golden cases of precision.json.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

#include "hasten/core/error.h"
#include "hasten/optim/apex_adam.h"
#include "hasten/optim/apex_sgd.h"
#include "hasten/optim/lamb.h"
#include "hasten/optim/larc.h"
#include "hasten/optim/moment_state.h"
#include "hasten/optim/novograd.h"

namespace hasten::optim {
namespace {

std::vector<at::Tensor> parameters(at::ScalarType dtype) {
  auto generator = at::detail::createCPUGenerator(4);
  return {at::randn({7, 5}, generator).to(dtype).requires_grad_(),
          at::randn({9}, generator).to(dtype).requires_grad_()};
}

void set_gradients(const std::vector<at::Tensor>& parameters, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  for (const auto& each : parameters) each.mutable_grad() = at::randn(each.sizes(), generator).to(each.scalar_type());
}

using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;
template <class O, class Options>
Make make(const Options& options) {
  return [options](std::vector<at::Tensor> own) { return std::make_unique<O>(std::move(own), options); };
}

std::vector<Make> all() {
  return {make<ApexAdam>(ApexAdamOptions(0.05).weight_decay(0.1)),
          make<ApexAdam>(ApexAdamOptions(0.05).weight_decay(0.1).adam_w_mode(false).bias_correction(false)),
          make<ApexSgd>(ApexSgdOptions(0.05).momentum(0.9).nesterov(true).weight_decay(0.1)),
          make<ApexSgd>(ApexSgdOptions(0.05).momentum(0.9).dampening(0.2).weight_decay(0.1).wd_after_momentum(true)),
          make<Lamb>(LambOptions(0.05)),
          make<Lamb>(LambOptions(0.05).adam_w_mode(false).grad_averaging(false).use_nvlamb(true)),
          make<NovoGrad>(NovoGradOptions(0.05).weight_decay(0.1)),
          make<NovoGrad>(NovoGradOptions(0.05).weight_decay(0.1).reg_inside_moment(true).norm_type(0).init_zero(true))};
}

TEST(MomentState, AStepLeavesItsCountAndMoments) {
  const auto own = parameters(at::kFloat);
  ApexAdam adam(own, ApexAdamOptions(0.05));
  set_gradients(own, 1);
  adam.step();

  const auto& state = static_cast<const detail::MomentState&>(*adam.state().at(own[0].unsafeGetTensorImpl()));

  EXPECT_EQ(state.step(), 1);
  EXPECT_EQ(state.first().sizes(), own[0].sizes());
  EXPECT_TRUE(state.second().defined());
}

TEST(ApexOptimizers, LoopsAndOperatorsGiveTheSame) {
  size_t index = 0;
  for (const auto& made : all()) {
    const auto floats = parameters(at::kFloat), doubles = parameters(at::kDouble);
    const auto by_loops = made(floats), by_operators = made(doubles);
    for (uint64_t step = 0; step < 5; ++step) {
      set_gradients(floats, step);
      for (size_t i = 0; i < 2; ++i) doubles[i].mutable_grad() = floats[i].grad().to(at::kDouble);
      by_loops->step();
      by_operators->step();
    }
    for (size_t i = 0; i < 2; ++i)
      EXPECT_LT((floats[i] - doubles[i]).abs().max().item<double>(), 5e-6) << "optimizer " << index;
    ++index;
  }
}

TEST(ApexOptimizers, AStepIsAChangeOfTheParametersVersion) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& make_optimizer : all()) {
      const auto own = parameters(dtype);
      const auto optimizer = make_optimizer(own);
      set_gradients(own, 1);
      const auto before = own[0]._version();

      optimizer->step();

      EXPECT_GT(own[0]._version(), before);
    }
  }
}

TEST(ApexOptimizers, MomentsOfHalfPrecisionParametersAreFloat32AndMastersKeepSmallUpdates) {
  auto plain = at::ones({4}, at::kBFloat16).requires_grad_(), kept = at::ones({4}, at::kBFloat16).requires_grad_();
  ApexAdam without({plain}, ApexAdamOptions(1e-4)), with({kept}, ApexAdamOptions(1e-4).master_weights(true));
  for (int i = 0; i < 100; ++i) {
    plain.mutable_grad() = at::ones({4}, at::kBFloat16);
    kept.mutable_grad() = at::ones({4}, at::kBFloat16);
    without.step();
    with.step();
  }
  EXPECT_EQ(plain[0].item<float>(), 1.0F);  // each update is below bfloat16's spacing
  EXPECT_NEAR(kept[0].item<float>(), 0.99F, 4e-3F);
}

TEST(ApexOptimizers, AnArchiveCarriesTheStateOn) {
  for (const auto& made : all()) {
    const auto a = parameters(at::kFloat), b = parameters(at::kFloat);
    const auto first = made(a), second = made(b);
    set_gradients(a, 1);
    first->step();
    std::stringstream stream;
    torch::serialize::OutputArchive out;
    first->save(out);
    out.save_to(stream);
    torch::serialize::InputArchive in;
    in.load_from(stream);
    second->load(in);
    {
      const torch::NoGradGuard no_grad;
      for (size_t i = 0; i < 2; ++i) b[i].copy_(a[i]);
    }
    for (const auto* own : {&a, &b}) set_gradients(*own, 2);
    first->step();
    second->step();
    for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(a[i], b[i]));
  }
}

TEST(ApexOptimizers, OptionsOutOfRangeAreRefused) {
  EXPECT_THROW(ApexAdam(parameters(at::kFloat), ApexAdamOptions().amsgrad(true)), UsageError);
  EXPECT_THROW(ApexAdam(parameters(at::kFloat), ApexAdamOptions(-1)), UsageError);
  EXPECT_THROW(ApexSgd(parameters(at::kFloat), ApexSgdOptions().nesterov(true)), UsageError);
  EXPECT_THROW(NovoGrad(parameters(at::kFloat), NovoGradOptions().norm_type(1)), UsageError);
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 2).sparse(true));
  Lamb lamb(table->parameters());
  table(at::tensor({1})).sum().backward();
  EXPECT_THROW(lamb.step(), UsageError);
}

TEST(Larc, TheRateOfASchedulersChangeReachesTheWrappedOptimizer) {
  auto own = at::ones({2}).requires_grad_();
  torch::optim::SGD sgd({own}, torch::optim::SGDOptions(1.0).weight_decay(0.5));
  Larc larc(sgd, {.trust_coefficient = 1, .clip = false, .eps = 0});
  larc.param_groups()[0].options().set_lr(0.1);
  own.mutable_grad() = at::full({2}, 0.5);

  larc.step();

  // ratio sqrt(2) / (sqrt(0.5) + 0.5 sqrt(2)) = 1, so the gradient is 0.5 + 0.5 * 1 = 1
  EXPECT_NEAR(own[0].item<float>(), 0.9F, 1e-6F);
  EXPECT_EQ(static_cast<torch::optim::SGDOptions&>(sgd.param_groups()[0].options()).weight_decay(), 0.5);
  own.mutable_grad() = at::zeros({2});
  larc.step();
  EXPECT_NEAR(own[0].item<float>(), 0.9F, 1e-6F);  // no gradient's norm: neither step nor decay
}

}  // namespace
}  // namespace hasten::optim
