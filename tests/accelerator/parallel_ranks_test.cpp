// Tensor and context parallelism through the front door, against one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerator/dealt_batches.h"
#include "accelerator/read_options.h"
#include "hasten/accelerator.h"
#include "hasten/core/error.h"
#include "hasten/data/dataset/tensor_dataset.h"
#include "hasten/parallel/context/context_parallel.h"
#include "hasten/parallel/layout/placement.h"
#include "support/parallel_models.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using namespace hasten::testing;
using ::testing::HasSubstr;

std::vector<std::shared_ptr<models::Gpt2Impl>> same_nets(int count) {
  std::vector<std::shared_ptr<models::Gpt2Impl>> nets;
  for (int i = 0; i < count; ++i) {
    torch::manual_seed(0);
    nets.push_back(std::dynamic_pointer_cast<models::Gpt2Impl>(gpt2_model().make()));
  }
  return nets;
}

void expect_training_as_one_process(const AcceleratorOptions& options, int world, int rows_apart) {
  constexpr int kSteps = 3;
  const auto expected = one_process(gpt2_model(), kSteps, false, 0.5);
  const auto batch = parallel_batch();
  const auto nets = same_nets(world);
  run_ranks(world, [&](process::Process& process) {
    const Accelerator accelerator(process, options);
    auto net = nets[static_cast<size_t>(process.rank())];
    torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-3));
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    const int64_t rows = batch.x.size(0) / rows_apart;
    const int64_t first = rows * (process.rank() / (world / rows_apart));
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const at::Tensor logits = model(batch.x.narrow(0, first, rows), at::Tensor(), nullptr);
      const at::Tensor loss = language_loss(logits, batch.y.narrow(0, first, rows));
      accelerator.backward(loss);
      accelerator.clip_grad_norm_(net->parameters(), 0.5);
      optimizer.step();
      const double mean = accelerator.reduce(loss.detach(), {.op = comm::ReduceOp::kMean}).item<double>();
      EXPECT_NEAR(mean, expected.losses[static_cast<size_t>(step)], 2e-5);
    }
    for (const auto& item : net->named_parameters()) {
      const at::Tensor whole = parallel::gather_parameter(item.value());
      EXPECT_LT((whole - expected.weights.at(item.key())).abs().max().item<double>(), 1e-3) << item.key();
    }
  });
}

TEST(ParallelOptions, CutAModelThatTrainsAndIsClippedAsOnOneProcess) {
  expect_training_as_one_process({.parallel = {.tp = 2}}, 2, 1);
}
TEST(ParallelOptions, GoWithDataParallelism) {
  expect_training_as_one_process({.parallel = {.dp_replicate = 2, .tp = 2, .sequence_parallel = true}}, 4, 2);
}
TEST(ParallelOptions, ShardOverTheirOwnAxis) {
  expect_training_as_one_process({.parallel = {.dp_shard = 2, .tp = 2}}, 4, 2);
}

TEST(ParallelOptions, CutSequencesOfAModelThatTrainsAsOnOneProcess) {
  expect_training_as_one_process({.parallel = {.cp = 2}}, 2, 1);
  expect_training_as_one_process({.parallel = {.sp = 4}}, 4, 1);
}
TEST(ParallelOptions, CutSequencesBesideCutAndSplitParameters) {
  expect_training_as_one_process({.parallel = {.cp = 2, .tp = 2}}, 4, 1);
  expect_training_as_one_process({.parallel = {.dp_replicate = 2, .sp = 2}}, 4, 2);
  expect_training_as_one_process({.parallel = {.dp_shard = 2, .cp = 2}}, 4, 2);
}
TEST(ParallelOptions, BalanceSequencesOfAModelThatTrainsAsOnOneProcess) {
  expect_training_as_one_process({.parallel = {.cp = 4, .balance = true}}, 4, 1);
  expect_training_as_one_process({.parallel = {.dp_shard = 2, .cp = 2, .balance = true}}, 4, 2);
}

