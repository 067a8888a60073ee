#include "hasten/parallel/ddp/backward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <numeric>

#include "hasten/core/error.h"
#include "hasten/optim/prepared/prepared_optimizer.h"
#include "hasten/parallel/ddp/distributed_models.h"
#include "hasten/parallel/ddp/no_sync.h"
#include "support/models.h"
#include "support/ranks.h"

namespace hasten::parallel {
namespace {

using process::Process;
using ::testing::HasSubstr;
using testing::Mlp;
using testing::run_ranks;
using testing::run_ranks_collecting;

// Rows of each rank's batch, by batch of a window and rank; 0 for none.
using Rows = std::vector<std::vector<int64_t>>;

template <class Model>
at::Tensor mean_loss(Model& model, const at::Tensor& inputs, const at::Tensor& targets) {
  return torch::nn::functional::cross_entropy(model(inputs), targets);
}

at::Tensor in_double(const at::Tensor& inputs) {
  return inputs.is_floating_point() ? inputs.to(at::kDouble) : inputs;
}

struct Trained {
  std::vector<at::Tensor> parameters;
  std::vector<double> norms;
};

// Ten steps of Adam with clipping, in double. Each step takes the same rows: window[j][r] of them on rank r
// in batch j. A world of one takes all rows of a step at once.
template <class Model>
Trained train(const std::string& kind, int rank, int world_size, const comm::Group& group, const Rows& window) {
  Model model;
  testing::initialise(*model, 3);
  model->to(at::kDouble);
  if (kind == "cnn") model->eval();
  torch::optim::Adam optimizer(model->parameters(), 1e-2);
  const auto ddp =
      std::make_shared<const Ddp>(*model, group, DdpOptions{.buckets = {.first_bytes = 200, .bytes = 900}});
  const auto problem = testing::problem_for(kind);
  const at::Tensor inputs = in_double(problem.inputs);
  Trained trained;
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad(step % 2 == 0);
    int64_t begin = 0;
    for (size_t j = 0; j < window.size(); ++j) {
      const bool last = j + 1 == window.size();
      const NoSync scope(last ? Ddp::Models{} : Ddp::Models{ddp});
      const auto& by_rank = window[j];
      int64_t total = 0, mine_begin = begin;
      for (size_t r = 0; r < by_rank.size(); ++r) {
        if (static_cast<int>(r) < rank) mine_begin += by_rank[r];
        total += by_rank[r];
      }
      const int64_t rows = world_size == 1 ? total : by_rank[rank];
      const auto part = torch::indexing::Slice(mine_begin, mine_begin + rows);
      const auto loss = mean_loss(model, inputs.index({part}), problem.targets.index({part}));
      backward(loss, {.weight = static_cast<double>(rows)}, {.models = {ddp}, .group = group, .ends_window = last});
      begin += total;
    }
    trained.norms.push_back(torch::nn::utils::clip_grad_norm_(model->parameters(), 0.05));
    optimizer.step();
  }
  for (const auto& parameter : model->parameters()) trained.parameters.push_back(parameter.detach().clone());
  return trained;
}

// The whole window in one batch of a plain loop.
template <class Model>
Trained train_plain(const std::string& kind, int64_t rows) {
  Model model;
  testing::initialise(*model, 3);
  model->to(at::kDouble);
  if (kind == "cnn") model->eval();
  torch::optim::Adam optimizer(model->parameters(), 1e-2);
  const auto problem = testing::problem_for(kind);
  const at::Tensor inputs = in_double(problem.inputs).narrow(0, 0, rows);
  Trained trained;
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    mean_loss(model, inputs, problem.targets.narrow(0, 0, rows)).backward();
    trained.norms.push_back(torch::nn::utils::clip_grad_norm_(model->parameters(), 0.05));
    optimizer.step();
  }
  for (const auto& parameter : model->parameters()) trained.parameters.push_back(parameter.detach().clone());
  return trained;
}

