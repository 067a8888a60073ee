// Everything else that the accelerator's ranks do together, in loops in which some have more batches than
// others: what ranks without data answer, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <mutex>

#include "hasten/accelerator.h"
#include "hasten/core/error.h"
#include "hasten/data/dataset/tensor_dataset.h"
#include "support/models.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using process::Process;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::Mlp;
using testing::run_ranks;
using testing::run_ranks_collecting;

// Calls `step(i)` in a loop of uneven length, num_steps times on this rank.
template <class Model, class Fn>
void join_for(const Accelerator& accelerator, const Model& model, int num_steps, const Fn& step) {
  accelerator.join_uneven_inputs(model, [&] {
    for (int i = 0; i < num_steps; ++i) step(i);
  });
}

TEST(JoinCallsRanks, ATriggerOfARankThatHasRunOutIsSeenByTheOthersOnce) {
  for (const int world_size : {2, 3}) {
    run_ranks(world_size, [](Process& process) {
      const Accelerator accelerator(process);
      Mlp net;
      const auto model = accelerator.prepare(net);
      std::vector<bool> seen;
      join_for(accelerator, model, 1 + 2 * process.rank(), [&](int) {
        seen.push_back(accelerator.check_trigger());
        if (process.rank() == 0) accelerator.set_trigger();
      });

      std::vector<bool> wanted(seen.size());
      if (process.rank() > 0) wanted[1] = true;
      EXPECT_EQ(seen, wanted);
      EXPECT_FALSE(accelerator.check_trigger());
    });
  }
}

TEST(JoinCallsRanks, LinesInOrderWaitForRanksWithoutDataToo) {
  ::testing::internal::CaptureStderr();
  run_ranks(3, [](Process& process) {
    const Accelerator accelerator(process);
    Mlp net;
    const auto model = accelerator.prepare(net);
    const Logger logger = accelerator.logger("test");
    join_for(accelerator, model, process.rank(),
             [&](int i) { logger.warning(text("step ", i), {.main_process_only = false, .in_order = true}); });
  });
  const std::string said = ::testing::internal::GetCapturedStderr();

  const auto first = said.find("rank 1/3: step 0"), second = said.find("rank 2/3: step 0"),
             third = said.find("rank 2/3: step 1");
  EXPECT_LT(first, second) << said;
  EXPECT_LT(second, third) << said;
  EXPECT_NE(third, std::string::npos) << said;
}

// Which rank was the first of each step, by machine.
template <class First>
void expect_first(int world_size, int num_machines, const First& run_first) {
  std::mutex mutex;
  std::map<std::pair<int, int>, std::vector<int>> order;
  run_ranks(world_size, [&](Process& connected) {
    const int rank = connected.rank(), machine = rank % num_machines;
    const Process process(
        {.rank = rank, .local_rank = rank / num_machines, .node_rank = machine, .world_size = world_size},
        connected.group());
    const Accelerator accelerator(process);
    Mlp net;
    const auto model = accelerator.prepare(net);
    join_for(accelerator, model, 1 + 2 * rank, [&](int step) {
      const int value = run_first(accelerator, [&] {
        const std::lock_guard lock(mutex);
        order[{machine, step}].push_back(rank);
        return 10 * rank;
      });
      EXPECT_EQ(value, 10 * rank);
    });
  });

  for (auto& [place, ranks] : order) {
    const auto [machine, step] = place;
    std::vector<int> wanted;
    for (int rank = machine; rank < world_size; rank += num_machines) {
      if (step < 1 + 2 * rank) wanted.push_back(rank);
    }
    EXPECT_EQ(ranks.front(), wanted.front()) << "machine " << machine << ", step " << step;
    std::sort(ranks.begin(), ranks.end());
    EXPECT_EQ(ranks, wanted);
  }
}

TEST(JoinCallsRanks, TheFirstRankWithDataStandsForTheMainProcess) {
  const auto main_first = [](const Accelerator& accelerator, const auto& fn) {
    return accelerator.main_process_first(fn);
  };
  const auto local_first = [](const Accelerator& accelerator, const auto& fn) {
    return accelerator.local_main_process_first(fn);
  };
  for (const int world_size : {2, 3}) {
    expect_first(world_size, 1, main_first);
    expect_first(world_size, 1, local_first);
  }
  expect_first(3, 2, local_first);
  expect_first(4, 2, local_first);
}

TEST(JoinCallsRanks, WhatIsThrownInTurnReachesRanksWithoutDataToo) {
  const auto words = run_ranks_collecting(3, [](Process& process) {
    const Accelerator accelerator(process);
    Mlp net;
    const auto model = accelerator.prepare(net);
    join_for(accelerator, model, process.rank(), [&](int) {
      accelerator.main_process_first([&] {
        if (process.rank() == 2) throw std::runtime_error("no space left");
      });
    });
  });

  EXPECT_THAT(words, Each(HasSubstr("no space left")));
}