TEST(ParallelOptions, TakeTheSizesOfTheLauncher) {
  const auto nets = same_nets(2);
  const auto batch = parallel_batch();
  run_ranks(2, [&](process::Process& process) {
    const auto environment =
        Environment::of({{"ACCELERATE_USE_PARALLELISM_CONFIG", "true"}, {"PARALLELISM_CONFIG_CP_SIZE", "2"}});
    const auto read = read_options({}, environment);
    EXPECT_EQ(read.options.parallel.cp, 2);
    const Accelerator accelerator(process, read.options);
    auto model = accelerator.prepare(nets[static_cast<size_t>(process.rank())]);
    const at::Tensor logits = model(batch.x, at::Tensor(), nullptr);
    EXPECT_TRUE(parallel::is_cut_value(logits));
    EXPECT_EQ(parallel::local_value(logits).size(1), batch.x.size(1) / 2);
  });
}

TEST(ParallelOptions, RefuseModelsWithoutASequence) {
  const auto of_number = run_ranks_collecting(2, [&](process::Process& process) {
    const Accelerator accelerator(process, {.parallel = {.cp = 2}});
    torch::nn::Linear net(4, 4);
    auto model = accelerator.prepare(net);
    (void)model(at::ones({4}));
  });
  EXPECT_THAT(of_number[0], HasSubstr("dimension 1 of a tensor of 1"));
  const auto uneven = run_ranks_collecting(2, [&](process::Process& process) {
    const Accelerator accelerator(process, {.parallel = {.cp = 2}});
    torch::nn::Linear net(4, 4);
    auto model = accelerator.prepare(net);
    (void)model(at::ones({2, 3, 4}));
  });
  EXPECT_THAT(uneven[0], HasSubstr("a sequence of 3, which cp = 2 does not divide"));
}

TEST(ParallelOptions, GiveWholeOutputsAndWholeStates) {
  const auto batch = parallel_batch();
  const auto nets = same_nets(3);
  const at::NoGradGuard no_grad;
  const at::Tensor expected = nets[2]->forward(batch.x, {}, nullptr);
  run_ranks(2, [&](process::Process& process) {
    const at::NoGradGuard own_no_grad;
    const Accelerator accelerator(process, {.parallel = {.tp = 2}});
    auto model = accelerator.prepare(nets[static_cast<size_t>(process.rank())]);
    const at::Tensor logits = model(batch.x, at::Tensor(), nullptr);
    EXPECT_FALSE(parallel::is_cut_value(logits));
    EXPECT_TRUE(at::allclose(logits, expected, 1e-5, 1e-6));
    const auto state = accelerator.get_state_dict(model);
    for (const auto& item : nets[2]->named_parameters()) EXPECT_TRUE(state.at(item.key()).equal(item.value()));
  });
}

TEST(ParallelOptions, GiveRanksOfOneModelTheSameBatches) {
  constexpr int64_t kSamples = 13;
  run_ranks(4, [&](process::Process& process) {
    const Accelerator accelerator(
        process, {.loader = {.use_seedable_sampler = true}, .seed = 7, .parallel = {.dp_replicate = 2, .tp = 2}});
    auto loader = accelerator.prepare(data::loader<torch::data::samplers::RandomSampler>(
        data::TensorDataset(at::arange(kSamples), at::arange(kSamples)), 2));
    testing::expect_dealt_to_two_models(accelerator, loader, kSamples);
  });
}

std::string first_words(const AcceleratorOptions& options, int world) {
  return run_ranks_collecting(world, [&](process::Process& process) { const Accelerator made(process, options); })[0];
}

TEST(ParallelOptions, RefuseWhatDoesNotFit) {
  EXPECT_THAT(first_words({.parallel = {.tp = 4}}, 2), HasSubstr("tp"));
  EXPECT_THAT(first_words({.parallel = {.cp = 2, .sp = 2}}, 4), HasSubstr("sp"));
  EXPECT_THAT(first_words({.parallel = {.sp = 2, .balance = true}}, 2), HasSubstr("balance with by_heads (sp)"));
}

}  // namespace
}  // namespace hasten
