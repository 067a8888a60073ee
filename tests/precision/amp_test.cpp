// Casts, scalers and masters on real tensors: Autocast, GradScaler, Amp, Fp16Optimizer, convert, operator policies,
// fp8.
#include "hasten/precision/amp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "hasten/core/env.h"
#include "hasten/core/error.h"
#include "hasten/precision/autocast.h"
#include "hasten/precision/convert.h"
#include "hasten/precision/fp16_optimizer.h"
#include "hasten/precision/fp8.h"
#include "hasten/precision/grad_scaler.h"
#include "hasten/precision/master_weights.h"
#include "hasten/precision/op_policies.h"
#include "hasten/precision/outputs.h"
#include "support/folder.h"

namespace hasten::precision {
namespace {

using hasten::testing::words_of;

at::ScalarType product_dtype() {
  return at::mm(at::ones({2, 2}), at::ones({2, 2})).scalar_type();
}

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("first", first);
    register_module("norm", norm);
    register_module("last", last);
  }
  at::Tensor forward(const at::Tensor& x) { return last(torch::relu(norm(first(x)))); }
  torch::nn::Linear first{8, 16};
  torch::nn::BatchNorm1d norm{16};
  torch::nn::Linear last{16, 4};
};
TORCH_MODULE(Net);

Net make_net() {
  torch::manual_seed(3);
  return Net();
}

