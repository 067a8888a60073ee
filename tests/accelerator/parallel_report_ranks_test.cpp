// Ranks by axis, sequences that the loop cuts, the report of what is divided, exchanges that backward repeats, and
// errors that name a rank's place.
#include "hasten/accelerator/parallel_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <stdexcept>

#include "hasten/accelerator.h"
#include "hasten/core/error.h"
#include "hasten/interception/interceptor.h"
#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/recompute/recompute.h"
#include "hasten/settings/megatron_lm_plugin.h"
#include "support/parallel_models.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using namespace hasten::testing;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

// ---- Ranks by axis.

TEST(AcceleratorRanks, ArePlacesAlongTheAxes) {
  run_ranks(8, [](process::Process& process) {
    const int rank = process.rank();
    const Accelerator accelerator(process, {.parallel = {.dp_shard = 2, .tp = 2, .pp = 2}});
    EXPECT_EQ(accelerator.tensor_parallel_rank(), rank % 2);
    EXPECT_EQ(accelerator.data_parallel_shard_rank(), rank / 2 % 2);
    EXPECT_EQ(accelerator.pipeline_parallel_rank(), rank / 4);
    EXPECT_EQ(accelerator.data_parallel_rank(), 0);
    EXPECT_EQ(accelerator.context_parallel_rank(), 0);
    EXPECT_EQ(accelerator.mesh().group("tp").rank(), rank % 2);
    EXPECT_EQ(accelerator.mesh().group("dp_replicate").world_size(), 1);
  });
}

TEST(AcceleratorRanks, OfAProgramWithoutALayoutAreRefused) {
  run_ranks(2, [](process::Process& process) {
    const Accelerator accelerator(process);
    EXPECT_THAT([&] { (void)accelerator.tensor_parallel_rank(); },
                ThrowsMessage<UsageError>(HasSubstr("no layout is set")));
    EXPECT_THAT([&] { (void)accelerator.mesh(); }, ThrowsMessage<UsageError>(HasSubstr("no layout is set")));
    const Accelerator of_plugin(process, {.megatron_lm = MegatronLmPlugin{.tp_degree = 2}});
    EXPECT_EQ(of_plugin.tensor_parallel_rank(), process.rank());
  });
}

TEST(TorchTensorParallelPlugins, CutLayersOverTheirRanks) {
  run_ranks(2, [](process::Process& process) {
    const Accelerator accelerator(process, {.torch_tp_plugin = TorchTensorParallelPlugin{.tp_size = 2}});
    torch::manual_seed(0);
    auto net = std::make_shared<models::Gpt2Impl>(small_gpt2_config());
    const auto whole = net->parameters()[0].sizes().vec();
    auto model = accelerator.prepare(net);
    EXPECT_EQ(accelerator.options().parallel.tp, 2);
    EXPECT_EQ(accelerator.tensor_parallel_rank(), process.rank());
    EXPECT_NE(net->parameters()[0].sizes().vec(), whole);
    EXPECT_EQ(parallel::whole_sizes(net->parameters()[0]), whole);
  });
}

TEST(TorchTensorParallelPlugins, BesideAnotherNumberAreRefused) {
  const auto words = run_ranks_collecting(2, [](process::Process& process) {
    const Accelerator made(process, {.parallel = {.tp = 2}, .torch_tp_plugin = TorchTensorParallelPlugin{}});
  });
  EXPECT_THAT(words[0], HasSubstr("torch_tp_plugin.tp_size = 1 beside parallel.tp = 2"));
  run_ranks(2, [](process::Process& process) {
    const Accelerator same(process, {.parallel = {.tp = 2}, .torch_tp_plugin = TorchTensorParallelPlugin{2}});
    EXPECT_EQ(same.tensor_parallel_rank(), process.rank());
  });
}

// ---- Sequences that the loop cuts.

