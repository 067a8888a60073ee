#include "hasten/parallel/compress/comm_hook.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <map>

#include "hasten/core/error.h"
#include "hasten/parallel/compress/comm_hook_wrapper.h"
#include "hasten/parallel/compress/power_sgd.h"
#include "hasten/parallel/ddp/ddp.h"
#include "support/models.h"
#include "support/ranks.h"
#include "support/wire.h"

namespace hasten::parallel {
namespace {

using process::Process;
using ::testing::HasSubstr;
using testing::Mlp;
using testing::run_ranks;

CommHook plain_hook() {
  return [](const GradientBucket& bucket, const comm::Group& group) { return group.all_reduce_async_(bucket.buffer); };
}

// Compresses everything that has two dimensions, from the first step on.
PowerSgdOptions at_once(int64_t rank = 1) {
  return {.matrix_approximation_rank = rank, .start_iteration = 0, .min_compression_rate = 1e-3};
}

template <class Model>
std::vector<at::Tensor> train_with_hook(int rank, const comm::Group& group, const CommHook& hook,
                                        const std::string& kind) {
  constexpr int kSteps = 20;
  Model model;
  testing::initialise(*model, 3);
  if (kind == "cnn") model->eval();
  const Ddp ddp(*model, group, {.buckets = {.first_bytes = 200, .bytes = 600}, .comm_hook = hook});
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  const auto problem = testing::problem_for(kind);
  const int world_size = group.world_size();
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(model(problem.inputs.chunk(world_size)[rank]),
                                         problem.targets.chunk(world_size)[rank])
        .backward();
    optimizer.step();
  }
  std::vector<at::Tensor> parameters;
  for (const auto& parameter : model->parameters()) parameters.push_back(parameter.detach().clone());
  return parameters;
}

struct HookCase {
  CommHook (*make)();
  double tolerance;
};

const std::map<std::string, HookCase> kHooks = {
    {"own", {plain_hook, 1e-5}},
    {"fp16", {fp16_compress, 2e-2}},
    {"bf16", {bf16_compress, 2e-1}},
    {"fp16 round another", {[] { return fp16_compress_wrapper(plain_hook()); }, 2e-2}},
    {"bf16 round power_sgd", {[] { return bf16_compress_wrapper(power_sgd(at_once(100))); }, 2e-1}},
    {"power_sgd of full rank", {[] { return power_sgd(at_once(100)); }, 1e-4}}};

TEST(CommHookRanks, AWrappedHookSeesGradientsOf16BitsInTheBucketsMemory) {
  run_ranks(2, [](Process& process) {
    int seen = 0;
    const CommHook inner = [&](const GradientBucket& bucket, const comm::Group& group) {
      EXPECT_EQ(bucket.buffer.scalar_type(), at::kBFloat16);
      EXPECT_EQ(bucket.gradients.size(), bucket.parameters.size());
      for (size_t i = 0; i < bucket.gradients.size(); ++i) {
        EXPECT_EQ(bucket.gradients[i].sizes(), bucket.parameters[i].sizes());
        EXPECT_TRUE(bucket.gradients[i].is_alias_of(bucket.buffer));
      }
      ++seen;
      return group.all_reduce_async_(bucket.buffer);
    };
    train_with_hook<Mlp>(process.rank(), process.group(), bf16_compress_wrapper(inner), "mlp");

    EXPECT_GT(seen, 0);
    EXPECT_THROW(fp16_compress_wrapper(CommHook()), UsageError);
  });
}

TEST(CommHookRanks, TrainingIsThatOfOneRankWithinTheHooksPrecision) {
  const auto alone = train_with_hook<Mlp>(0, comm::Group(), {}, "mlp");
  for (const auto& [name, test] : kHooks) {
    for (const int world_size : {2, 3, 4}) {
      run_ranks(world_size, [&, hooks = test](Process& process) {
        const auto mine = train_with_hook<Mlp>(process.rank(), process.group(), hooks.make(), "mlp");

        for (size_t i = 0; i < alone.size(); ++i) {
          EXPECT_TRUE(torch::allclose(mine[i], alone[i], hooks.tolerance, hooks.tolerance)) << name << i;
        }
      });
    }
  }
}

template <class Model>
void expect_hooks_equal_one_rank(const std::string& kind) {
  const auto alone = train_with_hook<Model>(0, comm::Group(), {}, kind);
  for (const char* name : {"own", "power_sgd of full rank"}) {
    const HookCase& hook = kHooks.at(name);
    run_ranks(2, [&](Process& process) {
      const auto mine = train_with_hook<Model>(process.rank(), process.group(), hook.make(), kind);

      for (size_t i = 0; i < alone.size(); ++i) {
        EXPECT_TRUE(torch::allclose(mine[i], alone[i], hook.tolerance, hook.tolerance)) << kind << name << i;
      }
    });
  }
}

TEST(CommHookRanks, EveryKindOfModelTrainsAsOnOneRank) {
  expect_hooks_equal_one_rank<testing::Cnn>("cnn");
  expect_hooks_equal_one_rank<testing::EmbeddingModel>("embedding");
  expect_hooks_equal_one_rank<testing::GruModel>("gru");
  expect_hooks_equal_one_rank<testing::TransformerModel>("transformer");
}

TEST(CommHookRanks, AllRanksEndWithEqualParametersBitForBit) {
  auto hooks = kHooks;
  hooks["power_sgd"] = {[] { return power_sgd(at_once()); }, 0};
  for (const auto& [name, test] : hooks) {
    run_ranks(3, [&, make = test.make](Process& process) {
      for (const auto& parameter : train_with_hook<Mlp>(process.rank(), process.group(), make(), "mlp")) {
        const auto everybodys = process.group().all_gather(parameter);
        EXPECT_TRUE(torch::equal(everybodys.front(), everybodys.back())) << name;
      }
    });
  }
}

struct HeadsImpl : torch::nn::Module {
  HeadsImpl() {
    register_module("left", left);
    register_module("right", right);
    register_module("never", never);
  }
  torch::nn::Linear left{3, 5}, right{3, 5}, never{3, 5};
};
TORCH_MODULE(Heads);

TEST(CommHookRanks, WhoHasAGradientIsKnownExactlyUnderEveryHook) {
  for (const auto& [name, test] : kHooks) {
    run_ranks(2, [&, make = test.make](Process& process) {
      Heads model;
      const Ddp ddp(*model, process.group(), {.buckets = {.first_bytes = 1, .bytes = 1}, .comm_hook = make()});

      (process.rank() == 0 ? model->left : model->right)->forward(torch::ones({1, 3})).sum().backward();

      for (const auto& head : {model->left, model->right}) {
        EXPECT_TRUE(torch::allclose(head->weight.grad(), torch::full({5, 3}, 0.5), 1e-5)) << name;
      }
      EXPECT_FALSE(model->never->weight.grad().defined()) << name;
    });
  }
}

TEST(CommHookRanks, OneHookServesTwoModels) {
  run_ranks(2, [](Process& process) {
    const auto hook = power_sgd(at_once(100));
    Mlp first, second;
    const Ddp one(*first, process.group(), {.comm_hook = hook});
    const Ddp two(*second, process.group(), {.comm_hook = hook});

    (first(torch::ones({2, 8})) + second(torch::ones({2, 8}))).sum().backward();

    EXPECT_EQ(first->second->bias.grad()[0].item<double>(), 2);
    EXPECT_EQ(second->second->bias.grad()[0].item<double>(), 2);
  });
}

// The mean gradient of one matrix over steps, as a hook gives it; rank r's gradient is the r-th given.
std::vector<at::Tensor> means_of(Process& process, const std::vector<at::Tensor>& gradients, const CommHook& hook,
                                 int steps) {
  torch::nn::Linear model(torch::nn::LinearOptions(gradients[0].size(1), gradients[0].size(0)).bias(false));
  const Ddp ddp(*model, process.group(), {.comm_hook = hook});
  std::vector<at::Tensor> means;
  for (int step = 0; step < steps; ++step) {
    model->zero_grad();
    (model->weight * gradients[static_cast<size_t>(process.rank())]).sum().backward();
    means.push_back(model->weight.grad().clone());
  }
  return means;
}

std::vector<at::Tensor> random_gradients(int count) {
  auto generator = at::detail::createCPUGenerator(5);
  std::vector<at::Tensor> gradients;
  for (int i = 0; i < count; ++i) gradients.push_back(at::randn({6, 9}, generator));
  return gradients;
}

// The algorithm of the paper with all workers' matrices in one place.
std::vector<at::Tensor> reference_power_sgd(const std::vector<at::Tensor>& gradients, int64_t rank, int steps) {
  auto generator = at::detail::createCPUGenerator(0);
  at::Tensor q = at::randn({9, rank}, generator, at::TensorOptions(at::kDouble));
  std::vector<at::Tensor> errors(gradients.size(), torch::zeros({6, 9}, at::kDouble)), means;
  const auto count = static_cast<double>(gradients.size());
  for (int step = 0; step < steps; ++step) {
    std::vector<at::Tensor> updates;
    at::Tensor mean = torch::zeros({6, 9}, at::kDouble);
    for (size_t i = 0; i < gradients.size(); ++i) {
      updates.push_back(gradients[i].to(at::kDouble) + errors[i]);
      mean += updates.back() / count;
    }
    const at::Tensor p = std::get<0>(at::linalg_qr(mean.mm(q)));
    q = mean.t().mm(p);
    means.push_back(p.mm(q.t()));
    for (size_t i = 0; i < gradients.size(); ++i) errors[i] = updates[i] - means.back();
  }
  return means;
}

TEST(PowerSgdRanks, FollowsThePaperStepByStep) {
  for (const int64_t rank : {1, 2}) {
    const auto gradients = random_gradients(3);
    const auto expected = reference_power_sgd(gradients, rank, 5);
    run_ranks(3, [&](Process& process) {
      const auto means = means_of(process, gradients, power_sgd(at_once(rank)), 5);

      for (size_t step = 0; step < means.size(); ++step) {
        EXPECT_TRUE(torch::allclose(means[step].to(at::kDouble), expected[step], 1e-3, 1e-4)) << step;
      }
    });
  }
}

TEST(PowerSgdRanks, ErrorFeedbackSendsInTheEndWhatEachStepLeavesOut) {
  const auto gradients = random_gradients(2);
  const at::Tensor exact = (gradients[0] + gradients[1]) / 2;
  const auto distance = [&](Process& process, bool feedback) {
    auto options = at_once();
    options.use_error_feedback = feedback;
    const auto means = means_of(process, gradients, power_sgd(options), 60);
    return ((torch::stack(means).mean(0) - exact).norm() / exact.norm()).item<double>();
  };
  run_ranks(2, [&](Process& process) {
    EXPECT_LT(distance(process, true), 0.1);
    EXPECT_GT(distance(process, false), 0.5);
  });
}

TEST(PowerSgdRanks, GradientsOfFewRanksAreExactAfterAWarmStart) {
  const at::Tensor rank_one = torch::arange(1., 7.).outer(torch::arange(1., 10.));
  run_ranks(2, [&](Process& process) {
    const auto means = means_of(process, {rank_one, rank_one * 3}, power_sgd(at_once()), 2);

    EXPECT_TRUE(torch::allclose(means.back(), rank_one * 2, 1e-4));
  });
}

TEST(PowerSgdRanks, GradientsTravelInFullBeforeTheStart) {
  const auto gradients = random_gradients(2);
  const at::Tensor exact = (gradients[0] + gradients[1]) / 2;
  run_ranks(2, [&](Process& process) {
    auto options = at_once();
    options.start_iteration = 2;
    const auto means = means_of(process, gradients, power_sgd(options), 3);

    EXPECT_TRUE(torch::allclose(means[1], exact, 1e-5, 1e-6));
    EXPECT_FALSE(torch::allclose(means[2], exact, 1e-1, 1e-1));
  });
}

TEST(PowerSgdRanks, AGradientThatIsNotFiniteOnOneRankIsForgottenAfterItsStep) {
  const auto gradients = random_gradients(2);
  for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    for (const bool feedback : {true, false}) {
      run_ranks(2, [&](Process& process) {
        torch::nn::Linear model(torch::nn::LinearOptions(9, 6).bias(false));
        auto options = at_once(2);
        options.use_error_feedback = feedback;
        const Ddp ddp(*model, process.group(), {.comm_hook = power_sgd(options)});
        const auto mean_of = [&](const at::Tensor& gradient) {
          model->zero_grad();
          (model->weight * gradient).sum().backward();
          return model->weight.grad().clone();
        };
        at::Tensor poisoned = gradients[process.rank()].clone();
        if (process.rank() == 1) poisoned[2][3] = bad;

        const at::Tensor before = mean_of(gradients[process.rank()]), during = mean_of(poisoned),
                         after = mean_of(gradients[process.rank()]);

        EXPECT_FALSE(torch::isfinite(before - during).any().item<bool>());
        EXPECT_TRUE(torch::isfinite(after).all().item<bool>()) << bad << ", error feedback " << feedback;
        at::Tensor of_rank_0 = after.clone();
        process.group().broadcast_(of_rank_0, 0);
        EXPECT_TRUE(torch::equal(after, of_rank_0));
      });
    }
  }
}

