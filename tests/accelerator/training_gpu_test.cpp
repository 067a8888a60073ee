// The front door on a GPU: training gives a CPU's values, and a step does not wait for the device.
#include <gtest/gtest.h>
#include <hasten/hasten.h>
#include <torch/torch.h>

#include <limits>

#include "hasten/clip_grad_norm_async.h"
#include "hasten/data/dataset/tensor_dataset.h"
#include "hasten/training/deferred_scalar.h"
#include "support/device_models.h"

namespace hasten {
namespace {

using testing::alone_on;
using testing::kGpu;
using testing::quiet_options;
using torch::data::samplers::SequentialSampler;
namespace F = torch::nn::functional;

class TrainingGpu : public testing::OnGpu {};

template <class Optimizer = torch::optim::AdamW, class Options = torch::optim::AdamWOptions>
std::vector<at::Tensor> trained(c10::Device device, const AcceleratorOptions& options, Options lr = Options(1e-2),
                                bool clip = false) {
  Accelerator accelerator(alone_on(device), options);
  auto net = testing::small_net();
  Optimizer made(net->parameters(), lr);
  const testing::SmallData data;
  auto [model, optimizer, train] = accelerator.prepare(
      net, made,
      data::loader<SequentialSampler>(data::TensorDataset(data.x, data.y), torch::data::DataLoaderOptions(16)));
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& batch : train) {
      optimizer.zero_grad();
      accelerator.backward(F::cross_entropy(model(batch.data), batch.target));
      if (clip) accelerator.clip_grad_norm_(net->parameters(), 0.5);
      optimizer.step();
    }
  }
  return testing::values_of(net->parameters());
}

TEST_F(TrainingGpu, AdamWTrainsAsOnTheCpu) {
  testing::expect_near(trained(kGpu, quiet_options()), trained(c10::kCPU, quiet_options()), 1e-4);
}

TEST_F(TrainingGpu, SgdTrainsAsOnTheCpuWithoutAWarningOfLibtorchs) {
  using torch::optim::SGD;
  using torch::optim::SGDOptions;
  struct Count : c10::WarningHandler {
    void process(const c10::Warning& warning) override { words += warning.msg() + '\n'; }
    std::string words;
  } warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  const auto there = trained<SGD>(kGpu, quiet_options(), SGDOptions(0.1));

  EXPECT_EQ(warnings.words, "");
  testing::expect_near(there, trained<SGD>(c10::kCPU, quiet_options(), SGDOptions(0.1)), 1e-5);
}

// Adagrad makes its state in its constructor, beside parameters that are the CPU's then.
TEST_F(TrainingGpu, AdagradThatWasMadeBeforePrepareTrainsAsOnTheCpu) {
  using torch::optim::Adagrad;
  using torch::optim::AdagradOptions;
  testing::expect_near(trained<Adagrad>(kGpu, quiet_options(), AdagradOptions(0.1)),
                       trained<Adagrad>(c10::kCPU, quiet_options(), AdagradOptions(0.1)), 1e-5);
}

template <class Optimizer, class Options>
std::vector<at::Tensor> goes_on(c10::Device device, Options options, bool optimizer_first) {
  auto net = testing::small_net();
  Optimizer made(net->parameters(), options);
  net->forward(torch::ones({2, 16})).sum().backward();
  made.step([] { return torch::ones({}); });
  made.zero_grad();
  Accelerator accelerator(alone_on(device), quiet_options());
  const auto step = [&](auto& model, auto& optimizer) {
    accelerator.backward(model(torch::ones({2, 16}, device)).square().sum());
    optimizer.step();
  };
  if (optimizer_first) {
    auto [optimizer, model] = accelerator.prepare(made, net);
    step(model, optimizer);
  } else {
    auto [model, optimizer] = accelerator.prepare(net, made);
    step(model, optimizer);
  }
  return testing::values_of(net->parameters());
}

TEST_F(TrainingGpu, AnOptimizerWithStateFromBeforePrepareGoesOn) {
  using namespace torch::optim;
  for (const bool optimizer_first : {false, true}) {
    testing::expect_near(goes_on<Adam>(kGpu, AdamOptions(1e-2), optimizer_first),
                         goes_on<Adam>(c10::kCPU, AdamOptions(1e-2), optimizer_first), 1e-4);
    testing::expect_near(goes_on<SGD>(kGpu, SGDOptions(1e-2).momentum(0.9), optimizer_first),
                         goes_on<SGD>(c10::kCPU, SGDOptions(1e-2).momentum(0.9), optimizer_first), 1e-4);
    testing::expect_near(goes_on<RMSprop>(kGpu, RMSpropOptions(1e-2), optimizer_first),
                         goes_on<RMSprop>(c10::kCPU, RMSpropOptions(1e-2), optimizer_first), 1e-4);
  }
}

TEST_F(TrainingGpu, LowPrecisionTrainsNearFloat32) {
  using torch::optim::SGD;
  using torch::optim::SGDOptions;
  for (const auto precision : {Precision::kBf16, Precision::kFp16}) {
    SCOPED_TRACE(precision::name_of(precision));
    testing::expect_near(trained<SGD>(kGpu, quiet_options(precision), SGDOptions(0.1)),
                         trained<SGD>(c10::kCPU, quiet_options(), SGDOptions(0.1)), 0.03);
  }
}

