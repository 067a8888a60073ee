// Optimizer state and gradients from before prepare, under axes that cut or divide a model: training goes on as on one
// process, or the state is refused.
#include "hasten/checkpoint/optimizer_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hasten/accelerator.h"
#include "hasten/optim/apex_adam.h"
#include "hasten/optim/fastai.h"
#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/layout/stages.h"
#include "support/parallel_models.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using namespace hasten::testing;
using ::testing::HasSubstr;
using Tokens = std::pair<at::Tensor, at::Tensor>;
using OptimizerPtr = std::shared_ptr<torch::optim::Optimizer>;
using Groups = std::vector<torch::optim::OptimizerParamGroup>;
using Make = std::function<OptimizerPtr(const Groups&)>;

// Epsilons are large: gradients that are zero but for rounding must not become steps.
OptimizerPtr make_adamw(const Groups& groups) {
  return std::make_shared<torch::optim::AdamW>(groups, torch::optim::AdamWOptions(1e-2).eps(1e-2).amsgrad(true));
}
OptimizerPtr make_sgd(const Groups& groups) {
  return std::make_shared<torch::optim::SGD>(groups, torch::optim::SGDOptions(0.1).momentum(0.9));
}
OptimizerPtr make_apex(const Groups& groups) {
  return std::make_shared<optim::ApexAdam>(groups, optim::ApexAdamOptions(1e-2).eps(1e-2));
}
OptimizerPtr make_fastai(const Groups& groups) {
  return optim::fastai::lookahead(optim::fastai::adam({.eps = 1e-2}), {.k = 2})(groups, 1e-2);
}

/// A model and its optimizer after some steps of a program without an Accelerator, and a backward that waits.
struct EarlierRun {
  std::shared_ptr<models::Gpt2Impl> net;
  OptimizerPtr optimizer;

  explicit EarlierRun(const Make& make) {
    torch::manual_seed(0);
    net = std::dynamic_pointer_cast<models::Gpt2Impl>(gpt2_model().make());
    optimizer = make({torch::optim::OptimizerParamGroup(net->parameters())});
    step();
    step();
  }
  void backward() const {
    const auto batch = parallel_batch();
    language_loss(net->forward(batch.x, {}, nullptr), batch.y).backward();
  }
  void step() const {
    optimizer->zero_grad();
    backward();
    optimizer->step();
  }
};

enum class Prepared { kTogether, kOptimizerFirst };

struct Earlier {
  parallel::ParallelOptions layout;
  Prepared order = Prepared::kTogether;
  bool backward_waits = false;
  ShardStage stage = ShardStage::kNone;
};

/// Two steps before prepare and two behind it, against four of one process.
void expect_to_go_on(const Make& make, const Earlier& earlier) {
  const EarlierRun alone(make);
  if (earlier.backward_waits) {
    alone.optimizer->zero_grad();
    alone.backward(), alone.backward();
    alone.optimizer->step();
  } else {
    alone.step();
  }
  alone.step();
  std::map<std::string, at::Tensor> expected;
  for (const auto& item : alone.net->named_parameters()) expected[item.key()] = item.value().detach().clone();
  const int world = std::max(earlier.layout.tp, 1) * std::max(earlier.layout.pp, 1) * earlier.layout.dp_shard *
                    earlier.layout.cp * earlier.layout.sp;
  const auto batch = parallel_batch();
  // Ranks share the default generator, so their models are made here.
  std::vector<EarlierRun> runs;
  for (int rank = 0; rank < world; ++rank) {
    runs.emplace_back(make);
    runs.back().optimizer->zero_grad();
    if (earlier.backward_waits) runs.back().backward();
  }
  run_ranks(world, [&](process::Process& process) {
    const auto& run = runs[static_cast<size_t>(process.rank())];
    const Accelerator accelerator(process, {.shard = {.stage = earlier.stage}, .parallel = earlier.layout});
    std::optional<optim::AnyPreparedOptimizer> optimizer;
    if (earlier.order == Prepared::kOptimizerFirst) optimizer = accelerator.prepare(*run.optimizer);
    auto model = accelerator.prepare(run.net);
    if (!optimizer) optimizer = accelerator.prepare(*run.optimizer);
    for (int step = 0; step < 2; ++step) {
      if (step > 0) optimizer->zero_grad();
      if (earlier.layout.pp > 1) {
        accelerator.forward_backward(Tokens(batch.x, batch.y), [&](const Tokens& part) {
          return language_loss(model(part.first, at::Tensor(), nullptr), part.second);
        });
      } else {
        accelerator.backward(language_loss(model(batch.x, at::Tensor(), nullptr), batch.y));
      }
      optimizer->step();
    }
    for (const auto& item : run.net->named_parameters()) {
      if (parallel::is_elsewhere(item.value())) {
        EXPECT_EQ(run.optimizer->state().count(item.value().unsafeGetTensorImpl()), 0U) << item.key();
      }
      const at::Tensor whole = parallel::gather_parameter(item.value());
      EXPECT_LT((whole - expected.at(item.key())).abs().max().item<double>(), 1e-5) << item.key();
    }
  });
}

