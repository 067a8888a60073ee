// Pipelines through the front door, against one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <vector>

#include "hasten/accelerator.h"
#include "hasten/clip_grad_norm_async.h"
#include "hasten/core/error.h"
#include "hasten/interception/interceptor.h"
#include "hasten/optim/lamb.h"
#include "hasten/optim/novograd.h"
#include "hasten/parallel/layout/placement.h"
#include "support/parallel_models.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using namespace hasten::testing;
using ::testing::HasSubstr;
using Pair = std::pair<at::Tensor, at::Tensor>;

std::vector<std::shared_ptr<models::Gpt2Impl>> staged_nets(int count) {
  std::vector<std::shared_ptr<models::Gpt2Impl>> nets;
  for (int i = 0; i < count; ++i) {
    torch::manual_seed(0);
    nets.push_back(std::dynamic_pointer_cast<models::Gpt2Impl>(gpt2_model().make()));
  }
  return nets;
}

struct StepsCase {
  AcceleratorOptions options = {};
  int world = 2, data = 1;
  /// Batches of a step, with accumulate().
  int batches = 1;
  bool weighted = false;
};

void expect_steps_of_one_process(const StepsCase& is) {
  constexpr int kSteps = 3;
  const auto expected = one_process(gpt2_model(), kSteps, false, 0.5);
  const auto batch = parallel_batch();
  const auto nets = staged_nets(is.world);
  run_ranks(is.world, [&](process::Process& process) {
    const Accelerator accelerator(process, is.options);
    auto net = nets[static_cast<size_t>(process.rank())];
    torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-3));
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    const int64_t rows = batch.x.size(0) / is.data / is.batches;
    // pp is the outermost axis, and tp the innermost.
    const int64_t place = process.rank() / is.options.parallel.tp % is.data;
    for (int step = 0; step < kSteps; ++step) {
      double mean = 0;
      for (int i = 0; i < is.batches; ++i) {
        const auto scope = accelerator.accumulate(model);
        const int64_t first = rows * (place * is.batches + i);
        const Pair mine(batch.x.narrow(0, first, rows), batch.y.narrow(0, first, rows));
        const auto loss = [&, &model = model](const Pair& part) {
          return language_loss(model(part.first, at::Tensor(), nullptr), part.second);
        };
        const auto count = [](const Pair& part) { return static_cast<double>(part.second.numel()); };
        const at::Tensor value = is.weighted ? accelerator.forward_backward<Pair>(mine, loss, count)
                                             : accelerator.forward_backward(mine, loss);
        mean += value.item<double>() / is.batches;
        if (accelerator.sync_gradients()) accelerator.clip_grad_norm_(net->parameters(), 0.5);
        optimizer.step();
        optimizer.zero_grad();
      }
      EXPECT_NEAR(mean, expected.losses[static_cast<size_t>(step)], 3e-6) << step;
    }
    for (const auto& item : net->named_parameters()) {
      const at::Tensor off = (parallel::gather_parameter(item.value()) - expected.weights.at(item.key())).abs();
      // Softmax does not see keys' biases: their gradients are zero but for rounding, of which AdamW makes whole steps.
      if (item.key().ends_with("c_attn.bias")) off.narrow(0, off.size(0) / 3, off.size(0) / 3).zero_();
      EXPECT_LT(off.max().item<double>(), 1e-5) << item.key();
    }
  });
}

