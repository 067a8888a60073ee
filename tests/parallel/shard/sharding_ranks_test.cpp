// One mapping a host: the numbers of Ddp on every stage.
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

TEST(Shard, EveryStageGivesTheNumbersOfDdp) {
  for (const int world : {2, 3}) {
    expect_numbers_of_ddp<testing::Mlp>(world, [](auto& t) { train(t, "mlp"); });
    expect_numbers_of_ddp<testing::Cnn>(
        world, [](auto& t) { train(t, "cnn"); }, adamw_or_sgd);
    expect_numbers_of_ddp<testing::EmbeddingModel>(world, [](auto& t) { train(t, "embedding"); });
    // The pretend device has no recurrent kernels.
    if (!testing::on_device()) expect_numbers_of_ddp<testing::GruModel>(world, [](auto& t) { train(t, "gru"); });
    expect_numbers_of_ddp<testing::TransformerModel>(
        world, [](auto& t) { train(t, "transformer"); }, adamw_or_sgd);
  }
}

TEST(Shard, EveryOptimizerGivesTheNumbersOfDdp) {
  using namespace torch::optim;
  const auto check = [](const auto& make) {
    expect_numbers_of_ddp<testing::Mlp>(
        2, [](auto& t) { train(t, "mlp"); }, make);
  };
  check([](const auto& p) { return std::make_unique<SGD>(p, SGDOptions(0.1)); });
  check([](const auto& p) { return std::make_unique<SGD>(p, SGDOptions(0.1).momentum(0.9).weight_decay(0.1)); });
  check([](const auto& p) { return std::make_unique<Adam>(p, AdamOptions(0.01).amsgrad(true)); });
  check([](const auto& p) { return std::make_unique<Adagrad>(p, AdagradOptions(0.1)); });
  check([](const auto& p) { return std::make_unique<RMSprop>(p, RMSpropOptions(0.01).centered(true).momentum(0.5)); });
}

// Steps whole parameters: the update is divided by the parameter's norm.
struct Normalized : torch::optim::SGD {
  using SGD::SGD;
  at::Tensor step(LossClosure = nullptr) override {
    const at::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      for (auto& p : group.params()) {
        if (p.grad().defined()) p.sub_(p.grad() / (p.norm() + 1), 0.1);
      }
    }
    return {};
  }
};

TEST(Shard, AClassOfTheProgramsOwnStepsWholeParameters) {
  const auto make = [](const auto& p) { return std::make_unique<Normalized>(p, 0.1); };
  // On devices stages 2 and 3 have no whole parameters, or gradients, to step.
  const auto stages = testing::on_device() ? std::vector{ShardStage::kOptimizer} : kStages;
  expect_numbers_of_ddp<testing::Mlp>(
      3, [](auto& t) { train(t, "mlp"); }, make, {.wrap = {.unit_bytes = 400}}, stages);
  if (!testing::on_device()) return;
  for (const auto stage : {ShardStage::kGradients, ShardStage::kParameters}) {
    const auto words = run_ranks_collecting(2, [&](auto& process) {
      Trained<testing::Mlp> t(process.group(), small_units(stage), make);
      train(t, "mlp", 1);
    });
    for (const auto& each : words) EXPECT_THAT(each, HasSubstr("steps whole parameters"));
  }
}

struct LargeImpl : torch::nn::Module {
  torch::nn::Linear first{8, 9001}, second{9001, 4};
  LargeImpl() {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) { return second->forward(torch::relu(first->forward(x))); }
};
TORCH_MODULE(Large);

