// Tensor parallelism against one process: losses, weights, and what composes with it.
#include "hasten/parallel/tensor/tensor_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <random>

#include "hasten/comm/mesh/device_mesh.h"
#include "hasten/core/error.h"
#include "hasten/core/text.h"
#include "hasten/interception/interceptor.h"
#include "hasten/optim/steps/optimizer_step.h"
#include "hasten/parallel/ddp/ddp.h"
#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/recompute/recompute.h"
#include "hasten/parallel/shard/sharding.h"
#include "parallel/tensor/exchange.h"
#include "parallel/tensor/handler.h"
#include "support/parallel_models.h"
#include "support/ranks.h"

namespace hasten::parallel {
namespace {

using namespace hasten::testing;
using ::testing::HasSubstr;

struct TensorCase {
  int tp = 2, dp = 1;
  bool sequence_parallel = false, recompute = false, bf16 = false;
  ShardStage stage = ShardStage::kNone;
  int steps = 4;
};

bool lacks_gradient(const ParallelModel& model, const std::string& name) {
  return std::any_of(model.without_gradient.begin(), model.without_gradient.end(),
                     [&](const std::string& end) { return name.ends_with(end); });
}

// The trained model's weights, gathered, against those of one process.
void expect_weights(const ParallelModel& model, const torch::nn::Module& net, const ParallelRun& expected,
                    double tolerance) {
  for (const auto& item : net.named_parameters()) {
    if (lacks_gradient(model, item.key())) continue;
    const at::Tensor whole = gather_parameter(item.value());
    const at::Tensor& wanted = expected.weights.at(item.key());
    ASSERT_EQ(whole.sizes(), wanted.sizes()) << item.key();
    const double difference = (whole - wanted).abs().max().item<double>();
    EXPECT_LT(difference, tolerance) << model.name << ' ' << item.key();
  }
}

void train_one_rank(process::Process& process, const ParallelModel& model, torch::nn::Module& net, const TensorCase& is,
                    const ParallelRun& expected, const ParallelBatch& batch) {
  const comm::DeviceMesh mesh(process.group(), {{"dp", is.dp}, {"tp", is.tp}});
  const auto tp = mesh.group("tp"), data = mesh.group("dp");
  tp.connect_backends();
  data.connect_backends();
  const TensorParallel cut(net, tp, {.sequence_parallel = is.sequence_parallel});
  std::unique_ptr<Ddp> ddp;
  std::shared_ptr<Sharding> sharding;
  DdpOptions options;
  if (is.stage != ShardStage::kNone) {
    sharding = std::make_shared<Sharding>(data, ShardOptions{.stage = is.stage});
    options.make_exchange = [sharding](const comm::Group& group) { return sharding->make_exchange(group); };
  }
  if (is.dp > 1) {
    const interception::PassScope pass;
    ddp = std::make_unique<Ddp>(net, data, options);
  }
  torch::optim::AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(1e-3));
  const auto hook = is.recompute ? recompute_hook(net, {.enabled = true}) : nullptr;
  const int64_t rows = batch.x.size(0) / is.dp, first = mesh.coordinate("dp") * rows;
  for (int step = 0; step < is.steps; ++step) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const auto entered = hook ? hook->enter(net) : nullptr;
      const Bf16Scope scope(is.bf16);
      loss = model.loss(net, batch.x.narrow(0, first, rows), batch.y.narrow(0, first, rows));
    }
    loss.backward();
    if (sharding) {
      sharding->step(optimizer, [&] { return optim::optimizer_step(optimizer, {}); });
    } else {
      optimizer.step();
    }
    at::Tensor mean = loss.detach().clone();
    data.all_reduce_(mean, comm::ReduceOp::kMean);
    EXPECT_NEAR(mean.item<double>(), expected.losses[static_cast<size_t>(step)], is.bf16 ? 3e-2 : 2e-5)
        << model.name << " step " << step;
  }
  if (!is.bf16) expect_weights(model, net, expected, 1e-3);
  EXPECT_THAT(cut.counts().gathered, ::testing::IsEmpty()) << model.name;
}

