// What samplers draw, in real processes: each has a default generator of its own, standing at another place.
#include "hasten/data/sampler/detail/sampler_stream.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <iostream>

#include "data/sampler/rng_sync.h"
#include "hasten/data/loader/loader.h"
#include "support/processes.h"
#include "support/samples.h"

namespace hasten::data {
namespace {

using testing::LazySampler;
using testing::Range;
using torch::data::samplers::RandomSampler;

constexpr size_t kSamples = 20, kStep = 10;
constexpr int kEpochs = 3;

/// What one process says at the end: the global order of all epochs, and where its own generator stands.
std::string line(const Indices& order, double drawn) {
  return text("order ", join(order, " "), " then ", drawn, "\n");
}

/// `others` more numbers are drawn beside each batch, as dropout does.
template <class Sampler>
Indices epochs(const process::Process& process, int64_t others = 0) {
  auto ours = loader<Sampler>(Range(kSamples), kStep / process.world_size());
  ours.prepare(process, std::make_shared<training::GradientState>());
  Indices order;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    for (auto& batch : ours) {
      torch::rand(others);
      const auto mine = torch::tensor(std::vector<int64_t>(batch.begin(), batch.end()));
      for (const auto& part : process.group().all_gather(mine)) {
        order.insert(order.end(), part.data_ptr<int64_t>(), part.data_ptr<int64_t>() + part.numel());
      }
    }
  }
  return order;
}

double draw() {
  return torch::rand({}, torch::kDouble).item<double>();
}

template <class Sampler>
int one_rank() {
  const process::Process process({.cpu = true});
  torch::manual_seed(100 + process.rank());
  const Indices order = epochs<Sampler>(process);
  std::cout << line(order, draw());
  return 0;
}

HASTEN_PROCESS_CASE(random_sampler) {
  return one_rank<RandomSampler>();
}
HASTEN_PROCESS_CASE(lazy_sampler) {
  return one_rank<LazySampler>();
}

template <class Sampler>
void expect_rank_0s_order_everywhere(const std::string& name) {
  torch::manual_seed(100);
  const process::Process alone(process::RankInfo{}, comm::Group());
  const Indices order = epochs<Sampler>(alone);
  const double main_draws = draw();
  torch::manual_seed(101);
  Sampler{kSamples};
  const double other_draws = draw();

  const auto ranks = testing::run_processes(2, name);

  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks[0].output, line(order, main_draws));
  EXPECT_EQ(ranks[1].output, line(order, other_draws));
}

TEST(SamplerStreamProcesses, RanksFollowRank0AndKeepTheirOwnGenerators) {
  expect_rank_0s_order_everywhere<RandomSampler>("random_sampler");
  expect_rank_0s_order_everywhere<LazySampler>("lazy_sampler");
}

/// Each rank draws beside the loop, and not as much as the other.
HASTEN_PROCESS_CASE(lazy_sampler_beside_dropout) {
  const process::Process process({.cpu = true});
  torch::manual_seed(100 + process.rank());
  Indices order = epochs<LazySampler>(process, 1 + process.rank());
  order.resize(kSamples);
  std::cout << join(order, " ");
  return 0;
}

TEST(SamplerStreamProcesses, WhatElseIsDrawnBetweenTwoBatchesDoesNotReachTheSampler) {
  torch::manual_seed(100);
  Indices order = epochs<LazySampler>(process::Process(process::RankInfo{}, comm::Group()));
  order.resize(kSamples);

  for (const auto& rank : testing::run_processes(2, "lazy_sampler_beside_dropout")) {
    EXPECT_EQ(rank.output, join(order, " "));
  }
}

/// The ranks' default generators stand apart; with kTorch each epoch puts them where rank 0's is.
HASTEN_PROCESS_CASE(synchronised_generators) {
  const process::Process process({.cpu = true});
  torch::manual_seed(100 + process.rank());
  auto ours = loader<SeedableSequentialSampler>(Range(kSamples), kStep);
  ours.prepare(process, std::make_shared<training::GradientState>(), {.rng_types = {RngType::kTorch}});
  std::cout << draw();
  ours.begin();
  std::cout << " " << draw();
  synchronize_cuda_generator(process.group(), process.device());  // nothing, on a CPU
  return 0;
}

TEST(SamplerStreamProcesses, DefaultGeneratorsAreSynchronisedIfAskedFor) {
  const auto ranks = testing::run_processes(2, "synchronised_generators");

  ASSERT_EQ(ranks.size(), 2u);
  const auto first = [](const std::string& output) { return output.substr(0, output.find(' ')); };
  const auto second = [](const std::string& output) { return output.substr(output.find(' ')); };
  EXPECT_NE(first(ranks[0].output), first(ranks[1].output));
  EXPECT_EQ(second(ranks[0].output), second(ranks[1].output));
}

/// Without a seed of its own the seedable order is that of rank 0's generator, and it resumes on every rank.
HASTEN_PROCESS_CASE(seedable_of_rank_0) {
  const process::Process process({.cpu = true});
  torch::manual_seed(100 + process.rank());
  auto ours = loader<RandomSampler>(Range(kSamples), kStep / process.world_size());
  ours.prepare(process, std::make_shared<training::GradientState>(), {.use_seedable_sampler = true});
  for ([[maybe_unused]] auto& batch : ours) break;
  auto again = loader<RandomSampler>(Range(kSamples), kStep / process.world_size());
  again.prepare(process, std::make_shared<training::GradientState>(), {.use_seedable_sampler = true});
  again.load_state(ours.state());
  std::cout << ours.state().seed.value() << ":";
  for (auto& batch : again) std::cout << " " << join(batch, " ");
  return 0;
}

TEST(SamplerStreamProcesses, TheSeedableOrderIsRank0sOnEveryRank) {
  const auto ranks = testing::run_processes(2, "seedable_of_rank_0");
  const Indices order = torch_permutation(kSamples, 100);

  ASSERT_EQ(ranks.size(), 2u);
  for (size_t rank = 0; rank < 2; ++rank) {
    const auto begin = order.begin() + kStep + static_cast<std::ptrdiff_t>(rank * kStep / 2);
    EXPECT_EQ(ranks[rank].output, text("100: ", join(Indices(begin, begin + kStep / 2), " ")));
  }
}

TEST(SamplerStream, AWorldOfOneDrawsFromTheDefaultGenerator) {
  SamplerStream stream{comm::Group()};
  double first = 0;

  torch::manual_seed(3);
  stream.begin_epoch();
  stream.run([&] { first = draw(); });
  torch::manual_seed(3);

  EXPECT_EQ(first, draw());
}

}  // namespace
}  // namespace hasten::data