// Above the size from which libtorch uses several threads, with slices below it.
TEST(Shard, LargeParametersGiveTheNumbersOfDdp) {
  using namespace torch::optim;
  const auto check = [](const auto& make) {
    expect_numbers_of_ddp<Large>(
        3, [](auto& t) { train(t, "mlp", 3); }, make);
  };
  check([](const auto& p) { return std::make_unique<SGD>(p, SGDOptions(0.1)); });
  check([](const auto& p) { return std::make_unique<SGD>(p, SGDOptions(0.1).momentum(0.9)); });
  if (testing::on_device()) return;  // gradients near zero, which the first steps of others make large
  check(adamw);
  check([](const auto& p) { return std::make_unique<RMSprop>(p, RMSpropOptions(0.01)); });
}

struct LstmModelImpl : torch::nn::Module {
  torch::nn::LSTM lstm{torch::nn::LSTMOptions(8, 12).num_layers(2).bidirectional(true).batch_first(true)};
  torch::nn::Linear head{24, 4};
  LstmModelImpl() {
    register_module("lstm", lstm);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& x) { return head(std::get<0>(lstm(x)).select(1, -1)); }
};
TORCH_MODULE(LstmModel);

TEST(Shard, AnLstmGivesTheNumbersOfDdpAndStaysShared) {
  expect_numbers_of_ddp<LstmModel>(2, [](auto& t) {
    train(t, "gru", 3);
    t.backward(t.loss("gru", 3));
    const at::NoGradGuard no_grad;
    t.loss("gru", 4);
    if (t.sharding) {
      EXPECT_EQ(t.sharding->num_private_copies(), 0);
    }
  });
}

// The output layer's weight is the embedding's table.
struct TiedImpl : torch::nn::Module {
  torch::nn::Embedding embedding{20, 8};
  at::Tensor weight;
  TiedImpl() {
    register_module("embedding", embedding);
    weight = register_parameter("weight", embedding->weight);
  }
  at::Tensor forward(const at::Tensor& tokens) {
    return torch::linear(embedding(tokens).mean(1), weight).narrow(1, 0, 4);
  }
};
TORCH_MODULE(Tied);

TEST(Shard, ATiedWeightIsOneParameter) {
  expect_numbers_of_ddp<Tied>(2, [](auto& t) { train(t, "embedding"); });
}

TEST(Shard, GroupsKeepTheirOptionsAndChangesOfThem) {
  const auto two_groups = [](const std::vector<at::Tensor>& p) {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{p[0], p[2]},
                        std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions(0.1)));
    groups.emplace_back(std::vector<at::Tensor>{p[1], p[3]},
                        std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions(0.01).weight_decay(0)));
    return std::make_unique<torch::optim::AdamW>(groups, torch::optim::AdamWOptions(1));
  };
  expect_numbers_of_ddp<testing::Mlp>(
      2,
      [](auto& t) {
        train(t, "mlp", 2);
        t.optimizer->param_groups()[1].options().set_lr(0.5);
        train(t, "mlp", 2);
      },
      two_groups);
}

TEST(Shard, AccumulationOfWholeGradientsGivesTheBitsOfDdp) {
  ShardOptions base{.wrap = {.unit_bytes = 400}};
  base.hold = GradientHold::kWhole;
  expect_numbers_of_ddp<testing::Mlp>(
      2,
      [](auto& t) {
        for (int step = 0; step < 3; ++step) {
          t.optimizer->zero_grad();
          {
            const NoSync hold({t.ddp});
            t.backward(t.loss("mlp", 2 * step));
          }
          t.backward(t.loss("mlp", 2 * step + 1));
          t.step();
        }
      },
      adamw, base);
}

// Without zero_grad() between two exchanged backwards.
TEST(Shard, GradientsAddUpOverExchangedBackwards) {
  run_ranks(2, [](auto& process) {
    for (const ShardStage stage : kStages) {
      Trained<testing::Mlp> plain(process.group(), {}, adamw);
      Trained<testing::Mlp> sharded(process.group(), small_units(stage), adamw);
      for (auto* t : {&plain, &sharded}) {
        t->backward(t->loss("mlp", 0));
        t->backward(t->loss("mlp", 1));
        t->backward(t->loss("mlp", 2));
      }
      const auto a = plain.net->parameters(), b = sharded.net->parameters();
      for (size_t i = 0; i < a.size(); ++i) {
        EXPECT_TRUE(at::allclose(a[i].grad(), sharded.gradient(b[i]), 1e-6, 1e-6)) << i;
      }
      process.group().barrier();
    }
  });
}

