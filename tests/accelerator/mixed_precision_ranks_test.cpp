// Mixed precision through the front door, alone and on several ranks: scopes, scaled losses, skipped steps, and that
// ranks stay together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/accelerator.h"
#include "hasten/clip_grad_norm_async.h"
#include "hasten/core/error.h"
#include "hasten/optim/schedulers/schedulers.h"
#include "hasten/parallel/clip/clip.h"
#include "hasten/precision/device_facts.h"
#include "support/models.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using hasten::process::Process;
using hasten::testing::run_ranks;
using ::testing::HasSubstr;

Process single_process() {
  return Process(process::RankInfo{}, comm::Group());
}

std::vector<at::Tensor> parameter_copies(const torch::nn::Module& module) {
  std::vector<at::Tensor> result;
  for (const auto& parameter : module.parameters()) result.push_back(parameter.detach().clone());
  return result;
}

TEST(MixedPrecision, ForwardAndMethodsRunInBf16OutputsAreFloat32AndNothingLeaks) {
  Accelerator accelerator(single_process(), {.mixed_precision = Precision::kBf16});
  testing::Mlp net;
  const auto model = accelerator.prepare(net);
  const auto x = at::ones({2, 8});

  EXPECT_EQ(model(x).scalar_type(), at::kFloat);
  EXPECT_EQ(model->forward(x).scalar_type(), at::kBFloat16);
  EXPECT_EQ(net->forward(x).scalar_type(), at::kFloat);
  {
    const auto scope = accelerator.autocast();
    EXPECT_EQ(net->forward(x).scalar_type(), at::kBFloat16);
    const auto off = accelerator.autocast(precision::AutocastOptions{.enabled = false});
    EXPECT_EQ(net->forward(x).scalar_type(), at::kFloat);
  }
  EXPECT_ANY_THROW(model(at::ones({2, 3})));
  EXPECT_EQ(net->forward(x).scalar_type(), at::kFloat);
  EXPECT_EQ(accelerator.scaler(), nullptr);
}

TEST(MixedPrecision, OutputsCanStayAsComputed) {
  Accelerator accelerator(single_process(), {.mixed_precision = Precision::kFp16,
                                             .precision = {.outputs = precision::Outputs::kAsComputed}});
  testing::Mlp net;
  EXPECT_EQ(accelerator.prepare(net)(at::ones({2, 8})).scalar_type(), at::kHalf);
}

// Trains an Mlp; gives the losses. Reference: `by_hand`, autocast and a raw scaler as PyTorch's recipe has them.
std::vector<float> train(Precision precision, bool by_hand, int64_t num_steps = 1) {
  torch::manual_seed(3);
  testing::Mlp net;
  hasten::testing::initialise(*net, 5);
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.01));
  const auto problem = hasten::testing::problem_for("mlp");
  Accelerator accelerator(single_process(), {.gradient_accumulation_steps = num_steps,
                                             .mixed_precision = precision,
                                             .scaler = {.init_scale = 256, .growth_interval = 3},
                                             .optimizer = {.fused = false}});
  auto [model, optimizer] = accelerator.prepare(net, adam);
  const precision::GradScaler raw({.init_scale = 256, .growth_interval = 3, .enabled = precision == Precision::kFp16});
  std::vector<float> losses;
  for (int64_t step = 0; step < 12; ++step) {
    at::Tensor loss;
    if (by_hand) {
      at::Tensor output;
      {
        const precision::Autocast scope(c10::DeviceType::CPU,
                                        {.enabled = precision != Precision::kNo,
                                         .dtype = precision::compute_dtype(precision).value_or(at::kBFloat16)});
        output = net->forward(problem.inputs);
      }
      loss = torch::cross_entropy_loss(output.to(at::kFloat), problem.targets);
      raw.scale(loss / num_steps).backward();
      if (step % num_steps == num_steps - 1) {
        raw.unscale_(adam);
        torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5);
        raw.step(adam);
        raw.update();
        adam.zero_grad();
      }
    } else {
      const auto scope = accelerator.accumulate(model);
      loss = torch::cross_entropy_loss(model(problem.inputs), problem.targets);
      accelerator.backward(loss);
      if (accelerator.sync_gradients()) accelerator.clip_grad_norm_(net->parameters(), 0.5);
      optimizer.step();
      optimizer.zero_grad();
    }
    losses.push_back(loss.item<float>());
  }
  return losses;
}

