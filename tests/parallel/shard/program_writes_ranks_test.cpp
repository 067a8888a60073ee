// What a program may do to parameters and gradients of one mapping, between steps and after all.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>

#include "hasten/core/error.h"
#include "hasten/optim/steps/optimizer_step.h"
#include "hasten/parallel/ddp/backward.h"
#include "hasten/parallel/ddp/ddp.h"
#include "hasten/parallel/ddp/no_sync.h"
#include "hasten/parallel/model/jit_module.h"
#include "hasten/parallel/shard/options.h"
#include "hasten/parallel/shard/prepare_sharding.h"
#include "hasten/parallel/shard/sharding.h"
#include "parallel/shard/trained.h"
#include "support/folder.h"
#include "support/models.h"
#include "support/ranks.h"

namespace hasten::parallel {
namespace {

using namespace shard_testing;
using ::testing::HasSubstr;

TEST(ShardWrites, TheSameWritesOnAllRanksCount) {
  expect_numbers_of_ddp<testing::Mlp>(2, [](auto& t) {
    for (int step = 0; step < 4; ++step) {
      train(t, "mlp", 1);
      const at::NoGradGuard no_grad;
      t.net->first->weight.mul_(0.5);
      t.net->second->bias.data().clamp_(-0.1, 0.1);
      if (step == 2) t.net->second->weight.set_data(t.net->second->weight.detach() * 2);
      // A GPU's memory is not the host's to write to.
      if (!testing::on_device()) t.net->first->bias.template data_ptr<float>()[3] = 1;
    }
  });
}

TEST(ShardWrites, AWriteOnOneRankIsNamed) {
  const auto words = run_ranks_collecting(2, [](auto& process) {
    Trained<testing::Mlp> t(process.group(), small_units(ShardStage::kParameters), adamw);
    t.backward(t.loss("mlp", 0));
    const at::NoGradGuard no_grad;
    if (process.rank() == 1) t.net->second->weight.mul_(2);
    t.step();
  });

  for (const auto& said : words) EXPECT_THAT(said, HasSubstr("'second.weight' was changed by the program"));
}

TEST(ShardWrites, AWriteStaysWithItsRankUntilTheStep) {
  run_ranks(2, [](auto& process) {
    Trained<testing::Mlp> t(process.group(), small_units(ShardStage::kParameters), adamw);
    const at::NoGradGuard no_grad;
    const at::Tensor before = t.net->second->weight.clone();
    if (process.rank() == 1) t.net->second->weight.mul_(2);
    process.group().barrier();

    EXPECT_TRUE(at::equal(t.net->second->weight, process.rank() == 1 ? before * 2 : before));
    process.group().barrier();
  });
}

TEST(ShardWrites, StepsOfAnOptimizerThatWasNotPreparedCount) {
  expect_numbers_of_ddp<testing::Mlp>(2, [](auto& t) {
    train(t, "mlp", 1);
    t.optimizer->zero_grad();
    t.backward(t.loss("mlp", 7));
    torch::optim::SGD other(t.net->parameters(), 0.1);
    other.step();
    train(t, "mlp", 2);
  });
}

TEST(ShardWrites, ClippingOfLibtorchWorksOnSharedGradients) {
  expect_numbers_of_ddp<testing::Mlp>(2, [](auto& t) {
    for (int step = 0; step < 3; ++step) {
      t.optimizer->zero_grad(/*set_to_none=*/false);
      t.backward(t.loss("mlp", step));
      torch::nn::utils::clip_grad_norm_(t.net->parameters(), 0.1);
      t.step();
    }
  });
}

TEST(ShardWrites, AGradientThatTheProgramKeepsIsNotOverwritten) {
  run_ranks(2, [](auto& process) {
    Trained<testing::Mlp> t(process.group(), small_units(ShardStage::kParameters), adamw);
    t.backward(t.loss("mlp", 0));
    const at::Tensor kept = t.net->first->weight.grad(), copy = kept.clone();
    t.step();
    t.optimizer->zero_grad();
    t.backward(t.loss("mlp", 1));

    EXPECT_TRUE(at::equal(kept, copy));
    EXPECT_FALSE(at::equal(kept, t.net->first->weight.grad()));
    process.group().barrier();
  });
}

struct Autocast {
  explicit Autocast(at::DeviceType of) : type(of) {
    at::autocast::set_autocast_enabled(type, true);
    at::autocast::set_autocast_dtype(type, at::kBFloat16);
  }
  ~Autocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(type, false);
  }
  at::DeviceType type;
};

template <class Net>
void train_in_bf16(Trained<Net>& t, const std::string& problem) {
  for (int step = 0; step < 4; ++step) {
    t.optimizer->zero_grad();
    at::Tensor loss;
    {
      const Autocast autocast(t.device.type());
      loss = t.loss(problem, step);
    }
    t.backward(loss.to(at::kFloat));
    t.step();
  }
}

TEST(ShardWrites, CopiesOfLowPrecisionGiveTheNumbersOfAutocast) {
  for (const std::string dtype : {"", "bfloat16"}) {
    ShardOptions base{.wrap = {.unit_bytes = 400}};
    base.param_dtype = dtype;
    expect_numbers_of_ddp<testing::Mlp>(
        2, [](auto& t) { train_in_bf16(t, "mlp"); }, adamw, base);
    expect_numbers_of_ddp<testing::Cnn>(
        2, [](auto& t) { train_in_bf16(t, "cnn"); }, adamw, base);
    expect_numbers_of_ddp<testing::TransformerModel>(
        2, [](auto& t) { train_in_bf16(t, "transformer"); }, adamw, base);
  }
}

TEST(ShardWrites, CopiesOfLowPrecisionFollowWhatTheProgramWrites) {
  ShardOptions base{.wrap = {.unit_bytes = 400}};
  base.param_dtype = "bfloat16";
  expect_numbers_of_ddp<testing::Mlp>(
      2,
      [](auto& t) {
        for (int round = 0; round < 2; ++round) {
          {
            const at::NoGradGuard no_grad;
            t.net->second->weight.mul_(0.5);
          }
          train_in_bf16(t, "mlp");
        }
      },
      adamw, base);
}

TEST(ShardWrites, CopiesOfLowPrecisionAreTheSameOnTwoHosts) {
  const auto hosts = [](int rank, comm::GroupOptions& options) {
    options.host = rank < 2 ? "a" : "b";
    options.address = "127.0.0.1";
  };
  run_ranks(4,
            [](auto& process) {
              std::vector<std::vector<at::Tensor>> results;
              for (const std::string dtype : {"", "bfloat16"}) {
                ShardOptions options = small_units(ShardStage::kParameters);
                options.across_hosts = false;  // stripes have no copies
                options.param_dtype = dtype;
                Trained<testing::Mlp> t(process.group(), options, adamw);
                train_in_bf16(t, "mlp");
                results.push_back(t.parameters());
              }
              expect_equal(results[0], results[1], "with copies");
            },
            {.adjust = hosts});
}

TEST(ShardWrites, AnUnknownDtypeOfCopiesIsNamed) {
  ShardOptions options = small_units(ShardStage::kParameters);
  options.param_dtype = "bf8";
  const auto words =
      run_ranks_collecting(2, [&](auto& process) { Trained<testing::Mlp> t(process.group(), options, adamw); });

  EXPECT_THAT(words[0], HasSubstr("'bf8'"));
}

TEST(ShardWrites, StateFollowsToNewOwnersWhenTheModelIsPlannedAnew) {
  for (const auto& make :
       {Trained<testing::Mlp>::MakeOptimizer(adamw), Trained<testing::Mlp>::MakeOptimizer([](const auto& p) {
          return std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(0.1).momentum(0.9));
        })}) {
    expect_numbers_of_ddp<testing::Mlp>(
        3,
        [](auto& t) {
          train(t, "mlp", 2);
          t.net->second->weight.set_requires_grad(false);
          before_forward(*t.ddp);
          train(t, "mlp", 2);
          t.net->second->weight.set_requires_grad(true);
          before_forward(*t.ddp);
          train(t, "mlp", 2);
        },
        make);
  }
}