TEST(Shard, WeightsOfLossesCount) {
  expect_numbers_of_ddp<testing::Mlp>(2, [](auto& t) {
    for (int step = 0; step < 3; ++step) {
      t.optimizer->zero_grad();
      t.backward(t.loss("mlp", step), {.weight = 1.0 + t.group.rank() + step});
      t.step();
    }
  });
}

TEST(Shard, AParameterWithoutGradientKeepsItsValue) {
  expect_numbers_of_ddp<testing::Mlp>(2, [](auto& t) {
    for (int step = 0; step < 4; ++step) {
      t.optimizer->zero_grad();
      const auto problem = testing::problem_for("mlp", step);
      // The second layer takes part on rank 0 in even steps, and on no rank in step 3.
      auto hidden = torch::tanh(t.net->first->forward(problem.inputs.to(t.device)));
      if (t.group.rank() == 0 && step % 2 == 0) hidden = t.net->second->forward(hidden);
      t.backward(hidden.pow(2).mean());
      t.step();
    }
  });
}

TEST(Shard, FrozenParametersAreSharedAndStay) {
  expect_numbers_of_ddp<testing::Mlp>(2, [](auto& t) {
    t.net->first->weight.set_requires_grad(false);
    before_forward(*t.ddp);
    train(t, "mlp");
  });
}

TEST(Shard, ParametersAreOnePlaceForAllRanks) {
  run_ranks(2, [](auto& process) {
    const Trained<testing::Mlp> t(process.group(), small_units(ShardStage::kParameters), adamw);

    // As threads of one process the ranks map the same pages at several addresses: both show one value.
    const auto before = t.parameters();
    EXPECT_TRUE(at::equal(t.net->first->weight, before[0]));
    EXPECT_EQ(t.net->named_parameters().size(), 4u);
    process.group().barrier();
  });
}

TEST(Shard, AnyRankMayEvaluateAndReadGradientsAlone) {
  run_ranks(2, [](auto& process) {
    Trained<testing::Mlp> t(process.group(), small_units(ShardStage::kParameters), adamw);
    train(t, "mlp", 2);
    if (process.rank() == 1) {
      const at::NoGradGuard no_grad;
      EXPECT_EQ(t.net->forward(torch::ones({3, 8})).size(0), 3);
      EXPECT_TRUE(t.net->first->weight.grad().isfinite().all().template item<bool>());
    }
    train(t, "mlp", 2);
  });
}

TEST(Shard, TheNormOfGradientsIsThatOfWholeOnes) {
  run_ranks(3, [](auto& process) {
    for (const ShardStage stage : kStages) {
      Trained<testing::Mlp> t(process.group(), small_units(stage), adamw);
      t.backward(t.loss("mlp", 0));
      std::vector<at::Tensor> norms;
      for (const auto& p : t.net->parameters()) norms.push_back(t.gradient(p).to(at::kDouble).norm());
      const double whole = torch::stack(norms).norm().item<double>();

      EXPECT_NEAR(t.sharding->clip_grad_norm_(t.net->parameters(), whole / 2), whole, 1e-6 * whole);
      EXPECT_NEAR(t.sharding->clip_grad_norm_(t.net->parameters(), 1e9), whole / 2, 1e-5 * whole);
      EXPECT_NEAR(t.gradient(t.net->first->weight).to(at::kDouble).norm().template item<double>(),
                  norms[0].template item<double>() / 2, 1e-5 * whole);
      process.group().barrier();
      t.sharding->clip_grad_value_(t.net->parameters(), 1e-3);
      EXPECT_LE(t.gradient(t.net->first->weight).abs().max().template item<double>(), 1.001e-3);
      process.group().barrier();
    }
  });
}