TEST(Autocast, AScopeRestoresEverythingWhateverEndsIt) {
  try {
    const Autocast scope(c10::DeviceType::CPU, {.dtype = at::kHalf, .cache_enabled = false});
    EXPECT_EQ(product_dtype(), at::kHalf);
    const Autocast off = Autocast::off();
    EXPECT_EQ(product_dtype(), at::kFloat);
    throw std::runtime_error("the user's");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(product_dtype(), at::kFloat);
  EXPECT_FALSE(Autocast::is_enabled(c10::DeviceType::CPU));
  EXPECT_TRUE(Autocast::captured().cache_enabled);
  EXPECT_EQ(Autocast::captured().devices[0].dtype, at::kBFloat16);
}

TEST(Autocast, AThreadBeginsWithoutAndCanTakeTheStateOver) {
  const Autocast scope(c10::DeviceType::CPU);
  at::ScalarType plain{}, taken{};
  std::thread([&plain, &taken, state = Autocast::captured()] {
    plain = product_dtype();
    const Autocast inner(state);
    taken = product_dtype();
  }).join();
  EXPECT_EQ(plain, at::kFloat);
  EXPECT_EQ(taken, at::kBFloat16);
}

TEST(Autocast, OtherDtypesAndDevicesAreRefused) {
  EXPECT_THROW(const Autocast scope(c10::DeviceType::CPU, {.dtype = at::kDouble}), UsageError);
  EXPECT_THROW(const Autocast scope(c10::DeviceType::XPU), UsageError);
  EXPECT_EQ(product_dtype(), at::kFloat);
}

TEST(Outputs, HalvesBecomeFloatsInStructuresAndIntegersStay) {
  const std::map<std::string, std::vector<at::Tensor>> value{
      {"a", {at::ones({1}, at::kHalf), at::ones({1}, at::kLong)}}};
  const auto cast = to_float32(value);
  EXPECT_EQ(cast.at("a")[0].scalar_type(), at::kFloat);
  EXPECT_EQ(cast.at("a")[1].scalar_type(), at::kLong);
  EXPECT_EQ(cast_inputs(at::kHalf, value).at("a")[1].scalar_type(), at::kLong);
}

TEST(OpPolicies, AnOperatorIsCastOtherwiseWhileTheObjectLives) {
  const auto gelu = [] {
    const Autocast scope(c10::DeviceType::CPU);
    return at::gelu(at::ones({2}, at::kBFloat16)).scalar_type();
  };
  EXPECT_EQ(gelu(), at::kBFloat16);
  {
    OpPolicies policies(c10::DeviceType::CPU);
    policies.set("aten::gelu", CastPolicy::kFloat32);
    EXPECT_EQ(gelu(), at::kFloat);
    policies.set("gelu", CastPolicy::kRefuse);
    EXPECT_THROW(gelu(), UsageError);
    EXPECT_NE(
        words_of<UsageError>([&] { policies.set("aten::gleu", CastPolicy::kLow); }).find("did you mean 'aten::gelu'?"),
        std::string::npos);
  }
  EXPECT_EQ(gelu(), at::kBFloat16);
}

TEST(GradScaler, Float16GradientsAreRefusedByIndex) {
  auto good = at::ones({2}).requires_grad_(), half = at::ones({3}, at::kHalf).requires_grad_();
  good.mutable_grad() = at::ones({2});
  half.mutable_grad() = at::ones({3}, at::kHalf);
  torch::optim::SGD sgd({good, half}, torch::optim::SGDOptions(0.1));

  const GradScaler scaler;
  scaler.scale(at::ones({}));

  const auto words = words_of<UsageError>([&] { scaler.unscale_(sgd); });

  EXPECT_NE(words.find("parameter 1 of the optimizer, of sizes [3]"), std::string::npos) << words;
}

TEST(GradScaler, GradientsThatWereNeverScaledAreNotDivided) {
  auto weight = at::ones({2}).requires_grad_();
  weight.mutable_grad() = at::full({2}, 8.0);
  torch::optim::SGD sgd({weight}, torch::optim::SGDOptions(1.0));
  const GradScaler scaler({.init_scale = 8}), off({.enabled = false});

  EXPECT_THAT(words_of<UsageError>([&] { scaler.unscale_(sgd); }), ::testing::HasSubstr("unscale_ before scale()"));
  EXPECT_THAT(words_of<UsageError>([&] { scaler.step(sgd); }), ::testing::HasSubstr("step before scale()"));
  EXPECT_THAT(words_of<UsageError>([&] { scaler.update(2.0); }), ::testing::HasSubstr("update before scale()"));

  EXPECT_TRUE(weight.grad().equal(at::full({2}, 8.0)));
  EXPECT_TRUE(weight.equal(at::ones({2})));
  EXPECT_TRUE(off.step(sgd)) << "a disabled one passes the step through";
}

TEST(GradScaler, EveryTensorOfAStructureIsScaled) {
  const GradScaler scaler({.init_scale = 4});

  const auto [loss, others] = scaler.scale(std::pair(at::ones({}), std::vector{at::full({2}, 3.0)}));

  EXPECT_EQ(loss.item<double>(), 4);
  EXPECT_TRUE(others[0].equal(at::full({2}, 12.0)));
}

TEST(GradScaler, AStateThatDoesNotFitChangesNothing) {
  const GradScaler scaler({.init_scale = 4});
  EXPECT_THROW(scaler.load_state({.enabled = false}), UsageError);
  EXPECT_THROW(scaler.load_state({.scale = std::nan("")}), UsageError);
  EXPECT_THROW(scaler.load_state({.scale = 2, .growth_tracker = -1}), UsageError);
  EXPECT_EQ(scaler.scale(), 4.0);
  scaler.load_state({.scale = 2, .growth_tracker = 7});
  EXPECT_EQ(scaler.scale(), 2.0);
  EXPECT_EQ(scaler.growth_tracker(), 7);
}

TEST(GradScaler, SparseGradientsAreUnscaledByTheirValues) {
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 2).sparse(true));
  torch::optim::SGD sgd(table->parameters(), torch::optim::SGDOptions(1.0));
  const auto before = table->weight.detach().clone();
  const GradScaler scaler({.init_scale = 8});

  scaler.scale(table(at::tensor({1, 1, 3})).sum()).backward();
  EXPECT_TRUE(scaler.step(sgd));

  EXPECT_TRUE(at::allclose(before - table->weight,
                           at::tensor({0., 0., 2., 2., 0., 0., 1., 1., 0., 0.}, at::kFloat).view({5, 2})));
}