at::Tensor loss_in_context(const Accelerator& accelerator, const Model<std::shared_ptr<models::Gpt2Impl>>& model) {
  const auto batch = parallel_batch();
  return accelerator.context_parallel(
      {{batch.x, 1}, {batch.y, 1}}, [&, &model = model](const at::Tensor& ids, const at::Tensor& labels) {
        EXPECT_EQ(parallel::is_cut_value(ids), accelerator.world_size() > 1);
        EXPECT_EQ(parallel::is_cut_value(labels), accelerator.world_size() > 1);
        EXPECT_EQ(parallel::local_value(ids).size(1), batch.x.size(1) / accelerator.world_size());
        const at::Tensor logits = model(ids, at::Tensor(), nullptr);
        return torch::nn::functional::cross_entropy(logits.flatten(0, 1), labels.flatten());
      });
}

TEST(ContextParallelOfTheLoop, GivesTheFunctionItsPartsAndTheLossOfOneProcess) {
  const auto expected = one_process(gpt2_model(), 1);
  for (const auto& parallel : {ParallelOptions{.cp = 2}, ParallelOptions{.sp = 2}}) {
    std::vector<std::shared_ptr<models::Gpt2Impl>> nets;
    for (int i = 0; i < 2; ++i) {
      torch::manual_seed(0);
      nets.push_back(std::dynamic_pointer_cast<models::Gpt2Impl>(gpt2_model().make()));
    }
    run_ranks(2, [&](process::Process& process) {
      const Accelerator accelerator(process, {.parallel = parallel});
      auto net = nets[static_cast<size_t>(process.rank())];
      torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-3));
      auto [model, optimizer] = accelerator.prepare(net, adamw);
      const at::Tensor before = parallel_batch().x;
      const at::Tensor loss = loss_in_context(accelerator, model);
      EXPECT_NEAR(loss.item<double>(), expected.losses[0], 2e-5);
      EXPECT_TRUE(parallel_batch().x.equal(before)) << "nothing is written in place";
      accelerator.backward(loss);
      optimizer.step();
      for (const auto& item : net->named_parameters())
        EXPECT_LT((item.value() - expected.weights.at(item.key())).abs().max().item<double>(), 1e-3) << item.key();
    });
  }
}

TEST(ContextParallelOfTheLoop, GivesWholeTensorsWithoutRanksOfASequence) {
  torch::manual_seed(0);
  auto net = std::dynamic_pointer_cast<models::Gpt2Impl>(gpt2_model().make());
  const Accelerator accelerator(process::Process(), {.tune_allocator = false});
  auto model = accelerator.prepare(net);
  const at::Tensor x = at::arange(6).view({2, 3});
  EXPECT_NEAR(loss_in_context(accelerator, model).item<double>(), one_process(gpt2_model(), 1).losses[0], 2e-5);
  EXPECT_TRUE(accelerator.context_parallel({{x, 1}}, [&](const at::Tensor& same) { return same.is_same(x); }));
}

// ---- The report.

struct TwoLayersImpl : torch::nn::Module {
  TwoLayersImpl() {
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }
  at::Tensor forward(const at::Tensor& x) { return fc2(torch::relu(fc1(x))); }
  torch::nn::Linear fc1{6, 8}, fc2{8, 4};
};
TORCH_MODULE(TwoLayers);

std::vector<std::string> kinds_of(const parallel::ParallelCounts& counts) {
  std::vector<std::string> words;
  for (const auto& [kind, count] : counts.kinds) words.push_back(text(kind, ' ', count.calls, ' ', count.bytes));
  return words;
}

