// Sharding through the front door: one option, the loop of Ddp, the numbers of Ddp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <iostream>

#include "hasten/accelerator.h"
#include "hasten/parallel/compress/power_sgd.h"
#include "hasten/parallel/shard/sharding.h"
#include "support/models.h"
#include "support/processes.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using ::testing::HasSubstr;
using testing::run_ranks;
using testing::run_ranks_collecting;

AcceleratorOptions with_stage(ShardStage stage) {
  AcceleratorOptions options{.tune_allocator = false};
  options.shard = {.stage = stage, .wrap = {.unit_bytes = 400}};
  return options;
}

at::Tensor loss_of(testing::Mlp net, const Accelerator& accelerator, int step) {
  const auto problem = testing::problem_for("mlp", 50 + step);
  const auto rows = [&](const at::Tensor& all) { return all.chunk(accelerator.world_size())[accelerator.rank()]; };
  return torch::cross_entropy_loss(net->forward(rows(problem.inputs)), rows(problem.targets));
}

std::vector<at::Tensor> values_of(const torch::nn::Module& net) {
  std::vector<at::Tensor> values;
  for (const auto& parameter : net.parameters()) values.push_back(parameter.detach().clone());
  return values;
}

using Train = std::function<std::vector<at::Tensor>(const Accelerator&)>;

// The parameters that `train` gives under every stage are Ddp's, bit for bit or up to `tolerance`.
void expect_numbers_of_ddp(int world_size, const Train& train, double tolerance = 0) {
  run_ranks(world_size, [&](auto& process) {
    const auto plain = train(Accelerator(process, with_stage(ShardStage::kNone)));
    for (const auto stage : {ShardStage::kOptimizer, ShardStage::kGradients, ShardStage::kParameters}) {
      const auto sharded = train(Accelerator(process, with_stage(stage)));
      ASSERT_EQ(plain.size(), sharded.size());
      for (size_t i = 0; i < plain.size(); ++i) {
        EXPECT_TRUE(at::allclose(plain[i], sharded[i], tolerance, tolerance)) << "parameter " << i;
      }
      process.wait_for_everyone();
    }
  });
}

TEST(ShardedAccelerator, TheLoopOfDdpGivesItsNumbers) {
  expect_numbers_of_ddp(2, [](const Accelerator& accelerator) {
    testing::Mlp net;
    testing::initialise(*net, 5);
    torch::optim::AdamW adam(net->parameters(), 0.01);
    auto [model, optimizer] = accelerator.prepare(net, adam);
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      accelerator.backward(loss_of(net, accelerator, step));
      optimizer.step();
    }
    return values_of(*net);
  });
}

TEST(ShardedAccelerator, AccumulationAndClippingGiveDdpsUpToRounding) {
  const auto train = [](const Accelerator& accelerator) {
    testing::Mlp net;
    testing::initialise(*net, 5);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int step = 0; step < 9; ++step) {
      const auto scope = accelerator.accumulate(model);
      accelerator.backward(loss_of(net, accelerator, step));
      if (accelerator.sync_gradients()) accelerator.clip_grad_norm_(net->parameters(), 0.05);
      optimizer.step();
      optimizer.zero_grad();
    }
    return values_of(*net);
  };
  run_ranks(2, [&](auto& process) {
    const auto at_stage = [&](ShardStage stage) {
      auto options = with_stage(stage);
      options.gradient_accumulation_steps = 3;
      return train(Accelerator(process, options));
    };
    const auto plain = at_stage(ShardStage::kNone);
    for (const auto stage : {ShardStage::kOptimizer, ShardStage::kGradients, ShardStage::kParameters}) {
      const auto sharded = at_stage(stage);
      for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::allclose(plain[i], sharded[i], 1e-6, 1e-7)) << i;
      process.wait_for_everyone();
    }
  });
}