TEST(MixedPrecision, TheLoopGivesTheRecipesNumbers) {
  for (const auto precision : {Precision::kNo, Precision::kBf16, Precision::kFp16}) {
    for (const int64_t num_steps : {1, 3}) {
      const auto ours = train(precision, false, num_steps), theirs = train(precision, true, num_steps);
      for (size_t i = 0; i < ours.size(); ++i)
        EXPECT_NEAR(ours[i], theirs[i], 2e-5) << precision::name_of(precision) << ", step " << i;
    }
  }
}

TEST(MixedPrecision, ClippingInTheMiddleOfAWindowOnlyMeasures) {
  Accelerator accelerator(
      single_process(),
      {.gradient_accumulation_steps = 2, .mixed_precision = Precision::kFp16, .scaler = {.init_scale = 1024}});
  testing::Mlp net;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto scope = accelerator.accumulate(model);
  accelerator.backward(model(at::ones({2, 8})).sum());
  const auto before = net->first->weight.grad().clone();

  const double norm = accelerator.clip_grad_norm_(net->parameters(), 1e-3);
  accelerator.unscale_gradients();

  EXPECT_TRUE(at::equal(net->first->weight.grad(), before));
  EXPECT_NEAR(norm * 1024, parallel::gradient_norm(net->parameters()).norm, 1);
}

TEST(MixedPrecision, ConvolutionsThatIssuesReportAsBadAreNamedWhenTheModelIsPrepared) {
  const auto warned = [](const torch::nn::Conv2dOptions& images, const torch::nn::Conv3dOptions& volumes) {
    ::testing::internal::CaptureStderr();
    Accelerator accelerator(single_process(), {.mixed_precision = Precision::kBf16});
    torch::nn::Sequential net(torch::nn::Conv2d{images}, torch::nn::Conv3d{volumes});
    const auto model = accelerator.prepare(net);
    const auto text = ::testing::internal::GetCapturedStderr();
    return std::pair(text.find("pytorch#183815") != std::string::npos,
                     text.find("pytorch#169688") != std::string::npos);
  };
  const torch::nn::Conv2dOptions plain(4, 4, 3);
  const torch::nn::Conv3dOptions unit(4, 4, 3);
  const auto facts = precision::device_facts(at::kCPU);
  const bool has_bf16 = facts.amx_bf16 || facts.avx512_bf16;

  EXPECT_EQ(warned(plain, unit), std::pair(false, false));
  EXPECT_EQ(warned(torch::nn::Conv2dOptions(4, 4, 3).dilation(2), unit), std::pair(has_bf16, false));
  EXPECT_EQ(warned(torch::nn::Conv2dOptions(4, 4, 3).groups(2), unit), std::pair(has_bf16, false));
  EXPECT_EQ(warned(plain, torch::nn::Conv3dOptions(4, 4, 3).stride(3)), std::pair(false, has_bf16));
}

TEST(MixedPrecision, ClippingWhoseNormStaysATensorGivesTheSameNormAndGradients) {
  for (const auto precision : {Precision::kNo, Precision::kBf16, Precision::kFp16}) {
    for (const double type : {2.0, 1.0}) {
      const auto clipped = [&](bool async) {
        at::manual_seed(4);
        Accelerator accelerator(single_process(), {.mixed_precision = precision, .scaler = {.init_scale = 64}});
        testing::Mlp net;
        torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
        auto [model, optimizer] = accelerator.prepare(net, sgd);
        accelerator.backward(model(at::ones({2, 8})).sum());
        const double norm = async ? clip_grad_norm_async_(accelerator, net->parameters(), 1e-3, type).item<double>()
                                  : accelerator.clip_grad_norm_(net->parameters(), 1e-3, type);
        return std::pair(norm, net->first->weight.grad().clone());
      };

      const auto waits = clipped(false), async = clipped(true);

      EXPECT_NEAR(async.first, waits.first, 1e-5 * waits.first);
      EXPECT_TRUE(at::allclose(async.second, waits.second, 1e-5, 1e-9))
          << precision::name_of(precision) << ", norm " << type;
    }
  }
}