void expect_like_one_process(const ParallelModel& model, const TensorCase& is) {
  const auto expected = one_process(model, is.steps, is.bf16);
  std::vector<std::shared_ptr<torch::nn::Module>> nets;
  for (int rank = 0; rank < is.tp * is.dp; ++rank) {
    torch::manual_seed(0);
    nets.push_back(model.make());
  }
  const auto batch = parallel_batch();  // here, since the threads share one random generator
  run_ranks(is.tp * is.dp, [&](process::Process& process) {
    train_one_rank(process, model, *nets[static_cast<size_t>(process.rank())], is, expected, batch);
  });
}

// The gradients of one backward in double precision, whatever the steps' rounding does.
void expect_gradients_of_one_process(const ParallelModel& model, int tp, bool sequence_parallel) {
  const auto batch = parallel_batch();
  std::vector<std::shared_ptr<torch::nn::Module>> nets;
  for (int rank = 0; rank <= tp; ++rank) {
    torch::manual_seed(0);
    nets.push_back(model.make());
    nets.back()->to(at::kDouble);
  }
  const auto& alone = *nets.back();
  model.loss(*nets.back(), batch.x, batch.y).backward();
  const auto expected = alone.named_parameters();
  run_ranks(tp, [&](process::Process& process) {
    auto& net = *nets[static_cast<size_t>(process.rank())];
    const TensorParallel cut(net, process.group(), {.sequence_parallel = sequence_parallel});
    model.loss(net, batch.x, batch.y).backward();
    // A norm that computes in float32 has gradients that are no more exact.
    const double tolerance = model.name == "llama" ? 1e-6 : 1e-12;
    for (const auto& item : net.named_parameters()) {
      at::Tensor wanted = expected[item.key()].grad();
      const auto* const placed = placed_by(item.value());
      if (placed != nullptr) wanted = cut_tensor(wanted, placed->placement(item.value())->cut, tp, process.rank());
      const double difference = (item.value().grad() - wanted).abs().max().item<double>();
      EXPECT_LT(difference, tolerance) << model.name << ' ' << item.key();
    }
  });
}

class TensorParallelModels : public ::testing::TestWithParam<ParallelModel> {};
INSTANTIATE_TEST_SUITE_P(All, TensorParallelModels, ::testing::ValuesIn(parallel_models()),
                         [](const auto& info) { return info.param.name; });

TEST_P(TensorParallelModels, HaveTheGradientsOfOneProcess) {
  expect_gradients_of_one_process(GetParam(), 2, false);
  expect_gradients_of_one_process(GetParam(), 4, false);
}
TEST_P(TensorParallelModels, HaveTheGradientsOfOneProcessWithSequenceParallelism) {
  expect_gradients_of_one_process(GetParam(), 2, true);
  expect_gradients_of_one_process(GetParam(), 4, true);
}
TEST_P(TensorParallelModels, TrainOnTwoRanksAsOnOne) {
  expect_like_one_process(GetParam(), {.tp = 2});
}
TEST_P(TensorParallelModels, TrainWithSequenceParallelismAsOnOne) {
  expect_like_one_process(GetParam(), {.tp = 2, .sequence_parallel = true});
}
TEST_P(TensorParallelModels, TrainBesideDataParallelismAsOnOne) {
  expect_like_one_process(GetParam(), {.tp = 2, .dp = 2});
}
TEST_P(TensorParallelModels, TrainWithShardedStateAndParametersAsOnOne) {
  expect_like_one_process(GetParam(), {.tp = 2, .dp = 2, .stage = ShardStage::kOptimizer, .steps = 2});
  expect_like_one_process(GetParam(), {.tp = 2, .dp = 2, .stage = ShardStage::kParameters});
}
TEST_P(TensorParallelModels, TrainWithRecomputedActivationsAsOnOne) {
  expect_like_one_process(GetParam(), {.tp = 2, .recompute = true, .steps = 3});
  expect_like_one_process(GetParam(), {.tp = 2, .sequence_parallel = true, .recompute = true, .steps = 3});
}
TEST_P(TensorParallelModels, TrainInBfloat16AsOnOne) {
  expect_like_one_process(GetParam(), {.tp = 2, .bf16 = true, .steps = 4});
}
TEST_P(TensorParallelModels, TrainWithAllAtOnceAsOnOne) {
  expect_like_one_process(GetParam(), {.tp = 2,
                                       .dp = 2,
                                       .sequence_parallel = true,
                                       .recompute = true,
                                       .bf16 = true,
                                       .stage = ShardStage::kParameters,
                                       .steps = 4});
}

