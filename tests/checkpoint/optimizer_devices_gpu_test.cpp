// State of optimizers follows parameters that were moved to a GPU.
#include "hasten/checkpoint/optimizer_devices.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/device.h"

namespace hasten::checkpoint {
namespace {

using testing::kGpu;

class OptimizerDevicesGpu : public testing::OnGpu {};

// Steps once on the CPU, moves the parameter, steps again; returns the parameter.
template <class Optimizer, class Options>
at::Tensor stepped(const Options& options, bool moves) {
  at::Tensor parameter = torch::full({4, 3}, 2.0).requires_grad_();
  Optimizer optimizer({parameter}, options);
  const auto step = [&] {
    optimizer.zero_grad();
    optimizer.step([&] {
      const at::AutoGradMode with_gradients(true);
      optimizer.zero_grad();
      const auto loss = parameter.square().sum();
      loss.backward();
      return loss;
    });
  };
  step();
  optimizer.zero_grad();
  if (moves) {
    parameter.set_data(parameter.to(kGpu));
    move_state_to_parameters(optimizer);
  }
  step();
  return parameter.detach().cpu();
}

template <class Optimizer, class Options>
void expect_alike(const Options& options) {
  EXPECT_TRUE(torch::allclose(stepped<Optimizer>(options, true), stepped<Optimizer>(options, false), 1e-5, 1e-6));
}

TEST_F(OptimizerDevicesGpu, EachOptimizerOfLibtorchGoesOnWhereItsParametersWereMovedTo) {
  using namespace torch::optim;
  expect_alike<SGD>(SGDOptions(0.1).momentum(0.9));
  expect_alike<Adam>(AdamOptions(0.1).amsgrad(true));
  expect_alike<AdamW>(AdamWOptions(0.1));
  expect_alike<RMSprop>(RMSpropOptions(0.1).centered(true).momentum(0.9));
  expect_alike<Adagrad>(AdagradOptions(0.1));
  expect_alike<LBFGS>(LBFGSOptions(0.1).max_iter(2));
}

TEST_F(OptimizerDevicesGpu, StateThatIsThereAlreadyKeepsItsMemory) {
  at::Tensor parameter = torch::ones({4}).requires_grad_();
  torch::optim::Adam adam({parameter}, 0.1);
  parameter.mutable_grad() = torch::ones({4});
  adam.step();
  const auto& state = static_cast<torch::optim::AdamParamState&>(*adam.state().begin()->second);
  const void* memory = state.exp_avg().const_data_ptr();

  move_state_to_parameters(adam);

  const auto& after = static_cast<torch::optim::AdamParamState&>(*adam.state().begin()->second);
  EXPECT_EQ(after.exp_avg().const_data_ptr(), memory);
}

}  // namespace
}  // namespace hasten::checkpoint
