#include "hasten/parallel/ddp/ddp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/core/error.h"
#include "hasten/parallel/ddp/no_sync.h"
#include "support/models.h"
#include "support/ranks.h"

namespace hasten::parallel {
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

constexpr int kSteps = 20;

template <class Model>
std::string kind_of() {
  if constexpr (std::is_same_v<Model, EmbeddingModel>) return "embedding";
  if constexpr (std::is_same_v<Model, Cnn>) return "cnn";
  if constexpr (std::is_same_v<Model, GruModel>) return "gru";
  if constexpr (std::is_same_v<Model, TransformerModel>) return "transformer";
  return "mlp";
}

std::vector<at::Tensor> copies(const torch::nn::Module& module) {
  std::vector<at::Tensor> list;
  for (const auto& parameter : module.parameters()) list.push_back(parameter.detach().clone());
  return list;
}

// 20 steps of SGD with momentum on a rank's share of one batch; every optimizer step sees the mean of the
// whole batch.
template <class Model>
std::vector<at::Tensor> train(int rank, int world_size, const comm::Group& group, bool set_to_none = true) {
  Model model;
  testing::initialise(*model, 3 + rank);  // rank 0's values must win
  if (kind_of<Model>() == "cnn") model->eval();
  Ddp ddp(*model, group, {.buckets = {.first_bytes = 200, .bytes = 1000}, .in_place_bytes = 1});
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  const auto problem = testing::problem_for(kind_of<Model>());
  const auto inputs = problem.inputs.chunk(world_size)[rank];
  const auto targets = problem.targets.chunk(world_size)[rank];
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad(set_to_none);
    torch::nn::functional::cross_entropy(model(inputs), targets).backward();
    optimizer.step();
  }
  return copies(*model);
}

template <class Model>
class DdpIdentity : public ::testing::Test {};

struct ModelNames {
  template <class Model>
  static std::string GetName(int) {
    return kind_of<Model>();
  }
};
using Models = ::testing::Types<Mlp, Cnn, EmbeddingModel, GruModel, TransformerModel>;
TYPED_TEST_SUITE(DdpIdentity, Models, ModelNames);

TYPED_TEST(DdpIdentity, RanksEqualOneRankOnTheSameGlobalBatches) {
  const auto alone = train<TypeParam>(0, 1, comm::Group());
  for (const int world_size : {2, 3, 4}) {
    run_ranks(world_size, [&](Process& process) {
      const auto mine = train<TypeParam>(process.rank(), world_size, process.group());

      for (size_t i = 0; i < alone.size(); ++i) {
        EXPECT_TRUE(torch::allclose(mine[i], alone[i], 1e-5, 1e-5)) << world_size << " ranks, parameter " << i;
      }
    });
  }
}

TYPED_TEST(DdpIdentity, AllRanksEndWithEqualParametersBitForBit) {
  for (const int world_size : {2, 3, 4}) {
    run_ranks(world_size, [&](Process& process) {
      const auto mine = train<TypeParam>(process.rank(), world_size, process.group());

      for (const auto& parameter : mine) {
        const auto everybodys = process.group().all_gather(parameter);
        EXPECT_TRUE(torch::equal(everybodys.front(), everybodys.back()));
      }
    });
  }
}

TEST(DdpRanks, ZeroGradInBothFormsGivesTheSameTraining) {
  run_ranks(2, [](Process& process) {
    const auto reset = train<Mlp>(process.rank(), 2, process.group(), true);
    const auto zeroed = train<Mlp>(process.rank(), 2, process.group(), false);

    for (size_t i = 0; i < reset.size(); ++i) EXPECT_TRUE(torch::equal(reset[i], zeroed[i])) << i;
  });
}

