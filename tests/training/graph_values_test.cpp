#include "hasten/training/graph_values.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <set>
#include <string>
#include <vector>

#include "hasten/core/error.h"

namespace hasten::tracking {
namespace {

TEST(GraphValues, TheTreeOfModulesNamesParametersByPath) {
  torch::nn::Sequential net(torch::nn::Linear(2, 3), torch::nn::BatchNorm1d(3));

  const auto nodes = graph_of(*net);

  std::vector<std::string> names;
  for (const auto& node : nodes) names.push_back(node.name + "=" + node.op);
  EXPECT_THAT(names, ::testing::ElementsAre("Sequential=Sequential", "Sequential/0=Linear",
                                            "Sequential/0/weight=Parameter [3, 2]", "Sequential/0/bias=Parameter [3]",
                                            "Sequential/1=BatchNorm1d", "Sequential/1/weight=Parameter [3]",
                                            "Sequential/1/bias=Parameter [3]", "Sequential/1/running_mean=Buffer [3]",
                                            "Sequential/1/running_var=Buffer [3]",
                                            "Sequential/1/num_batches_tracked=Buffer []"));
  EXPECT_THAT(nodes[0].inputs, ::testing::ElementsAre("Sequential/0", "Sequential/1"));
}

TEST(GraphValues, RecordedOperationsEndAtNamedParametersAndTakeWhatWasComputedBefore) {
  torch::nn::Linear net(2, 3);
  const at::Tensor free = at::ones({4, 3}).requires_grad_();

  const auto nodes = graph_of((net(at::ones({4, 2})) * free).relu().sum(), *net);

  std::set<std::string> before;
  for (const auto& node : nodes) {
    for (const auto& input : node.inputs) EXPECT_TRUE(before.count(input)) << node.name << " takes " << input;
    EXPECT_TRUE(before.insert(node.name).second) << node.name;
  }
  EXPECT_TRUE(before.count("Linear/weight"));
  EXPECT_TRUE(before.count("Linear/bias"));
  EXPECT_TRUE(before.count("leaf/0"));
  EXPECT_EQ(nodes.back().op, "SumBackward0");
  EXPECT_THAT(nodes.back().inputs, ::testing::ElementsAre("operations/ReluBackward0_0"));
  EXPECT_THROW(graph_of(at::ones({1})), UsageError);
}

TEST(GraphValues, PointsOfATensorBecomeAnEmbedding) {
  const auto points = embedding_of(at::arange(6, at::kDouble).view({3, 2}).t().contiguous().t(), {"a", "b", "c"},
                                   at::zeros({3, 1, 2, 2}));

  EXPECT_EQ(points.num_dims, 2);
  EXPECT_EQ(points.values, (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(points.metadata[2], (std::vector<std::string>{"c"}));
  EXPECT_EQ(points.images.size(), 3u);
  EXPECT_THROW(embedding_of(at::zeros({3})), UsageError);
}

}  // namespace
}  // namespace hasten::tracking
