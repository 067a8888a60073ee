// What goes with model parallelism: each pair of features through the front door, against one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "accelerator/dealt_batches.h"
#include "hasten/accelerator.h"
#include "hasten/data/dataset/tensor_dataset.h"
#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/tensor/tensor_parallel.h"
#include "support/parallel_models.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using namespace hasten::testing;
using ::testing::HasSubstr;
using RowPair = std::pair<at::Tensor, at::Tensor>;

struct PairCase {
  AcceleratorOptions options = {};
  int world = 2, data = 1, steps = 3;
  double losses = 2e-5, weights = 2e-4;
  /// Norms differ by so much, relative: steps of AdamW do not show a factor on gradients.
  double norms = 1e-3;
  /// Trains by forward_backward, as with pp. The reference has one backward of the whole batch.
  bool in_parts = false;
};

struct PairRun {
  std::vector<double> losses = {}, norms = {};
  std::map<std::string, at::Tensor> weights = {};
};

std::vector<std::shared_ptr<models::Gpt2Impl>> pair_nets(int count) {
  std::vector<std::shared_ptr<models::Gpt2Impl>> nets;
  for (int i = 0; i < count; ++i) {
    torch::manual_seed(0);
    nets.push_back(std::dynamic_pointer_cast<models::Gpt2Impl>(gpt2_model().make()));
  }
  return nets;
}

// Trains on the rows of one of `data` places, and gives the mean losses and whole weights.
PairRun train_pair(const process::Process& process, const PairCase& is, const std::shared_ptr<models::Gpt2Impl>& net,
                   int place) {
  const Accelerator accelerator(process, is.options);
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-3).eps(1e-4));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  const auto batch = parallel_batch();
  const int64_t rows = batch.x.size(0) / is.data;
  const RowPair mine(batch.x.narrow(0, rows * place, rows), batch.y.narrow(0, rows * place, rows));
  const auto loss_of = [&, &model = model](const RowPair& part) {
    return language_loss(model(part.first, at::Tensor(), nullptr), part.second);
  };
  PairRun run;
  for (int step = 0; step < is.steps; ++step) {
    optimizer.zero_grad();
    at::Tensor loss;
    if (is.in_parts) {
      loss = accelerator.forward_backward(mine, loss_of);
    } else {
      loss = loss_of(mine);
      accelerator.backward(loss);
      loss = accelerator.reduce(loss.detach(), {.op = comm::ReduceOp::kMean});
    }
    run.norms.push_back(accelerator.clip_grad_norm_(net->parameters(), 0.5));
    optimizer.step();
    EXPECT_FALSE(optimizer.step_was_skipped()) << step;
    run.losses.push_back(parallel::whole_value(loss).item<double>());
  }
  for (const auto& item : net->named_parameters()) {
    run.weights[item.key()] = parallel::gather_parameter(item.value()).detach().clone();
  }
  return run;
}

void expect_pair_as_alone(PairCase is) {
  const auto& layout = is.options.parallel;
  is.in_parts = is.in_parts || layout.pp > 1;
  const auto nets = pair_nets(is.world + 1);
  PairCase alone = is;
  alone.data = 1;
  alone.in_parts = false;
  alone.options.parallel = {};
  alone.options.shard.stage = parallel::ShardStage::kNone;
  PairRun expected;
  run_ranks(1, [&](process::Process& process) { expected = train_pair(process, alone, nets.back(), 0); });

  run_ranks(is.world, [&](process::Process& process) {
    // Stages are outermost, then data, then what divides sequences and layers.
    const int place = process.rank() / (layout.tp * layout.cp * layout.sp) % is.data;
    const PairRun own = train_pair(process, is, nets[static_cast<size_t>(process.rank())], place);
    for (size_t step = 0; step < own.losses.size(); ++step) {
      EXPECT_NEAR(own.losses[step], expected.losses[step], is.losses) << "step " << step;
      EXPECT_NEAR(own.norms[step], expected.norms[step], is.norms * expected.norms[step]) << "step " << step;
    }
    for (const auto& [name, wanted] : expected.weights) {
      ASSERT_EQ(own.weights.at(name).sizes(), wanted.sizes()) << name;
      EXPECT_LT((own.weights.at(name) - wanted).abs().max().item<double>(), is.weights) << name;
    }
  });
}

// ---- Sharding.

