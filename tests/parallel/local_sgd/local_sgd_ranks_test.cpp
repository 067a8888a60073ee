#include "hasten/parallel/local_sgd/local_sgd.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/core/error.h"
#include "support/models.h"
#include "support/ranks.h"

namespace hasten::parallel {
namespace {

using process::Process;
using testing::Mlp;
using testing::run_ranks;

PreparedModel<Mlp> prepared(Mlp net, const Process& process) {
  auto ddp = std::make_shared<const Ddp>(*net, process.group());
  return {std::make_shared<Mlp>(net), std::move(ddp)};
}

// Steps of SGD with a learning rate of 0.1 on a rank's own rows; `after_step` sees how many there were.
void train(Mlp& net, int rank, int steps, const std::function<void(int)>& after_step) {
  const auto problem = testing::problem_for("mlp", 100 + static_cast<uint64_t>(rank));
  torch::optim::SGD sgd(net->parameters(), 0.1);
  for (int step = 1; step <= steps; ++step) {
    sgd.zero_grad();
    torch::nn::functional::cross_entropy(net(problem.inputs), problem.targets).backward();
    sgd.step();
    after_step(step);
  }
}

at::Tensor flat(const Mlp& net) {
  return torch::nn::utils::parameters_to_vector(net->parameters()).detach().clone();
}

// What LocalSgd should give, on one process: each rank's model trained by itself, averaged by hand.
at::Tensor averaged_by_hand(int world_size, int num_steps, int rounds) {
  Mlp start;
  testing::initialise(*start, 5);
  at::Tensor common = flat(start);
  for (int round = 0; round < rounds; ++round) {
    at::Tensor sum = torch::zeros_like(common);
    for (int rank = 0; rank < world_size; ++rank) {
      Mlp net;
      torch::nn::utils::vector_to_parameters(common.clone(), net->parameters());
      train(net, rank, num_steps, [](int) {});
      sum += flat(net);
    }
    common = sum / world_size;
  }
  return common;
}

TEST(LocalSgdRanks, ParametersAreAveragedEveryFewStepsAndGradientsNever) {
  for (const int world_size : {2, 3, 4}) {
    const at::Tensor wanted = averaged_by_hand(world_size, 3, 2);
    run_ranks(world_size, [&](Process& process) {
      Mlp net;
      testing::initialise(*net, 5);
      const auto model = prepared(net, process);
      LocalSgd local(model, process.group(), {.num_steps = 3});

      train(net, process.rank(), 6, [&](int step) {
        local.step();
        const auto all = process.group().all_gather(flat(net));
        EXPECT_EQ(torch::equal(all.front(), all.back()), step % 3 == 0) << "step " << step;
      });
      local.finish();

      EXPECT_TRUE(torch::allclose(flat(net), wanted, 1e-5, 1e-6)) << world_size << " ranks";
    });
  }
}

TEST(LocalSgdRanks, FinishAveragesTheRestAndLetsGradientsBeExchangedAgain) {
  run_ranks(2, [](Process& process) {
    Mlp net;
    const auto model = prepared(net, process);
    LocalSgd local(model, process.group(), {.num_steps = 4});
    train(net, process.rank(), 5, [&](int) { local.step(); });

    local.finish();
    local.finish();
    const auto all = process.group().all_gather(flat(net));
    EXPECT_TRUE(torch::equal(all[0], all[1]));
    EXPECT_THROW(local.step(), UsageError);

    net->zero_grad();
    (model(torch::ones({2, 8})).sum() * (process.rank() + 1.0)).backward();
    EXPECT_EQ(net->second->bias.grad()[0].item<double>(), 3.0) << "2 rows, the mean of 1 and 2";
  });
}

// Four ranks on two hosts, each rank's model trained by itself; after every second step the models of a host, after
// every fourth all of them become their mean.
std::vector<at::Tensor> averaged_in_levels(int steps) {
  std::vector<Mlp> nets(4);
  for (auto& net : nets) testing::initialise(*net, 5);
  const auto average = [&](size_t first, size_t last) {
    at::Tensor sum = torch::zeros_like(flat(nets[0]));
    for (size_t rank = first; rank < last; ++rank) sum += flat(nets[rank]);
    for (size_t rank = first; rank < last; ++rank)
      torch::nn::utils::vector_to_parameters(sum / static_cast<double>(last - first), nets[rank]->parameters());
  };
  for (int step = 1; step <= steps; ++step) {
    for (int rank = 0; rank < 4; ++rank) train(nets[static_cast<size_t>(rank)], rank, 1, [](int) {});
    if (step % 4 == 0) {
      average(0, 4);
    } else if (step % 2 == 0) {
      average(0, 2);
      average(2, 4);
    }
  }
  std::vector<at::Tensor> all;
  for (const auto& net : nets) all.push_back(flat(net));
  return all;
}

TEST(LocalSgdRanks, AnEndWithoutFinishIsSaid) {
  const auto said_of = [](int num_steps) {
    ::testing::internal::CaptureStderr();
    run_ranks(2, [&](Process& process) {
      Mlp net;
      const auto model = prepared(net, process);
      LocalSgd local(model, process.group(), {.num_steps = 3});
      for (int step = 0; step < num_steps; ++step) local.step();
    });
    return ::testing::internal::GetCapturedStderr();
  };

  EXPECT_THAT(said_of(5), ::testing::HasSubstr("LocalSgd ended 2 steps behind the last average, without finish()"));
  EXPECT_THAT(said_of(6), ::testing::IsEmpty());
}

TEST(LocalSgdRanks, LevelsAverageOverHostsMoreOftenThanOverAll) {
  for (const int steps : {3, 4, 6}) {
    const auto wanted = averaged_in_levels(steps);
    run_ranks(4, [&](Process& process) {
      Mlp net;
      testing::initialise(*net, 5);
      const auto model = prepared(net, process);
      const auto host = process.group().split(process.rank() / 2);
      int num_world_averages = 0;
      LocalSgd local(model, process.group(),
                     {.levels = {{2, *host}, {4, process.group()}}, .on_average = [&] { ++num_world_averages; }});

      train(net, process.rank(), steps, [&](int) { local.step(); });

      EXPECT_TRUE(torch::allclose(flat(net), wanted[static_cast<size_t>(process.rank())], 1e-5, 1e-6))
          << steps << " steps";
      EXPECT_EQ(num_world_averages, steps / 4);
      local.finish();
      const auto all = process.group().all_gather(flat(net));
      EXPECT_TRUE(torch::equal(all.front(), all.back())) << "finish() averages over all";
    });
  }
}

TEST(LocalSgdRanks, WarmUpStepsExchangeGradients) {
  run_ranks(2, [](Process& process) {
    Mlp net;
    testing::initialise(*net, 5);
    const auto model = prepared(net, process);
    LocalSgd local(model, process.group(), {.num_steps = 2, .warmup_steps = 3});
    const auto problem = testing::problem_for("mlp", 100 + static_cast<uint64_t>(process.rank()));
    torch::optim::SGD sgd(net->parameters(), 0.1);
    std::vector<bool> equal;

    for (int step = 1; step <= 7; ++step) {
      sgd.zero_grad();
      torch::nn::functional::cross_entropy(model(problem.inputs), problem.targets).backward();
      sgd.step();
      local.step();
      const auto all = process.group().all_gather(flat(net));
      equal.push_back(torch::equal(all[0], all[1]));
    }

    EXPECT_EQ(equal, (std::vector<bool>{true, true, true, false, true, false, true}));
    local.finish();
  });
}

// The model is put together anew then, on values that all ranks share: the mean, not rank 0's alone.
TEST(LocalSgdRanks, AChangeOfTheModelsParametersAveragesWhatTheRanksHaveLearned) {
  const at::Tensor wanted = averaged_by_hand(2, 3, 1);
  run_ranks(2, [&](Process& process) {
    Mlp net;
    testing::initialise(*net, 5);
    const at::Tensor count = net->register_parameter("count", torch::tensor(7 + process.rank()), false);
    const auto model = prepared(net, process);
    LocalSgd local(model, process.group(), {.num_steps = 100});
    train(net, process.rank(), 3, [&](int) { local.step(); });

    net->first->bias.requires_grad_(false);
    model(torch::ones({2, 8}));

    std::vector<at::Tensor> floats;
    for (const auto& parameter : net->parameters()) {
      if (parameter.is_floating_point()) floats.push_back(parameter);
    }
    EXPECT_TRUE(torch::allclose(torch::nn::utils::parameters_to_vector(floats), wanted, 1e-5, 1e-6));
    local.finish();
    EXPECT_EQ(count.item<int64_t>(), 7) << "integers have no mean, and are rank 0's from prepare on";
  });
}

TEST(LocalSgdRanks, DisabledItLeavesTheExchangeOfGradientsAsItIs) {
  run_ranks(2, [](Process& process) {
    Mlp net;
    const auto model = prepared(net, process);
    LocalSgd local(model, process.group(), {.enabled = false});

    train(net, process.rank(), 2, [&](int) {
      local.step();
      const auto all = process.group().all_gather(flat(net));
      EXPECT_TRUE(torch::equal(all[0], all[1])) << "every step";
    });
    local.finish();
  });
}

TEST(LocalSgd, InAWorldOfOneItIsThePlainLoopBitForBit) {
  Mlp plain, local_net;
  testing::initialise(*plain, 5);
  testing::initialise(*local_net, 5);
  const Process alone(process::RankInfo{}, comm::Group());
  const auto model = prepared(local_net, alone);
  LocalSgd local(model, alone.group(), {.num_steps = 2});

  train(plain, 0, 5, [](int) {});
  train(local_net, 0, 5, [&](int) { local.step(); });
  local.finish();

  EXPECT_TRUE(torch::equal(flat(plain), flat(local_net)));
}

TEST(LocalSgd, NoStepsBetweenAveragesIsRefused) {
  Mlp net;
  const Process alone(process::RankInfo{}, comm::Group());
  EXPECT_THROW(LocalSgd(prepared(net, alone), alone.group(), {.num_steps = 0}), UsageError);
  EXPECT_THROW(LocalSgd(prepared(net, alone), alone.group(), {.warmup_steps = -1}), UsageError);
}

TEST(LocalSgdRanks, LevelsThatDoNotFitAreNamed) {
  run_ranks(2, [](Process& process) {
    Mlp net;
    const auto model = prepared(net, process);
    const auto own = process.group().split(process.rank());
    const auto refused = [&](std::vector<LocalSgdLevel> levels, const std::string& words) {
      try {
        const LocalSgd local(model, process.group(), {.levels = std::move(levels)});
        FAIL() << words;
      } catch (const UsageError& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr(words));
      }
    };

    refused({{0, process.group()}}, "levels[0].num_steps = 0; expected a number of at least 1.");
    refused({{4, *own}, {6, process.group()}},
            "levels[1].num_steps = 6; expected a multiple of the 4 of the level before");
    refused({{4, *own}, {4, process.group()}},
            "levels[1].num_steps = 4; expected a multiple of the 4 of the level before, and more.");
    refused({{4, process.group()}, {8, *own}}, "the last level's group has 1 ranks; expected all 2");
  });
}

}  // namespace
}  // namespace hasten::parallel