TEST(Convert, BatchNormsStayAndIdentityToo) {
  auto net = make_net();
  const auto* before = net->first->weight.unsafeGetTensorImpl();

  network_to_half(*net);

  EXPECT_EQ(net->first->weight.unsafeGetTensorImpl(), before);
  EXPECT_EQ(net->first->weight.scalar_type(), at::kHalf);
  EXPECT_EQ(net->norm->weight.scalar_type(), at::kFloat);
  EXPECT_EQ(net->norm->running_mean.scalar_type(), at::kFloat);
  convert(*net, at::kBFloat16);
  EXPECT_EQ(net->norm->running_mean.scalar_type(), at::kBFloat16);
  batch_norms_to_float(*net);
  EXPECT_EQ(net->norm->weight.scalar_type(), at::kFloat);
}

TEST(Convert, FlatMastersGiveTheSameAsOneEach) {
  for (const bool flat : {false, true}) {
    torch::nn::Linear net(3, 2);
    convert(*net, at::kBFloat16);
    const auto lists = prep_param_lists(*net, flat);
    net(at::ones({1, 3}, at::kBFloat16)).sum().backward();
    model_grads_to_master_grads(lists);
    {
      const torch::NoGradGuard no_grad;
      for (const auto& master : lists.master) master.sub_(master.grad());
    }
    const auto before = net->weight.detach().clone();
    master_params_to_model_params(lists);
    EXPECT_EQ(lists.master.size(), flat ? 1U : 2U);
    EXPECT_TRUE(at::allclose(net->weight, before - 1, 0.02, 0.02));
  }
}

TEST(MasterWeights, StatesMoveWithTheMastersAndBack) {
  torch::nn::Linear net(4, 3);
  convert(*net, at::kBFloat16);
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.1));
  net(at::ones({1, 4}, at::kBFloat16)).sum().backward();
  adam.step();

  const MasterWeights masters(adam);
  EXPECT_TRUE(adam.state().count(masters.masters()[0].unsafeGetTensorImpl()));
  masters.gradients_to_masters();
  EXPECT_EQ(masters.masters()[0].grad().scalar_type(), at::kFloat);
  masters.restore();
  EXPECT_TRUE(adam.param_groups()[0].params()[0].is_same(net->weight));
  EXPECT_TRUE(adam.state().count(net->weight.unsafeGetTensorImpl()));
}

TEST(Fp16Optimizer, SmallUpdatesAreNotLostAndOverflowsOnlyMoveTheScale) {
  auto weight = at::ones({4}, at::kHalf).requires_grad_();
  torch::optim::SGD sgd({weight}, torch::optim::SGDOptions(1e-4));
  Fp16Optimizer optimizer(sgd,
                          {.dynamic_loss_scale = true, .dynamic_loss_args = {.init_scale = 1024}, .verbose = false});

  for (int i = 0; i < 20; ++i) {
    optimizer.zero_grad();
    optimizer.backward(weight.sum());
    EXPECT_NEAR(optimizer.clip_master_grads(100), 2.0, 1e-3);
    optimizer.step();
  }
  EXPECT_NEAR(weight[0].item<float>(), 0.998, 5e-4);  // each update is below float16's spacing at 1
  optimizer.zero_grad();
  optimizer.backward(weight.sum() * 1e6);
  EXPECT_EQ(optimizer.clip_master_grads(1), -1);
  const auto before = weight.detach().clone();
  optimizer.step();
  EXPECT_TRUE(at::equal(weight, before));
  EXPECT_EQ(optimizer.loss_scale(), 512.0);
}