TEST(Shard, StateIsSplitAndGathersToTheWhole) {
  run_ranks(3, [](auto& process) {
    Trained<testing::Mlp> plain(process.group(), {}, adamw);
    Trained<testing::Mlp> sharded(process.group(), small_units(ShardStage::kOptimizer), adamw);
    train(plain, "mlp", 3);
    train(sharded, "mlp", 3);

    int64_t own = 0, all = 0;
    for (const auto& piece : sharded.sharding->sharded_state(*sharded.optimizer)) own += piece.tensor.numel();
    for (const auto& parameter : plain.net->parameters()) all += 2 * parameter.numel();
    EXPECT_LT(own, all);
    const auto whole = sharded.sharding->full_state(*sharded.optimizer);
    ASSERT_EQ(whole.size(), 12u);
    for (const auto& piece : whole) {
      const auto parameter = plain.net->named_parameters()[piece.parameter];
      const auto& state = static_cast<const torch::optim::AdamWParamState&>(
          *plain.optimizer->state().at(parameter.unsafeGetTensorImpl()));
      if (piece.name == "step") {
        EXPECT_EQ(piece.tensor.template item<int64_t>(), 3);
      }
      if (piece.name == "exp_avg") {
        EXPECT_TRUE(testing::same_values(piece.tensor, state.exp_avg()));
      }
      if (piece.name == "exp_avg_sq") {
        EXPECT_TRUE(testing::same_values(piece.tensor, state.exp_avg_sq()));
      }
    }
    process.group().barrier();
  });
}

using ShardInFolder = testing::InFolder;

TEST_F(ShardInFolder, StateInFilesGivesTheNumbersOfDdp) {
  ShardOptions base{.wrap = {.unit_bytes = 400}};
  base.optimizer_offload = {.device = OffloadDevice::kFile, .path = path("state"), .tile_numel = 70};
  for (const auto& make :
       {Trained<testing::Mlp>::MakeOptimizer(adamw), Trained<testing::Mlp>::MakeOptimizer([](const auto& p) {
          return std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(0.1).momentum(0.9));
        })}) {
    expect_numbers_of_ddp<testing::Mlp>(
        2, [](auto& t) { train(t, "mlp"); }, make, base);
  }
  EXPECT_TRUE(std::filesystem::is_empty(path("state")));
}

TEST_F(ShardInFolder, ParametersInAFileGiveTheNumbersOfDdp) {
  ShardOptions base{.stage = ShardStage::kParameters, .wrap = {.unit_bytes = 400}};
  base.parameter_offload = {.device = OffloadDevice::kFile, .path = path("parameters")};

  if (testing::on_device()) {  // refused by name
    const auto words =
        run_ranks_collecting(2, [&](auto& process) { const Trained<testing::Mlp> t(process.group(), base, adamw); });
    for (const auto& each : words) EXPECT_THAT(each, HasSubstr("Let them rest in memory (OffloadDevice::kCpu"));
    return;
  }
  expect_numbers_of_ddp<testing::Mlp>(
      2, [](auto& t) { train(t, "mlp"); }, adamw, base);

  EXPECT_TRUE(std::filesystem::is_empty(path("parameters")));
}

TEST(Shard, OffloadWithoutAFolderIsRefused) {
  ShardOptions options = small_units(ShardStage::kOptimizer);
  options.optimizer_offload.device = OffloadDevice::kFile;

  EXPECT_THROW(Sharding(comm::Group(), options), UsageError);
}

TEST(Shard, LbfgsIsRefused) {
  const auto words = run_ranks_collecting(2, [](auto& process) {
    Trained<testing::Mlp> t(process.group(), small_units(ShardStage::kOptimizer),
                            [](const auto& p) { return std::make_unique<torch::optim::LBFGS>(p); });
    t.step();
  });

  EXPECT_THAT(words[0], HasSubstr("LBFGS"));
}