TEST(TensorParallel, KeepsParametersAndHoldsHalfOfTheirBytes) {
  const auto model = llama_model();
  torch::manual_seed(0);
  std::vector<std::shared_ptr<torch::nn::Module>> nets = {model.make(), model.make()};
  run_ranks(2, [&](process::Process& process) {
    auto& net = *nets[static_cast<size_t>(process.rank())];
    const auto before = net.named_parameters();
    const TensorParallel cut(net, process.group());
    int64_t own = 0, all = 0;
    for (const auto& item : net.named_parameters()) {
      EXPECT_TRUE(item.value().is_same(before[item.key()]));
      EXPECT_TRUE(item.value().requires_grad());
      own += item.value().numel();
      int64_t numel = 1;
      for (const int64_t size : whole_sizes(item.value())) numel *= size;
      all += numel;
    }
    EXPECT_LT(static_cast<double>(own), 0.53 * static_cast<double>(all));
  });
}

TEST(TensorParallel, StartsFromTheValuesOfTheFirstRank) {
  std::vector<torch::nn::Linear> nets = {torch::nn::Linear(6, 4), torch::nn::Linear(6, 4)};
  const at::Tensor wanted = nets[0]->weight.detach().clone();
  run_ranks(2, [&](process::Process& process) {
    auto& net = nets[static_cast<size_t>(process.rank())];
    const TensorParallel cut(*net, process.group(), {.plan = {{"weight", "colwise"}, {"bias", "colwise"}}});
    EXPECT_TRUE(gather_parameter(net->weight).equal(wanted));
  });
}

TEST(TensorParallel, GivesWholeOutputsWithoutGradients) {
  const auto model = gpt2_model();
  torch::manual_seed(0);
  std::vector<std::shared_ptr<torch::nn::Module>> nets = {model.make(), model.make(), model.make()};
  for (auto& net : nets) {
    torch::manual_seed(0);
    net = model.make();
  }
  const auto ids = parallel_batch().x;
  const at::NoGradGuard no_grad;
  const auto expected = nets[2]->as<models::Gpt2Impl>()->forward(ids, {}, nullptr);
  run_ranks(2, [&](process::Process& process) {
    const at::NoGradGuard own_no_grad;
    auto& net = *nets[static_cast<size_t>(process.rank())];
    const TensorParallel cut(net, process.group());
    const auto entered = cut.forward_hook()->enter(net);
    const auto logits = net.as<models::Gpt2Impl>()->forward(ids, {}, nullptr);
    EXPECT_TRUE(is_cut_value(logits));
    EXPECT_EQ(logits.sizes(), expected.sizes());
    EXPECT_TRUE(at::allclose(whole_value(logits), expected, 1e-5, 1e-6));
    // The same without a scope: no operator of a forward passes the cuts by.
    EXPECT_TRUE(logits.argmax(-1).equal(expected.argmax(-1)));
  });
}

TEST(TensorParallel, RefusesAModelThatNoRuleIsFor) {
  const auto words = run_ranks_collecting(2, [](process::Process& process) {
    torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
    const TensorParallel cut(*net, process.group());
  });
  EXPECT_THAT(words[0], HasSubstr("there is no rule for cutting 'Sequential'"));
  EXPECT_THAT(words[0], HasSubstr("names of: 0, 1"));
}

TEST(TensorParallel, RefusesANumberOfHeadsThatRanksDoNotDivide) {
  const auto words = run_ranks_collecting(2, [](process::Process& process) {
    torch::nn::MultiheadAttention net(9, 3);
    const TensorParallel cut(*net, process.group());
  });
  EXPECT_THAT(words[0], HasSubstr("has 3 heads, tp 2; 1, 3 are possible"));
}

