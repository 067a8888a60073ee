// save_state of a model on a GPU: what the program does after it returns does not reach the checkpoint.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/accelerator.h"
#include "hasten/checkpoint/checkpoints.h"
#include "support/device_models.h"
#include "support/folder.h"

namespace hasten::checkpoint {
namespace {

using testing::kGpu;
namespace F = torch::nn::functional;

class SaveStateGpu : public testing::InFolder {
 protected:
  void SetUp() override { ASSERT_TRUE(torch::cuda::is_available()) << "there is no GPU"; }

  // Saves, lets `between` go on, loads; the model must be as it was when save_state returned.
  template <class Between>
  void expect_saved(bool norm, const Between& between) {
    auto options = testing::quiet_options();
    options.project = {.project_dir = folder_, .automatic_checkpoint_naming = true};
    Accelerator accelerator(testing::alone_on(kGpu), options);
    auto net = testing::small_net(norm, 1024);
    // So large that its copy takes a while.
    torch::nn::Linear ballast(2048, 2048);
    torch::optim::AdamW adam(net->parameters(), 0.1);
    auto [model, more, optimizer] = accelerator.prepare(net, ballast, adam);
    const testing::SmallData data;
    const auto step = [&, &model = model, &optimizer = optimizer] {
      accelerator.backward(F::cross_entropy(model(data.x.to(kGpu)), data.y.to(kGpu)));
      optimizer.step();
      optimizer.zero_grad();
    };
    step();
    const auto state = [&] {
      auto all = net->parameters();
      for (const auto& buffer : net->buffers()) all.push_back(buffer);
      return testing::values_of(all);
    };
    const auto before = state();

    const auto save = accelerator.save_state();
    between(*net, model, step);
    save.wait();
    accelerator.load_state(save.path());

    const auto after = state();
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(before[i].equal(after[i])) << "tensor " << i << " of " << before.size();
    }
  }
};

TEST_F(SaveStateGpu, StepsAfterwardsDoNotReachIt) {
  expect_saved(false, [](auto&, auto&, const auto& step) {
    step();
    step();
  });
}

TEST_F(SaveStateGpu, AForwardAfterwardsDoesNotReachRunningStatistics) {
  expect_saved(true, [](auto& net, auto& model, const auto&) {
    net.train();
    for (int i = 0; i < 20; ++i) model(torch::randn({8, 16}, kGpu));
  });
}

TEST_F(SaveStateGpu, AProgramsOwnWriteAfterwardsDoesNotReachIt) {
  expect_saved(false, [](auto& net, auto&, const auto&) {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net.parameters()) parameter.zero_();
  });
}

TEST_F(SaveStateGpu, GeneratorsComeBack) {
  at::Tensor first;
  expect_saved(false, [&](auto&, auto&, const auto&) { first = torch::randn({4}, kGpu).cpu(); });
  EXPECT_TRUE(torch::randn({4}, kGpu).cpu().equal(first));
}

}  // namespace
}  // namespace hasten::checkpoint
