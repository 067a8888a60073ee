#include "hasten/parallel/model/prepared_model.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/models.h"

namespace hasten::parallel {
namespace {

struct TwoInputsImpl : torch::nn::Module {
  std::pair<at::Tensor, int> forward(const at::Tensor& x, int times) { return {x * times, times}; }
  int own_method() const { return 42; }
};
TORCH_MODULE(TwoInputs);

TEST(PreparedModel, ForwardTakesAnyArgumentsAndGivesAnyResult) {
  const PreparedModel<TwoInputs> model(std::make_shared<TwoInputs>(), nullptr);

  const auto [product, times] = model(torch::ones({2}), 3);

  EXPECT_EQ(product.sum().item<double>(), 6);
  EXPECT_EQ(times, 3);
}

TEST(PreparedModel, MethodsAndMembersOfTheModuleAreReached) {
  const PreparedModel<TwoInputs> model(std::make_shared<TwoInputs>(), nullptr);

  EXPECT_EQ(model->own_method(), 42);
  model->eval();
  EXPECT_FALSE(model.unwrap()->is_training());
}

TEST(PreparedModel, SequentialIsAModelToo) {
  const PreparedModel<torch::nn::Sequential> model(
      std::make_shared<torch::nn::Sequential>(torch::nn::Linear(3, 2), torch::nn::ReLU()), nullptr);

  EXPECT_EQ(model(torch::ones({1, 3})).size(1), 2);
}

TEST(PreparedModel, ModulesHoldersAndSharedPointersCountAsModules) {
  static_assert(is_module_v<TwoInputs> && is_module_v<TwoInputs&> && is_module_v<TwoInputsImpl>);
  static_assert(is_module_v<std::shared_ptr<TwoInputsImpl>>);
  static_assert(!is_module_v<at::Tensor> && !is_module_v<torch::optim::SGD> && !is_module_v<std::shared_ptr<int>>);

  TwoInputs holder;
  EXPECT_EQ(&module_of(holder), holder.get());
}

}  // namespace
}  // namespace hasten::parallel