void expect_equal(const Trained& mine, const Trained& other, const std::string& what) {
  for (size_t i = 0; i < mine.parameters.size(); ++i) {
    EXPECT_TRUE(torch::allclose(mine.parameters[i], other.parameters[i], 1e-6, 1e-6)) << what << ' ' << i;
  }
  for (size_t i = 0; i < mine.norms.size(); ++i) EXPECT_NEAR(mine.norms[i], other.norms[i], 1e-6) << what;
}

TEST(BackwardRanks, WeightsGiveTheMeanOverUnevenBatchesRanksAndWindows) {
  const std::map<int, std::vector<Rows>> cases = {{1, {{{7}}, {{3}, {1}, {6}}, {{0}, {5}}}},
                                                  {2, {{{5, 2}}, {{1, 4}, {3, 0}, {2, 6}}, {{0, 3}}}},
                                                  {3, {{{5, 2, 1}}, {{0, 0, 4}, {3, 1, 0}}}},
                                                  {4, {{{1, 2, 3, 4}}, {{0, 6, 0, 1}, {1, 2, 3, 1}}}}};
  for (const auto& [world_size, windows] : cases) {
    for (const Rows& window : windows) {
      int64_t rows = 0;
      for (const auto& batch : window) rows = std::accumulate(batch.begin(), batch.end(), rows);
      const auto plain = train_plain<Mlp>("mlp", rows);
      run_ranks(world_size, [&, world_size = world_size](Process& process) {
        const auto mine = train<Mlp>("mlp", process.rank(), world_size, process.group(), window);
        expect_equal(mine, plain, text(world_size, " ranks, ", rows, " rows"));
      });
    }
  }
}

template <class Model>
void expect_weighted_mean(const std::string& kind) {
  const Rows window = {{2, 1, 4}, {3, 1, 1}};  // libtorch's attention takes no empty batch
  const auto plain = train_plain<Model>(kind, 12);
  run_ranks(3, [&](Process& process) {
    expect_equal(train<Model>(kind, process.rank(), 3, process.group(), window), plain, kind);
  });
}

TEST(BackwardRanks, WeightsGiveTheMeanForEveryKindOfModel) {
  expect_weighted_mean<testing::Cnn>("cnn");
  expect_weighted_mean<testing::EmbeddingModel>("embedding");
  expect_weighted_mean<testing::GruModel>("gru");
  expect_weighted_mean<testing::TransformerModel>("transformer");
}

TEST(BackwardRanks, ZeroTotalWeightSkipsTheStepOnAllRanks) {
  for (const int world_size : {1, 3}) {
    run_ranks(world_size, [](Process& process) {
      Mlp model;
      testing::initialise(*model, 1);
      torch::optim::Adam adam(model->parameters(), 0.1);
      const auto gradients = std::make_shared<training::GradientState>();
      const optim::PreparedOptimizer<torch::optim::Adam> optimizer(
          std::shared_ptr<torch::optim::Adam>(std::shared_ptr<void>(), &adam), gradients);
      const auto ddp = std::make_shared<const Ddp>(*model, process.group());
      const at::Tensor before = model->first->weight.detach().clone();
      const auto step = [&](double weight) {
        optimizer.zero_grad(false);
        gradients->set_weighted();
        const auto rows = static_cast<int64_t>(weight);
        backward(model(torch::ones({rows, 8})).mean(), {.weight = weight}, {.models = {ddp}, .group = process.group()});
        optimizer.step();
      };

      step(0);
      EXPECT_TRUE(optimizer.step_was_skipped());
      EXPECT_TRUE(torch::equal(model->first->weight, before));
      EXPECT_FALSE(model->first->weight.grad().defined());
      step(process.is_last_process() ? 2 : 0);
      EXPECT_FALSE(optimizer.step_was_skipped());
      EXPECT_FALSE(torch::allclose(model->first->weight, before));
      EXPECT_TRUE(torch::isfinite(model->first->weight).all().item<bool>()) << "the mean of no rows is no number";
      const at::Tensor trained = model->first->weight.detach().clone();
      step(0);  // with gradients of zeros, which zero_grad has left
      EXPECT_TRUE(optimizer.step_was_skipped());
      EXPECT_TRUE(torch::equal(model->first->weight, trained));
      EXPECT_FALSE(model->first->weight.grad().defined());
    });
  }
}

