#include "hasten/optim/schedulers/torch_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "hasten/core/error.h"
#include "hasten/optim/prepared/prepared_scheduler.h"

namespace hasten::optim {
namespace {

using ::testing::ElementsAre;

struct Halving {
  std::vector<at::Tensor> parameters{torch::ones({1}, torch::requires_grad())};
  torch::optim::SGD sgd{parameters, 0.8};
  torch::optim::StepLR step_lr{sgd, 2, 0.5};
  TorchScheduler scheduler{step_lr, sgd};
};

static_assert(SchedulerLike<TorchScheduler>);

TEST(TorchScheduler, StepsAsLibtorchsOwn) {
  Halving it;
  std::vector<double> rates;
  for (int i = 0; i < 4; ++i) {
    it.scheduler.step();
    rates.push_back(it.scheduler.rates()[0]);
  }
  Halving plain;
  std::vector<double> expected;
  for (int i = 0; i < 4; ++i) {
    plain.step_lr.step();
    expected.push_back(plain.sgd.param_groups()[0].options().get_lr());
  }

  EXPECT_EQ(rates, expected);
}

TEST(TorchScheduler, GoesOnFromItsState) {
  Halving before, after, whole;
  for (int i = 0; i < 3; ++i) before.scheduler.step();
  after.scheduler.load_state(before.scheduler.state());
  after.scheduler.step();
  for (int i = 0; i < 4; ++i) whole.scheduler.step();

  EXPECT_EQ(after.scheduler.rates(), whole.scheduler.rates());
  EXPECT_EQ(after.scheduler.state(), whole.scheduler.state());
}

TEST(TorchScheduler, AStateOfAnotherOptimizerIsRefused) {
  Halving it;
  auto state = it.scheduler.state();
  state["rates"] = std::vector<double>{0.1, 0.2};

  EXPECT_THROW(it.scheduler.load_state(state), UsageError);
}

}  // namespace
}  // namespace hasten::optim