TEST(JoinCallsRanks, RanksWithoutDataHaveNoSayInTheSizeOfABatch) {
  for (const int world_size : {2, 3}) {
    run_ranks(world_size, [&](Process& process) {
      const Accelerator accelerator(process);
      Mlp net;
      const auto model = accelerator.prepare(net);
      std::vector<int64_t> found;
      join_for(accelerator, model, 2 * process.rank(), [&](int) {
        found.push_back(accelerator.find_executable_batch_size(100, [&](int64_t batch_size) {
          if (process.rank() == world_size - 1 && batch_size > 20) throw std::bad_alloc();
          return batch_size;
        }));
      });

      EXPECT_EQ(found, std::vector<int64_t>(2 * static_cast<size_t>(process.rank()), 12));
    });
  }
}

TEST(JoinCallsRanks, ASearchForASizeThatFailsFailsOnAllRanks) {
  const auto words_of = [](int64_t start, const std::function<void()>& fn) {
    return run_ranks_collecting(3, [&](Process& process) {
      const Accelerator accelerator(process);
      Mlp net;
      const auto model = accelerator.prepare(net);
      join_for(accelerator, model, process.rank(), [&](int) {
        accelerator.find_executable_batch_size(start, [&](int64_t) {
          if (process.rank() == 1) fn();
        });
      });
    });
  };

  EXPECT_THAT(words_of(2, [] { throw std::bad_alloc(); }), Each(HasSubstr("not even a batch of 1 fits")));
  EXPECT_THAT(words_of(0, [] {}), Each(HasSubstr("start = 0; expected at least 1")));
  EXPECT_THAT(words_of(8, [] { throw std::runtime_error("no file"); }), Each(HasSubstr("no file")));
}

// Steps of local SGD, by round and rank: ends with one rank, and with several, behind the last average.
constexpr int kLocalSteps[4][3] = {{1, 5, 4}, {4, 2, 4}, {1, 2, 2}, {2, 2, 2}};
constexpr int kStepsToAverage = 3;

at::Tensor flat_parameters(const Mlp& net) {
  return torch::nn::utils::parameters_to_vector(net->parameters()).detach().clone();
}

at::Tensor local_loss(Mlp& net, int rank) {
  const auto problem = testing::problem_for("mlp", 100 + static_cast<uint64_t>(rank));
  return torch::nn::functional::cross_entropy(net(problem.inputs), problem.targets);
}

// On one process: each rank's model by itself, and every three steps, and at a round's end, the plain mean
// over those that have stepped since.
at::Tensor local_sgd_alone(int world_size) {
  std::vector<Mlp> nets(world_size);
  for (auto& net : nets) testing::initialise(*net, 5);
  std::vector<int> steps(world_size);
  const auto average = [&] {
    std::vector<at::Tensor> trained;
    for (int rank = 0; rank < world_size; ++rank) {
      if (std::exchange(steps[rank], 0) > 0) trained.push_back(flat_parameters(nets[rank]));
    }
    const at::Tensor mean = torch::stack(trained).mean(0);
    for (auto& net : nets) torch::nn::utils::vector_to_parameters(mean.clone(), net->parameters());
  };
  for (const auto& lengths : kLocalSteps) {
    for (int step = 0; step < 5; ++step) {
      bool is_due = false;
      for (int rank = 0; rank < world_size; ++rank) {
        if (step >= lengths[rank]) continue;
        torch::optim::SGD sgd(nets[rank]->parameters(), 0.1);
        sgd.zero_grad();
        local_loss(nets[rank], rank).backward();
        sgd.step();
        is_due = ++steps[rank] == kStepsToAverage;
      }
      if (is_due) average();
    }
    if (std::any_of(steps.begin(), steps.end(), [](int count) { return count > 0; })) average();
  }
  return flat_parameters(nets[0]);
}

