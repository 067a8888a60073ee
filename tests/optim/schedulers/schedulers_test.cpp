#include "hasten/optim/schedulers/schedulers.h"

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

namespace hasten::optim {
namespace {

TEST(Schedulers, AreWrittenAsInTheDocuments) {
  torch::optim::SGD sgd(std::vector<at::Tensor>{torch::zeros({1}, torch::requires_grad())}, scale_lr(0.1, 8));

  WarmupLR scheduler(sgd, {.total_iters = 5, .start_factor = 0.2, .after = recipe<CosineAnnealingLR>({.T_max = 95})});
  for (int step = 0; step < 5; ++step) scheduler.step();

  EXPECT_DOUBLE_EQ(scheduler.rates()[0], 0.8);
}

}  // namespace
}  // namespace hasten::optim
