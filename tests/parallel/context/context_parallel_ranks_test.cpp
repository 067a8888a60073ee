// A cut sequence against one process, alone and with cut parameters.
#include "hasten/parallel/context/context_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <vector>

#include "hasten/comm/mesh/device_mesh.h"
#include "hasten/core/error.h"
#include "hasten/parallel/layout/placement.h"
#include "support/parallel_models.h"
#include "support/ranks.h"

namespace hasten::parallel {
namespace {

using namespace hasten::testing;
using ::testing::HasSubstr;

// The mask is whole: it says which keys are padding, for all queries.
ParallelModel padded_llama() {
  auto model = llama_model();
  model.loss = [](torch::nn::Module& net, const at::Tensor& x, const at::Tensor& y) {
    const at::Tensor mask = at::ones({x.size(0), x.size(1)}, at::TensorOptions(at::kLong));
    mask.slice(1, 0, 3).zero_();
    return language_loss(net.as<models::LlamaImpl>()->forward(x, mask, nullptr), y);
  };
  return model;
}

struct ContextCase {
  int cp = 2, tp = 1;
  bool by_heads = false, balance = false;
};

void expect_gradients_of_one_process(const ParallelModel& model, const ContextCase& is) {
  const auto batch = parallel_batch();
  std::vector<std::shared_ptr<torch::nn::Module>> nets;
  for (int rank = 0; rank <= is.cp * is.tp; ++rank) {
    torch::manual_seed(0);
    nets.push_back(model.make());
    nets.back()->to(at::kDouble);
  }
  auto& alone = *nets.back();
  const at::Tensor wanted_loss = model.loss(alone, batch.x, batch.y);
  wanted_loss.backward();
  const auto expected = alone.named_parameters();
  run_ranks(is.cp * is.tp, [&](process::Process& process) {
    const comm::DeviceMesh mesh(process.group(), {{"cp", is.cp}, {"tp", is.tp}});
    mesh.group("tp").connect_backends();
    mesh.group("cp").connect_backends();
    auto& net = *nets[static_cast<size_t>(process.rank())];
    const TensorParallel cut(net, mesh.group("tp"));
    const ContextParallel context(mesh.group("cp"), {.by_heads = is.by_heads, .balance = is.balance});
    const at::Tensor loss = model.loss(net, context.cut(batch.x, 1), context.cut(batch.y, 1));
    EXPECT_NEAR(loss.item<double>(), wanted_loss.item<double>(), 1e-6);
    loss.backward();
    const double tolerance = model.name == "llama" ? 1e-6 : 1e-12;
    for (const auto& item : net.named_parameters()) {
      at::Tensor wanted = expected[item.key()].grad();
      if (const auto* placed = placed_by(item.value())) {
        wanted = cut_tensor(wanted, placed->placement(item.value())->cut, is.tp, mesh.coordinate("tp"));
      }
      const double difference = (item.value().grad() - wanted).abs().max().item<double>();
      EXPECT_LT(difference, tolerance) << model.name << ' ' << item.key();
    }
  });
}

TEST(ContextParallel, GathersKeysForTheGradientsOfOneProcess) {
  expect_gradients_of_one_process(gpt2_model(), {.cp = 2});
  expect_gradients_of_one_process(padded_llama(), {.cp = 4});
}

TEST(ContextParallel, MovesHeadsForTheGradientsOfOneProcess) {
  expect_gradients_of_one_process(gpt2_model(), {.cp = 2, .by_heads = true});
  expect_gradients_of_one_process(padded_llama(), {.cp = 4, .by_heads = true});
}

TEST(ContextParallel, GoesWithCutParameters) {
  expect_gradients_of_one_process(gpt2_model(), {.cp = 2, .tp = 2});
  expect_gradients_of_one_process(padded_llama(), {.cp = 2, .tp = 2});
  expect_gradients_of_one_process(gpt2_model(), {.cp = 2, .tp = 2, .by_heads = true});
}

TEST(ContextParallel, BalancesCausalAttentionForTheGradientsOfOneProcess) {
  expect_gradients_of_one_process(gpt2_model(), {.cp = 2, .balance = true});
  expect_gradients_of_one_process(padded_llama(), {.cp = 4, .balance = true});
  expect_gradients_of_one_process(gpt2_model(), {.cp = 2, .tp = 2, .balance = true});
}

TEST(ContextParallel, BalancedGivesEachRankAPartOfTheBeginningAndOneOfTheEnd) {
  run_ranks(4, [](process::Process& process) {
    const ContextParallel context(process.group(), {.balance = true});
    const int64_t rank = process.rank();

    const at::Tensor own = local_value(context.cut(at::arange(16), 0));

    const std::vector<int64_t> expected = {2 * rank, 2 * rank + 1, 14 - 2 * rank, 15 - 2 * rank};
    EXPECT_TRUE(own.equal(torch::tensor(expected))) << own;
  });
}

// Each stands for what programs do with a sequence; the values must be those of the whole one.
TEST(ContextParallel, BalancedValuesAreViewedSplitAndReducedAsWholeOnes) {
  using Fn = std::function<at::Tensor(const at::Tensor&)>;
  const std::vector<Fn> functions = {[](const at::Tensor& x) { return x.flatten(0, 1); },
                                     [](const at::Tensor& x) {
                                       return x.flatten(0, 1).view({2, 16, 6});
                                     },
                                     [](const at::Tensor& x) {
                                       return x.view({2, 2, 8, 6});
                                     },
                                     [](const at::Tensor& x) {
                                       return x.view({2, 4, 4, 6}).transpose(1, 2);
                                     },
                                     [](const at::Tensor& x) {
                                       return x.transpose(0, 1).reshape({32, 6});
                                     },
                                     [](const at::Tensor& x) { return x.chunk(2, 1)[1]; },
                                     [](const at::Tensor& x) { return x.split(4, 1)[2]; },
                                     [](const at::Tensor& x) {
                                       return x.split_with_sizes({8, 8}, 1)[1];
                                     },
                                     [](const at::Tensor& x) { return x.slice(1, 8, 16); },
                                     [](const at::Tensor& x) { return x.slice(1, 1) - x.slice(1, 0, 15); },
                                     [](const at::Tensor& x) { return x.select(1, 3); },
                                     [](const at::Tensor& x) {
                                       return at::cat({x, x * 2}, 1);
                                     },
                                     [](const at::Tensor& x) {
                                       return at::cat({x, x * 2}, 2);
                                     },
                                     [](const at::Tensor& x) { return x.softmax(1); },
                                     [](const at::Tensor& x) { return x.cumsum(1); },
                                     [](const at::Tensor& x) { return x.mean(1); },
                                     [](const at::Tensor& x) {
                                       return x + at::arange(16).view({16, 1});
                                     },
                                     [](const at::Tensor& x) { return x.repeat_interleave(2, 1); },
                                     [](const at::Tensor& x) { return x.matmul(x.transpose(1, 2)); },
                                     [](const at::Tensor& x) {
                                       return x.expand({3, 2, 16, 6});
                                     }};
  run_ranks(2, [&](process::Process& process) {
    const ContextParallel context(process.group(), {.balance = true});
    for (size_t i = 0; i < functions.size(); ++i) {
      const auto whole = (at::arange(2 * 16 * 6, at::kDouble).view({2, 16, 6}) * 0.01).requires_grad_();
      const auto given = whole.detach().clone().requires_grad_();
      const at::Tensor expected = functions[i](whole), found = functions[i](context.cut(given, 1));
      EXPECT_TRUE(at::allclose(whole_value(found), expected)) << "function " << i;

      // Weights that no two elements share, so that a swapped one shows.
      const auto weight = at::arange(expected.numel(), at::kDouble).view(expected.sizes()).sin();
      (expected * weight).sum().backward();
      (found * weight).sum().backward();
      EXPECT_TRUE(at::allclose(given.grad(), whole.grad())) << "gradient of function " << i;
    }
  });
}

TEST(ContextParallel, BalancedRefusesLengthsThatTwiceTheRanksDoNotDivide) {
  const auto words = run_ranks_collecting(2, [](process::Process& process) {
    const ContextParallel context(process.group(), {.balance = true});
    (void)context.cut(at::ones({2, 6}), 1);
  });
  EXPECT_THAT(words[0], HasSubstr("a sequence of 6, which 2 * cp = 4 does not divide (balance). Pad it to a multiple "
                                  "of 4"));
}

TEST(ContextParallel, RefusesASequenceThatRanksDoNotDivide) {
  const auto words = run_ranks_collecting(2, [](process::Process& process) {
    const ContextParallel context(process.group());
    (void)context.cut(at::ones({2, 7}), 1);
  });
  EXPECT_THAT(words[0], HasSubstr("a sequence of 7, which cp = 2 does not divide"));
}

TEST(ContextParallel, RefusesHeadsThatRanksDoNotDivide) {
  const auto words = run_ranks_collecting(2, [](process::Process& process) {
    const ContextParallel context(process.group(), {.by_heads = true});
    const auto x = context.cut(at::ones({1, 3, 4, 8}), 2);
    (void)at::scaled_dot_product_attention(x, x, x);
  });
  EXPECT_THAT(words[0], HasSubstr("attention has 3 heads, which sp = 2 does not divide"));
}

TEST(ContextParallel, LabelsAreTheNextTokens) {
  const auto labels = torch::tensor({{1, 2, 3}, {4, 5, 6}}, at::kLong);
  EXPECT_TRUE(shift_labels(labels).equal(torch::tensor({{2, 3, -100}, {5, 6, -100}}, at::kLong)));
}

}  // namespace
}  // namespace hasten::parallel