TEST(BackwardRanks, WeightsOnSomeRanksOnlyAreRefusedOnAll) {
  const auto words = run_ranks_collecting(3, [](Process& process) {
    Mlp model;
    const auto ddp = std::make_shared<const Ddp>(*model, process.group());
    BackwardOptions options;
    if (process.rank() == 1) options.weight = 2.0;
    backward(model(torch::ones({2, 8})).mean(), options, {.models = {ddp}, .group = process.group()});
  });

  for (const auto& said : words) EXPECT_THAT(said, HasSubstr("some ranks gave backward a weight and others none"));
}

TEST(Backward, WeightsThatAreNoneAndMixedWindowsAreRefused) {
  Mlp model;
  const auto ddp = std::make_shared<const Ddp>(*model, comm::Group());
  const auto run = [&](BackwardOptions options, bool ends) {
    backward(model(torch::ones({2, 8})).mean(), options, {.models = {ddp}, .ends_window = ends});
  };

  EXPECT_THAT([&] { run({.weight = -1.0}, true); },
              ::testing::ThrowsMessage<UsageError>(HasSubstr("backward with weight -1")));
  EXPECT_THROW(run({.weight = NAN}, true), UsageError);
  run({.weight = 2.0}, false);
  EXPECT_THAT([&] { run({}, true); },
              ::testing::ThrowsMessage<UsageError>(HasSubstr("without a weight, after one with a weight")));
}

// The hole of docs/decisions/0005: nothing of this rank's backward touches the model.
TEST(BackwardRanks, ARankWhoseLossPassesTheModelByOffersNoGradient) {
  run_ranks(3, [](Process& process) {
    Mlp model;
    testing::initialise(*model, 1);
    const auto ddp = std::make_shared<const Ddp>(*model, process.group());
    for (const bool requires_grad : {true, false}) {
      model->zero_grad();
      const at::Tensor elsewhere = torch::ones({1}, torch::TensorOptions().requires_grad(requires_grad));
      const auto loss = process.rank() == 1 ? (elsewhere * 2).sum() : model(torch::ones({2, 8})).sum();

      backward(loss, {}, {.models = {ddp}, .group = process.group()});

      EXPECT_FLOAT_EQ(model->second->bias.grad()[0].item<float>(), 2.0F * 2 / 3);
      EXPECT_EQ(elsewhere.grad().defined(), process.rank() == 1 && requires_grad);
    }
  });
}

TEST(BackwardRanks, RanksThatUseDifferentModelsDoNotWaitForOneAnother) {
  run_ranks(2, [](Process& process) {
    Mlp one, two;
    testing::initialise(*one, 1);
    testing::initialise(*two, 2);
    DistributedModels models;
    const auto first = models.distribute(*one, process.group(), {});
    const auto second = models.distribute(*two, process.group(), {});
    const at::Tensor x = torch::ones({2, 8});

    backward(process.rank() == 0 ? one(x).sum() : two(x).sum() * 3, {},
             {.models = models.all(), .group = process.group()});

    EXPECT_EQ(one->second->bias.grad()[0].item<double>(), 1.0);
    EXPECT_EQ(two->second->bias.grad()[0].item<double>(), 3.0);
  });
}

TEST(BackwardRanks, TheModelThatNoLossDependsOnIsNotExchanged) {
  run_ranks(2, [](Process& process) {
    Mlp generator, discriminator;
    DistributedModels models;
    const auto first = models.distribute(*generator, process.group(), {});
    const auto second = models.distribute(*discriminator, process.group(), {});

    backward(discriminator(torch::ones({2, 8})).sum(), {}, {.models = models.all(), .group = process.group()});

    EXPECT_EQ(first->step().num_exchanges(), 0);
    EXPECT_EQ(second->step().num_exchanges(), 1);
  });
}