TEST(Shard, UnitsMayBeGivenByName) {
  ShardOptions base{.stage = ShardStage::kParameters};
  base.units = [](const torch::nn::Module&) {
    return std::vector<std::vector<std::string>>{{"first.weight"}, {"second.weight", "second.bias", "no.such"}};
  };
  run_ranks(2, [&](auto& process) {
    const Trained<testing::Mlp> t(process.group(), base, adamw);

    // The trainable parameters in the module's order; first.bias is left over.
    EXPECT_EQ(t.ddp->plan(), (BucketPlan{{2, 3}, {0}, {1}}));
    process.group().barrier();
  });
  expect_numbers_of_ddp<testing::Mlp>(
      3, [](auto& t) { train(t, "mlp"); }, adamw, base);
}

TEST(Shard, NoWrapIsOneUnit) {
  run_ranks(2, [&](auto& process) {
    const ShardOptions options{.stage = ShardStage::kParameters,
                               .wrap = {.rule = WrapPolicy::Rule::kNone, .unit_bytes = 4}};
    const Trained<testing::Mlp> t(process.group(), options, adamw);

    EXPECT_EQ(t.ddp->plan().size(), 1u);
    process.group().barrier();
  });
}

TEST(Shard, IgnoredModulesAreReplicated) {
  ShardOptions base{.wrap = {.unit_bytes = 400}};
  base.ignored = {"second"};
  expect_numbers_of_ddp<testing::Mlp>(
      2, [](auto& t) { train(t, "mlp"); }, adamw, base);
}

TEST(Shard, RanksWithOtherOptionsAreNamed) {
  const auto words = run_ranks_collecting(2, [&](auto& process) {
    const auto stage = process.rank() == 0 ? ShardStage::kGradients : ShardStage::kParameters;
    Trained<testing::Mlp> t(process.group(), small_units(stage), adamw);
  });

  for (const auto& said : words) EXPECT_THAT(said, HasSubstr("rank 0 shards with stage 2"));
}

// Which layers take part depends on the rank and the step; nothing is said about it beforehand.
TEST(Shard, RanksMayTakeDifferentPathsThroughTheModel) {
  expect_numbers_of_ddp<testing::Mlp>(3, [](auto& t) {
    std::mt19937 random(t.group.rank());
    for (int step = 0; step < 8; ++step) {
      t.optimizer->zero_grad();
      auto hidden = testing::problem_for("mlp", step).inputs;
      if (random() % 2 == 0) hidden = t.net->first->forward(hidden).narrow(1, 0, 8);
      if (random() % 2 == 0) hidden = t.net->second->forward(t.net->first->forward(hidden));
      if (hidden.requires_grad()) {
        t.backward(hidden.pow(2).mean());
      } else {
        t.backward(torch::zeros({}));
      }
      t.step();
    }
  });
}

TEST(Shard, TorchScriptModulesShareTheirParameters) {
  run_ranks(2, [](auto& process) {
    const auto train_script = [&](bool sharded) {
      torch::jit::Module script("net");
      auto generator = at::make_generator<at::CPUGeneratorImpl>(3);
      script.register_parameter("w", torch::randn({8, 4}, generator).requires_grad_(), false);
      script.define("def forward(self, x):\n  return torch.tanh(x @ self.w) @ torch.t(self.w)\n");
      script.to(sharded ? testing::test_device() : c10::Device(at::kCPU));
      JitModule module(script);
      std::unique_ptr<Sharding> sharding;
      DdpOptions options;
      if (sharded) {
        sharding = std::make_unique<Sharding>(process.group(), small_units(ShardStage::kParameters));
        options.exchange = sharding->make_exchange(process.group());
      }
      const auto ddp = std::make_shared<const Ddp>(*module, process.group(), options);
      torch::optim::SGD sgd(module->parameters(), 0.1);
      for (int step = 0; step < 6; ++step) {
        sgd.zero_grad();
        const auto x =
            testing::problem_for("mlp", 10 * step + process.rank()).inputs.to(module->parameters()[0].device());
        backward(script.forward({x}).toTensor().pow(2).mean(), {}, {.models = {ddp}, .group = process.group()});
        const auto own = [&] { return optim::optimizer_step(sgd); };
        sharding ? sharding->step(sgd, own) : own();
      }
      return module->parameters()[0].detach().clone();
    };

    EXPECT_TRUE(testing::same_values(train_script(false), train_script(true)));
    process.group().barrier();
  });
}

