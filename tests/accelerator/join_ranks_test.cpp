// Loops in which some ranks have more batches than others, against one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <csignal>

#include "hasten/accelerator.h"
#include "hasten/core/error.h"
#include "hasten/data/dataset/tensor_dataset.h"
#include "hasten/optim/schedulers/decay.h"
#include "hasten/parallel/norm/sync_batch_norm.h"
#include "support/models.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using process::Process;
using testing::Cnn;
using testing::EmbeddingModel;
using testing::GruModel;
using ::testing::HasSubstr;
using testing::Mlp;
using testing::run_ranks;
using testing::run_ranks_collecting;
using testing::TransformerModel;

// The rows that rank `rank` of a world has in step s: a run of its own length, nothing beyond it.
int64_t rows_in(int64_t step, int rank) {
  const int64_t lengths[] = {3, 1, 5, 0};
  return step < lengths[rank] ? 1 + (step + rank) % 3 : 0;
}

std::vector<at::Tensor> states_of(const torch::nn::Module& module, const torch::optim::Adam& adam) {
  std::vector<at::Tensor> list;
  for (const auto& parameter : module.parameters()) {
    list.push_back(parameter.detach().clone());
    const auto found = adam.state().find(parameter.unsafeGetTensorImpl());
    EXPECT_NE(found, adam.state().end());
    if (found == adam.state().end()) continue;
    const auto& state = static_cast<const torch::optim::AdamParamState&>(*found->second);
    list.push_back(torch::tensor(state.step()));
    list.push_back(state.exp_avg().clone());
    list.push_back(state.exp_avg_sq().clone());
  }
  for (const auto& buffer : module.buffers()) list.push_back(buffer.clone());
  return list;
}

// Two epochs of Adam with a schedule and clipping. `world` is whose rows are trained on; a single process
// takes all of a step's at once. BatchNorms are synchronised.
template <class Model>
std::vector<at::Tensor> train(const Process& process, int world, const std::string& kind) {
  const Accelerator accelerator(process);
  Model net;
  testing::initialise(*net, 3);
  parallel::convert_sync_batchnorm(net, process.group());
  net->to(at::kDouble);
  torch::optim::Adam adam(net->parameters(), 1e-2);
  optim::StepLR schedule(adam, {.step_size = 2, .gamma = 0.5});
  auto [model, optimizer, scheduler] = accelerator.prepare(net, adam, schedule);
  const auto problem = testing::problem_for(kind);
  const auto inputs = problem.inputs.is_floating_point() ? problem.inputs.to(at::kDouble) : problem.inputs;
  for (int epoch = 0; epoch < 2; ++epoch) {
    accelerator.join_uneven_inputs(model, [&, &model = model, &optimizer = optimizer, &scheduler = scheduler] {
      int64_t begin = epoch;
      for (int64_t step = 0; step < 5; ++step) {
        int64_t total = 0, mine = 0, mine_begin = begin;
        for (int rank = 0; rank < world; ++rank) {
          if (rank == process.rank()) std::tie(mine_begin, mine) = std::pair(begin + total, rows_in(step, rank));
          total += rows_in(step, rank);
        }
        begin += total;
        if (process.world_size() == 1) std::tie(mine_begin, mine) = std::pair(begin - total, total);
        if (mine == 0) return;
        optimizer.zero_grad();
        const auto loss = torch::nn::functional::cross_entropy(model(inputs.narrow(0, mine_begin, mine)),
                                                               problem.targets.narrow(0, mine_begin, mine));
        accelerator.backward(loss, {.weight = static_cast<double>(mine)});
        accelerator.clip_grad_norm_(net->parameters(), 0.05);
        optimizer.step();
        scheduler.step();
        begin %= 12;
      }
    });
  }
  auto list = states_of(*net, adam);
  list.push_back(torch::tensor(scheduler.rates()[0]));
  return list;
}

template <class Model>
void expect_one_process(const std::string& kind) {
  for (const int world_size : {2, 3, 4}) {
    const auto alone = train<Model>(Process(process::RankInfo{}, comm::Group()), world_size, kind);
    run_ranks(world_size, [&](Process& process) {
      const auto mine = train<Model>(process, world_size, kind);

      ASSERT_EQ(mine.size(), alone.size());
      for (size_t i = 0; i < alone.size(); ++i) {
        EXPECT_TRUE(torch::allclose(mine[i].to(at::kDouble), alone[i].to(at::kDouble), 1e-6, 1e-9))
            << world_size << " ranks, " << i << '\n'
            << mine[i] << alone[i];
        const auto everybodys = process.group().all_gather(mine[i]);
        for (const auto& other : everybodys) EXPECT_TRUE(torch::equal(other, everybodys[0])) << i;
      }
    });
  }
}

TEST(JoinRanks, TwoEpochsOfAdamOnUnevenInputsAreThoseOfOneProcess) {
  expect_one_process<Mlp>("mlp");
}