// A critic that every batch trains and a generator that all but the last of a window do; with
// `later_in_batch` the generator's turn comes in the last batch, too, behind the critic's.
struct Adversaries {
  bool weighted = false;
  bool later_in_batch = false;

  // The generator's gradients of a window of three batches, on rows of the rank's own.
  std::vector<at::Tensor> run(int rank, const comm::Group& group) const {
    Mlp generator, critic;
    testing::initialise(*generator, 1);
    testing::initialise(*critic, 2);
    generator->to(at::kDouble);
    critic->to(at::kDouble);
    DistributedModels models;
    const auto held = {models.distribute(*generator, group, {}), models.distribute(*critic, group, {})};
    for (int batch = 0; batch < 3; ++batch) {
      const bool ends = batch == 2;
      const NoSync scope(ends ? Ddp::Models{} : Ddp::Models(held));
      const BackwardContext context{.models = models.all(), .group = group, .num_batches = 3, .ends_window = ends};
      const BackwardOptions options{.weight = weighted ? std::optional(weight(rank, batch)) : std::nullopt};
      backward(critic(rows(rank, batch)).square().mean(), options, context);
      if (!ends || later_in_batch) backward(loss(generator, rank, batch), options, context);
    }
    return gradients(generator);
  }

  // What they should be: one process with the rows of all.
  std::vector<at::Tensor> by_hand(int world_size) const {
    Mlp generator;
    testing::initialise(*generator, 1);
    generator->to(at::kDouble);
    double total = 0;
    for (int rank = 0; rank < world_size; ++rank) {
      for (int batch = 0; batch < (later_in_batch ? 3 : 2); ++batch) {
        const double factor = weighted ? weight(rank, batch) : 1;
        total += factor;
        (loss(generator, rank, batch) * factor).backward();
      }
    }
    auto list = gradients(generator);
    for (at::Tensor& gradient : list) gradient /= weighted ? total : 3.0 * world_size;
    return list;
  }

 private:
  static double weight(int rank, int batch) { return 1 + rank + 2 * batch; }
  static at::Tensor rows(int rank, int batch) {
    return torch::sin(torch::arange(16, at::kDouble) + 16 * batch + 100 * rank).view({2, 8});
  }
  static at::Tensor loss(Mlp& generator, int rank, int batch) { return generator(rows(rank, batch)).square().mean(); }
  static std::vector<at::Tensor> gradients(const Mlp& net) {
    std::vector<at::Tensor> list;
    for (const auto& parameter : net->parameters()) list.push_back(parameter.grad().clone());
    return list;
  }
};

TEST(BackwardRanks, AModelThatTheLastBatchOfAWindowPassesByIsExchangedAllTheSame) {
  for (const Adversaries& pair : {Adversaries{}, Adversaries{.weighted = true}, Adversaries{.later_in_batch = true},
                                  Adversaries{.weighted = true, .later_in_batch = true}}) {
    for (const int world_size : {1, 2, 3}) {
      const auto wanted = pair.by_hand(world_size);
      run_ranks(world_size, [&](Process& process) {
        const auto mine = pair.run(process.rank(), process.group());

        for (size_t i = 0; i < wanted.size(); ++i) {
          EXPECT_TRUE(torch::allclose(mine[i], wanted[i], 1e-9, 1e-12))
              << pair.weighted << pair.later_in_batch << ' ' << world_size << " ranks, " << i;
        }
      });
    }
  }
}

TEST(BackwardRanks, ALossThatDependsOnNothingAnywhereIsRefusedOnAllRanks) {
  const auto words = run_ranks_collecting(2, [](Process& process) {
    Mlp model;
    const auto ddp = std::make_shared<const Ddp>(*model, process.group());
    backward(model(torch::ones({2, 8})).sum().detach(), {}, {.models = {ddp}, .group = process.group()});
  });

  for (const auto& said : words) EXPECT_THAT(said, HasSubstr("the loss depends on no parameter"));
}