TEST(Pipelines, TrainAndClipAsOnOneProcess) {
  expect_steps_of_one_process({.options = {.parallel = {.pp = 2, .microbatches = 4}}});
  expect_steps_of_one_process({.options = {.parallel = {.pp = 2, .chunks = 2, .microbatches = 4}}});
}
TEST(Pipelines, GoWithDataParallelism) {
  expect_steps_of_one_process(
      {.options = {.parallel = {.dp_replicate = 2, .pp = 2, .microbatches = 2}}, .world = 4, .data = 2});
  expect_steps_of_one_process({.options = {.parallel = {.dp_replicate = 2, .pp = 2, .microbatches = 2}},
                               .world = 4,
                               .data = 2,
                               .weighted = true});
}
TEST(Pipelines, GoWithShardedStateAndParameters) {
  expect_steps_of_one_process(
      {.options = {.parallel = {.dp_shard = 2, .pp = 2, .microbatches = 2}}, .world = 4, .data = 2});
}
TEST(Pipelines, GoWithCutLayers) {
  expect_steps_of_one_process({.options = {.parallel = {.tp = 2, .pp = 2, .microbatches = 4}}, .world = 4});
}
TEST(Pipelines, ChooseAnOrderByMeasuredTimes) {
  const auto order = plan::OrderKind::kAuto;
  expect_steps_of_one_process({.options = {.parallel = {.pp = 2, .microbatches = 4, .order = order}}});
  expect_steps_of_one_process(
      {.options = {.parallel = {.tp = 2, .pp = 2, .microbatches = 4, .order = order}}, .world = 4});
  expect_steps_of_one_process({.options = {.parallel = {.dp_replicate = 2, .pp = 2, .microbatches = 2, .order = order}},
                               .world = 4,
                               .data = 2});
  expect_steps_of_one_process(
      {.options = {.parallel = {.dp_shard = 2, .pp = 2, .microbatches = 2, .order = order}}, .world = 4, .data = 2});
}
TEST(Pipelines, AccumulateBatches) {
  expect_steps_of_one_process({.options = {.gradient_accumulation_steps = 2, .parallel = {.pp = 2}}, .batches = 2});
  expect_steps_of_one_process(
      {.options = {.gradient_accumulation_steps = 2, .parallel = {.dp_replicate = 2, .pp = 2, .microbatches = 2}},
       .world = 4,
       .data = 2,
       .batches = 2});
}
// Labels of which some do not count, differently many in each part, batch and rank; one part has none that does, or the
// whole second half. The reference is the mean over all tokens of all of them.
struct CountedTokens {
  static Pair batch(bool first_half_alone) {
    auto [x, y] = parallel_batch();
    for (int64_t row = 0; row < 8; ++row) y[row].slice(0, 3 + row).fill_(-100);
    y.slice(0, 2, 4).fill_(-100);
    if (first_half_alone) y.slice(0, 4, 8).fill_(-100);
    return {x, y};
  }
  static double count(const Pair& part) { return part.second.ne(-100).sum().item<double>(); }
};

std::map<std::string, at::Tensor> counted_by_one_process(bool first_half_alone) {
  const auto net = staged_nets(1)[0];
  const auto [x, y] = CountedTokens::batch(first_half_alone);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
  for (int step = 0; step < 2; ++step) {
    sgd.zero_grad();
    language_loss(net->forward(x, {}, nullptr), y).backward();
    torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5);
    sgd.step();
  }
  std::map<std::string, at::Tensor> weights;
  for (const auto& item : net->named_parameters()) weights[item.key()] = item.value().detach().clone();
  return weights;
}

struct CountedOptions {
  bool async_clip = false, first_half_alone = false;
};
void expect_counted_steps(const StepsCase& is, const CountedOptions& options = {}) {
  const auto expected = counted_by_one_process(options.first_half_alone);
  const auto nets = staged_nets(is.world);
  run_ranks(is.world, [&](process::Process& process) {
    const Accelerator accelerator(process, is.options);
    auto net = nets[static_cast<size_t>(process.rank())];
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto [x, y] = CountedTokens::batch(options.first_half_alone);
    const int64_t rows = 8 / is.data / is.batches, place = process.rank() / is.options.parallel.tp % is.data;
    const auto loss = [&, &model = model](const Pair& part) {
      return language_loss(model(part.first, at::Tensor(), nullptr), part.second);
    };
    for (int step = 0; step < 2; ++step) {
      for (int i = 0; i < is.batches; ++i) {
        const auto scope = accelerator.accumulate(model);
        const int64_t first = rows * (place * is.batches + i);
        accelerator.forward_backward<Pair>({x.narrow(0, first, rows), y.narrow(0, first, rows)}, loss,
                                           &CountedTokens::count);
        if (accelerator.sync_gradients()) {
          if (options.async_clip) {
            clip_grad_norm_async_(accelerator, net->parameters(), 0.5);
          } else {
            accelerator.clip_grad_norm_(net->parameters(), 0.5);
          }
        }
        optimizer.step();
        optimizer.zero_grad();
      }
    }
    for (const auto& item : net->named_parameters()) {
      const at::Tensor whole = parallel::gather_parameter(item.value());
      EXPECT_LT((whole - expected.at(item.key())).abs().max().item<double>(), 1e-5) << item.key();
    }
  });
}