// Where finish is called: after the loop, or in it, where the loop's end averages.
void expect_local_sgd_alone(int world_size, bool finish_inside) {
  const at::Tensor wanted = local_sgd_alone(world_size);
  run_ranks(world_size, [&](Process& process) {
    const Accelerator accelerator(process);
    Mlp net;
    testing::initialise(*net, 5);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    auto around = accelerator.local_sgd(model, {.num_steps = kStepsToAverage, .enabled = !finish_inside});
    for (const auto& lengths : kLocalSteps) {
      accelerator.join_uneven_inputs(model, [&, &model = model, &optimizer = optimizer] {
        auto inside = accelerator.local_sgd(model, {.num_steps = kStepsToAverage, .enabled = finish_inside});
        for (int step = 0; step < lengths[process.rank()]; ++step) {
          optimizer.zero_grad();
          accelerator.backward(local_loss(net, process.rank()), {.weight = 3.0});
          optimizer.step();
          (finish_inside ? inside : around).step();
        }
        inside.finish();
      });
      const auto all = process.group().all_gather(flat_parameters(net));
      for (const auto& other : all) EXPECT_TRUE(torch::equal(other, all[0])) << "after each round";
    }
    around.finish();

    EXPECT_TRUE(torch::allclose(flat_parameters(net), wanted, 1e-5, 1e-6)) << world_size << " ranks";
    net->zero_grad();
    accelerator.backward(model(torch::ones({2, 8})).sum() * (process.rank() + 1.0));
    EXPECT_DOUBLE_EQ(net->second->bias.grad()[0].item<double>(), world_size + 1.0)
        << "gradients are exchanged again: 2 rows, the mean of the ranks' factors";
  });
}

TEST(JoinCallsRanks, LocalSgdAveragesOverTheRanksThatHaveTrainedSince) {
  for (const int world_size : {1, 2, 3}) expect_local_sgd_alone(world_size, false);
}

TEST(JoinCallsRanks, LocalSgdMayFinishInside) {
  for (const int world_size : {1, 2, 3}) expect_local_sgd_alone(world_size, true);
}

// A step with this rank's own rows.
at::Tensor joint_loss(const parallel::PreparedModel<Mlp>& model) {
  return model(torch::ones({2, 8})).square().mean();
}

TEST(JoinCallsRanks, WhatRanksWithoutDataCannotAnswerIsRefusedOnAll) {
  using Call = std::function<void(const Accelerator&, Mlp&, const parallel::PreparedModel<Mlp>&)>;
  const std::map<std::string, Call> calls = {
      {"prepare of a model",
       [](const auto& accelerator, auto&, const auto&) {
         Mlp another;
         static_cast<void>(accelerator.prepare(another));
       }},
      {"a change of the model's parameters (to, requires_grad_, register_parameter)",
       [](const auto& accelerator, auto& net, const auto& model) {
         net->first->weight.requires_grad_(false);
         accelerator.backward(joint_loss(model));
       }},
      {"join_uneven_inputs",
       [](const auto& accelerator, auto&, const auto& model) { accelerator.join_uneven_inputs(model, [] {}); }}};
  for (const auto& [name, call] : calls) {
    for (const int world_size : {1, 2, 3}) {
      const auto words = run_ranks_collecting(world_size, [&, &call = call](Process& process) {
        const Accelerator accelerator(process);
        Mlp net;
        const auto model = accelerator.prepare(net);
        const int num_steps = process.world_size() == 1 ? 2 : 2 * process.rank();
        join_for(accelerator, model, num_steps, [&](int step) {
          if (step == 1) return call(accelerator, net, model);
          accelerator.backward(joint_loss(model));
        });
      });

      EXPECT_THAT(words, Each(HasSubstr(name + " inside join_uneven_inputs"))) << world_size;
    }
  }
}

TEST(JoinCallsRanks, ACollectiveOfTheProgramsOwnIsRefusedOnAllOnceARankHasRunOut) {
  using Call = std::function<void(const Accelerator&)>;
  const std::map<std::string, Call> calls = {
      {"all_reduce", [](const auto& accelerator) { accelerator.process().group().all_reduce_(torch::ones({3})); }},
      {"barrier", [](const auto& accelerator) { accelerator.process().wait_for_everyone(); }},
      {"all_gather", [](const auto& accelerator) { comm::gather_object(accelerator.group(), 1); }},
      {"all_gather_into", [](const auto& accelerator) { accelerator.group().split(0); }},
      {"subgroup", [](const auto& accelerator) { accelerator.group().subgroup({0}); }}};
  for (const auto& [name, call] : calls) {
    for (const int world_size : {2, 3}) {
      const auto words = run_ranks_collecting(world_size, [&, &call = call](Process& process) {
        const Accelerator accelerator(process);
        Mlp net;
        const auto model = accelerator.prepare(net);
        join_for(accelerator, model, process.rank(), [&](int) {
          accelerator.backward(joint_loss(model));
          call(accelerator);
        });
      });

      EXPECT_THAT(words, Each(HasSubstr(name + " on the process's group"))) << world_size;
      EXPECT_THAT(words, Each(HasSubstr("has not run out of data"))) << world_size;
    }
  }
}

