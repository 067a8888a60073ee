#include "parallel/ddp/value_watch.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace hasten::parallel {
namespace {

using Indices = std::vector<size_t>;

template <class O, class Options>
void expect_seen(const Options& options) {
  const std::vector<at::Tensor> tensors{torch::ones({3}, torch::requires_grad()),
                                        torch::ones({40, 2}, torch::requires_grad())};
  tensors[1].mutable_grad() = torch::full({40, 2}, 0.5);
  O optimizer(tensors, options);
  ValueWatch watch;
  watch.note(tensors);
  EXPECT_EQ(watch.changed(tensors), Indices{});

  optimizer.step([&] { return tensors[1].detach().sum(); });

  EXPECT_EQ(watch.changed(tensors), Indices{1}) << typeid(O).name();
}

TEST(ValueWatch, SeesAStepOfEachOfLibtorchsOptimizers) {
  expect_seen<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
  expect_seen<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
  expect_seen<torch::optim::Adam>(torch::optim::AdamOptions(0.1));
  expect_seen<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1));
  expect_seen<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.1));
  expect_seen<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.1));
  expect_seen<torch::optim::LBFGS>(torch::optim::LBFGSOptions(0.1));
}

TEST(ValueWatch, AClampThatCutsNothingIsNoChange) {
  const std::vector<at::Tensor> tensors{torch::ones({3})};
  ValueWatch watch;
  watch.note(tensors);

  tensors[0].clamp_(-1, 1);
  EXPECT_EQ(watch.changed(tensors), Indices{});

  tensors[0].clamp_(-0.5, 0.5);
  EXPECT_EQ(watch.changed(tensors), Indices{0});
  watch.forget();
  EXPECT_TRUE(watch.empty());
  EXPECT_EQ(watch.changed(tensors), Indices{});
}

TEST(ValueWatch, TakesTensorsOfAnyKind) {
  const at::Tensor part = torch::zeros({4, 4}).narrow(0, 3, 1).narrow(1, 3, 1);
  const at::Tensor sparse = torch::zeros({4}).to_sparse();
  const at::Tensor far = torch::zeros({4}, torch::kMeta);
  const std::vector<at::Tensor> tensors{
      part, torch::zeros({0}), torch::zeros({1}).expand({3}), torch::zeros({5}, torch::kBool), sparse, far};
  ValueWatch watch;
  watch.note(tensors);
  EXPECT_EQ(watch.changed(tensors), Indices{});

  part.fill_(1);
  far.fill_(1);

  EXPECT_EQ(watch.changed(tensors), (Indices{0, 5}));
}

}  // namespace
}  // namespace hasten::parallel