TEST(MixedPrecision, AnOverflowSkipsTheStepAndTheScheduleWaits) {
  for (const bool fused : {true, false}) {
    Accelerator accelerator(
        single_process(),
        {.mixed_precision = Precision::kFp16, .scaler = {.init_scale = 64}, .optimizer = {.fused = fused}});
    testing::Mlp net;
    torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(0.01));
    optim::StepLR schedule(adam, {.step_size = 1, .gamma = 0.5});
    auto [model, optimizer, scheduler] = accelerator.prepare(net, adam, schedule);
    for (const bool bad : {false, true, false}) {
      optimizer.zero_grad();
      accelerator.backward(model(at::ones({2, 8})).sum());
      if (bad) net->second->bias.mutable_grad()[0] = INFINITY;
      const auto before = parameter_copies(*net);
      const double rate = scheduler.rates()[0];
      optimizer.step();
      scheduler.step();
      EXPECT_EQ(optimizer.step_was_skipped(), bad);
      EXPECT_EQ(accelerator.optimizer_step_was_skipped(), bad);
      EXPECT_EQ(scheduler.rates()[0] == rate, bad);
      EXPECT_EQ(at::equal(before[0], net->first->weight), bad);
    }
    EXPECT_EQ(accelerator.scaler()->scale(), 32.0);
    EXPECT_EQ(accelerator.scaler_state()->growth_tracker, 1);
  }
}

TEST(MixedPrecision, AScaleThatMovesTakesAlongGradientsOfAnOptimizerThatHasNotStepped) {
  Accelerator accelerator(single_process(),
                          {.mixed_precision = Precision::kFp16, .scaler = {.init_scale = 64, .growth_interval = 1}});
  const auto make = [] {
    torch::nn::Linear net(torch::nn::LinearOptions(2, 1).bias(false));
    const torch::NoGradGuard no_grad;
    net->weight.zero_();
    return net;
  };
  auto a = make(), b = make();
  torch::optim::SGD first(a->parameters(), torch::optim::SGDOptions(1.0)),
      second(b->parameters(), torch::optim::SGDOptions(1.0));
  auto [net_a, net_b, one, two] = accelerator.prepare(a, b, first, second);
  const auto x = at::full({1, 2}, 0.25);

  accelerator.backward(net_b(x).sum());  // held over two windows of the other
  for (int i = 0; i < 2; ++i) {
    one.zero_grad();
    accelerator.backward(net_a(x).sum());
    one.step();
  }
  accelerator.backward(net_b(x).sum());
  two.step();

  EXPECT_TRUE(at::equal(a->weight.detach(), at::full({1, 2}, -0.5)));
  EXPECT_TRUE(at::equal(b->weight.detach(), at::full({1, 2}, -0.5)));
}

TEST(MixedPrecision, EndlessOverflowsEndWithNames) {
  Accelerator accelerator(single_process(), {.mixed_precision = Precision::kFp16, .scaler = {.give_up_after = 4}});
  testing::Mlp net;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto loop = [&, &model = model, &optimizer = optimizer] {
    for (int i = 0; i < 4; ++i) {
      optimizer.zero_grad();
      accelerator.backward(model(at::ones({2, 8})).sum() * INFINITY);
      optimizer.step();
    }
  };
  EXPECT_THAT(loop, ThrowsMessage<UsageError>(HasSubstr("'second.weight'")));
  EXPECT_THROW(optimizer.step([] { return at::zeros({}); }), UsageError);
}

TEST(MixedPrecision, AStateGoesOnInAnotherAccelerator) {
  Accelerator first(single_process(), {.mixed_precision = Precision::kFp16}),
      second(single_process(), {.mixed_precision = Precision::kFp16});
  auto state = *first.scaler_state();
  state.scale = 8;
  state.growth_tracker = 5;
  second.load_scaler_state(state);
  EXPECT_EQ(second.scaler()->scale(), 8.0);
  EXPECT_THROW(Accelerator(single_process(), {.mixed_precision = Precision::kNo}).load_scaler_state(state), UsageError);
  EXPECT_FALSE(Accelerator(single_process(), {.mixed_precision = Precision::kNo}).scaler_state());
}