// A linear layer whose output is not kept: backward computes it again from the parameters as they are then.
struct Recomputed : torch::autograd::Function<Recomputed> {
  using Context = torch::autograd::AutogradContext;
  static at::Tensor layer(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
    return torch::tanh(torch::linear(x, weight, bias));
  }
  static at::Tensor forward(Context* context, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
    context->save_for_backward({x, weight, bias});
    return layer(x, weight, bias);
  }
  static torch::autograd::variable_list backward(Context* context, torch::autograd::variable_list gradients) {
    const at::AutoGradMode with_grad(true);
    torch::autograd::variable_list again;
    for (const auto& saved : context->get_saved_variables()) again.push_back(saved.detach().requires_grad_());
    return torch::autograd::grad({layer(again[0], again[1], again[2])}, again, {gradients[0]});
  }
};

struct RecomputedMlpImpl : testing::MlpImpl {
  at::Tensor forward(const at::Tensor& x) { return second(Recomputed::apply(x, first->weight, first->bias)); }
};
TORCH_MODULE(RecomputedMlp);

TEST(Shard, LayersThatAreRecomputedGiveTheNumbersOfDdp) {
  expect_numbers_of_ddp<RecomputedMlp>(2, [](auto& t) { train(t, "mlp"); });
}

// The list of split parameters was once that of a model that had ended, where the new one lay at its address.
TEST(Shard, AModelAtTheAddressOfAnEndedOneIsSplit) {
  run_ranks(2, [](auto& process) {
    Sharding sharding(process.group(), small_units(ShardStage::kGradients));
    for (int round = 0; round < 20; ++round) {
      testing::Mlp net;
      testing::initialise(*net, 5);
      net->to(testing::test_device());
      torch::optim::AdamW adam(net->parameters(), 0.01);
      DdpOptions options;
      options.exchange = sharding.make_exchange(process.group());
      const auto ddp = std::make_shared<const Ddp>(*net, process.group(), options);
      EXPECT_TRUE(sharding.steps(adam)) << "round " << round;
      EXPECT_TRUE(sharding.stepped_interval(adam, net->parameters()[0]).has_value()) << "round " << round;
      process.group().barrier();
    }
  });
}

TEST(Shard, TwoHostsGiveTheNumbersOfOne) {
  const auto hosts = [](int rank, comm::GroupOptions& options) {
    options.host = rank < 2 ? "a" : "b";
    options.address = "127.0.0.1";
  };
  run_ranks(4,
            [](auto& process) {
              Trained<testing::Mlp> plain(process.group(), {}, adamw);
              train(plain, "mlp", 4);
              for (const ShardStage stage : kStages) {
                Trained<testing::Mlp> sharded(process.group(), small_units(stage), adamw);
                train(sharded, "mlp", 4);
                const auto a = plain.parameters(), b = sharded.parameters();
                for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::allclose(a[i], b[i], 1e-4, 1e-5)) << i;
                for (const auto& all : process.group().all_gather(b[0])) EXPECT_TRUE(testing::same_values(all, b[0]));
              }
            },
            {.adjust = hosts});
}

}  // namespace
}  // namespace hasten::parallel