TEST(ShardedAccelerator, MixedPrecisionGivesTheNumbersOfDdp) {
  const auto train = [](const Accelerator& accelerator) {
    testing::Mlp net;
    testing::initialise(*net, 5);
    torch::optim::AdamW adam(net->parameters(), 0.01);
    auto [model, optimizer] = accelerator.prepare(net, adam);
    for (int step = 0; step < 5; ++step) {
      const auto problem = testing::problem_for("mlp", 50 + step);
      const auto rows = [&](const at::Tensor& all) { return all.chunk(accelerator.world_size())[accelerator.rank()]; };
      accelerator.backward(torch::cross_entropy_loss(model(rows(problem.inputs)), rows(problem.targets)));
      accelerator.clip_grad_norm_(net->parameters(), 1.0);
      optimizer.step();
      optimizer.zero_grad();
    }
    return values_of(*net);
  };
  for (const auto precision : {precision::Precision::kBf16, precision::Precision::kFp16}) {
    run_ranks(2, [&](auto& process) {
      const auto at_stage = [&](ShardStage stage) {
        auto options = with_stage(stage);
        options.mixed_precision = precision;
        return train(Accelerator(process, options));
      };
      const auto plain = at_stage(ShardStage::kNone);
      for (const auto stage : {ShardStage::kOptimizer, ShardStage::kGradients, ShardStage::kParameters}) {
        const auto sharded = at_stage(stage);
        for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::allclose(plain[i], sharded[i], 1e-5, 1e-6)) << i;
        process.wait_for_everyone();
      }
    });
  }
}

TEST(ShardedAccelerator, OneOptimizerMayTrainTwoModels) {
  expect_numbers_of_ddp(2, [](const Accelerator& accelerator) {
    testing::Mlp first, second;
    testing::initialise(*first, 5);
    testing::initialise(*second, 6);
    auto all = first->parameters();
    for (const auto& parameter : second->parameters()) all.push_back(parameter);
    torch::optim::AdamW adam(all, 0.01);
    auto [a, b, optimizer] = accelerator.prepare(first, second, adam);
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      accelerator.backward(loss_of(first, accelerator, step) + 2 * loss_of(second, accelerator, step));
      optimizer.step();
    }
    auto values = values_of(*first);
    for (auto& value : values_of(*second)) values.push_back(value);
    return values;
  });
}

TEST(ShardedAccelerator, StateIsReachedThroughTheAccelerator) {
  run_ranks(2, [](auto& process) {
    const Accelerator accelerator(process, with_stage(ShardStage::kOptimizer));
    testing::Mlp net;
    torch::optim::AdamW adam(net->parameters(), 0.01);
    auto [model, optimizer] = accelerator.prepare(net, adam);
    accelerator.backward(loss_of(net, accelerator, 0));
    optimizer.step();

    EXPECT_EQ(accelerator.sharding()->full_state(adam).size(), 12u);
    EXPECT_EQ(Accelerator(process, with_stage(ShardStage::kNone)).sharding(), nullptr);
    process.wait_for_everyone();
  });
}

TEST(ShardedAccelerator, AStateDictIsTheParametersThemselvesOnEveryRank) {
  run_ranks(2, [](auto& process) {
    const Accelerator accelerator(process, with_stage(ShardStage::kParameters));
    testing::Mlp net;
    auto model = accelerator.prepare(net);
    const auto state = accelerator.get_state_dict(model);
    EXPECT_EQ(state.size(), net->parameters().size());
    const auto parameters = net->named_parameters();
    for (const auto& [name, value] : state) {
      EXPECT_EQ(value.const_data_ptr(), parameters[name].const_data_ptr()) << name << " was copied";
    }
    process.wait_for_everyone();
  });
}

TEST(ShardedAccelerator, AWorldOfOneIsThePlainLoop) {
  run_ranks(1, [](auto& process) {
    std::vector<at::Tensor> results;
    for (const auto stage : {ShardStage::kNone, ShardStage::kParameters}) {
      const Accelerator accelerator(process, with_stage(stage));
      testing::Mlp net;
      testing::initialise(*net, 5);
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      accelerator.backward(loss_of(net, accelerator, 0));
      optimizer.step();
      results.push_back(net->first->weight.detach().clone());
    }
    EXPECT_TRUE(at::equal(results[0], results[1]));
  });
}