TEST(JoinRanks, SoItIsForOtherKindsOfModels) {
  expect_one_process<EmbeddingModel>("embedding");
  expect_one_process<GruModel>("gru");
  expect_one_process<TransformerModel>("transformer");
}

TEST(JoinRanks, RanksWithoutDataTakePartInTheOthersSyncBatchNorms) {
  expect_one_process<Cnn>("cnn");
}

TEST(JoinRanks, CollectivesSeeTheRanksThatHaveData) {
  run_ranks(3, [](Process& process) {
    const Accelerator accelerator(process);
    Mlp net;
    const auto model = accelerator.prepare(net);
    int seen = 0;
    accelerator.join_uneven_inputs(model, [&] {
      for (int step = 0; step <= 2 * process.rank(); ++step, ++seen) {
        const int ranks = step == 0 ? 3 : step <= 2 ? 2 : 1;
        const double sum = step == 0 ? 3 : step <= 2 ? 3 : 2, mean = sum / ranks;
        const at::Tensor mine = torch::tensor(static_cast<double>(process.rank()));
        EXPECT_EQ(accelerator.gather(mine).size(0), ranks);
        EXPECT_EQ(accelerator.gather(std::map<std::string, at::Tensor>{{"x", torch::ones({2, 3})}}).at("x").size(0),
                  2 * ranks);
        EXPECT_EQ(accelerator.reduce(mine).item<double>(), sum);
        EXPECT_EQ(accelerator.reduce(mine, {.op = comm::ReduceOp::kMean}).item<double>(), mean);
        EXPECT_EQ(accelerator.reduce(mine - 5, {.op = comm::ReduceOp::kMax}).item<double>(), -3);
        EXPECT_EQ(accelerator.reduce(mine.to(at::kInt) + 5, {.op = comm::ReduceOp::kMin}).item<int>(), 8 - ranks);
        EXPECT_EQ(accelerator.pad_across_processes(torch::ones({process.rank() + 1})).size(0), 3);
        EXPECT_EQ(accelerator.gather_for_metrics(std::vector<int>{process.rank()}).size(), static_cast<size_t>(ranks));
        EXPECT_FALSE(accelerator.check_trigger());
        accelerator.wait_for_everyone();
      }
    });

    EXPECT_EQ(seen, 2 * process.rank() + 1);
    EXPECT_EQ(accelerator.gather(torch::ones({1})).size(0), 3) << "after it, everybody again";
  });
}

TEST(JoinRanks, LoadersGiveEachSampleOnceWithoutEvenBatches) {
  run_ranks(3, [](Process& process) {
    const Accelerator accelerator(process);
    Mlp net;
    testing::initialise(*net, 1);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer, loader] = accelerator.prepare(
        net, sgd,
        data::loader<torch::data::samplers::SequentialSampler>(
            data::TensorDataset(testing::problem_for("mlp").inputs.narrow(0, 0, 10), torch::arange(10)),
            torch::data::DataLoaderOptions(2)));
    std::vector<at::Tensor> seen;

    accelerator.join_uneven_inputs(std::tuple(model),
                                   [&, &model = model, &optimizer = optimizer, &loader = loader] {
                                     for (auto& batch : loader) {
                                       optimizer.zero_grad();
                                       accelerator.backward(model(batch.data).square().mean());
                                       optimizer.step();
                                       seen.push_back(accelerator.gather_for_metrics(batch.target));
                                     }
                                   },
                                   {.even_batches = false});

    const auto all = std::get<0>(torch::sort(process.group().all_gather(torch::cat(seen))[0]));
    EXPECT_TRUE(torch::equal(all, torch::arange(10))) << all;
    const auto weights = process.group().all_gather(net->first->weight.detach());
    for (const auto& weight : weights) EXPECT_TRUE(torch::equal(weight, weights[0]));
  });
}

// Batches of one row, `window` of them to a step on each rank.
at::Tensor accumulated(const Process& process, int64_t num_rows, int64_t window, bool each) {
  const Accelerator accelerator(process,
                                {.gradient_accumulation_steps = window, .accumulation = {.sync_each_batch = each}});
  Mlp net;
  testing::initialise(*net, 1);
  net->to(at::kDouble);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const at::Tensor rows = torch::sin(torch::arange(8 * num_rows, at::kDouble)).view({num_rows, 8});
  auto [model, optimizer, loader] =
      accelerator.prepare(net, sgd,
                          data::loader<torch::data::samplers::SequentialSampler>(
                              data::TensorDataset(rows, torch::arange(num_rows)), torch::data::DataLoaderOptions(1)));
  accelerator.join_uneven_inputs(model,
                                 [&, &model = model, &optimizer = optimizer, &loader = loader] {
                                   for (auto& batch : loader) {
                                     const auto scope = accelerator.accumulate(model);
                                     accelerator.backward(model(batch.data).square().mean());
                                     optimizer.step();
                                     optimizer.zero_grad();
                                   }
                                 },
                                 {.even_batches = false});
  return torch::nn::utils::parameters_to_vector(net->parameters()).detach();
}

