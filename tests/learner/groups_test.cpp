// Layer groups of random models and splitters: each parameter in exactly one group, and nothing else.
#include "hasten/learner/groups.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "hasten/core/error.h"
#include "support/folder.h"

namespace hasten::learner {
namespace {

namespace nn = torch::nn;

// A module with one to four children, some of which have children of their own.
std::shared_ptr<nn::Module> random_net(std::mt19937_64& random, int depth) {
  auto net = std::make_shared<nn::Module>("Net");
  for (uint64_t i = 0, count = 1 + random() % 4; i < count; ++i) {
    const std::string name = std::to_string(i);
    switch (random() % (depth > 0 ? 4 : 3)) {
      case 0:
        net->register_module(name, nn::Linear(nn::LinearOptions(2, 3).bias(random() % 2 == 0)));
        break;
      case 1:
        net->register_module(name, nn::BatchNorm1d(3));
        break;
      case 2:
        net->register_module(name, nn::LayerNorm(nn::LayerNormOptions({3})));
        break;
      default:
        net->register_module(name, random_net(random, depth - 1));
    }
  }
  return net;
}

TEST(LayerGroups, OfRandomModelsAndSplittersHoldEachParameterOnce) {
  std::mt19937_64 random(17);
  size_t several = 0;
  for (int round = 0; round < 300; ++round) {
    const auto net = random_net(random, 2);
    std::vector<size_t> firsts{0};
    for (size_t child = 1; child < net->children().size(); ++child) {
      if (random() % 2 == 0) firsts.push_back(child);
    }
    const bool decays_all = random() % 2 == 0;

    const auto groups = layer_groups(*net, child_groups(firsts), {.wd_bn_bias = decays_all});
    const auto made = optimizer_groups(groups);

    std::map<const c10::TensorImpl*, int> in_groups, in_optimizer;
    for (const auto& group : groups) {
      ASSERT_EQ(group.parameters.size(), group.decays.size());
      for (const auto& parameter : group.parameters) ++in_groups[parameter.unsafeGetTensorImpl()];
      for (size_t i = 0; i < group.decays.size(); ++i) EXPECT_TRUE(!decays_all || group.decays[i]);
    }
    for (const auto& group : made.groups) {
      for (const auto& parameter : group.params()) ++in_optimizer[parameter.unsafeGetTensorImpl()];
    }
    EXPECT_EQ(groups.size(), firsts.size());
    EXPECT_EQ(made.places.size(), firsts.size());
    EXPECT_EQ(in_groups, in_optimizer);
    EXPECT_EQ(in_groups.size(), net->parameters().size());
    for (const auto& parameter : net->parameters()) EXPECT_EQ(in_groups[parameter.unsafeGetTensorImpl()], 1) << round;
    several += groups.size() > 1 ? 1 : 0;
  }
  EXPECT_GT(several, 100U);
}

TEST(LayerGroups, ASplitterThatForgetsOrRepeatsAParameterIsRefusedWithItsName) {
  std::mt19937_64 random(18);
  for (int round = 0; round < 50; ++round) {
    const auto net = random_net(random, 1);
    const auto named = net->named_parameters();
    if (named.size() < 2) continue;
    const size_t chosen = random() % named.size();
    const auto splitter = [&](bool forgets) {
      return [&, forgets](nn::Module&) {
        std::vector<std::vector<at::Tensor>> lists(2);
        for (size_t i = 0; i < named.size(); ++i) {
          if (!(forgets && i == chosen)) lists[i % 2].push_back(named[i].value());
          if (!forgets && i == chosen) lists[(i + 1) % 2].push_back(named[i].value());
        }
        return lists;
      };
    };

    for (const bool forgets : {true, false}) {
      const auto words = hasten::testing::words_of<UsageError>([&] { layer_groups(*net, splitter(forgets), {}); });
      EXPECT_NE(words.find(named[chosen].key()), std::string::npos) << words;
    }
  }
}

}  // namespace
}  // namespace hasten::learner