TEST(ShardedAccelerator, ACommHookIsRefused) {
  const auto words = run_ranks_collecting(2, [](auto& process) {
    auto options = with_stage(ShardStage::kGradients);
    options.ddp.comm_hook = parallel::power_sgd({});
    const Accelerator accelerator(process, options);
    testing::Mlp net;
    auto model = accelerator.prepare(net);
  });

  EXPECT_THAT(words[0], HasSubstr("comm_hook and sharding exclude each other"));
}

TEST(ShardedAccelerator, LocalSgdIsRefused) {
  const auto words = run_ranks_collecting(2, [](auto& process) {
    const Accelerator accelerator(process, with_stage(ShardStage::kGradients));
    testing::Mlp net;
    auto model = accelerator.prepare(net);
    auto local = accelerator.local_sgd(model, {.num_steps = 2});
  });

  EXPECT_THAT(words[0], HasSubstr("share their parameters"));
}

// Real processes: memory is handed over, and a rank that dies in a step is named.
HASTEN_PROCESS_CASE(sharded_training) {
  const Accelerator accelerator(with_stage(ShardStage::kParameters));
  testing::Mlp net;
  testing::initialise(*net, 5);
  torch::optim::AdamW adam(net->parameters(), 0.01);
  auto [model, optimizer] = accelerator.prepare(net, adam);
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    accelerator.backward(loss_of(net, accelerator, step));
    optimizer.step();
  }
  const auto all = accelerator.gather(net->first->weight.detach().unsqueeze(0));
  std::cout << "equal " << at::equal(all[0], all[1]) << " sum " << all[0].sum().item<float>() << std::endl;
  return 0;
}

TEST(ShardedAccelerator, ProcessesTrainOnOneMapping) {
  const auto results = testing::run_processes(2, "sharded_training");

  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output, HasSubstr("equal 1 sum "));
  }
}

HASTEN_PROCESS_CASE(sharded_death) {
  AcceleratorOptions options = with_stage(ShardStage::kParameters);
  options.timeout = std::chrono::seconds(20);
  const Accelerator accelerator(options);
  testing::Mlp net;
  torch::optim::AdamW adam(net->parameters(), 0.01);
  auto [model, optimizer] = accelerator.prepare(net, adam);
  accelerator.backward(loss_of(net, accelerator, 0));
  if (accelerator.rank() == 1) raise(SIGKILL);
  try {
    optimizer.step();
  } catch (const CommError& error) {
    std::cout << "noticed: " << error.what() << std::endl;
    return 0;
  }
  return 1;
}

struct DiesOnRankOne : torch::optim::SGD {
  using SGD::SGD;
  int rank = 0;
  at::Tensor step(LossClosure = nullptr) override {
    if (rank == 1) raise(SIGKILL);
    return {};
  }
};

HASTEN_PROCESS_CASE(sharded_death_in_step) {
  AcceleratorOptions options = with_stage(ShardStage::kParameters);
  options.timeout = std::chrono::seconds(20);
  const Accelerator accelerator(options);
  testing::Mlp net;
  DiesOnRankOne sgd(net->parameters(), 0.1);
  sgd.rank = accelerator.rank();
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  accelerator.backward(loss_of(net, accelerator, 0));
  try {
    optimizer.step();
  } catch (const CommError& error) {
    std::cout << "noticed: " << error.what() << std::endl;
    return 0;
  }
  return 1;
}

TEST(ShardedAccelerator, ADeathInTheStepIsNoticedByTheOthers) {
  const auto results = testing::run_processes(3, "sharded_death_in_step");

  EXPECT_EQ(results[1].exit_code, 137);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(results[rank].exit_code, 0) << results[rank].output;
    EXPECT_THAT(results[rank].output, HasSubstr("noticed: "));
  }
}

TEST(ShardedAccelerator, ADeathBeforeTheStepIsNoticedInIt) {
  const auto results = testing::run_processes(2, "sharded_death");

  EXPECT_EQ(results[1].exit_code, 137);
  EXPECT_EQ(results[0].exit_code, 0) << results[0].output;
  EXPECT_THAT(results[0].output, HasSubstr("noticed: "));
}

}  // namespace
}  // namespace hasten