TEST(Fp16Optimizer, AClosureIsRepeatedWhileItOverflows) {
  auto weight = at::ones({1}, at::kHalf).requires_grad_();
  torch::optim::SGD sgd({weight}, torch::optim::SGDOptions(0.5));
  Fp16Optimizer optimizer(sgd,
                          {.dynamic_loss_scale = true, .dynamic_loss_args = {.init_scale = 262144}, .verbose = false});
  int calls = 0;

  optimizer.step([&] {
    ++calls;
    optimizer.zero_grad();
    auto loss = weight.to(at::kFloat).sum();
    optimizer.backward(loss);
    return loss;
  });

  EXPECT_GT(calls, 1);
  EXPECT_FLOAT_EQ(weight.item<float>(), 0.5F);
  const auto state = optimizer.state();
  EXPECT_FLOAT_EQ(state.fp32_from_fp16[0].item<float>(), 0.5F);
  EXPECT_THROW(optimizer.load_state({}), UsageError);
}

// Trains with Amp's level; gives the last loss.
float train(AmpLevel level, at::ScalarType dtype, bool apex_lists = false) {
  auto net = make_net();
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  Amp amp({.opt_level = level, .dtype = dtype, .verbosity = 0, .apex_lists = apex_lists});
  auto [model, optimizer] = amp.initialize(net, sgd);
  torch::manual_seed(5);
  const auto x = torch::randn({32, 8}), y = torch::randn({32, 4});
  float last = 0;
  for (int i = 0; i < 30; ++i) {
    optimizer.zero_grad();
    const auto loss = torch::mse_loss(model(x).to(at::kFloat), y);
    amp.scale_loss(loss, optimizer, [](const at::Tensor& scaled) { scaled.backward(); });
    optimizer.step();
    last = loss.item<float>();
  }
  return last;
}

TEST(Amp, EveryLevelTrainsLikeFloat32) {
  const float wanted = train(AmpLevel::kO0, at::kHalf);
  for (const auto level : {AmpLevel::kO1, AmpLevel::kO2, AmpLevel::kO3}) {
    EXPECT_NEAR(train(level, at::kBFloat16), wanted, 0.1) << name_of(level);
  }
  EXPECT_NEAR(train(AmpLevel::kO1, at::kHalf, true), wanted, 0.05);
  EXPECT_NEAR(train(AmpLevel::kO2, at::kHalf), wanted, 0.05);
}

TEST(Amp, O2CastsTheModelAndItsInputsButNotItsBatchNorms) {
  auto net = make_net();
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
  Amp amp({.opt_level = AmpLevel::kO2, .verbosity = 0});
  auto [model, optimizer] = amp.initialize(net, sgd);

  EXPECT_EQ(net->first->weight.scalar_type(), at::kHalf);
  EXPECT_EQ(net->norm->weight.scalar_type(), at::kFloat);
  EXPECT_EQ(model(torch::randn({4, 8})).scalar_type(), at::kFloat);
  for (const auto& each : optimizer.master_params()) EXPECT_EQ(each.scalar_type(), at::kFloat);
}

TEST(Amp, AnOverflowSkipsOneStepAndHalvesTheScale) {
  torch::nn::Linear net(2, 1);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
  Amp amp({.verbosity = 0});
  auto [model, optimizer] = amp.initialize(net, sgd);
  const auto run = [&, &model = model, &optimizer = optimizer](float factor) {
    optimizer.zero_grad();
    const auto before = net->weight.detach().clone();
    amp.scale_loss(model(at::ones({1, 2})).sum() * factor, optimizer,
                   [](const at::Tensor& scaled) { scaled.backward(); });
    optimizer.step();
    return at::equal(before, net->weight);
  };

  EXPECT_TRUE(run(INFINITY));
  EXPECT_TRUE(optimizer.step_was_skipped());
  EXPECT_EQ(amp.loss_scale(), 32768.0);
  EXPECT_FALSE(run(1));
  EXPECT_EQ(amp.state().at("loss_scaler0").unskipped, 1);
}

