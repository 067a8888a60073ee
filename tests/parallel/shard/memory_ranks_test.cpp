// The memory of a sharded run: what the formulas of `hasten plan --memory` say, in counted regions and in the system's
// sum (PSS).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <iostream>

#include "hasten/accelerator.h"
#include "hasten/core/env.h"
#include "hasten/parallel/shard/sharding.h"
#include "hasten/plan/shard_memory.h"
#include "support/processes.h"
#include "support/sanitizers.h"

namespace hasten {
namespace {

constexpr int64_t kWidth = 1024, kLayers = 8, kUnitBytes = int64_t{4} << 20;
constexpr int64_t kParameters = kLayers * (kWidth * kWidth + kWidth);

torch::nn::Sequential layers(int64_t width) {
  torch::nn::Sequential net;
  for (int64_t i = 0; i < kLayers; ++i) {
    net->push_back(torch::nn::Linear(width, width));
    net->push_back(torch::nn::Tanh());
  }
  return net;
}

// The proportional set size: a page that n processes share counts 1 / n in each. Pages of program files are left out,
// whose share grows whenever another program that has them mapped ends.
int64_t pss_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string word;
  int64_t sum = 0;
  int found = 0;
  while (file >> word) {
    int64_t kib = 0;
    if ((word == "Pss_Anon:" || word == "Pss_Shmem:") && file >> kib) {
      sum += kib * 1024;
      ++found;
    }
  }
  if (found != 2) throw std::runtime_error("/proc/self/smaps_rollup has no Pss_Anon and Pss_Shmem");
  return sum;
}

// Bytes of this process's mappings of one label.
int64_t mapped_bytes(const std::string& label) {
  std::ifstream file("/proc/self/maps");
  int64_t sum = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.find(label) == std::string::npos) continue;
    const size_t dash = line.find('-');
    sum += static_cast<int64_t>(std::stoull(line.substr(dash + 1), nullptr, 16) - std::stoull(line, nullptr, 16));
  }
  return sum;
}

template <class Use>
void train_steps(const Accelerator& accelerator, int64_t width, const Use& use) {
  auto net = layers(width);
  torch::optim::AdamW adam(net->parameters(), 1e-3);
  auto [model, optimizer] = accelerator.prepare(net, adam);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    accelerator.backward(model(torch::ones({4, width})).square().mean());
    optimizer.step();
  }
  accelerator.wait_for_everyone();
  use(adam);
  accelerator.wait_for_everyone();
}

HASTEN_PROCESS_CASE(memory_of_a_sharded_run) {
  torch::set_num_threads(1);
  const auto stage = static_cast<ShardStage>(std::stoi(Environment::current().text("HASTEN_TEST_STAGE").value_or("0")));
  AcceleratorOptions options{.cpu = true};
  options.shard = {.stage = stage, .wrap = {.unit_bytes = kUnitBytes}};
  const Accelerator accelerator(options);
  // What code and connections take is there before the start.
  train_steps(accelerator, 32, [](const auto&) {});
  const auto sum = [&](int64_t mine) { return accelerator.reduce(torch::tensor(mine)).template item<int64_t>(); };
  const int64_t start = sum(pss_bytes());
  train_steps(accelerator, kWidth, [&](const torch::optim::AdamW& adam) {
    int64_t state = 0;
    for (const auto& piece : accelerator.sharding()->sharded_state(adam)) state += piece.tensor.nbytes();
    const int64_t pss = sum(pss_bytes()) - start, state_of_all = sum(state);
    if (!accelerator.is_main_process()) return;
    // Each region is mapped twice.
    std::cout << "parameters " << mapped_bytes("hasten-parameters") / 2 << " gradients "
              << mapped_bytes("hasten-gradients") / 2 << " units " << mapped_bytes("hasten-units") / 2 << " state "
              << state_of_all << " pss " << pss << std::endl;
  });
  return 0;
}

struct MemoryCounts {
  int64_t parameters = 0, gradients = 0, units = 0, state = 0, pss = 0;
};

MemoryCounts counted(ShardStage stage, int world_size) {
  const auto results = testing::run_processes(
      world_size, "memory_of_a_sharded_run",
      {{"HASTEN_TEST_STAGE", std::to_string(static_cast<int>(stage))}, {"OMP_NUM_THREADS", "1"}});
  MemoryCounts counts;
  const std::string& said = results[0].output;
  const std::vector<std::pair<std::string, int64_t*>> wanted = {{"parameters ", &counts.parameters},
                                                                {"gradients ", &counts.gradients},
                                                                {"units ", &counts.units},
                                                                {"state ", &counts.state},
                                                                {"pss ", &counts.pss}};
  for (const auto& [word, number] : wanted) {
    const size_t at = said.find(word);
    EXPECT_NE(at, std::string::npos) << said;
    if (at != std::string::npos) *number = std::stoll(said.substr(at + word.size()));
  }
  return counts;
}

// Slices begin at multiples of 64 elements, units at cache lines: a percent is more than all of that.
void expect_about(int64_t count, int64_t bytes, const char* what) {
  EXPECT_GE(count, bytes) << what;
  EXPECT_LE(count, bytes * 101 / 100 + 8192) << what;
}

plan::ShardMemoryRow formula(ShardStage stage, int world_size) {
  const auto rows = plan::shard_memory(
      {.parameters = kParameters, .largest_unit = kWidth * kWidth + kWidth, .ranks_per_host = world_size});
  return rows.at(static_cast<size_t>(stage));
}

// Autograd makes gradients before they are in their bucket; malloc keeps that memory on each rank.
int64_t on_the_way(int world_size) {
  return world_size * 4 * (kWidth * kWidth + kWidth);
}

TEST(ShardMemoryRanks, StageTwoTakesWhatItsFormulaSays) {
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer keeps freed memory";
  for (const int world_size : {2, 4}) {
    const auto counts = counted(ShardStage::kGradients, world_size);
    const auto wanted = formula(ShardStage::kGradients, world_size);

    expect_about(counts.parameters, wanted.parameters, "parameters once a host");
    expect_about(counts.gradients, 4 * kParameters, "gradients once a host");
    EXPECT_GT(counts.units, 0);
    EXPECT_LE(counts.gradients + counts.units + on_the_way(world_size), wanted.gradients * 101 / 100)
        << "and slots of the largest unit";
    expect_about(counts.state, wanted.optimizer, "moments over all ranks");
    EXPECT_LE(counts.pss, wanted.total() * 11 / 10) << "the formula and a tenth, with " << world_size << " ranks";
  }
}

TEST(ShardMemoryRanks, StageOneKeepsGradientsOnEachRank) {
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer keeps freed memory";
  const auto counts = counted(ShardStage::kOptimizer, 2);
  const auto wanted = formula(ShardStage::kOptimizer, 2);

  expect_about(counts.parameters, wanted.parameters, "parameters once a host");
  EXPECT_EQ(counts.gradients, 0);
  expect_about(counts.state, wanted.optimizer, "moments over all ranks");
  EXPECT_LE(counts.pss, (wanted.total() + 2 * on_the_way(2)) * 11 / 10)
      << "the formula and a tenth, and two units a rank whose gradients are on their way to the buckets";
}

}  // namespace
}  // namespace hasten