TEST(ParallelPairs, SplitGradientsOfCutLayers) {
  expect_pair_as_alone(
      {.options = {.shard = {.stage = parallel::ShardStage::kGradients}, .parallel = {.dp_shard = 2, .tp = 2}},
       .world = 4,
       .data = 2});
}
TEST(ParallelPairs, SplitCutLayersWithinReplicas) {
  expect_pair_as_alone({.options = {.parallel = {.dp_replicate = 2, .dp_shard = 2, .tp = 2}}, .world = 8, .data = 4});
}
TEST(ParallelPairs, SplitStagesWithinReplicas) {
  expect_pair_as_alone(
      {.options = {.parallel = {.dp_replicate = 2, .dp_shard = 2, .pp = 2, .microbatches = 2}}, .world = 8, .data = 4});
}
TEST(ParallelPairs, SplitTheOptimizersStateOfSeveralStagesARank) {
  expect_pair_as_alone({.options = {.shard = {.stage = parallel::ShardStage::kOptimizer},
                                    .parallel = {.dp_shard = 2, .pp = 2, .chunks = 2, .microbatches = 4}},
                        .world = 4,
                        .data = 2});
}

// ---- Precision. Parts of a product in bfloat16 are rounded elsewhere than the whole one.

TEST(ParallelPairs, TrainStagesInBfloat16) {
  expect_pair_as_alone({.options = {.mixed_precision = Precision::kBf16, .parallel = {.pp = 2, .microbatches = 4}},
                        .losses = 3e-2,
                        .weights = 8e-3,
                        .norms = 3e-2});
}
TEST(ParallelPairs, TrainCutSequencesInBfloat16) {
  expect_pair_as_alone({.options = {.mixed_precision = Precision::kBf16, .parallel = {.cp = 2}},
                        .losses = 3e-2,
                        .weights = 8e-3,
                        .norms = 3e-2});
}

// ---- Recomputed activations.

TEST(ParallelPairs, RecomputeCutSequences) {
  expect_pair_as_alone({.options = {.parallel = {.cp = 2}, .recompute = {.enabled = true}}});
  expect_pair_as_alone({.options = {.parallel = {.sp = 2}, .recompute = {.enabled = true}}});
}
TEST(ParallelPairs, RecomputeStagesOfCutLayersAndTokens) {
  expect_pair_as_alone({.options = {.parallel = {.tp = 2, .pp = 2, .sequence_parallel = true, .microbatches = 4},
                                    .recompute = {.enabled = true}},
                        .world = 4});
}

// ---- Loops.

TEST(ParallelPairs, CheckParametersThatAreCut) {
  expect_pair_as_alone({.options = {.ddp = {.check_parameters_every = 1}, .parallel = {.dp_replicate = 2, .tp = 2}},
                        .world = 4,
                        .data = 2});
  expect_pair_as_alone(
      {.options = {.ddp = {.check_parameters_every = 1}, .parallel = {.dp_replicate = 2, .pp = 2, .microbatches = 2}},
       .world = 4,
       .data = 2});
}

TEST(ParallelPairs, FindPartsThatDifferBetweenReplicas) {
  const auto nets = pair_nets(4);
  const auto words = run_ranks_collecting(4, [&](process::Process& process) {
    const Accelerator accelerator(process,
                                  {.ddp = {.check_parameters_every = 1}, .parallel = {.dp_replicate = 2, .tp = 2}});
    auto net = nets[static_cast<size_t>(process.rank())];
    auto model = accelerator.prepare(net);
    const auto batch = parallel_batch();
    for (int step = 0; step < 3; ++step) {
      accelerator.backward(language_loss(model(batch.x, at::Tensor(), nullptr), batch.y));
      // A single part of one replica.
      const at::NoGradGuard no_grad;
      if (process.rank() == 3) net->parameters().front().data()[0][0] += 1;
    }
  });
  EXPECT_THAT(words[1], HasSubstr("wte.weight"));
  EXPECT_THAT(words[3], HasSubstr("wte.weight"));
}

TEST(ParallelPairs, DispatchTheSameBatchesToRanksOfOneModel) {
  constexpr int64_t kSamples = 13;
  run_ranks(4, [&](process::Process& process) {
    const Accelerator accelerator(process,
                                  {.loader = {.dispatch_batches = true}, .parallel = {.dp_replicate = 2, .tp = 2}});
    auto loader = accelerator.prepare(data::loader<torch::data::samplers::SequentialSampler>(
        data::TensorDataset(at::arange(kSamples), at::arange(kSamples)), 2));
    testing::expect_dealt_to_two_models(accelerator, loader, kSamples);
  });
}

// ---- float16. The reference scales its losses as well.

PairCase in_fp16(const parallel::ParallelOptions& layout, int world, int data = 1) {
  return {.options = {.mixed_precision = Precision::kFp16, .parallel = layout},
          .world = world,
          .data = data,
          .losses = 5e-3,
          .weights = 3e-3,
          .norms = 3e-2};
}