TEST(Amp, SeveralLossesAddUpUnscaledGradients) {
  for (const auto level : {AmpLevel::kO1, AmpLevel::kO2}) {
    torch::nn::Linear net(2, 1);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    Amp amp({.opt_level = level, .overrides = {.loss_scale = 128.0}, .num_losses = 2, .verbosity = 0});
    auto [model, optimizer] = amp.initialize(net, sgd);
    optimizer.zero_grad();
    for (int64_t id = 0; id < 2; ++id) {
      amp.scale_loss(model(at::ones({1, 2})).sum(), optimizer, [](const at::Tensor& scaled) { scaled.backward(); },
                     {.loss_id = id});
    }
    for (const auto& parameter : optimizer.master_params()) {
      EXPECT_TRUE(at::equal(parameter.grad(), at::full_like(parameter, 2))) << name_of(level);
    }
  }
}

TEST(Amp, AStepWithScaledGradientsIsRefused) {
  torch::nn::Linear net(2, 1);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
  Amp amp({.overrides = {.loss_scale = 128.0}, .verbosity = 0});
  auto [model, optimizer] = amp.initialize(net, sgd);
  const auto backward = [](const at::Tensor& scaled) { scaled.backward(); };

  amp.scale_loss(model(at::ones({1, 2})).sum(), optimizer, backward, {.delay_unscale = true});
  EXPECT_THROW(optimizer.step(), UsageError);
  amp.scale_loss(model(at::ones({1, 2})).sum(), optimizer, backward);
  EXPECT_TRUE(at::equal(net->weight.grad(), at::full_like(net->weight, 2)));
  EXPECT_THROW(amp.scale_loss(at::ones({}), optimizer, backward, {.loss_id = 1}), UsageError);
}

TEST(Amp, AParameterThatIsNotFloat32IsNamed) {
  auto net = make_net();
  net->last->to(at::kDouble);
  Amp amp({.verbosity = 0});
  EXPECT_NE(words_of<UsageError>([&] { (void)amp.initialize(net); }).find("'last.weight' is Double"),
            std::string::npos);
}

TEST(Amp, FunctionsCastTheirArgumentsInsideScopesOnly) {
  const auto dtype = [](const at::Tensor& tensor) { return tensor.scalar_type(); };
  const auto half = Amp::half_function(dtype), full = Amp::float_function(dtype);
  const auto wide =
      Amp::promote_function([](const at::Tensor& a, const at::Tensor& b) { return (a + b).scalar_type(); });
  EXPECT_EQ(half(at::ones({1})), at::kFloat);
  const Autocast scope(c10::DeviceType::CPU);
  EXPECT_EQ(half(at::ones({1})), at::kBFloat16);
  EXPECT_EQ(full(at::ones({1}, at::kBFloat16)), at::kFloat);
  EXPECT_EQ(wide(at::ones({1}), at::ones({1}, at::kBFloat16)), at::kFloat);
  const auto off = Amp::disable_casts();
  EXPECT_EQ(half(at::ones({1})), at::kFloat);
}

TEST(Amp, AStateOfOtherKeysIsRefusedWhole) {
  Amp amp({.num_losses = 2, .verbosity = 0});
  EXPECT_THROW(amp.load_state({{"loss_scaler0", {8, 1}}, {"scaler1", {4, 0}}}), UsageError);
  EXPECT_THROW(amp.load_state({{"loss_scaler0", {0, 1}}}), UsageError);
  EXPECT_EQ(amp.loss_scale(), 65536.0);
  amp.load_state({{"loss_scaler0", {8, 1}}});
  EXPECT_EQ(amp.loss_scale(0), 8.0);
  EXPECT_EQ(amp.loss_scale(1), 65536.0);
}

TEST(Fp8, InnerLinearLayersWhoseSizesFitTakePart) {
  torch::nn::Sequential net(torch::nn::Linear(16, 32), torch::nn::Linear(32, 32), torch::nn::Linear(32, 20),
                            torch::nn::Linear(20, 16));
  EXPECT_EQ(fp8_layers(*net, {}), std::vector<std::string>{"1"});
  EXPECT_EQ(fp8_layers(*net, {.filter = [](const std::string&, const torch::nn::Module&) { return true; }}).size(), 4U);
}