TEST(ShardWrites, AChangeOfTheModelOnOneRankIsAnErrorOnAll) {
  const auto words =
      run_ranks_collecting(2,
                           [](auto& process) {
                             Trained<testing::Mlp> t(process.group(), small_units(ShardStage::kParameters), adamw);
                             train(t, "mlp", 1);
                             if (process.rank() == 1) t.net->parameters()[0].set_requires_grad(false);
                             t.ddp->refresh_if_changed();
                             train(t, "mlp", 1);
                           },
                           {.timeout = std::chrono::seconds(3)});

  for (const auto& each : words) EXPECT_NE(each, "");
  EXPECT_THAT(words[0] + words[1], HasSubstr("rank 1"));
}

TEST(ShardWrites, AChangeOfDtypeIsPlannedAnew) {
  expect_numbers_of_ddp<testing::Mlp>(2, [](auto& t) {
    t.net->to(at::kDouble);
    before_forward(*t.ddp);
    for (int step = 0; step < 3; ++step) {
      t.optimizer->zero_grad();
      t.backward(t.net->forward(testing::problem_for("mlp", step).inputs.to(t.device, at::kDouble)).pow(2).mean());
      t.step();
    }
  });
}

TEST(ShardWrites, TheModelTrainsOnAloneWhenShardingIsGone) {
  run_ranks(2, [](auto& process) {
    testing::Mlp net;
    {
      Trained<testing::Mlp> t(process.group(), small_units(ShardStage::kParameters), adamw);
      train(t, "mlp", 1);
      net = t.net;
    }
    const at::NoGradGuard no_grad;
    net->first->weight.mul_(2);
    EXPECT_TRUE(net->first->weight.isfinite().all().template item<bool>());
  });
}