// As where gradients of two losses are compared or projected on one another.
TEST(DdpRanks, AGradientThatIsKeptStaysAsItIs) {
  for (const bool in_place : {false, true}) {
    run_ranks(2, [in_place](Process& process) {
      Mlp net;
      testing::initialise(*net, 1);
      const Ddp ddp(*net, process.group(), {.in_place_bytes = in_place ? std::optional<int64_t>(1) : std::nullopt});
      const auto gradients_of = [&](double factor) {
        net->zero_grad();
        before_forward(ddp);
        (net(torch::ones({2, 8})).square().sum() * (factor + process.rank())).backward();
        std::vector<at::Tensor> list;
        for (const auto& parameter : net->parameters()) list.push_back(parameter.grad());
        return list;
      };
      gradients_of(0);
      const auto kept = gradients_of(1);  // the order of the buckets is known now
      std::vector<at::Tensor> copies;
      for (const auto& gradient : kept) copies.push_back(gradient.clone());

      for (int step = 0; step < 3; ++step) {
        const auto later = gradients_of(10);

        for (size_t i = 0; i < kept.size(); ++i) {
          EXPECT_TRUE(torch::equal(kept[i], copies[i])) << in_place << ' ' << step << ' ' << i;
          EXPECT_TRUE(torch::allclose(later[i], copies[i] * (10.5 / 1.5), 1e-4, 1e-6)) << i;
        }
      }
    });
  }
}

TEST(DdpRanks, GradientsLiveInTheBucketsAfterEverySync) {
  run_ranks(2, [](Process& process) {
    Mlp model;
    const auto ddp = std::make_shared<const Ddp>(*model, process.group());
    const auto parameters = model->parameters();
    const auto backward = [&](bool create_graph = false) {
      model(torch::ones({2, 8})).square().sum().backward({}, {}, create_graph);
    };
    std::vector<std::function<void()>> between = {[&] { model->zero_grad(true); },
                                                  [&] { model->zero_grad(false); },
                                                  [] {},
                                                  [&] { torch::nn::utils::clip_grad_norm_(parameters, 0.1); },
                                                  [&] {
                                                    for (const auto& one : parameters)
                                                      one.mutable_grad() = one.grad() * 2;
                                                  },
                                                  [&] { parameters[1].mutable_grad() = at::Tensor(); },
                                                  [&] {
                                                    const NoSync scope({ddp});
                                                    model->zero_grad(true);
                                                    backward();
                                                  },
                                                  [&] {
                                                    model->zero_grad(true);
                                                    backward(true);
                                                  }};
    backward();
    backward();  // buckets are made anew once
    std::vector<at::Tensor> buckets;
    for (const auto& one : parameters) buckets.push_back(one.grad().detach());

    for (size_t i = 0; i < between.size(); ++i) {
      between[i]();
      backward();

      for (size_t k = 0; k < parameters.size(); ++k) {
        EXPECT_TRUE(buckets[k].is_alias_of(parameters[k].grad())) << "after " << i << ", parameter " << k;
        EXPECT_FALSE(parameters[k].grad().is_view());
      }
    }
    model->zero_grad(true);  // a graph that holds its parameter is a cycle
  });
}

// Autograd hands a parameter's gradient over and the bucket takes it before the next one comes.
TEST(DdpRanks, AtMostOneGradientIsOutsideTheBuckets) {
  run_ranks(2, [](Process& process) {
    Mlp model;
    const Ddp ddp(*model, process.group());
    const auto parameters = model->parameters();
    const auto backward = [&] { model(torch::ones({2, 8})).square().sum().backward(); };
    backward();
    backward();
    const at::Tensor bucket = parameters[0].grad().detach();
    for (const auto& one : parameters) EXPECT_TRUE(one.grad().is_alias_of(bucket)) << "one bucket for all";
    size_t most = 0;
    for (const auto& one : parameters) {
      one.register_hook([&](const at::Tensor& coming) {
        size_t outside = 1;
        for (const auto& other : parameters)
          outside += other.grad().defined() && !other.grad().is_alias_of(bucket) ? 1 : 0;
        most = std::max(most, outside);
        return coming;
      });
    }

    model->zero_grad(true);
    backward();

    EXPECT_EQ(most, 1u);
  });
}