TEST(ParallelPairs, ScaleLossesOfCutLayers) {
  expect_pair_as_alone(in_fp16({.tp = 2}, 2));
  expect_pair_as_alone(in_fp16({.dp_replicate = 2, .tp = 2}, 4, 2));
  expect_pair_as_alone(in_fp16({.cp = 2}, 2));
}
TEST(ParallelPairs, ScaleLossesOfPartsOfABatch) {
  auto is = in_fp16({.microbatches = 4}, 1);
  is.in_parts = true;
  expect_pair_as_alone(is);
  is = in_fp16({.tp = 2, .microbatches = 2}, 2);
  is.in_parts = true;
  expect_pair_as_alone(is);
}
TEST(ParallelPairs, ScaleLossesOfStages) {
  expect_pair_as_alone(in_fp16({.pp = 2, .microbatches = 4}, 2));
  expect_pair_as_alone(in_fp16({.dp_replicate = 2, .pp = 2, .microbatches = 2}, 4, 2));
  expect_pair_as_alone(in_fp16({.dp_shard = 2, .pp = 2, .microbatches = 2}, 4, 2));
  expect_pair_as_alone(in_fp16({.tp = 2, .pp = 2, .microbatches = 2}, 4));
  expect_pair_as_alone(
      in_fp16({.pp = 2, .chunks = 2, .microbatches = 4, .order = plan::OrderKind::kInterleavedZeroBubble}, 2));
}

// A gradient that is not finite on one rank alone: all ranks skip the step, and their scale falls alike.
void expect_one_skip(const parallel::ParallelOptions& layout, int world) {
  const auto nets = pair_nets(world);
  run_ranks(world, [&](process::Process& process) {
    const Accelerator accelerator(process, {.mixed_precision = Precision::kFp16, .parallel = layout});
    auto net = nets[static_cast<size_t>(process.rank())];
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto batch = parallel_batch();
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      accelerator.forward_backward(RowPair(batch.x, batch.y), [&, &model = model](const RowPair& part) {
        return language_loss(model(part.first, at::Tensor(), nullptr), part.second);
      });
      const double before = accelerator.scaler_state()->scale;
      std::vector<at::Tensor> weights;
      for (const auto& parameter : net->parameters()) weights.push_back(parameter.detach().clone());
      if (step == 1 && process.rank() == world - 1) {
        for (const auto& parameter : net->parameters()) {
          if (parameter.grad().defined()) parameter.mutable_grad().fill_(std::numeric_limits<float>::infinity());
        }
      }
      optimizer.step();
      EXPECT_EQ(optimizer.step_was_skipped(), step == 1) << process.rank() << ' ' << step;
      EXPECT_EQ(accelerator.scaler_state()->scale, step == 1 ? before / 2 : before) << process.rank();
      bool changed = false;
      for (size_t i = 0; i < weights.size(); ++i) changed = changed || !net->parameters()[i].equal(weights[i]);
      EXPECT_EQ(changed, step != 1) << process.rank() << ' ' << step;
    }
  });
}

TEST(ParallelPairs, SkipAStepOnAllRanksWhereOnePartOverflows) {
  expect_one_skip({.tp = 2}, 2);
  expect_one_skip({.pp = 2, .microbatches = 2}, 2);
  expect_one_skip({.dp_replicate = 2, .pp = 2, .microbatches = 2}, 4);
}

// In the middle of a window the norm is that of all parts, by the scale that gradients have.
TEST(ParallelPairs, MeasureTheNormOfAllPartsInTheMiddleOfAWindow) {
  const auto nets = pair_nets(3);
  std::vector<double> alone;
  const auto norms = [&](const process::Process& process, const parallel::ParallelOptions& layout,
                         const std::shared_ptr<models::Gpt2Impl>& net) {
    const Accelerator accelerator(
        process, {.gradient_accumulation_steps = 2, .mixed_precision = Precision::kFp16, .parallel = layout});
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto batch = parallel_batch();
    std::vector<double> all;
    for (int step = 0; step < 2; ++step) {
      const auto scope = accelerator.accumulate(model);
      accelerator.backward(language_loss(model(batch.x, at::Tensor(), nullptr), batch.y));
      all.push_back(accelerator.clip_grad_norm_(net->parameters(), 0.5));
      optimizer.step();
      optimizer.zero_grad();
    }
    return all;
  };
  run_ranks(1, [&](process::Process& process) { alone = norms(process, {}, nets[2]); });
  run_ranks(2, [&](process::Process& process) {
    const auto own = norms(process, {.tp = 2}, nets[static_cast<size_t>(process.rank())]);
    for (size_t i = 0; i < own.size(); ++i) EXPECT_NEAR(own[i], alone[i], 0.02 * alone[i]) << i;
  });
}

}  // namespace
}  // namespace hasten