TEST_F(TrainingGpu, APreparedBf16ModelGivesLibtorchsAutocastBitForBit) {
  Accelerator accelerator(alone_on(kGpu), quiet_options(Precision::kBf16));
  auto net = testing::small_net();
  auto model = accelerator.prepare(net);
  const auto x = torch::randn({8, 16}, kGpu);
  at::Tensor plain;
  {
    const precision::Autocast scope(c10::kCUDA, {.dtype = at::kBFloat16});
    plain = net->forward(x);
  }

  EXPECT_EQ(plain.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(model(x).equal(plain.to(at::kFloat)));
}

TEST_F(TrainingGpu, ClippingTrainsAsOnTheCpu) {
  using torch::optim::AdamWOptions;
  testing::expect_near(trained(kGpu, quiet_options(), AdamWOptions(1e-2), true),
                       trained(c10::kCPU, quiet_options(), AdamWOptions(1e-2), true), 1e-4);
}

enum class Clip { kNone, kBlocking, kAsync };

int64_t waits_of_step(const AcceleratorOptions& options, Clip clip, bool logs = false) {
  Accelerator accelerator(alone_on(kGpu), options);
  auto net = testing::small_net();
  torch::optim::AdamW adam(net->parameters(), 1e-3);
  auto [model, optimizer] = accelerator.prepare(net, adam);
  const auto x = torch::randn({4, 16}, kGpu), y = torch::zeros({4}, torch::TensorOptions(kGpu).dtype(at::kLong));
  const auto step = [&, &model = model, &optimizer = optimizer] {
    optimizer.zero_grad();
    const auto loss = F::cross_entropy(model(x), y);
    accelerator.backward(loss);
    if (clip == Clip::kBlocking) accelerator.clip_grad_norm_(net->parameters(), 1.0);
    if (clip == Clip::kAsync) clip_grad_norm_async_(accelerator, net->parameters(), 1.0);
    optimizer.step();
    if (logs) (void)tracking::ValueOf<at::Tensor>::make(loss.detach());
  };
  for (int i = 0; i < 3; ++i) step();
  return testing::waits_of(step);
}

TEST_F(TrainingGpu, AStepDoesNotWaitForTheDevice) {
  EXPECT_EQ(waits_of_step(quiet_options(), Clip::kNone), 0);
  EXPECT_EQ(waits_of_step(quiet_options(Precision::kBf16), Clip::kNone), 0);
  EXPECT_EQ(waits_of_step(quiet_options(), Clip::kAsync), 0);
  EXPECT_EQ(waits_of_step(quiet_options(), Clip::kNone, /*logs=*/true), 0);
}

TEST_F(TrainingGpu, AClippedStepAndAnFp16StepWaitOnce) {
  EXPECT_LE(waits_of_step(quiet_options(), Clip::kBlocking), 1);
  EXPECT_LE(waits_of_step(quiet_options(Precision::kFp16), Clip::kNone), 1);
  EXPECT_LE(waits_of_step(quiet_options(Precision::kFp16), Clip::kBlocking), 2);
}

// Kernels of clipping by the front door, for a model of so many layers.
int64_t kernels_of_clipping(int num_layers, double norm_type) {
  Accelerator accelerator(alone_on(kGpu), quiet_options());
  torch::nn::Sequential net;
  for (int i = 0; i < num_layers; ++i) net->push_back(torch::nn::Linear(8, 8));
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  accelerator.backward(model(torch::ones({2, 8}, kGpu)).square().sum());
  return testing::kernels_of([&] { accelerator.clip_grad_norm_(net->parameters(), 0.01, norm_type); });
}

TEST_F(TrainingGpu, ClippingStartsAsManyKernelsForManyParametersAsForFew) {
  if (!testing::is_pretend()) GTEST_SKIP() << "a GPU does not count its kernels";
  for (const double norm_type : {2.0, 1.0, std::numeric_limits<double>::infinity()}) {
    const int64_t few = kernels_of_clipping(2, norm_type);
    EXPECT_GT(few, 0);
    EXPECT_EQ(kernels_of_clipping(20, norm_type), few) << norm_type;
  }
}

TEST_F(TrainingGpu, ABf16StepNeedsNoSecondCopyOfTheParameters) {
  const auto peak = [](bool living) {
    auto options = quiet_options(Precision::kBf16);
    options.precision.living_casts = living;
    Accelerator accelerator(alone_on(kGpu), options);
    torch::nn::Sequential net(torch::nn::Linear(1024, 1024), torch::nn::Linear(1024, 1024));
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int i = 0; i < 3; ++i) {
      if (i == 2) testing::device_allocator().resetPeakStats(0);
      optimizer.zero_grad();
      accelerator.backward(model(torch::ones({1, 1024}, kGpu)).sum());
      optimizer.step();
    }
    return testing::peak_bytes();
  };
  const int64_t parameters = 2 * 1024 * 1024 * 4;

  const auto without = peak(false), with = peak(true);
  EXPECT_LE(with - without, parameters * 6 / 10);  // the casts that last are half of it
}

TEST_F(TrainingGpu, APreparedLstmTrains) {
  if (testing::is_pretend()) GTEST_SKIP() << "the pretend device lacks the kernels of recurrent layers";
  Accelerator accelerator(alone_on(kGpu), quiet_options());
  torch::nn::LSTM lstm(16, 16);
  torch::optim::AdamW adam(lstm->parameters(), 1e-2);
  auto [model, optimizer] = accelerator.prepare(lstm, adam);
  const auto x = torch::randn({5, 4, 16}, kGpu);
  std::vector<double> losses;
  for (int i = 0; i < 20; ++i) {
    optimizer.zero_grad();
    const auto loss = std::get<0>(model(x)).square().mean();
    accelerator.backward(loss);
    optimizer.step();
    losses.push_back(loss.item<double>());
  }

  EXPECT_LT(losses.back(), losses.front());
}

}  // namespace
}  // namespace hasten