TEST(Pipelines, CountTokensOverPartsBatchesAndRanks) {
  expect_counted_steps({.options = {.parallel = {.microbatches = 2}}, .world = 1});
  expect_counted_steps({.options = {.parallel = {.pp = 2, .microbatches = 2}}});
  expect_counted_steps(
      {.options = {.gradient_accumulation_steps = 2, .parallel = {.pp = 2, .microbatches = 2}}, .batches = 2});
  expect_counted_steps(
      {.options = {.gradient_accumulation_steps = 2, .parallel = {.dp_replicate = 2, .pp = 2, .microbatches = 1}},
       .world = 4,
       .data = 2,
       .batches = 2});
}
TEST(Pipelines, GiveAPartWithoutTokensNoSay) {
  expect_counted_steps({.options = {.parallel = {.microbatches = 4}}, .world = 1});
  expect_counted_steps({.options = {.parallel = {.pp = 2, .microbatches = 4}}});
  expect_counted_steps({.options = {.parallel = {.pp = 2, .chunks = 2, .microbatches = 4}}});
}
TEST(Pipelines, GiveARankWithoutTokensNoSay) {
  expect_counted_steps({.options = {.parallel = {.microbatches = 2}}, .data = 2}, {.first_half_alone = true});
  expect_counted_steps(
      {.options = {.parallel = {.dp_replicate = 2, .pp = 2, .microbatches = 2}}, .world = 4, .data = 2},
      {.first_half_alone = true});
}
TEST(Pipelines, AreClippedAlikeByTheNormThatStaysATensor) {
  expect_counted_steps({.options = {.parallel = {.pp = 2, .microbatches = 2}}}, {.async_clip = true});
  expect_counted_steps({.options = {.parallel = {.tp = 2}}}, {.async_clip = true});
}

TEST(Pipelines, OfOneStageAreStepsOfParts) {
  expect_steps_of_one_process({.options = {.parallel = {.microbatches = 4}}, .world = 1});
  expect_steps_of_one_process({.options = {.parallel = {.microbatches = 2}}, .world = 2, .data = 2});
}

TEST(Pipelines, GiveOutputsAndStatesOnEveryRank) {
  const auto batch = parallel_batch();
  const auto nets = staged_nets(3);
  const at::NoGradGuard no_grad;
  const at::Tensor expected = nets[2]->forward(batch.x, {}, nullptr);
  run_ranks(2, [&](process::Process& process) {
    const at::NoGradGuard own_no_grad;
    const Accelerator accelerator(process, {.parallel = {.pp = 2}});
    auto model = accelerator.prepare(nets[static_cast<size_t>(process.rank())]);
    EXPECT_TRUE(at::allclose(model(batch.x, at::Tensor(), nullptr), expected, 1e-5, 1e-6));
    const auto state = accelerator.get_state_dict(model);
    for (const auto& item : nets[2]->named_parameters()) EXPECT_TRUE(state.at(item.key()).equal(item.value()));
  });
}

// Module::parameters has a tied weight under each of its names, and clip_grad_norm_ scales it as often.
std::vector<at::Tensor> each_once(const torch::nn::Module& net) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& one : net.parameters()) {
    const bool is_there = std::any_of(all.begin(), all.end(), [&](const at::Tensor& own) { return own.is_same(one); });
    if (!is_there) all.push_back(one);
  }
  return all;
}

// Interceptors of parameters have a group, with its memory and threads.
TEST(Pipelines, EndWithTheirModel) {
  for (const parallel::ParallelOptions& layout :
       {parallel::ParallelOptions{.pp = 2}, parallel::ParallelOptions{.tp = 2}}) {
    auto nets = staged_nets(2);
    run_ranks(2, [&](process::Process& process) {
      std::vector<std::weak_ptr<interception::Interceptor>> interceptors;
      {
        const Accelerator accelerator(process, {.parallel = layout});
        const auto net = std::exchange(nets[static_cast<size_t>(process.rank())], nullptr);
        auto model = accelerator.prepare(net);
        for (const auto level : {interception::Level::kOperators, interception::Level::kEveryOperator}) {
          for (const auto& one : interception::interceptors_of(net->parameters().front(), level))
            interceptors.emplace_back(one);
        }
        EXPECT_FALSE(interceptors.empty());
      }
      for (const auto& one : interceptors) EXPECT_TRUE(one.expired());
    });
  }
}

