// Orders and DistributedSampler against PyTorch's and Accelerate's, every case that was taken from them.
#include "hasten/data/sampler/distributed_sampler.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "hasten/core/error.h"
#include "support/golden.h"

namespace hasten::data {
namespace {

using nlohmann::json;
using testing::GoldenCase;
using testing::GoldenTopic;

Indices epoch_of(SeedableSampler& sampler) {
  sampler.reset();
  return sampler.next(sampler.size()).value_or(Indices());
}

json distributed(const json& input) {
  json ranks = json::array(), lengths = json::array();
  const int num_replicas = input.at("num_replicas");
  for (int rank = 0; rank < num_replicas; ++rank) {
    DistributedSampler sampler(input.at("n"), {.num_replicas = num_replicas,
                                               .rank = input.value("rank", rank),
                                               .shuffle = input.value("shuffle", true),
                                               .seed = input.value("seed", uint64_t{0}),
                                               .drop_last = input.value("drop_last", false)});
    sampler.set_epoch(input.value("epoch", uint64_t{0}));
    ranks.push_back(epoch_of(sampler));
    lengths.push_back(sampler.size());
  }
  const uint64_t seed = input.at("seed").get<uint64_t>() + input.at("epoch").get<uint64_t>();
  return {{"ranks", ranks}, {"len", lengths}, {"permutation", torch_permutation(input.at("n"), seed)}};
}

json two_permutations(const json& input) {
  const size_t n = input.at("n");
  SeedableRandomSampler sampler(n, {.seed = input.at("seed"), .num_samples = 2 * n});
  const Indices both = epoch_of(sampler);
  const auto middle = both.begin() + static_cast<std::ptrdiff_t>(n);
  return {{"first", Indices(both.begin(), middle)}, {"second", Indices(middle, both.end())}};
}

json long_permutation(const json& input) {
  const Indices order = torch_permutation(input.at("n"), input.at("seed"));
  if (order.size() < 8) throw std::runtime_error("a long permutation has 8 values and more");
  uint64_t sum = 0;
  for (size_t i = 0; i < order.size(); ++i) sum = (sum + order[i] * (i + 1)) % 2147483647u;
  return {{"head", Indices(order.begin(), order.begin() + 8)},
          {"tail", Indices(order.end() - 8, order.end())},
          {"weighted_sum_mod", sum}};
}

json seedable(const json& input) {
  RandomSamplerOptions options{.seed = input.at("data_seed"), .replacement = input.at("replacement")};
  if (!input.at("num_samples").is_null()) options.num_samples = input.at("num_samples");
  SeedableRandomSampler sampler(input.at("n"), options);
  json epochs = json::array();
  for (int epoch = 0; epoch < 3; ++epoch) epochs.push_back(epoch_of(sampler));
  sampler.set_epoch(10);
  return {{"epochs", epochs}, {"after_set_epoch_10", epoch_of(sampler)}};
}

/// Python's RandomSampler draws a seed from the default generator in each pass.
json random_sampler(const json& input) {
  torch::manual_seed(input.at("global_seed").get<uint64_t>());
  json orders = json::array(), seeds = json::array();
  for (int pass = 0; pass < 2; ++pass) {
    const auto seed = at::empty({}, at::kLong).random_().item<int64_t>();
    seeds.push_back(seed);
    orders.push_back(torch_permutation(input.at("n"), static_cast<uint64_t>(seed)));
  }
  return {{"seed_drawn_then_order", orders}, {"drawn_seeds", seeds}};
}

json run(const GoldenCase& golden) {
  if (golden.family == "randperm") return two_permutations(golden.input);
  if (golden.family == "randperm_long") return long_permutation(golden.input);
  if (golden.family == "seedable") return seedable(golden.input);
  if (golden.family == "random_sampler") return random_sampler(golden.input);
  return distributed(golden.input);
}

TEST(DistributedSamplerGolden, GivesWhatThePeersGive) {
  GoldenTopic topic("distributed_sampler");

  topic.for_each([&](const GoldenCase& golden) {
    topic.judge(golden, [&]() -> json {
      try {
        return run(golden);
      } catch (const UsageError&) {
        return testing::golden_error("ValueError");
      }
    });
  });

  topic.finish();
}

}  // namespace
}  // namespace hasten::data