TEST(BackwardRanks, TakesAGradientAndKeepsTheGraphForMore) {
  for (const int world_size : {1, 2}) {
    run_ranks(world_size, [](Process& process) {
      torch::nn::Linear net(torch::nn::LinearOptions(2, 3).bias(false));
      const auto ddp = std::make_shared<const Ddp>(*net, process.group());
      const BackwardContext context{.models = {ddp}, .group = process.group(), .num_batches = 2};
      const auto output = net(torch::ones({1, 2}));
      const BackwardOptions options{.gradient = torch::tensor({{1.0F, 2.0F, 4.0F}}), .retain_graph = true};

      backward(output, options, context);
      EXPECT_TRUE(torch::equal(net->weight.grad(), torch::tensor({{0.5F, 0.5F}, {1.0F, 1.0F}, {2.0F, 2.0F}})));
      EXPECT_NO_THROW(backward(output, options, context)) << "the graph is still there";
    });
  }
}

// The penalty on the mean gradient's norm, from gradients of a backward with a graph.
TEST(BackwardRanks, APenaltyOnGradientsWithAGraphIsThatOfOneProcess) {
  const auto train = [](int rank, int world_size, const comm::Group& group) {
    Mlp model;
    testing::initialise(*model, 3);
    model->to(at::kDouble);
    const auto ddp = std::make_shared<const Ddp>(*model, group);
    const BackwardContext context{.models = {ddp}, .group = group};
    const auto problem = testing::problem_for("mlp");
    const auto inputs = problem.inputs.to(at::kDouble).chunk(world_size)[rank];
    const auto targets = problem.targets.chunk(world_size)[rank];
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      backward(mean_loss(model, inputs, targets), {.create_graph = true}, context);
      at::Tensor penalty = torch::zeros({}, at::kDouble);
      for (const auto& parameter : model->parameters()) penalty = penalty + parameter.grad().square().sum();
      backward(penalty, {}, context);
      EXPECT_FALSE(model->first->weight.grad().requires_grad()) << "the bucket's memory again";
      optimizer.step();
    }
    return model->first->weight.detach().clone();
  };
  const auto alone = [&] {
    // Alone the graph stays on the gradient, as in a plain loop.
    Mlp model;
    testing::initialise(*model, 3);
    model->to(at::kDouble);
    const auto problem = testing::problem_for("mlp");
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      mean_loss(model, problem.inputs.to(at::kDouble), problem.targets).backward({}, true, true);
      at::Tensor penalty = torch::zeros({}, at::kDouble);
      for (const auto& parameter : model->parameters()) penalty = penalty + parameter.grad().square().sum();
      penalty.backward();
      optimizer.step();
    }
    optimizer.zero_grad();  // a gradient whose graph holds its parameter is a cycle
    return model->first->weight.detach().clone();
  }();

  for (const int world_size : {2, 3, 4}) {
    run_ranks(world_size, [&](Process& process) {
      const auto mine = train(process.rank(), world_size, process.group());
      EXPECT_TRUE(torch::allclose(mine, alone, 1e-9, 1e-9)) << (mine - alone).abs().max();
    });
  }
}

TEST(BackwardRanks, ALossOfManyNumbersIsRefusedWithItsShape) {
  Mlp model;
  const auto ddp = std::make_shared<const Ddp>(*model, comm::Group());
  const auto loss = model(torch::ones({2, 8})).select(1, 0);
  EXPECT_THAT([&] { backward(loss, {}, {.models = {ddp}}); },
              ::testing::ThrowsMessage<UsageError>(
                  HasSubstr("backward of a loss of the shape [2]; expected one number. Take its mean()")));
  backward(loss, {.gradient = torch::ones(2)}, {.models = {ddp}});
  EXPECT_TRUE(model->parameters()[0].grad().defined());
}

}  // namespace
}  // namespace hasten::parallel