TEST(Fp8, ScalesOfWholeTensorsArePowersOfTwoIfAsked) {
  torch::manual_seed(1);
  const auto x = torch::randn({16, 32}), w = torch::randn({48, 32}), gradient = torch::randn({16, 48});
  const auto quantized = [](const at::Tensor& matrix, Fp8Format format) {
    return quantize_tensorwise(matrix, format, true);
  };
  constexpr auto kForward = Fp8Format::kE4M3, kBackward = Fp8Format::kE5M2;
  const auto run = [&](bool round) {
    const auto input = x.clone().requires_grad_(), weight = w.clone().requires_grad_();
    const auto y = fp8_linear(input, weight, {.round_scales_to_power_of_2 = round});
    y.backward(gradient);
    return std::vector<at::Tensor>{y.detach(), input.grad(), weight.grad()};
  };

  const auto rounded = run(true), plain = run(false);

  EXPECT_EQ(quantized(x, kForward).scale.item<float>(),
            std::exp2(std::floor(std::log2(quantize_tensorwise(x, kForward).scale.item<float>()))));
  EXPECT_TRUE(rounded[0].equal(scaled_mm(quantized(x, kForward), quantized(w.t(), kForward), at::kFloat, true)));
  EXPECT_TRUE(rounded[1].equal(scaled_mm(quantized(gradient, kBackward), quantized(w, kForward), at::kFloat, false)));
  EXPECT_TRUE(
      rounded[2].equal(scaled_mm(quantized(gradient.t(), kBackward), quantized(x, kForward), at::kFloat, false)));
  for (size_t i = 0; i < 3; ++i) EXPECT_FALSE(rounded[i].equal(plain[i])) << i;
}

TEST(Fp8, DelayedScalesFollowTheLastWindows) {
  const Fp8Options options{.recipe = Fp8Recipe::kDelayed, .amax_history_len = 2};
  DelayedScales scales;
  auto x = at::full({16, 16}, 2.0F).requires_grad_(), w = at::full({16, 16}, 0.5F).requires_grad_();

  for (int window = 0; window < 2; ++window) {
    const auto y = fp8_linear(x, w, options, &scales);
    EXPECT_TRUE(at::allclose(y, at::full({16, 16}, 16.0)));
    y.sum().backward();
    scales.end_window(options);
  }

  EXPECT_EQ(scales.input.scale, 224.0F);
  EXPECT_EQ(scales.weight.scale, 896.0F);
  EXPECT_EQ(scales.gradient.scale, 57344.0F);
  EXPECT_THROW(fp8_linear(x, w, options), UsageError);
}

TEST(Fp8, AcceleratesVariablesAreRead) {
  const auto environment = [](std::map<std::string, std::string> variables) {
    return Environment::of(std::move(variables));
  };
  const auto read = read_fp8_options({}, environment({{"ACCELERATE_FP8_BACKEND", "TE"},
                                                      {"ACCELERATE_FP8_MARGIN", "3"},
                                                      {"ACCELERATE_FP8_FORMAT", "E4M3"},
                                                      {"ACCELERATE_FP8_AMAX_COMPUTE_ALGO", "max"}}));
  EXPECT_EQ(read.recipe, Fp8Recipe::kDelayed);
  EXPECT_EQ(read.margin, 3);
  EXPECT_EQ(read.fp8_format, Fp8Formats::kE4M3);
  EXPECT_EQ(read.amax_compute_algo, AmaxAlgorithm::kMax);
  EXPECT_EQ(read_fp8_options({.margin = 2}, environment({{"ACCELERATE_FP8_MARGIN", "3"}})).margin, 2);
  EXPECT_THROW(read_fp8_options({}, environment({{"ACCELERATE_FP8_BACKEND", "MSAMP"}})), UsageError);
}

}  // namespace
}  // namespace hasten::precision