TEST(PowerSgdRanks, NoGradientAtAllStaysZeroAndFinite) {
  run_ranks(2, [](Process& process) {
    const std::vector<at::Tensor> zeros(2, torch::zeros({6, 9}));
    for (const at::Tensor& mean : means_of(process, zeros, power_sgd(at_once()), 3)) {
      EXPECT_TRUE(torch::equal(mean, zeros[0]));
    }
  });
}

TEST(PowerSgd, NumbersOutOfRangeAreRefusedWithTheirValues) {
  try {
    power_sgd({.matrix_approximation_rank = 0});
    FAIL() << "made";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("matrix_approximation_rank is 0"));
  }
}

// Bytes that two ranks over TCP send in one step of a Linear(256, 256).
int64_t bytes_of_a_step(const std::function<CommHook()>& make_hook) {
  int64_t bytes = 0;
  testing::RankOptions options{.check = false};
  options.adjust = [](int, comm::GroupOptions& group) { group.backend = comm::BackendKind::kGloo; };
  run_ranks(
      2,
      [&](Process& process) {
        torch::nn::Linear model(256, 256);
        const Ddp ddp(*model, process.group(), {.comm_hook = make_hook()});
        const auto step = [&] { model(torch::ones({2, 256})).sum().backward(); };
        step();
        const auto send_all = [&] {
          process.group().barrier();
          return testing::wire();
        };
        const auto before = send_all();
        process.group().barrier();
        step();
        const auto after = send_all();
        if (process.rank() == 0) bytes = testing::bytes_between(before, after);
        process.group().barrier();
      },
      options);
  return bytes;
}

TEST(CommHookRanks, BytesOnTheWireShrinkAsPromised) {
  const double full = 2 * 4 * (256 * 256 + 256);  // each of two ranks sends its gradients once
  const auto share = [&](const std::function<CommHook()>& make_hook) {
    return static_cast<double>(bytes_of_a_step(make_hook)) / full;
  };

  EXPECT_NEAR(share([] { return CommHook(); }), 1, 0.02);
  EXPECT_NEAR(share(bf16_compress), 0.5, 0.02);
  EXPECT_NEAR(share(fp16_compress), 0.5, 0.02);
  EXPECT_LT(share([] { return power_sgd(at_once()); }), 0.03);
}

}  // namespace
}  // namespace hasten::parallel
