#include "hasten/parallel/parameters/state_dict.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

namespace hasten::parallel {
namespace {

TEST(StateDict, HoldsParametersAndBuffersUnderTheirFullNames) {
  torch::nn::Sequential net(torch::nn::Linear(2, 3), torch::nn::BatchNorm1d(3));

  const auto state = state_dict(*net);

  std::vector<std::string> names;
  for (const auto& [name, tensor] : state) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"0.bias", "0.weight", "1.bias", "1.num_batches_tracked",
                                             "1.running_mean", "1.running_var", "1.weight"}));
  EXPECT_FALSE(state.at("0.weight").requires_grad());
  EXPECT_EQ(state.at("0.weight").data_ptr(), net->parameters()[0].data_ptr());
}

}  // namespace
}  // namespace hasten::parallel