// One step per rank's part of the batch; returns the losses' mean and leaves the parameters.
void step_of(Accelerator& accelerator, const auto& model, const auto& optimizer, const testing::Problem& problem,
             int rank, int world) {
  const int64_t rows = 24 / world;
  optimizer.zero_grad();
  const auto x = problem.inputs.narrow(0, rank * rows, rows), y = problem.targets.narrow(0, rank * rows, rows);
  accelerator.backward(torch::cross_entropy_loss(model(x), y));
  optimizer.step();
}

TEST(MixedPrecision, RanksAreOneRankAndEndEqual) {
  const auto problem = hasten::testing::problem_for("mlp");
  for (const auto precision : {Precision::kBf16, Precision::kFp16}) {
    testing::Mlp reference;
    hasten::testing::initialise(*reference, 5);
    torch::optim::SGD own(reference->parameters(), torch::optim::SGDOptions(0.1));
    Accelerator single(single_process(), {.mixed_precision = precision, .scaler = {.init_scale = 128}});
    auto [model, optimizer] = single.prepare(reference, own);
    for (int i = 0; i < 8; ++i) step_of(single, model, optimizer, problem, 0, 1);

    std::vector<std::vector<at::Tensor>> ends(2);
    run_ranks(2, [&](Process& process) {
      testing::Mlp net;
      hasten::testing::initialise(*net, 5);
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
      Accelerator accelerator(process, {.mixed_precision = precision, .scaler = {.init_scale = 128}});
      auto [prepared, stepping] = accelerator.prepare(net, sgd);
      for (int i = 0; i < 8; ++i) step_of(accelerator, prepared, stepping, problem, process.rank(), 2);
      ends[static_cast<size_t>(process.rank())] = parameter_copies(*net);
    });
    for (size_t i = 0; i < ends[0].size(); ++i) {
      EXPECT_TRUE(at::equal(ends[0][i], ends[1][i]));
      EXPECT_LT((ends[0][i] - reference->parameters()[i]).abs().max().item<float>(), 0.01);
    }
  }
}

TEST(MixedPrecision, AnInfinityOnOneRankSkipsOnAllAlsoForParametersThatAreNotExchanged) {
  run_ranks(2, [&](Process& process) {
    testing::Mlp net;
    hasten::testing::initialise(*net, 5);
    auto apart = at::zeros({3}).requires_grad_();  // in no prepared model
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1)),
        other({apart}, torch::optim::SGDOptions(0.1));
    Accelerator accelerator(process, {.mixed_precision = Precision::kFp16, .scaler = {.init_scale = 128}});
    auto [model, first, second] = accelerator.prepare(net, sgd, other);
    const auto x = at::full({2, 8}, process.rank() == 1 ? INFINITY : 1.0F);

    accelerator.backward(model(x).sum() + apart.sum() * (process.rank() == 1 ? INFINITY : 1.0F));
    first.step();
    second.step();

    EXPECT_TRUE(first.step_was_skipped());
    EXPECT_TRUE(second.step_was_skipped());
    EXPECT_EQ(accelerator.scaler()->scale(), 64.0);
  });
}

// An overflow of one rank, in a micro-batch without an exchange and in gradients that a hook sends as float16.
TEST(MixedPrecision, AnInfinityOfOneRanksMicroBatchOrOfAHookSkipsOnAll) {
  const auto is_skipped = [](Process& process, const parallel::CommHook& hook, int bad_micro_batch) {
    testing::Mlp net;
    hasten::testing::initialise(*net, 5);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    Accelerator accelerator(
        process, {.mixed_precision = Precision::kFp16, .scaler = {.init_scale = 128}, .ddp = {.comm_hook = hook}});
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto before = parameter_copies(*net);
    for (int i = 0; i < 2; ++i) {
      std::optional<decltype(accelerator.no_sync(model))> alone;
      if (i == 0) alone.emplace(accelerator.no_sync(model));
      const bool is_bad = process.rank() == 1 && i == bad_micro_batch;
      accelerator.backward(model(at::full({2, 8}, is_bad ? INFINITY : 1.0F)).sum());
    }
    optimizer.step();
    const bool skipped = optimizer.step_was_skipped();
    EXPECT_EQ(parameter_copies(*net)[0].equal(before[0]), skipped);
    EXPECT_EQ(accelerator.scaler()->scale(), skipped ? 64.0 : 128.0);
    return skipped;
  };
  run_ranks(2, [&](Process& process) {
    for (const auto& hook : {parallel::CommHook(), parallel::fp16_compress()}) {
      EXPECT_TRUE(is_skipped(process, hook, 0));
      EXPECT_TRUE(is_skipped(process, hook, 1));
      EXPECT_FALSE(is_skipped(process, hook, -1));
    }
  });
}