// Lamb has a norm a parameter, and a stage has whole ones. Its clipping by the norm of all is clip_grad_norm_'s.
TEST(Pipelines, StepWithLambAsOnOneProcess) {
  const auto batch = parallel_batch();
  const auto loss = [](auto& model, const Pair& part) {
    return language_loss(model(part.first, at::Tensor(), nullptr), part.second);
  };
  const auto nets = staged_nets(3);
  // Epsilon is above rounding: gradients that are zero but for it, such as those of keys' biases, must not be steps.
  optim::Lamb alone(each_once(*nets[2]), optim::LambOptions(1e-2).eps(1e-3).max_grad_norm(0.5));
  std::vector<double> norms;
  for (int step = 0; step < 3; ++step) {
    alone.zero_grad();
    language_loss(nets[2]->forward(batch.x, {}, nullptr), batch.y).backward();
    norms.push_back(torch::nn::utils::clip_grad_norm_(each_once(*nets[2]), 1e9));
    alone.step();
  }

  run_ranks(2, [&](process::Process& process) {
    const Accelerator accelerator(process, {.parallel = {.pp = 2, .microbatches = 4}});
    auto net = nets[static_cast<size_t>(process.rank())];
    optim::Lamb lamb(each_once(*net), optim::LambOptions(1e-2).eps(1e-3).max_grad_norm(0));
    auto [model, optimizer] = accelerator.prepare(net, lamb);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      accelerator.forward_backward(Pair(batch.x, batch.y),
                                   [&, &model = model](const Pair& part) { return loss(model, part); });
      EXPECT_NEAR(accelerator.clip_grad_norm_(each_once(*net), 0.5), norms[static_cast<size_t>(step)], 1e-5);
      optimizer.step();
    }
    const auto expected = nets[2]->named_parameters();
    for (const auto& item : net->named_parameters()) {
      const at::Tensor whole = parallel::gather_parameter(item.value());
      EXPECT_LT((whole - expected[item.key()]).abs().max().item<double>(), 1e-5) << item.key();
    }
  });
}

TEST(Pipelines, RefuseWhatDoesNotFit) {
  const auto words = [](const AcceleratorOptions& options, const auto& fn) {
    return run_ranks_collecting(2, [&](process::Process& process) {
      const Accelerator accelerator(process, options);
      auto model = accelerator.prepare(staged_nets(1)[0]);
      fn(accelerator, model);
    })[0];
  };
  const AcceleratorOptions stages{.parallel = {.pp = 2}};
  EXPECT_THAT(words(stages,
                    [](const auto&, auto& model) {
                      (void)model(at::zeros({1, 4}, at::TensorOptions(at::kLong)), at::Tensor(), nullptr);
                    }),
              HasSubstr("a forward with gradients of a model that is divided into stages"));
  EXPECT_THAT(words(stages,
                    [](const auto& accelerator, auto& model) {
                      torch::optim::LBFGS lbfgs(model.unwrap()->parameters(), torch::optim::LBFGSOptions(1));
                      auto optimizer = accelerator.prepare(lbfgs);
                    }),
              HasSubstr("LBFGS with pp = 2: it needs norms of all parameters, and this rank has parts. Use AdamW"));
  EXPECT_THAT(words(stages,
                    [](const auto& accelerator, auto& model) {
                      optim::Lamb lamb(model.unwrap()->parameters(), optim::LambOptions(1e-3));
                      auto optimizer = accelerator.prepare(lamb);
                    }),
              HasSubstr("Lamb with pp = 2: it needs norms of all parameters, and this rank has parts. Set "
                        "max_grad_norm(0), and call accelerator.clip_grad_norm_"));
  EXPECT_THAT(words(stages,
                    [](const auto& accelerator, auto& model) {
                      optim::NovoGrad novograd(model.unwrap()->parameters(), optim::NovoGradOptions(1e-3));
                      auto optimizer = accelerator.prepare(novograd);
                    }),
              ::testing::IsEmpty());
}

}  // namespace
}  // namespace hasten