// Cut in the middle of a head, values would be right and gathered again and again.
TEST(TensorParallel, RefusesHeadsOfItsOwnModelsThatRanksDoNotDivide) {
  const auto words = [](int ranks, const std::function<std::shared_ptr<torch::nn::Module>()>& make) {
    return run_ranks_collecting(
        ranks, [&](process::Process& process) { const TensorParallel cut(*make(), process.group()); })[0];
  };
  auto gpt2 = small_gpt2_config(24, 1);
  gpt2.n_head = 6;
  EXPECT_THAT(words(4, [&] { return std::make_shared<models::Gpt2Impl>(gpt2); }),
              HasSubstr("'transformer.h.0' has 6 heads, tp 4; 1, 2, 3, 6 are possible."));
  models::LlamaConfig llama;
  llama.vocab_size = llama.hidden_size = llama.intermediate_size = 32;
  llama.num_hidden_layers = 1;
  llama.num_attention_heads = 8;
  llama.num_key_value_heads = 2;
  EXPECT_THAT(words(4, [&] { return std::make_shared<models::LlamaImpl>(llama); }),
              HasSubstr("'model.layers.0' has 8 heads, 2 key-value heads, tp 4; 1, 2 are possible."));
  EXPECT_THAT(words(3, [] { return std::make_shared<models::BertImpl>(small_bert_config(12, 1)); }),
              HasSubstr("has 4 heads, tp 3; 1, 2, 4 are possible."));
  EXPECT_THAT(words(3, [] { return std::make_shared<models::T5Impl>(small_t5_config(1)); }),
              HasSubstr("has 4 heads, tp 3; 1, 2, 4 are possible."));
}

TEST(TensorParallel, RefusesOperatorsWithoutARuleIfStrict) {
  const auto words = run_ranks_collecting(2, [](process::Process& process) {
    torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
    const TensorParallel cut(*net, process.group(), {.plan = {{"0", "colwise"}, {"1", "rowwise"}}, .strict = true});
    net->forward(at::ones({2, 4})).sum().backward();
    const auto& first = net[0];
    (void)first->as<torch::nn::LinearImpl>()->forward(at::ones({2, 4})).flip(1);
  });
  EXPECT_THAT(words[0], HasSubstr("'aten::flip' has no rule for values that are cut over tp, behind an operator on "
                                  "'0.bias', and strict is set"));
}

TEST(TensorParallel, SaysThatAParameterWasReplaced) {
  const auto words = run_ranks_collecting(2, [](process::Process& process) {
    torch::nn::Linear net(4, 4);
    const TensorParallel cut(*net, process.group(), {.plan = {{"weight", "colwise"}, {"bias", "colwise"}}});
    net->weight.set_data(at::ones({4, 4}));
    (void)cut.forward_hook()->enter(*net);
  });
  EXPECT_THAT(words[0], HasSubstr("the values of 'weight' were replaced"));
}

// ---- Exchanges: forward and backward beside one process that holds the whole value.

using tensor::Exchange;
using tensor::ExchangeKind;

// A whole value, a function of parts, and how parts are given and taken: random sizes, some of which no rank divides.
struct ExchangeTrial {
  Exchange what = {};
  at::Tensor whole;
  /// Factors of each rank's result, so that gradients of ranks differ.
  std::vector<at::Tensor> factors = {};
};

at::Tensor own_part(const at::Tensor& whole, const Cut& cut, const process::Process& process) {
  return cut_tensor(whole, cut, process.world_size(), process.rank());
}