TEST(MixedPrecision, Fp8LayersTrainAndDelayedScalesAreTheRanksLargest) {
  for (const auto recipe : {precision::Fp8Recipe::kTensorwise, precision::Fp8Recipe::kDelayed}) {
    std::vector<std::vector<at::Tensor>> ends(2);
    run_ranks(2, [&](Process& process) {
      torch::nn::Sequential net(torch::nn::Linear(16, 32), torch::nn::Tanh(), torch::nn::Linear(32, 32),
                                torch::nn::Tanh(), torch::nn::Linear(32, 4));
      hasten::testing::initialise(*net, 5);
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
      Accelerator accelerator(process,
                              {.mixed_precision = Precision::kFp8, .fp8 = {.recipe = recipe, .amax_history_len = 4}});
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(process.rank() + 1));
      const auto x = at::randn({16, 16}, generator) * (process.rank() + 1),
                 y = at::randint(0, 4, {16}, generator, at::TensorOptions().dtype(at::kLong));
      double first = 0, last = 0;
      for (int i = 0; i < 20; ++i) {
        optimizer.zero_grad();
        const auto loss = torch::cross_entropy_loss(model(x), y);
        accelerator.backward(loss);
        optimizer.step();
        (i == 0 ? first : last) = loss.item<double>();
      }
      EXPECT_LT(last, first);
      ends[static_cast<size_t>(process.rank())] = parameter_copies(*net);
    });
    for (size_t i = 0; i < ends[0].size(); ++i) EXPECT_TRUE(at::equal(ends[0][i], ends[1][i]));
  }
}

TEST(MixedPrecision, WeightsBelowFloat32TrainTheSameOnAllRanks) {
  using precision::Weights;
  for (const auto& [form, precision] : {std::pair(Weights::kMaster, Precision::kFp16),
                                        {Weights::kMaster, Precision::kBf16},
                                        {Weights::kSplit, Precision::kNo},
                                        {Weights::kStochastic, Precision::kBf16},
                                        {Weights::kKahan, Precision::kBf16}}) {
    std::vector<std::vector<at::Tensor>> ends(2);
    const auto problem = hasten::testing::problem_for("mlp");
    run_ranks(2, [&, form = form, precision = precision](Process& process) {
      testing::Mlp net;
      hasten::testing::initialise(*net, static_cast<uint64_t>(5 + process.rank()));  // rank 0's values go to all
      torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(0.01));
      Accelerator accelerator(
          process, {.mixed_precision = precision, .precision = {.weights = form}, .scaler = {.init_scale = 1024}});
      auto [model, optimizer] = accelerator.prepare(net, adam);
      float first = 0, last = 0;
      for (int i = 0; i < 30; ++i) {
        optimizer.zero_grad();
        const auto x = problem.inputs.narrow(0, process.rank() * 12, 12),
                   y = problem.targets.narrow(0, process.rank() * 12, 12);
        const auto loss = torch::cross_entropy_loss(model(x), y);
        EXPECT_EQ(loss.scalar_type(), at::kFloat);
        accelerator.backward(loss);
        optimizer.step();
        (i == 0 ? first : last) = loss.item<float>();
      }
      EXPECT_LT(last, first);
      EXPECT_NE(net->first->weight.scalar_type(), at::kFloat);
      for (const auto& parameter : net->parameters()) {
        ends[static_cast<size_t>(process.rank())].push_back(accelerator.low_weights()->value_of(parameter).clone());
      }
      EXPECT_THROW(accelerator.local_sgd(model), UsageError);
    });
    for (size_t i = 0; i < ends[0].size(); ++i)
      EXPECT_TRUE(at::equal(ends[0][i], ends[1][i])) << static_cast<int>(form);
  }
}

