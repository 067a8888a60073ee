// What an ordinary loop may do to a model without telling anybody: one test for each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <sstream>

#include "hasten/core/error.h"
#include "hasten/parallel/ddp/backward.h"
#include "hasten/parallel/ddp/ddp.h"
#include "hasten/parallel/ddp/distributed_models.h"
#include "support/models.h"
#include "support/ranks.h"

namespace hasten::parallel {
namespace {

using process::Process;
using ::testing::HasSubstr;
using testing::Mlp;
using testing::run_ranks;
using testing::run_ranks_collecting;

constexpr BucketLimits kSmall{.first_bytes = 60, .bytes = 300};

struct Steps {
  torch::nn::Module& module;
  comm::Group group;
  Ddp::Models models;
  void backward(const at::Tensor& loss, const BackwardOptions& options = {}) const {
    parallel::backward(loss, options, {.models = models, .group = group});
  }
};

// One rank's part of the 24 rows of a problem.
at::Tensor rows_of(const at::Tensor& all, const comm::Group& group) {
  return all.chunk(group.world_size())[group.rank()];
}

// Trains by `step`, which gets this rank's rows, on 1 to 4 ranks, and compares the parameters at the end;
// also .grad(), defined or not. Gradients are born in their buckets, and copied there.
template <class Model>
void expect_ranks_equal_one(const std::function<void(Model&, const Steps&, const at::Tensor&, int)>& step,
                            const DdpOptions& given = {.buckets = kSmall}) {
  const auto train = [&](const comm::Group& group, std::optional<int64_t> in_place_bytes) {
    DdpOptions options = given;
    options.in_place_bytes = in_place_bytes;
    Model model;
    testing::initialise(*model, 5);
    model->to(at::kDouble);
    const Steps steps{*model, group, {std::make_shared<const Ddp>(*model, group, options)}};
    const auto inputs = testing::problem_for("mlp").inputs.to(at::kDouble);
    for (int i = 0; i < 6; ++i) step(model, steps, rows_of(inputs, group), i);
    std::vector<at::Tensor> result;
    for (const auto& parameter : model->parameters()) {
      result.push_back(parameter.detach().clone());
      result.push_back(parameter.grad().defined() ? parameter.grad().to_dense().clone() : at::Tensor());
    }
    return result;
  };
  const auto alone = train(comm::Group(), {});
  for (const int world_size : {2, 3, 4}) {
    for (const auto in_place_bytes : {std::optional<int64_t>(1), std::optional<int64_t>()}) {
      run_ranks(world_size, [&](Process& process) {
        const auto mine = train(process.group(), in_place_bytes);
        for (size_t i = 0; i < alone.size(); ++i) {
          ASSERT_EQ(mine[i].defined(), alone[i].defined()) << i;
          if (!alone[i].defined()) continue;
          EXPECT_TRUE(torch::allclose(mine[i], alone[i], 1e-9, 1e-9)) << world_size << " ranks, " << i;
        }
      });
    }
  }
}

void descend(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (auto& parameter : module.parameters()) {
    if (parameter.requires_grad() && parameter.grad().defined()) parameter.add_(parameter.grad(), -0.1);
  }
}

struct PartsImpl : torch::nn::Module {
  PartsImpl() {
    register_module("left", left);
    register_module("right", right);
    register_module("never", never);
    tied = register_parameter("tied", torch::zeros({8, 8}));
    register_parameter("tied_again", tied);
  }
  torch::nn::Linear left{8, 8}, right{8, 8}, never{8, 1};
  at::Tensor tied;
};
TORCH_MODULE(Parts);

using Loop = std::function<void(Parts&, const Steps&, const at::Tensor&, int)>;

TEST(DdpJustWorks, BranchesThatDifferBetweenSteps) {
  enum class Zero { kNone, kToNone, kToZero };
  // What a parameter without a gradient in this step keeps is what the loop left it: nothing, zeros, the
  // last.
  for (const Zero zero : {Zero::kNone, Zero::kToNone, Zero::kToZero}) {
    expect_ranks_equal_one<Parts>([&](Parts& model, const Steps& steps, const at::Tensor& x, int i) {
      if (zero != Zero::kNone) model->zero_grad(zero == Zero::kToNone);
      steps.backward((i % 2 == 0 ? model->left(x) : model->right(x)).square().mean());
      descend(*model);
    });
  }
}

// WGAN-GP's penalty: on the gradient of the output by the input, which is made without touching .grad().
TEST(DdpJustWorks, APenaltyOnTheGradientOfTheInput) {
  expect_ranks_equal_one<Parts>([](Parts& model, const Steps& steps, const at::Tensor& x, int) {
    model->zero_grad();
    const at::Tensor input = x.detach().clone().requires_grad_();
    const at::Tensor output = model->right(torch::tanh(model->left(input)));
    const at::Tensor gradient = torch::autograd::grad({output.sum()}, {input}, {}, true, true).front();
    steps.backward(output.mean() + (gradient.norm(2, 1) - 1).square().mean());
    descend(*model);
  });
}

TEST(DdpJustWorks, AParameterUsedTwiceAndRegisteredTwice) {
  expect_ranks_equal_one<Parts>([](Parts& model, const Steps& steps, const at::Tensor& x, int) {
    model->zero_grad();
    steps.backward(model->left(model->left(x).matmul(model->tied)).matmul(model->tied).square().mean());
    descend(*model);
  });
}

TEST(DdpJustWorks, SeveralForwardsBeforeOneBackward) {
  expect_ranks_equal_one<Parts>([](Parts& model, const Steps& steps, const at::Tensor& x, int) {
    model->zero_grad();
    const auto one = model->left(x), two = model->left(x * 2), three = model->right(x);
    steps.backward((one * two + three).mean());
    descend(*model);
  });
}

TEST(DdpJustWorks, SeveralBackwardsPerStep) {
  for (const bool weighted : {false, true}) {
    expect_ranks_equal_one<Parts>([&](Parts& model, const Steps& steps, const at::Tensor& x, int i) {
      model->zero_grad(i % 2 == 0);
      BackwardOptions options;
      if (weighted) options.weight = static_cast<double>(x.size(0));
      steps.backward(model->left(x).square().mean(), options);
      steps.backward(model->right(model->left(x)).square().mean(), options);
      descend(*model);
    });
  }
}

TEST(DdpJustWorks, FrozenAndLaterUnfrozenParameters) {
  expect_ranks_equal_one<Parts>([](Parts& model, const Steps& steps, const at::Tensor& x, int i) {
    for (auto& parameter : model->left->parameters()) parameter.set_requires_grad(i >= 2);
    for (auto& parameter : model->right->parameters()) parameter.set_requires_grad(i < 4);
    model->zero_grad();
    steps.backward(model->right(model->left(x)).square().mean());
    descend(*model);
  });
}

TEST(DdpJustWorks, AUserReadsAndReplacesGradients) {
  expect_ranks_equal_one<Parts>([](Parts& model, const Steps& steps, const at::Tensor& x, int i) {
    if (i % 3 == 0) model->zero_grad();
    auto& gradient = model->left->weight.mutable_grad();
    if (i % 3 == 1) gradient = gradient.clone() * 0.5;
    if (i % 3 == 2) gradient = torch::ones_like(model->left->weight);
    steps.backward(model->left(x).square().mean());
    torch::nn::utils::clip_grad_norm_(model->parameters(), 0.5);
    descend(*model);
  });
}

TEST(DdpJustWorks, ParametersAddedLater) {
  expect_ranks_equal_one<Parts>([](Parts& model, const Steps& steps, const at::Tensor& x, int i) {
    if (i == 2) model->register_parameter("late", torch::full({8}, steps.group.rank() + 1.0, at::kDouble));
    model->zero_grad();
    const auto parameters = model->named_parameters();
    const auto* late = parameters.find("late");
    for (const auto& model : steps.models) model->refresh_if_changed();
    steps.backward((model->left(x) * (late != nullptr ? *late : torch::ones({8}, at::kDouble))).square().mean());
    descend(*model);
  });
}

TEST(DdpJustWorks, AReplacedModuleIsExchangedFromTheNextForwardOn) {
  expect_ranks_equal_one<Parts>([](Parts& model, const Steps& steps, const at::Tensor& x, int i) {
    if (i == 2) {
      torch::nn::Linear other(8, 8);
      testing::initialise(*other, 100 + steps.group.rank());  // rank 0's values must win
      other->to(at::kDouble);
      model->left = model->replace_module("left", other);
    }
    model->zero_grad();
    for (const auto& ddp : steps.models) ddp->refresh_if_changed();
    steps.backward(model->left(x).square().mean());
    descend(*model);
  });
}

TEST(DdpJustWorks, AModuleThatWasReplacedButIsStillUsedIsRefusedByName) {
  const auto words = run_ranks_collecting(2, [](Process& process) {
    Parts model;
    const at::Tensor batch = torch::ones({2, 8});
    {
      const Steps steps{*model, process.group(), {std::make_shared<const Ddp>(*model, process.group())}};
      model->replace_module("left", torch::nn::Linear(8, 8));
      try {
        steps.backward((model->left(batch) + model->right(batch)).sum());
      } catch (const UsageError&) {
        model->replace_module("left", model->left);
        steps.backward((model->left(batch) + model->right(batch)).sum());
        throw;
      }
    }
  });

  for (const auto& said : words) {
    EXPECT_THAT(said, HasSubstr("' got a gradient, but was taken out of the model after prepare"));
    EXPECT_THAT(said, HasSubstr("'left."));
  }
}

TEST(DdpJustWorks, EveryOptionGivesTheSameGradients) {
  const Loop loop = [](Parts& model, const Steps& steps, const at::Tensor& x, int i) {
    model->zero_grad(i % 2 == 0);
    steps.backward(model->right(torch::tanh(model->left(x))).square().mean());
    descend(*model);
  };
  expect_ranks_equal_one<Parts>(loop, {.buckets = kSmall, .static_graph = true});
  expect_ranks_equal_one<Parts>(loop, {.buckets = kSmall, .delay_allreduce = true});
  expect_ranks_equal_one<Parts>(loop, {.buckets = kSmall, .gradient_predivide_factor = 2.0});
  expect_ranks_equal_one<Parts>(loop, {.check_parameters_every = 1});
}

TEST(DdpJustWorks, DelayAllreduceSendsNothingBeforeBackwardIsOver) {
  for (const bool delay : {false, true}) {
    run_ranks(2, [&](Process& process) {
      Mlp model;
      bool all_there = true;
      const CommHook hook = [&](const GradientBucket& bucket, const comm::Group& group) {
        all_there = all_there && model->first->weight.grad().defined();
        return group.all_reduce_async_(bucket.buffer);
      };
      const Ddp ddp(*model, process.group(), {.buckets = kSmall, .comm_hook = hook, .delay_allreduce = delay});

      model(torch::ones({2, 8})).sum().backward();

      EXPECT_EQ(all_there, delay);
    });
  }
}

TEST(DdpJustWorks, WithoutAveragingGradientsAreTheSum) {
  run_ranks(3, [](Process& process) {
    for (const std::optional<double> predivide : {std::optional<double>(), std::optional<double>(2)}) {
      torch::nn::Linear model(torch::nn::LinearOptions(1, 1).bias(false));
      const Ddp ddp(*model, process.group(), {.gradient_predivide_factor = predivide, .average = false});

      model(torch::full({1, 1}, process.rank() + 1.0)).sum().backward();
      EXPECT_FLOAT_EQ(model->weight.grad().item<float>(), 1 + 2 + 3);
    }
  });
}

TEST(DdpJustWorks, TheCommunicationDtypeIsThatOfTheSums) {
  run_ranks(2, [](Process& process) {
    const float more = 1 + 1.0F / 1024;  // bfloat16 rounds it to 1
    for (const bool half : {false, true}) {
      torch::nn::Linear model(torch::nn::LinearOptions(1, 1).bias(false));
      DdpOptions options;
      if (half) options.communication_dtype = at::kBFloat16;
      const Ddp ddp(*model, process.group(), options);

      model(torch::full({1, 1}, more)).sum().backward();

      EXPECT_EQ(model->weight.grad().item<float>(), half ? 1 : more);
    }
  });
}

TEST(DdpJustWorks, HalfPrecisionOnTheWireCostsItsBitsOnly) {
  run_ranks(2, [](Process& process) {
    Mlp model;
    testing::initialise(*model, 5);
    const Ddp ddp(*model, process.group(), {.buckets = kSmall, .communication_dtype = at::kBFloat16});
    const auto inputs = testing::problem_for("mlp").inputs;

    model(rows_of(inputs, process.group())).square().mean().backward();
    const auto mine = model->first->weight.grad().clone();
    Mlp plain;
    testing::initialise(*plain, 5);
    plain(inputs).square().mean().backward();

    EXPECT_TRUE(torch::allclose(mine, plain->first->weight.grad(), 2e-2, 2e-3));
    EXPECT_FALSE(torch::equal(mine, plain->first->weight.grad())) << "bits have been lost on the way";
    EXPECT_EQ(mine.scalar_type(), at::kFloat);
  });
}

TEST(DdpJustWorks, AStaticGraphThatChangesIsRefused) {
  const auto words = run_ranks_collecting(2, [](Process& process) {
    Parts model;
    const Ddp ddp(*model, process.group(), {.static_graph = true});
    model->left(torch::ones({1, 8})).sum().backward();
    model->right(torch::ones({1, 8})).sum().backward();
  });

  for (const auto& said : words) EXPECT_THAT(said, HasSubstr("Turn DdpOptions::static_graph off"));
}

TEST(DdpJustWorks, BucketsFollowTheOrderOfArrivalOnce) {
  run_ranks(2, [](Process& process) {
    Parts model;  // registered: tied, left, right, never
    const Ddp ddp(*model, process.group(), {.buckets = {.first_bytes = 1, .bytes = 1}});
    const auto before = ddp.plan();
    const auto backward = [&] {
      model->zero_grad();
      model->left(model->right(torch::ones({1, 8})).matmul(model->tied)).sum().backward();
    };

    backward();
    EXPECT_EQ(ddp.plan(), before);
    backward();
    const auto learned = ddp.plan();
    backward();

    // The order of parameters is tied, left.weight, left.bias, right.weight, right.bias, …; left comes first.
    EXPECT_NE(learned, before);
    EXPECT_LT(learned.front().front(), 3u) << "left's";
    EXPECT_EQ(ddp.plan(), learned);
  });
}

struct TablesImpl : torch::nn::Module {
  TablesImpl() {
    register_module("table", table);
    register_module("bag", bag);
    register_module("head", head);
  }
  torch::nn::Embedding table{torch::nn::EmbeddingOptions(50, 4).sparse(true)};
  torch::nn::EmbeddingBag bag{torch::nn::EmbeddingBagOptions(50, 4).sparse(true).mode(torch::kSum)};
  torch::nn::Linear head{4, 1};
};
TORCH_MODULE(Tables);

TEST(DdpJustWorks, SparseGradientsStaySparse) {
  expect_ranks_equal_one<Tables>([](Tables& model, const Steps& steps, const at::Tensor& x, int i) {
    model->zero_grad();
    const auto tokens = (x.select(1, 0).abs() * 20).to(at::kLong).remainder(50);
    auto hidden = model->table(tokens);
    if (i % 2 == 0) hidden = hidden + model->bag(tokens.unsqueeze(1));
    steps.backward(model->head(hidden).square().mean());
    EXPECT_TRUE(model->table->weight.grad().is_sparse());
    descend(*model);
  });
}

struct DtypesImpl : torch::nn::Module {
  DtypesImpl() {
    register_module("wide", wide);
    register_module("half", half);
    half->to(at::kBFloat16);
  }
  torch::nn::Linear wide{8, 8}, half{8, 1};
};
TORCH_MODULE(Dtypes);

TEST(DdpJustWorks, SeveralDtypesAndWeightsInHalfPrecision) {
  run_ranks(2, [](Process& process) {
    Dtypes model;
    torch::nn::Linear halves(2, 1);
    halves->to(at::kBFloat16);
    const Steps steps{*model, process.group(), {std::make_shared<const Ddp>(*model, process.group())}};
    const Steps only{*halves, process.group(), {std::make_shared<const Ddp>(*halves, process.group())}};

    steps.backward(model->half(model->wide(torch::ones({1, 8})).to(at::kBFloat16)).sum() * (process.rank() + 1));
    only.backward(halves(torch::ones({1, 2}, at::kBFloat16)).sum() * (process.rank() + 1), {.weight = 100001.0});

    EXPECT_EQ(model->wide->weight.grad().scalar_type(), at::kFloat);
    EXPECT_EQ(model->half->bias.grad().item<double>(), 1.5);
    const auto wides = process.group().all_gather(model->wide->bias.grad());
    EXPECT_TRUE(torch::equal(wides[0], wides[1]));
    EXPECT_TRUE(torch::allclose(wides[0], model->half->weight.flatten().to(at::kFloat) * 1.5, 1e-2));
    EXPECT_EQ(halves->bias.grad().item<double>(), 1.5);
  });
}

TEST(DdpJustWorks, AParameterOfTwoModelsBelongsToTheFirst) {
  run_ranks(2, [](Process& process) {
    Parts one, two;
    two->replace_module("left", one->left.ptr());
    two->left = one->left;
    DistributedModels models;
    const auto first = models.distribute(*one, process.group(), {});
    const auto second = models.distribute(*two, process.group(), {});
    const at::Tensor x = torch::ones({1, 8}) * (process.rank() + 1);

    backward(two->right(two->left(x)).sum() + one->right(x).sum(), {},
             {.models = models.all(), .group = process.group()});

    EXPECT_EQ(first->parameters().size(), second->parameters().size() + 2);
    for (const auto& parameter : {one->left->weight, one->right->weight, two->right->weight}) {
      const auto everybodys = process.group().all_gather(parameter.grad());
      EXPECT_TRUE(torch::equal(everybodys[0], everybodys[1]));
    }
  });
}

TEST(DdpJustWorks, TwoModelsWithTheirOwnOptimizers) {
  const auto train = [](const comm::Group& group) {
    Mlp generator;
    torch::nn::Linear critic(4, 1);
    testing::initialise(*generator, 1);
    testing::initialise(*critic, 2);
    DistributedModels models;
    const auto one = models.distribute(*generator, group, {}), two = models.distribute(*critic, group, {});
    torch::optim::Adam for_generator(generator->parameters(), 1e-2), for_critic(critic->parameters(), 1e-2);
    const BackwardContext context{.models = models.all(), .group = group};
    const at::Tensor noise = rows_of(testing::problem_for("mlp").inputs, group);
    for (int step = 0; step < 5; ++step) {
      for_critic.zero_grad();
      backward(torch::softplus(critic(generator(noise).detach())).mean(), {}, context);
      backward(torch::softplus(-critic(noise.narrow(1, 0, 4))).mean(), {}, context);
      for_critic.step();
      for_generator.zero_grad();
      backward(torch::softplus(-critic(generator(noise))).mean(), {}, context);
      for_generator.step();
    }
    return std::pair(generator->first->weight.detach().clone(), critic->weight.detach().clone());
  };
  const auto alone = train(comm::Group());
  run_ranks(3, [&](Process& process) {
    const auto mine = train(process.group());
    EXPECT_TRUE(torch::allclose(mine.first, alone.first, 1e-4, 1e-5));
    EXPECT_TRUE(torch::allclose(mine.second, alone.second, 1e-4, 1e-5));
  });
}

TEST(DdpJustWorks, AnotherDtypeAfterPrepareIsHookedAgain) {
  run_ranks(2, [](Process& process) {
    Mlp model;
    testing::initialise(*model, 1);
    const Steps steps{*model, process.group(), {std::make_shared<const Ddp>(*model, process.group())}};
    const auto backward = [&](at::ScalarType dtype) {
      model->zero_grad();
      steps.backward(model(torch::ones({2, 8}, dtype)).sum() * (process.rank() + 1.0));
      return model->second->bias.grad();
    };

    backward(at::kFloat);
    model->to(at::kDouble);
    const at::Tensor gradient = backward(at::kDouble);

    EXPECT_EQ(gradient.scalar_type(), at::kDouble);
    EXPECT_EQ(gradient[0].item<double>(), 3.0);
  });
}

TEST(DdpJustWorks, ALoadOnOneRankOnlyIsRefusedByName) {
  const auto words = run_ranks_collecting(2, [](Process& process) {
    Mlp model, saved;
    testing::initialise(*saved, 9);
    std::stringstream file;
    torch::save(saved, file);
    const Steps steps{*model, process.group(), {std::make_shared<const Ddp>(*model, process.group())}};
    steps.backward(model(torch::ones({2, 8})).sum());
    if (process.is_main_process()) torch::load(model, file);
    steps.backward(model(torch::ones({2, 8})).sum());
  });

  for (const auto& said : words) {
    EXPECT_THAT(said, HasSubstr("'first.weight' is no longer the same on all ranks: rank 1 and rank 0"));
  }
}

TEST(DdpJustWorks, ALoadOnEveryRankGoesOn) {
  run_ranks(2, [](Process& process) {
    Mlp model, saved;
    testing::initialise(*saved, 9);
    std::stringstream file;
    torch::save(saved, file);
    const Steps steps{*model, process.group(), {std::make_shared<const Ddp>(*model, process.group())}};

    torch::load(model, file);
    steps.backward(model(torch::ones({2, 8})).sum() * (process.rank() + 1.0));

    EXPECT_EQ(model->second->bias.grad()[0].item<double>(), 3.0);
  });
}

TEST(DdpJustWorks, ParametersThatPartAreFoundByTheirChecksum) {
  const auto words = run_ranks_collecting(3, [](Process& process) {
    Mlp model;
    const Ddp ddp(*model, process.group(), {.check_parameters_every = 2});
    for (int step = 0; step < 2; ++step) {
      const torch::NoGradGuard no_grad;
      // As many up as down.
      if (process.rank() == 2) model->second->bias.copy_(torch::tensor({0.3, 0.3, -0.3, -0.3})).add_(1e-3);
      if (process.rank() != 2) model->second->bias.copy_(torch::tensor({0.3, 0.3, -0.3, -0.3}));
      const torch::AutoGradMode with_grad(true);
      model(torch::ones({2, 8})).sum().backward();
    }
  });

  for (const auto& said : words) {
    EXPECT_THAT(said, HasSubstr("'second.bias' is no longer the same on all ranks: rank 2 and rank 0"));
  }
}

TEST(DdpJustWorks, WithoutTheChecksumParametersMayPart) {
  run_ranks(2, [](Process& process) {
    Mlp model;
    const Ddp ddp(*model, process.group(), {.check_parameters_every = 0});
    const torch::NoGradGuard no_grad;
    model->second->bias.add_(process.rank());
    const torch::AutoGradMode with_grad(true);

    EXPECT_NO_THROW(model(torch::ones({2, 8})).sum().backward());
  });
}

TEST(DdpJustWorks, ACopyHasGradientsOfItsOwn) {
  run_ranks(2, [](Process& process) {
    torch::nn::Linear model(8, 4);
    const Steps steps{*model, process.group(), {std::make_shared<const Ddp>(*model, process.group())}};
    const auto copy = std::dynamic_pointer_cast<torch::nn::LinearImpl>(model->clone());

    steps.backward(copy->forward(torch::ones({2, 8})).sum() * (process.rank() + 1.0));

    EXPECT_EQ(copy->bias.grad()[0].item<double>(), 2.0 * (process.rank() + 1.0)) << "never prepared";
    EXPECT_FALSE(steps.models[0]->step().had_gradients()) << "and the model's parameters are named in a warning";
    EXPECT_FALSE(model->bias.grad().defined());
  });
}

TEST(DdpJustWorks, UnusedParametersAreNamedOnce) {
  ::testing::internal::CaptureStderr();
  run_ranks(2, [](Process& process) {
    Parts model;
    const Ddp ddp(*model, process.group());
    for (int step = 0; step < 3; ++step) {
      auto loss = model->left(torch::ones({1, 8})).sum();
      if (step == 0) loss = loss + model->right(torch::ones({1, 8})).sum();
      model->zero_grad();
      loss.backward();
    }
  });
  const std::string said = ::testing::internal::GetCapturedStderr();

  for (const std::string name : {"'never.weight'", "'right.weight'"}) {
    EXPECT_NE(said.find(name), std::string::npos) << said;
    EXPECT_EQ(said.find(name), said.rfind(name)) << said;
  }
  EXPECT_EQ(said.find("left.weight"), std::string::npos) << said;
}

}  // namespace
}  // namespace hasten::parallel