// What rank r computes with the result; the loss is the sum over ranks. Each kind beside the plain formula of autograd.
void expect_exchange(process::Process& process, const ExchangeTrial& trial) {
  const auto axis = tensor::make_axis(process.group(), {});
  const int ranks = process.world_size(), rank = process.rank();
  const auto& what = trial.what;
  const bool takes_part = what.kind == ExchangeKind::kGather || what.kind == ExchangeKind::kGatherForParts ||
                          what.kind == ExchangeKind::kMove;
  const bool is_partial_sum = what.kind == ExchangeKind::kSum || what.kind == ExchangeKind::kReduceScatter;
  // One process: the value, the results of all ranks, and the gradient of their weighted sum.
  at::Tensor whole = trial.whole.clone().requires_grad_();
  std::vector<at::Tensor> inputs, results;
  for (int r = 0; r < ranks; ++r) inputs.push_back(is_partial_sum ? whole * (r + 1) : whole);
  at::Tensor total = at::zeros_like(whole);
  for (const auto& input : inputs) total = is_partial_sum ? total + input : input;
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (int r = 0; r < ranks; ++r) {
    at::Tensor result = total;
    if (what.kind == ExchangeKind::kSlice || what.kind == ExchangeKind::kReduceScatter)
      result = cut_tensor(total, what.cut, ranks, r);
    if (what.kind == ExchangeKind::kMove) result = cut_tensor(total, {what.to_dim, 1}, ranks, r);
    results.push_back(result);
    // Code behind kSum and kGather is the same on all ranks, and counts once.
    const bool is_same = what.kind == ExchangeKind::kSum || what.kind == ExchangeKind::kGather;
    if (!is_same || r == 0) loss = loss + (result * trial.factors[static_cast<size_t>(r)]).sum();
  }
  loss.backward();

  at::Tensor mine = (takes_part ? own_part(trial.whole, what.cut, process).clone() : trial.whole.clone());
  mine.requires_grad_();
  const at::Tensor given = is_partial_sum ? mine * (rank + 1) : mine;
  const at::Tensor result = tensor::exchange(*axis, given, what);
  const bool is_same = what.kind == ExchangeKind::kSum || what.kind == ExchangeKind::kGather;
  (result * trial.factors[is_same ? 0 : static_cast<size_t>(rank)]).sum().backward();

  const std::string words = text("kind ", static_cast<int>(what.kind), " dim ", what.cut.dim, " blocks ",
                                 what.cut.blocks, " size ", what.size, " rank ", rank, "/", ranks);
  EXPECT_TRUE(at::allclose(result, results[static_cast<size_t>(rank)])) << words;
  at::Tensor gradient = mine.grad();
  if (is_partial_sum) {  // each rank's share of the one value
    gradient = gradient.clone();
    process.group().all_reduce_(gradient);
  }
  EXPECT_TRUE(at::allclose(gradient, takes_part ? own_part(whole.grad(), what.cut, process) : whole.grad())) << words;
}

ExchangeTrial make_trial(ExchangeKind kind, int ranks, std::mt19937& random) {
  const auto draw = [&](int64_t most) { return static_cast<int64_t>(random() % static_cast<uint32_t>(most)); };
  ExchangeTrial trial;
  trial.what.kind = kind;
  std::vector<int64_t> sizes = {2 + draw(6), 2 + draw(6), 2 + draw(6)};
  trial.what.cut = {draw(3), kind == ExchangeKind::kMove ? 1 : 1 + draw(2)};
  const auto dim = static_cast<size_t>(trial.what.cut.dim);
  sizes[dim] *= trial.what.cut.blocks;
  trial.what.size = sizes[dim];
  if (kind == ExchangeKind::kMove) {
    trial.what.to_dim = (trial.what.cut.dim + 1 + draw(2)) % 3;
    trial.what.to_size = sizes[static_cast<size_t>(trial.what.to_dim)];
  }
  auto generator = at::detail::createCPUGenerator(random());
  const auto options = at::TensorOptions(at::kDouble);
  trial.whole = at::randn(sizes, generator, options);
  for (int r = 0; r < ranks; ++r) {
    at::Tensor shaped = trial.whole;
    if (kind == ExchangeKind::kSlice || kind == ExchangeKind::kReduceScatter)
      shaped = cut_tensor(trial.whole, trial.what.cut, ranks, r);
    if (kind == ExchangeKind::kMove) shaped = cut_tensor(trial.whole, {trial.what.to_dim, 1}, ranks, r);
    trial.factors.push_back(at::randn(shaped.sizes(), generator, options));
  }
  return trial;
}

TEST(Exchanges, ForwardAndBackwardAreThoseOfOneProcess) {
  for (const int ranks : {2, 3}) {
    std::mt19937 random(static_cast<uint32_t>(ranks));
    std::vector<ExchangeTrial> trials;
    for (const auto kind :
         {ExchangeKind::kEnter, ExchangeKind::kSum, ExchangeKind::kGatherForParts, ExchangeKind::kReduceScatter,
          ExchangeKind::kGather, ExchangeKind::kSlice, ExchangeKind::kMove}) {
      for (int i = 0; i < 12; ++i) trials.push_back(make_trial(kind, ranks, random));
    }
    run_ranks(ranks, [&](process::Process& process) {
      for (const auto& trial : trials) expect_exchange(process, trial);
    });
  }
}

}  // namespace
}  // namespace hasten::parallel
