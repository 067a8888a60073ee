// Random trees of modules under random policies: every element has one owner on all ranks, units cover all parameters,
// and training gives Ddp's numbers.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "hasten/optim/steps/optimizer_step.h"
#include "hasten/parallel/ddp/backward.h"
#include "hasten/parallel/ddp/ddp.h"
#include "hasten/parallel/shard/sharding.h"
#include "parallel/shard/wrap_units.h"
#include "support/ranks.h"
#include "support/test_device.h"

namespace hasten::parallel {
namespace {

using torch::nn::Module;

constexpr int64_t kTreeWidth = 6;

// A layer, or a chain of random ones.
struct TreeImpl : Module {
  TreeImpl(std::mt19937& random, int depth) {
    const auto choice = random() % 6;
    if (depth > 0 && choice < 4) {
      const auto count = 1 + random() % 3;
      for (size_t i = 0; i < count; ++i) {
        children.push_back(register_module("child" + std::to_string(i), std::make_shared<TreeImpl>(random, depth - 1)));
      }
    } else if (choice % 3 == 0) {
      norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kTreeWidth})));
    } else {
      hidden = 1 + static_cast<int64_t>(random() % 40);
      in = register_module("in", torch::nn::Linear(kTreeWidth, hidden));
      out = register_module("out", torch::nn::Linear(hidden, kTreeWidth));
    }
    if (random() % 4 == 0) {
      scale = register_parameter("scale", torch::ones({kTreeWidth}), /*requires_grad=*/random() % 3 > 0);
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& child : children) x = x + child->forward(x);
    if (norm) x = norm(x);
    if (in) x = out(torch::tanh(in(x)));
    return scale.defined() ? x * scale : x;
  }
  std::vector<std::shared_ptr<TreeImpl>> children;
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear in{nullptr}, out{nullptr};
  int64_t hidden = 0;
  at::Tensor scale;
};

std::shared_ptr<TreeImpl> random_tree(unsigned seed) {
  std::mt19937 random(seed);
  auto tree = std::make_shared<TreeImpl>(random, 3);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : tree->parameters()) parameter.normal_(0, 0.3, generator);
  return tree;
}

ShardOptions random_policy(unsigned seed, const Module& tree) {
  std::mt19937 random(seed + 1000);
  using Rule = WrapPolicy::Rule;
  ShardOptions options{.stage = static_cast<ShardStage>(1 + random() % 3)};
  options.wrap.rule = std::vector{Rule::kByUse, Rule::kTransformer, Rule::kSize, Rule::kNone}[random() % 4];
  options.wrap.version = 1 + static_cast<int>(random() % 2);
  options.wrap.unit_bytes = 100 + static_cast<int64_t>(random() % 4000);
  options.wrap.min_num_params = 1 + static_cast<int64_t>(random() % 300);
  const auto modules = tree.modules(/*include_self=*/false);
  if (options.wrap.rule == Rule::kTransformer && modules.empty()) options.wrap.rule = Rule::kNone;
  if (options.wrap.rule == Rule::kTransformer) options.wrap.classes = {modules[random() % modules.size()]->name()};
  const auto names = tree.named_parameters().keys();
  if (random() % 3 == 0) options.ignored = {names[random() % names.size()]};
  return options;
}

struct RandomRun {
  std::vector<at::Tensor> parameters;
  // The interval of each parameter that this rank steps, or {-1, -1}.
  std::vector<int64_t> owned;
};