// Writes between steps that Ddp allows: the same on all ranks.
void write_at_random(testing::Mlp& net, std::mt19937& random) {
  const at::NoGradGuard no_grad;
  const auto parameters = net->parameters();
  for (int write = 0; write < 3; ++write) {
    const at::Tensor p = parameters[random() % parameters.size()];
    switch (random() % 7) {
      case 0:
        p.mul_(0.9);
        break;
      case 1:
        p.data().clamp_(-0.2, 0.2);
        break;
      case 2:
        p.select(0, 0).zero_();
        break;
      case 3:
        p.set_data(p.detach().clone() * 1.1);
        break;
      case 4:
        at::_foreach_mul_(parameters, 0.99);
        break;
      case 5:
        if (const auto place = static_cast<int64_t>(random() % p.numel()); testing::on_device()) {
          p.view(-1)[place].fill_(0.25);  // a GPU's memory is not the host's to write to
        } else {
          p.data_ptr<float>()[place] = 0.25F;
        }
        break;
      default:
        torch::nn::utils::vector_to_parameters(torch::nn::utils::parameters_to_vector(parameters) * 1.01, parameters);
    }
  }
}

TEST(ShardWrites, RandomProgramsOfWritesGiveTheNumbersOfDdp) {
  for (unsigned seed = 0; seed < 8; ++seed) {
    expect_numbers_of_ddp<testing::Mlp>(2, [seed](auto& t) {
      std::mt19937 random(seed);
      for (int step = 0; step < 4; ++step) {
        train(t, "mlp", 1);
        write_at_random(t.net, random);
      }
      train(t, "mlp", 1);
    });
    ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed;
  }
}

int count_lines(const std::string& path, const std::string& word) {
  std::ifstream file(path);
  int count = 0;
  for (std::string line; std::getline(file, line);) count += line.find(word) != std::string::npos ? 1 : 0;
  return count;
}

TEST(ShardWrites, ManyModelsLeaveNoMappingBehind) {
  run_ranks(2, [](auto& process) {
    for (int cycle = 0; cycle < 30; ++cycle) {
      Trained<testing::Mlp> t(process.group(), small_units(ShardStage::kParameters), adamw);
      if (cycle % 3 == 0) train(t, "mlp", 1);
    }
    process.group().barrier();
  });

  EXPECT_EQ(count_lines("/proc/self/maps", "hasten-parameters"), 0);
  EXPECT_EQ(count_lines("/proc/self/maps", "hasten-units"), 0);
}

}  // namespace
}  // namespace hasten::parallel