TEST(DdpRanks, ModelsAreCalledInAnyWay) {
  run_ranks(2, [](Process& process) {
    Mlp model;
    const Ddp ddp(*model, process.group());
    const at::Tensor x = torch::ones({1, 8}) * (process.rank() + 1);
    const std::vector<std::function<at::Tensor()>> calls = {
        [&] { return model(x); }, [&] { return model->forward(x); },
        [&] { return model->second->forward(torch::tanh(model->first->forward(x))); }};

    for (const auto& call : calls) {
      model->zero_grad();
      call().sum().backward();
      const auto gradients = process.group().all_gather(model->first->weight.grad());
      EXPECT_TRUE(torch::equal(gradients[0], gradients[1]));
    }
  });
}

TEST(DdpRanks, EveryParameterAloneStartsTheExchange) {
  run_ranks(2, [](Process& process) {
    Mlp model;
    const Ddp ddp(*model, process.group(), {.buckets = {.first_bytes = 1, .bytes = 1}});

    for (const auto& item : model->named_parameters()) {
      model->zero_grad();
      (item.value().sum() * (process.rank() + 1.0)).backward();
      EXPECT_TRUE(torch::equal(item.value().grad(), torch::full_like(item.value(), 1.5))) << item.key();
    }
  });
}

struct BranchingImpl : torch::nn::Module {
  BranchingImpl() {
    register_module("left", left);
    register_module("right", right);
    register_module("never", never);
  }
  at::Tensor forward(const at::Tensor& x, bool go_left) { return go_left ? left(x) : right(x); }
  torch::nn::Linear left{3, 1}, right{3, 1}, never{3, 1};
};
TORCH_MODULE(Branching);

TEST(DdpRanks, BranchesThatDifferBetweenRanksGiveTheMeanOverAllRanks) {
  run_ranks(2, [](Process& process) {
    Branching model;
    const Ddp ddp(*model, process.group(), {.buckets = {.first_bytes = 1, .bytes = 1}});

    model->forward(torch::ones({1, 3}), process.rank() == 0).sum().backward();

    EXPECT_TRUE(torch::equal(model->left->weight.grad(), torch::full({1, 3}, 0.5)));
    EXPECT_TRUE(torch::equal(model->right->weight.grad(), torch::full({1, 3}, 0.5)));
    EXPECT_FALSE(model->never->weight.grad().defined());
  });
}

TEST(DdpRanks, GradientsAddUpWhileTheExchangeIsHeldBack) {
  run_ranks(2, [](Process& process) {
    Mlp model;
    testing::initialise(*model, 1);
    const auto ddp = std::make_shared<const Ddp>(*model, process.group());
    const auto backward = [&](double scale) {
      (model(torch::ones({2, 8})).sum() * scale).backward();
      return model->second->bias.grad()[0].item<double>();
    };

    const double local = [&] {
      const NoSync outer({ddp});
      { const NoSync inner({ddp}); }
      return backward(process.rank() + 1.0);
    }();
    const double mean = backward(process.rank() + 1.0);

    EXPECT_EQ(local, 2.0 * (process.rank() + 1));
    EXPECT_EQ(mean, 6.0);
  });
}

TEST(DdpRanks, ABackwardLeftByAnExceptionDoesNotSpoilTheNext) {
  run_ranks(2, [](Process& process) {
    Mlp model;
    testing::initialise(*model, 1);
    const Ddp ddp(*model, process.group());
    const at::Tensor x = torch::ones({2, 8});
    const at::Tensor hidden = torch::tanh(model->first->forward(x));
    hidden.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("a hook of the user"); });

    EXPECT_THROW(model->second->forward(hidden).sum().backward(), std::runtime_error);
    model->zero_grad();
    model(x).sum().backward();

    EXPECT_EQ(model->second->bias.grad()[0].item<double>(), 2.0);
  });
}