TEST(ParallelReports, HaveCutsAndTheExchangesOfTheLastStep) {
  run_ranks(2, [](process::Process& process) {
    const Accelerator accelerator(process,
                                  {.parallel = {.tp = 2, .tensor_plan = {{"fc1", "colwise"}, {"fc2", "rowwise"}}}});
    TwoLayers net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (const int rows : {3, 5}) {
      optimizer.zero_grad();
      accelerator.backward(model(at::ones({rows, 6})).sum());
      optimizer.step();
    }

    const auto report = accelerator.explain_parallel();
    EXPECT_EQ(report.sizes.tp, 2);
    EXPECT_EQ(report.coordinate, text("rank ", process.rank(), " (tp ", process.rank(), ")"));
    EXPECT_EQ(report.num_steps, 2);
    ASSERT_EQ(report.modules.size(), 2u);
    const auto& fc1 = report.modules[0];
    EXPECT_EQ(fc1.name + " " + fc1.type, "fc1 Linear");
    EXPECT_FALSE(fc1.stage);
    EXPECT_EQ(fc1.parameters[0].cut, "dim 0");
    EXPECT_THAT(fc1.parameters[0].sizes, ElementsAre(8, 6));
    EXPECT_THAT(fc1.parameters[0].own_sizes, ElementsAre(4, 6));
    EXPECT_EQ(fc1.parameters[0].bytes, 96);
    EXPECT_EQ(report.modules[1].parameters[0].cut, "dim 1");
    EXPECT_EQ(report.modules[1].parameters[1].cut, "") << "a rowwise bias is whole";
    ASSERT_EQ(report.exchanges.size(), 1u);
    EXPECT_EQ(report.exchanges[0].axis, "tp");
    EXPECT_THAT(kinds_of(report.exchanges[0].last_step), ElementsAre("sum 1 80")) << "5 rows of 4 numbers";
    EXPECT_THAT(kinds_of(report.exchanges[0].all), ElementsAre("sum 2 128"));
    EXPECT_THAT(
        report.text(),
        AllOf(HasSubstr("layout tp 2; this is rank"), HasSubstr("weight [8, 6]"), HasSubstr("[4, 6], cut on dim 0"),
              HasSubstr("exchanges of the last of 2 steps:\n    tp (2 ranks): sum 1 (80 bytes)\n")));
  });
}

TEST(ParallelReports, NameOperatorsThatRanOnWholeValues) {
  run_ranks(2, [](process::Process& process) {
    const Accelerator accelerator(process, {.parallel = {.tp = 2, .tensor_plan = {{"fc1", "colwise"}}}});
    TwoLayers net;
    auto model = accelerator.prepare(net);
    const at::Tensor cut = net->fc1(at::ones({3, 6}));
    (void)at::linalg_inv(at::matmul(cut.transpose(0, 1), cut) + at::eye(8));

    const auto report = accelerator.explain_parallel();
    const auto& gathered = report.exchanges.at(0).all.gathered;
    EXPECT_FALSE(gathered.empty());
    EXPECT_THAT(report.text(), AllOf(HasSubstr("has no rule over tp, and ran on whole values"),
                                     HasSubstr("exchanges so far, without a step")));
  });
}

TEST(ParallelReports, HaveStagesAndTheirMessages) {
  run_ranks(2, [](process::Process& process) {
    const Accelerator accelerator(process, {.parallel = {.pp = 2, .stages = {"fc2"}, .microbatches = 2}});
    TwoLayers net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      accelerator.forward_backward(at::ones({4, 6}),
                                   [&, &model = model](const at::Tensor& part) { return model(part).mean(); });
      optimizer.step();
    }

    const auto report = accelerator.explain_parallel();
    EXPECT_EQ(report.modules.at(0).stage, 0);
    EXPECT_EQ(report.modules.at(1).stage, 1);
    EXPECT_EQ(report.modules.at(0).parameters.at(0).is_here, process.rank() == 0);
    EXPECT_EQ(report.modules.at(1).parameters.at(0).is_here, process.rank() == 1);
    EXPECT_THAT(report.modules.at(1).parameters.at(0).sizes, ElementsAre(4, 8));
    // Each of two parts of 2 rows goes on with 8 numbers a row, and its gradient comes back.
    EXPECT_THAT(kinds_of(report.exchanges.at(0).last_step), ElementsAre("message 2 128"));
    EXPECT_THAT(report.text(), AllOf(HasSubstr("layout pp 2"), HasSubstr("on another stage")));
  });
}

TEST(ParallelReports, OfAWholeModelSayThatNothingIsExchanged) {
  const Accelerator accelerator(process::Process(), {.tune_allocator = false});
  TwoLayers net;
  auto model = accelerator.prepare(net);
  EXPECT_THAT(accelerator.explain_parallel().text(), HasSubstr("nothing is exchanged"));
  EXPECT_THAT(accelerator.explain_parallel().exchanges, ::testing::IsEmpty());
}