// A rank at its loader's end keeps its gradients for the others' last batch of the window.
TEST(JoinRanks, WindowsOfBatchesEndWhereThoseOfAllRanksDo) {
  const Process alone(process::RankInfo{}, comm::Group());
  for (const auto& [world_size, num_rows, window] : {std::tuple(2, 7, 2), std::tuple(3, 13, 3)}) {
    const at::Tensor wanted = accumulated(alone, num_rows, window * world_size, false);
    for (const bool each : {false, true}) {
      run_ranks(world_size, [&, num_rows = num_rows, window = window](Process& process) {
        const at::Tensor mine = accumulated(process, num_rows, window, each);

        EXPECT_TRUE(torch::allclose(mine, wanted, 1e-9, 1e-12)) << process.world_size() << each;
      });
    }
  }
}

TEST(JoinRanks, BuffersFollowTheFirstRankThatHasData) {
  run_ranks(2, [](Process& process) {
    const Accelerator accelerator(process);
    Cnn net;
    const auto model = accelerator.prepare(net);
    model->train();
    accelerator.join_uneven_inputs(model, [&] {
      for (int step = 0; step <= process.rank(); ++step) {
        accelerator.backward(model(torch::randn({4, 1, 8, 8})).square().mean());
      }
    });

    EXPECT_EQ(net->norm->num_batches_tracked.item<int64_t>(), 2) << "rank 1's, which had two";
    const auto means = process.group().all_gather(net->norm->running_mean);
    EXPECT_TRUE(torch::equal(means[0], means[1]));
  });
}

TEST(JoinRanks, RanksWithoutDataAreAskedWhetherToStop) {
  run_ranks(3, [](Process& process) {
    const Accelerator accelerator(process);
    Mlp net;
    const auto model = accelerator.prepare(net);
    EXPECT_FALSE(accelerator.should_stop());
    int steps = 0;
    accelerator.join_uneven_inputs(model, [&] {
      while (steps < 1 + 10 * process.rank()) {
        ++steps;
        accelerator.backward(model(torch::ones({2, 8})).square().mean());
        if (process.rank() == 2 && steps == 3) std::raise(SIGUSR1);
        if (accelerator.should_stop()) break;
      }
    });

    EXPECT_EQ(steps, process.rank() == 0 ? 1 : 3);
    EXPECT_TRUE(accelerator.should_stop()) << "from then on";
  });
}

// A rank without data takes no steps until the end, so its parameters are behind.
TEST(JoinRanks, ParametersAreNotComparedWhileRanksHaveRunOut) {
  run_ranks(2, [](Process& process) {
    const Accelerator accelerator(process, {.ddp = {.check_parameters_every = 1}});
    Mlp net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto step = [&, &model = model, &optimizer = optimizer] {
      optimizer.zero_grad();
      accelerator.backward(model(torch::ones({2, 8})).square().mean());
      optimizer.step();
    };
    accelerator.join_uneven_inputs(model, [&] {
      for (int i = 0; i < 2 + process.rank() * 2; ++i) step();
    });
    step();
    const torch::NoGradGuard no_grad;
    net->second->bias.add_(process.rank());
    const at::AutoGradMode with_grad(true);

    EXPECT_THROW(step(), UsageError) << "afterwards they are";
  });
}

TEST(JoinRanks, RanksWithDataThatDoDifferentThingsAreRefusedOnAll) {
  const auto words = run_ranks_collecting(3, [](Process& process) {
    const Accelerator accelerator(process);
    Mlp net;
    const auto model = accelerator.prepare(net);
    accelerator.join_uneven_inputs(model, [&] {
      if (process.rank() == 0) return;
      if (process.rank() == 1) accelerator.gather(torch::ones({2}));
      if (process.rank() == 2) accelerator.wait_for_everyone();
    });
  });

  for (const auto& said : words) EXPECT_THAT(said, HasSubstr("Ranks with data must do the same things"));
}

// A rank that answers for BatchNorms in a thread of its own does not wait for it for ever.
TEST(JoinRanks, AnErrorEndsTheAnswersToSyncBatchNormsToo) {
  const auto words = run_ranks_collecting(3, [](Process& process) {
    const Accelerator accelerator(process);
    Cnn net;
    parallel::convert_sync_batchnorm(net, process.group());
    const auto model = accelerator.prepare(net);
    try {
      accelerator.join_uneven_inputs(model, [&] {
        if (process.rank() == 1) accelerator.gather(torch::ones({2}));
        if (process.rank() == 2) accelerator.wait_for_everyone();
      });
    } catch (const UsageError&) {
      process.wait_for_everyone();
      throw;
    }
  });

  for (const auto& said : words) EXPECT_THAT(said, HasSubstr("Ranks with data must do the same things"));
}

}  // namespace
}  // namespace hasten