TEST(MixedPrecision, LivingCastsChangeNoNumber) {
  const auto losses = [](bool living) {
    testing::Cnn net;
    hasten::testing::initialise(*net, 5);
    torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(0.01));
    Accelerator accelerator(single_process(),
                            {.mixed_precision = Precision::kBf16, .precision = {.living_casts = living}});
    auto [model, optimizer] = accelerator.prepare(net, adam);
    const auto problem = hasten::testing::problem_for("cnn");
    std::vector<float> result;
    for (int i = 0; i < 6; ++i) {
      optimizer.zero_grad();
      const auto loss = torch::cross_entropy_loss(model(problem.inputs), problem.targets);
      accelerator.backward(loss);
      optimizer.step();
      result.push_back(loss.item<float>());
    }
    return result;
  };
  EXPECT_EQ(losses(true), losses(false));
}

TEST(MixedPrecision, LocalSgdSkipsLocallyAndGoesOnWithTheLeastScale) {
  run_ranks(2, [&](Process& process) {
    testing::Mlp net;
    hasten::testing::initialise(*net, 5);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    Accelerator accelerator(process, {.mixed_precision = Precision::kFp16, .scaler = {.init_scale = 128}});
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    auto local = accelerator.local_sgd(model, {.num_steps = 2});
    for (int i = 0; i < 2; ++i) {
      optimizer.zero_grad();
      const bool bad = process.rank() == 1 && i == 0;
      accelerator.backward(model(at::full({2, 8}, bad ? INFINITY : 1.0F)).sum());
      optimizer.step();
      EXPECT_EQ(optimizer.step_was_skipped(), bad);
      local.step();
    }
    EXPECT_EQ(accelerator.scaler()->scale(), 64.0);
    local.finish();
  });
}

TEST(MixedPrecision, AnUnwrappedModelMayKeepItsCasts) {
  torch::nn::Linear net(2, 2);
  Accelerator accelerator(single_process(), {.mixed_precision = Precision::kBf16});
  auto model = accelerator.prepare(net);
  const at::Tensor x = at::full({1, 2}, 1.0 + 1.0 / 512);  // bfloat16 rounds it to 1

  const auto kept = accelerator.unwrap_model(model, parallel::KeepFp32Wrapper());

  EXPECT_TRUE(kept(x).equal(model(x)));
  EXPECT_EQ(kept(x).scalar_type(), at::kFloat);
  EXPECT_FALSE(accelerator.unwrap_model(model)(x).equal(model(x)));
  EXPECT_EQ(kept.ddp(), nullptr);
}

TEST(MixedPrecision, WithoutAveragingGradientsAreSummedAndWeightedOnesAreTheWeightedMeanAsBefore) {
  run_ranks(3, [](Process& process) {
    const auto gradient = [&](const parallel::BackwardOptions& options) {
      Accelerator accelerator(process, {.ddp = {.average = false}});
      torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
      auto model = accelerator.prepare(net);
      accelerator.backward(model(at::full({1, 1}, process.rank() + 1.0)).sum(), options);
      return net->weight.grad().item<float>();
    };
    EXPECT_FLOAT_EQ(gradient({}), 1 + 2 + 3);
    EXPECT_FLOAT_EQ(gradient({.weight = process.rank() == 2 ? 3.0 : 1.0}), (1 + 2 + 3 * 3) / 5.0F);
  });
}

TEST(MixedPrecision, RanksOutOfDataTakeTheScaleOver) {
  run_ranks(2, [&](Process& process) {
    testing::Mlp net;
    hasten::testing::initialise(*net, 5);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    Accelerator accelerator(process,
                            {.mixed_precision = Precision::kFp16, .scaler = {.init_scale = 128, .growth_interval = 2}});
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.join_uneven_inputs(model, [&, &model = model, &optimizer = optimizer] {
      for (int i = 0; i < (process.rank() == 0 ? 5 : 2); ++i) {
        optimizer.zero_grad();
        accelerator.backward(model(at::ones({2, 8})).sum());
        optimizer.step();
      }
    });
    EXPECT_EQ(accelerator.scaler_state()->scale, 512.0);
    EXPECT_EQ(accelerator.scaler_state()->growth_tracker, 1);
  });
}

}  // namespace
}  // namespace hasten