// ---- Exchanges that backward repeats.

struct Repeated {
  std::vector<double> losses;
  std::vector<at::Tensor> weights;
  int64_t kept = 0, exchanges = 0;
};

Repeated train_recomputed(const ParallelOptions& parallel) {
  constexpr int kWorld = 2;
  const auto batch = parallel_batch();
  std::vector<std::shared_ptr<models::Gpt2Impl>> nets;
  for (int i = 0; i < kWorld; ++i) {
    torch::manual_seed(0);
    nets.push_back(std::dynamic_pointer_cast<models::Gpt2Impl>(gpt2_model().make()));
  }
  std::vector<Repeated> all(kWorld);
  const auto before = parallel::recompute_counts();
  run_ranks(kWorld, [&](process::Process& process) {
    const Accelerator accelerator(process, {.parallel = parallel, .recompute = {.enabled = true}});
    auto net = nets[static_cast<size_t>(process.rank())];
    auto& own = all[static_cast<size_t>(process.rank())];
    torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-3));
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      const at::Tensor loss = language_loss(model(batch.x, at::Tensor(), nullptr), batch.y);
      accelerator.backward(loss);
      optimizer.step();
      own.losses.push_back(loss.item<double>());
    }
    const interception::PassScope pass;
    for (const auto& parameter : net->parameters()) own.weights.push_back(parameter.detach().clone());
    own.exchanges = accelerator.explain_parallel().exchanges.at(0).last_step.exchanges;
  });
  all[0].kept = parallel::recompute_counts().kept - before.kept;
  return all[0];
}

TEST(RecomputedExchanges, AreRepeatedInBackwardAndGiveTheSameBits) {
  for (auto parallel : {ParallelOptions{.tp = 2}, ParallelOptions{.tp = 2, .sequence_parallel = true},
                        ParallelOptions{.cp = 2}, ParallelOptions{.sp = 2}}) {
    const auto kept = train_recomputed(parallel);
    parallel.recompute_exchanges = true;
    const auto repeated = train_recomputed(parallel);

    const auto words = text("tp ", parallel.tp, ", cp ", parallel.cp, ", sp ", parallel.sp);
    EXPECT_EQ(repeated.losses, kept.losses) << words;
    for (size_t i = 0; i < kept.weights.size(); ++i) EXPECT_TRUE(repeated.weights[i].equal(kept.weights[i])) << words;
    EXPECT_GT(repeated.exchanges, kept.exchanges) << words;
    // Sums go to additions alone, of which autograd keeps nothing.
    const bool is_gathered = parallel.tp == 1 || parallel.sequence_parallel;
    EXPECT_LT(repeated.kept, kept.kept + (is_gathered ? 0 : 1)) << words;
  }
}

// ---- Errors with the place of a rank.

TEST(PlacesInErrors, StandInThoseOfExchangesOverTheRanksOfAModel) {
  const auto words_of = [](const ParallelOptions& parallel) {
    return run_ranks_collecting(2, [&](process::Process& process) {
      const Accelerator accelerator(process, {.parallel = parallel});
      TwoLayers net;
      auto model = accelerator.prepare(net);
      if (process.rank() == 1) throw std::runtime_error("this rank ends");
      if (parallel.pp > 1) {
        accelerator.forward_backward(at::ones({4, 6}), [&](const at::Tensor& part) { return model(part).mean(); });
      } else {
        accelerator.backward(model(at::ones({3, 6})).sum());
      }
    })[0];
  };

  EXPECT_THAT(words_of({.tp = 2, .tensor_plan = {{"fc1", "colwise"}, {"fc2", "rowwise"}}}),
              AllOf(HasSubstr("rank 0 (tp 0): "), HasSubstr("this rank ends"), Not(HasSubstr("rank 0/2: "))));
  EXPECT_THAT(words_of({.pp = 2, .stages = {"fc2"}}), AllOf(HasSubstr("rank 0 (pp 0): "), HasSubstr("this rank ends")));
}

}  // namespace
}  // namespace hasten