// What was on its way must not come to lie in the gradients of the next backward, nor in its order.
TEST(DdpRanks, ABackwardLeftByAnExceptionLeavesNoExchangeBehind) {
  run_ranks(2, [](Process& process) {
    constexpr int64_t kWidth = 700;
    torch::nn::Linear before(kWidth, kWidth), behind(kWidth, kWidth);
    torch::nn::Sequential model(before, behind);
    testing::initialise(*model, 1);
    const Ddp ddp(*model, process.group(),
                  {.buckets = {.first_bytes = 1 << 20, .bytes = 1 << 20}, .gradient_predivide_factor = 2.0});
    const at::Tensor x = torch::ones({2, kWidth});
    for (int step = 0; step < 4; ++step) {
      const at::Tensor hidden = before(x);
      hidden.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("out of memory"); });
      EXPECT_THROW((100 * behind(hidden)).sum().backward(), std::runtime_error);
      model->zero_grad();

      behind(before(x)).sum().mul(process.rank() + 1).backward();

      EXPECT_TRUE(torch::equal(behind->bias.grad(), torch::full({kWidth}, 3.0F))) << step;
      model->zero_grad();
    }
  });
}

TEST(DdpRanks, BuffersFollowRankZero) {
  run_ranks(2, [](Process& process) {
    Cnn model;
    const Ddp ddp(*model, process.group());
    model->train();

    model(torch::randn({4, 1, 8, 8}) + process.rank()).sum().backward();

    const auto means = process.group().all_gather(model->norm->running_mean);
    EXPECT_TRUE(torch::equal(means[0], means[1]));
    EXPECT_EQ(model->norm->num_batches_tracked.item<int64_t>(), 1);
  });
}

TEST(DdpRanks, DestroyingItTakesTheHooksOff) {
  run_ranks(2, [](Process& process) {
    Mlp model;
    testing::initialise(*model, 1);
    { const Ddp ddp(*model, process.group()); }

    (model(torch::ones({2, 8})).sum() * (process.rank() + 1.0)).backward();

    EXPECT_EQ(model->second->bias.grad()[0].item<double>(), 2.0 * (process.rank() + 1));
  });
}

TEST(DdpRanks, DifferentModelsAreRefusedWithTheFirstDifference) {
  const auto words = run_ranks_collecting(3, [](Process& process) {
    torch::nn::Sequential model(torch::nn::Linear(4, process.rank() == 2 ? 5 : 3));
    const Ddp ddp(*model, process.group());
  });

  for (const auto& said : words) {
    EXPECT_THAT(
        said,
        HasSubstr("rank 0 has '0.weight: parameter Float [3, 4]', rank 2 has '0.weight: parameter Float [5, 4]'"));
  }
}

TEST(DdpRanks, WithoutSyncModuleStatesRanksMustHoldEqualValues) {
  const auto words_for = [](bool differs, const std::string& what) {
    return run_ranks_collecting(3, [&](Process& process) {
      torch::nn::Sequential model(torch::nn::Linear(4, 3), torch::nn::BatchNorm1d(3));
      testing::initialise(*model, 3);
      const torch::NoGradGuard no_grad;
      if (differs && process.rank() == 2) {
        (what == "parameter" ? model->parameters()[1] : model->buffers()[0]).add_(1);
      }
      const Ddp ddp(*model, process.group(), {.sync_module_states = false});
      EXPECT_FALSE(differs);
    });
  };

  for (const auto& said : words_for(true, "parameter")) {
    EXPECT_THAT(said, HasSubstr("'0.bias' has other values on rank 2 than on rank 0"));
  }
  for (const auto& said : words_for(true, "buffer")) {
    EXPECT_THAT(said, HasSubstr("'1.running_mean' has other values on rank 2"));
  }
  words_for(false, "");
}

TEST(Ddp, AWorldOfOneLeavesTheModelAlone) {
  Mlp model;
  const Ddp ddp(*model, comm::Group());

  model(torch::ones({2, 8})).sum().backward();

  EXPECT_TRUE(ddp.plan().empty());
  EXPECT_TRUE(model->second->bias.grad().defined());
}

}  // namespace
}  // namespace hasten::parallel