TEST(EarlierState, IsCutAsItsParametersAre) {
  for (const auto& make : {make_adamw, make_sgd, make_apex, make_fastai}) {
    expect_to_go_on(make, {.layout = {.tp = 2}});
    expect_to_go_on(make, {.layout = {.tp = 2, .sequence_parallel = true}, .order = Prepared::kOptimizerFirst});
  }
}

TEST(EarlierState, StaysOnTheStagesOfItsParameters) {
  for (const auto& make : {make_adamw, make_sgd, make_apex, make_fastai}) {
    expect_to_go_on(make, {.layout = {.pp = 2, .microbatches = 4}});
    expect_to_go_on(make, {.layout = {.pp = 2, .microbatches = 4}, .order = Prepared::kOptimizerFirst});
  }
}

TEST(EarlierState, IsCutOnStages) {
  expect_to_go_on(make_adamw, {.layout = {.tp = 2, .pp = 2, .microbatches = 4}});
  expect_to_go_on(make_sgd, {.layout = {.tp = 2, .pp = 2, .microbatches = 4}, .order = Prepared::kOptimizerFirst});
}

TEST(EarlierState, IsCutAndSharded) {
  expect_to_go_on(make_adamw, {.layout = {.dp_shard = 2, .tp = 2}});
  expect_to_go_on(make_sgd, {.layout = {.dp_shard = 2, .tp = 2}, .order = Prepared::kOptimizerFirst});
  expect_to_go_on(make_adamw, {.layout = {.dp_shard = 2, .tp = 2}, .stage = ShardStage::kOptimizer});
}

TEST(EarlierState, OfWholeParametersGoesWithCutSequences) {
  expect_to_go_on(make_adamw, {.layout = {.cp = 2}});
  expect_to_go_on(make_adamw, {.layout = {.sp = 2}});
}

TEST(EarlierState, GradientsOfABackwardBeforePrepareCount) {
  expect_to_go_on(make_sgd, {.layout = {.tp = 2}, .backward_waits = true});
  expect_to_go_on(make_sgd, {.layout = {.pp = 2, .microbatches = 4}, .backward_waits = true});
}

// State of a class without a codec.
struct OwnState : torch::optim::OptimizerCloneableParamState<OwnState> {
  at::Tensor moment;
  void serialize(torch::serialize::InputArchive&) override {}
  void serialize(torch::serialize::OutputArchive&) const override {}
};

TEST(EarlierState, OfAnUnknownClassIsRefused) {
  const auto make = [](const Groups& groups) {
    struct Own : torch::optim::SGD {
      using torch::optim::SGD::SGD;
    };
    auto own = std::make_shared<Own>(groups, torch::optim::SGDOptions(0.1).momentum(0.9));
    for (const auto& parameter : groups[0].params()) {
      auto state = std::make_unique<OwnState>();
      state->moment = parameter.detach().clone();
      own->state()[parameter.unsafeGetTensorImpl()] = std::move(state);
    }
    return OptimizerPtr(own);
  };
  for (const auto order : {Prepared::kTogether, Prepared::kOptimizerFirst}) {
    std::vector<std::shared_ptr<torch::nn::Module>> nets;
    for (int rank = 0; rank < 2; ++rank) nets.push_back(gpt2_model().make());
    const auto refusals = run_ranks_collecting(2, [&](process::Process& process) {
      const Accelerator accelerator(process, {.parallel = {.tp = 2}});
      const auto net = nets[static_cast<size_t>(process.rank())];
      const auto optimizer = make({torch::optim::OptimizerParamGroup(net->parameters())});
      std::optional<optim::AnyPreparedOptimizer> prepared;
      if (order == Prepared::kOptimizerFirst) prepared = accelerator.prepare(*optimizer);
      const auto model = accelerator.prepare(std::dynamic_pointer_cast<models::Gpt2Impl>(net));
      if (!prepared) prepared = accelerator.prepare(*optimizer);
    });
    for (const std::string& refusal : refusals) {
      EXPECT_THAT(refusal, HasSubstr("a class without a codec has state from before prepare"));
      EXPECT_THAT(refusal, HasSubstr("Load the state after prepare."));
    }
  }
}

}  // namespace
}  // namespace hasten