TEST(JoinCallsRanks, ACollectiveOfTheProgramsOwnWorksWhileAllRanksHaveDataAndAfterTheLoop) {
  for (const int world_size : {1, 2, 3}) {
    run_ranks(world_size, [](Process& process) {
      const Accelerator accelerator(process);
      Mlp net;
      const auto model = accelerator.prepare(net);
      const auto group = accelerator.process().group();
      const auto sum = [&] {
        auto sum = torch::ones({2});
        group.all_reduce_(sum);
        return sum.sum().item<int>();
      };
      std::vector<int> sums;
      join_for(accelerator, model, 1 + process.rank(), [&](int step) {
        accelerator.backward(joint_loss(model));
        if (step == 0) sums.push_back(sum());
      });
      sums.push_back(sum());

      EXPECT_EQ(sums, std::vector<int>(2, 2 * process.world_size()));
    });
  }
}

TEST(JoinCallsRanks, WhatWasChangedBeforeAndWhatIsPreparedAlreadyPasses) {
  for (const int world_size : {2, 3}) {
    run_ranks(world_size, [](Process& process) {
      const Accelerator accelerator(process);
      Mlp net;
      const auto model = accelerator.prepare(net);
      net->first->weight.requires_grad_(false);
      join_for(accelerator, model, process.rank(),
               [&](int) { accelerator.backward(joint_loss(accelerator.prepare(net))); });

      EXPECT_FALSE(net->first->weight.grad().defined());
      EXPECT_TRUE(net->second->weight.grad().defined());
    });
  }
}

template <class Sampler>
auto ten_rows(const Accelerator& accelerator) {
  return accelerator.data_loader<Sampler>(data::TensorDataset(torch::ones({10, 8}), torch::arange(10)),
                                          torch::data::DataLoaderOptions(2));
}

// What is said where `fn(loader, net)` is the loop, over 10 rows in batches of 2.
template <class Sampler, class Fn>
std::vector<std::string> words_of_loop(int world_size, const AcceleratorOptions& options, const Fn& fn) {
  return run_ranks_collecting(world_size, [&](Process& process) {
    const Accelerator accelerator(process, options);
    Mlp net;
    const auto model = accelerator.prepare(net);
    auto loader = ten_rows<Sampler>(accelerator);
    accelerator.join_uneven_inputs(model, [&] { fn(accelerator, loader); }, {.even_batches = false});
  });
}

TEST(JoinCallsRanks, ASecondLoopOverALoaderThatRanksShareIsRefusedOnAll) {
  const auto two_epochs = [](const Accelerator& accelerator, auto& loader) {
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (auto& batch : loader) accelerator.gather(batch.target);
    }
  };
  for (const int world_size : {2, 3}) {
    EXPECT_THAT(words_of_loop<torch::data::samplers::RandomSampler>(world_size, {}, two_epochs),
                Each(HasSubstr("Ranks with data must do the same things")))
        << "the others are still in their first";
  }
  const auto another_inside = [](const Accelerator& accelerator, auto& loader) {
    auto test = ten_rows<torch::data::samplers::RandomSampler>(accelerator);
    int steps = 0;
    for (auto& batch : loader) {
      accelerator.gather(batch.target);
      if (++steps < 2) continue;
      for (auto& row : test) accelerator.gather(row.target);
    }
  };
  EXPECT_THAT(words_of_loop<torch::data::samplers::RandomSampler>(3, {}, another_inside),
              Each(HasSubstr("the beginning of a loop over a loader inside join_uneven_inputs needs all")));
}

TEST(JoinCallsRanks, ALoopOverALoaderWithoutASharedOrderPasses) {
  const auto test_inside = [](const Accelerator& accelerator, auto& loader) {
    auto test = ten_rows<torch::data::samplers::SequentialSampler>(accelerator);
    for (auto& batch : loader) {
      accelerator.gather(batch.target);
      for (auto& row : test) EXPECT_EQ(row.data.size(1), 8);
    }
  };

  EXPECT_THAT(words_of_loop<torch::data::samplers::RandomSampler>(3, {}, test_inside), Each(""));
}

TEST(JoinCallsRanks, ADispatchedLoaderGivesToAllRanksOrIsRefusedOnAll) {
  const auto whole = [](const Accelerator& accelerator, auto& loader) {
    int64_t rows = 0;
    for (auto& batch : loader) rows += accelerator.gather(batch.target).numel();
    EXPECT_GE(rows, 10);
  };
  const auto rank_0_leaves = [](const Accelerator& accelerator, auto& loader) {
    for (auto& batch : loader) {
      if (accelerator.rank() == 0) return;
      EXPECT_GT(batch.target.numel(), 0);
    }
  };
  const AcceleratorOptions options{.loader = {.dispatch_batches = true}};

  for (const int world_size : {2, 3}) {
    EXPECT_THAT(words_of_loop<torch::data::samplers::RandomSampler>(world_size, options, whole), Each(""));
    EXPECT_THAT(words_of_loop<torch::data::samplers::RandomSampler>(world_size, options, rank_0_leaves),
                Each(HasSubstr("the next batch of a loader that is dispatched inside join_uneven_inputs")));
  }
}

}  // namespace
}  // namespace hasten