RandomRun train_random(process::Process& process, unsigned seed, bool sharded) {
  const auto tree = random_tree(seed);
  const c10::Device device = sharded ? testing::test_device() : c10::Device(at::kCPU);
  // Another order of sums there: AdamW would make rounding in gradients of zero large.
  const auto dtype = testing::on_device() ? at::kDouble : at::kFloat;
  tree->to(device, dtype);
  const auto optimizer = std::make_unique<torch::optim::AdamW>(tree->parameters(), torch::optim::AdamWOptions(0.01));
  std::unique_ptr<Sharding> sharding;
  DdpOptions options;
  if (sharded) {
    sharding = std::make_unique<Sharding>(process.group(), random_policy(seed, *tree));
    options.exchange = sharding->make_exchange(process.group());
  }
  const auto ddp = std::make_shared<const Ddp>(*tree, process.group(), options);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(10 * seed + process.rank());
  for (int step = 0; step < 3; ++step) {
    optimizer->zero_grad();
    const auto x = torch::randn({4, kTreeWidth}, generator).to(device, dtype);
    backward(tree->forward(x).square().mean(), {}, {.models = {ddp}, .group = process.group()});
    const auto own = [&] { return optim::optimizer_step(*optimizer); };
    sharding ? sharding->step(*optimizer, own) : own();
  }
  RandomRun run;
  for (const auto& parameter : tree->parameters()) {
    run.parameters.push_back(parameter.detach().clone());
    if (!sharding) continue;
    const auto mine = sharding->stepped_interval(*optimizer, parameter).value_or(ShardInterval{-1, -1});
    run.owned.insert(run.owned.end(), {mine.begin, mine.end});
  }
  process.group().barrier();
  return run;
}

// Every parameter is stepped whole by all, or each of its elements by one.
void expect_one_owner(process::Process& process, const RandomRun& run, unsigned seed) {
  const auto all = process.group().all_gather(torch::tensor(run.owned, at::kLong));
  for (size_t i = 0; i < run.parameters.size(); ++i) {
    std::map<int64_t, int64_t> intervals;
    int64_t num_whole = 0;
    for (const auto& of_rank : all) {
      const auto begin = of_rank[2 * static_cast<int64_t>(i)].item<int64_t>(),
                 end = of_rank[2 * static_cast<int64_t>(i) + 1].item<int64_t>();
      if (begin < 0) ++num_whole;
      if (begin < end) {
        EXPECT_TRUE(intervals.emplace(begin, end).second) << "seed " << seed << ", parameter " << i;
      }
    }
    if (num_whole > 0) {
      EXPECT_EQ(num_whole, process.world_size()) << "seed " << seed << ", parameter " << i;
      continue;
    }
    int64_t next = 0;
    for (const auto& [begin, end] : intervals) {
      if (run.parameters[i].requires_grad() || !intervals.empty()) {
        EXPECT_EQ(begin, next) << "seed " << seed << ", parameter " << i;
      }
      next = end;
    }
    if (!intervals.empty()) {
      EXPECT_EQ(next, run.parameters[i].numel()) << "seed " << seed << ", parameter " << i;
    }
  }
}

class ShardRandomModels : public ::testing::TestWithParam<int> {};

TEST_P(ShardRandomModels, HaveOneOwnerOfEachElementAndTheNumbersOfDdp) {
  testing::run_ranks(GetParam(), [](auto& process) {
    for (unsigned seed = 0; seed < 60; ++seed) {
      const RandomRun plain = train_random(process, seed, false), sharded = train_random(process, seed, true);
      for (size_t i = 0; i < plain.parameters.size(); ++i) {
        EXPECT_TRUE(testing::same_values(plain.parameters[i], sharded.parameters[i]))
            << "seed " << seed << ", parameter " << i;
      }
      expect_one_owner(process, sharded, seed);
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Ranks, ShardRandomModels, ::testing::Values(2, 3));

TEST(ShardRandomUnits, CoverEveryParameterOnce) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    const auto tree = random_tree(seed);
    const auto options = random_policy(seed, *tree);
    if (options.wrap.rule != WrapPolicy::Rule::kTransformer && options.wrap.rule != WrapPolicy::Rule::kSize) continue;
    std::map<std::string, int> units;
    for (const auto& unit : wrap_units(*tree, options.wrap, {})) {
      for (const auto& name : unit) ++units[name];
    }
    EXPECT_EQ(units.size(), tree->named_parameters().size()) << "seed " << seed;
    for (const auto& [name, count] : units) EXPECT_EQ(count, 1) << "seed " << seed << ", " << name;
  }
}

}  // namespace
}  // namespace hasten::parallel
