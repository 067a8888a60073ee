// Pipelines against one process: losses, weights, orders, and what composes with them.
#include "hasten/parallel/pipeline/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <mutex>

#include "hasten/comm/mesh/device_mesh.h"
#include "hasten/core/error.h"
#include "hasten/core/log.h"
#include "hasten/core/log_sink.h"
#include "hasten/interception/interceptor.h"
#include "hasten/parallel/ddp/ddp.h"
#include "hasten/parallel/layout/stages.h"
#include "hasten/parallel/recompute/recompute.h"
#include "hasten/parallel/tensor/tensor_parallel.h"
#include "hasten/plan/orders.h"
#include "support/parallel_models.h"
#include "support/ranks.h"

namespace hasten::parallel {
namespace {

using namespace hasten::testing;
using plan::OrderKind;
using ::testing::AllOf;
using ::testing::HasSubstr;

using XY = std::pair<at::Tensor, at::Tensor>;

struct PipelineCase {
  int pp = 2, tp = 1, dp = 1;
  PipelineOptions options = {};
  bool recompute = false;
  double clip = 0;
  int steps = 3;
};

std::vector<std::shared_ptr<torch::nn::Module>> equal_nets(const ParallelModel& model, int count) {
  std::vector<std::shared_ptr<torch::nn::Module>> nets;
  for (int rank = 0; rank < count; ++rank) {
    torch::manual_seed(0);
    nets.push_back(model.make());
  }
  return nets;
}

void expect_whole_weights(const ParallelModel& model, const Pipeline& pipeline, const ParallelRun& expected) {
  const auto whole = pipeline.state_dict();
  for (const auto& [name, wanted] : expected.weights) {
    const auto ends = [&name = name](const std::string& end) { return name.ends_with(end); };
    if (std::any_of(model.without_gradient.begin(), model.without_gradient.end(), ends)) continue;
    ASSERT_EQ(whole.at(name).sizes(), wanted.sizes()) << name;
    EXPECT_LT((whole.at(name) - wanted).abs().max().item<double>(), 1e-3) << model.name << ' ' << name;
  }
}

void train_one_rank(process::Process& process, const ParallelModel& model, torch::nn::Module& net,
                    const PipelineCase& is, const ParallelRun& expected, const ParallelBatch& batch) {
  const comm::DeviceMesh mesh(process.group(), {{"pp", is.pp}, {"dp", is.dp}, {"tp", is.tp}});
  for (const char* axis : {"pp", "dp", "tp"}) mesh.group(axis).connect_backends();
  const auto data = mesh.group("dp");
  const TensorParallel cut(net, mesh.group("tp"));
  const Pipeline pipeline(net, mesh.group("pp"), is.options);
  std::unique_ptr<Ddp> ddp;
  if (is.dp > 1) {
    const interception::PassScope pass;
    ddp = std::make_unique<Ddp>(net, data);
  }
  torch::optim::AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(1e-3));
  const auto hook = is.recompute ? recompute_hook(net, {.enabled = true}) : nullptr;
  const int64_t rows = batch.x.size(0) / is.dp, first = mesh.coordinate("dp") * rows;
  const XY mine(batch.x.narrow(0, first, rows), batch.y.narrow(0, first, rows));
  for (int step = 0; step < is.steps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = pipeline.forward_backward(mine, [&](const XY& part) {
      const auto entered = hook ? hook->enter(net) : nullptr;
      return model.loss(net, part.first, part.second);
    });
    if (is.clip > 0) pipeline.clip_grad_norm_(is.clip);
    optimizer.step();
    at::Tensor mean = loss.clone();
    data.all_reduce_(mean, comm::ReduceOp::kMean);
    EXPECT_NEAR(mean.item<double>(), expected.losses[static_cast<size_t>(step)], 3e-6) << model.name << ' ' << step;
  }
  expect_whole_weights(model, pipeline, expected);
}

void expect_like_one_process(const ParallelModel& model, const PipelineCase& is) {
  const auto expected = one_process(model, is.steps, false, is.clip);
  const auto nets = equal_nets(model, is.pp * is.tp * is.dp);
  const auto batch = parallel_batch();  // here, since the threads share one random generator
  run_ranks(is.pp * is.tp * is.dp, [&](process::Process& process) {
    train_one_rank(process, model, *nets[static_cast<size_t>(process.rank())], is, expected, batch);
  });
}

class PipelineModels : public ::testing::TestWithParam<ParallelModel> {};
INSTANTIATE_TEST_SUITE_P(All, PipelineModels, ::testing::ValuesIn(parallel_models()),
                         [](const auto& info) { return info.param.name; });

TEST_P(PipelineModels, TrainOnTwoStagesAsOnOne) {
  expect_like_one_process(GetParam(), {.pp = 2, .options = {.microbatches = 4}});
}
TEST_P(PipelineModels, TrainOnFourStagesAsOnOne) {
  expect_like_one_process(GetParam(), {.pp = 4, .options = {.microbatches = 8}});
}
TEST_P(PipelineModels, TrainInEveryOrderOfOneStageAsOnOne) {
  expect_like_one_process(GetParam(), {.pp = 2, .options = {.microbatches = 4, .order = OrderKind::kGPipe}});
  expect_like_one_process(GetParam(),
                          {.pp = 2, .options = {.microbatches = 4, .order = OrderKind::kInterleavedZeroBubble}});
}

class PipelineLanguageModels : public ::testing::TestWithParam<ParallelModel> {};
INSTANTIATE_TEST_SUITE_P(All, PipelineLanguageModels, ::testing::Values(gpt2_model(), llama_model(), bert_model()),
                         [](const auto& info) { return info.param.name; });

TEST_P(PipelineLanguageModels, TrainInEveryOrderOfSeveralStagesAsOnOne) {
  for (const auto order :
       {OrderKind::kDefault, OrderKind::kLoopedBfs, OrderKind::kInterleavedZeroBubble, OrderKind::kZbvZeroBubble}) {
    expect_like_one_process(GetParam(),
                            {.pp = 2, .options = {.chunks = 2, .microbatches = 4, .order = order}, .steps = 2});
  }
}
TEST_P(PipelineLanguageModels, TrainWithCutLayersAsOnOne) {
  expect_like_one_process(GetParam(), {.pp = 2, .tp = 2, .options = {.microbatches = 4}});
  expect_like_one_process(GetParam(), {.pp = 2, .tp = 2, .options = {.chunks = 2, .microbatches = 4}});
}
TEST_P(PipelineLanguageModels, TrainBesideDataParallelismAsOnOne) {
  expect_like_one_process(GetParam(), {.pp = 2, .dp = 2, .options = {.microbatches = 2}});
}
TEST_P(PipelineLanguageModels, TrainWithRecomputedActivationsAsOnOne) {
  expect_like_one_process(GetParam(), {.pp = 2, .options = {.microbatches = 4}, .recompute = true});
  expect_like_one_process(GetParam(), {.pp = 2, .options = {.chunks = 2, .microbatches = 4}, .recompute = true});
}
TEST_P(PipelineLanguageModels, ClipTheNormOfTheWholeModel) {
  expect_like_one_process(GetParam(), {.pp = 2, .options = {.microbatches = 4}, .clip = 0.05});
}
TEST_P(PipelineLanguageModels, TrainWithFewerMicrobatchesThanStagesAndUnevenOnes) {
  expect_like_one_process(GetParam(), {.pp = 4, .options = {.microbatches = 3}, .steps = 2});
  expect_like_one_process(GetParam(), {.pp = 2, .options = {.microbatches = 1}, .steps = 2});
}

TEST(Pipeline, TrainsOnFourRanksOfTwoStagesThatCutBlocks) {
  // Attention and the inner layers of a block apart.
  std::vector<std::string> stages;
  for (const char* block : {"0", "1", "2", "3"}) {
    if (*block != '0') stages.push_back(std::string("transformer.h.") + block);
    stages.push_back(std::string("transformer.h.") + block + ".ln_2");
  }
  expect_like_one_process(gpt2_model(), {.pp = 4, .options = {.stages = stages, .chunks = 2, .microbatches = 8}});
}

// ---- When gradients of weights are computed.

// The norm's gradient comes with that of its input, so it marks the backward.
struct MarkedBlockImpl : torch::nn::Module {
  MarkedBlockImpl() {
    register_module("norm", norm);
    register_module("linear", linear);
  }
  at::Tensor forward(const at::Tensor& x) { return linear(norm(x)); }
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({4})};
  torch::nn::Linear linear{torch::nn::LinearOptions(4, 4).bias(false)};
};

std::vector<torch::nn::Sequential> marked_nets(int count, int layers) {
  std::vector<torch::nn::Sequential> nets;
  for (int i = 0; i < count; ++i) {
    nets.emplace_back();
    for (int layer = 0; layer < layers; ++layer) nets.back()->push_back(std::make_shared<MarkedBlockImpl>());
  }
  return nets;
}

// What a rank's actions should compute: "I" for gradients of inputs, "W" for those of weights, by stage.
std::map<int, std::string> gradients_in(const std::vector<plan::Action>& actions) {
  std::map<int, std::string> events;
  for (const auto& action : actions) {
    if (action.kind == plan::ActionKind::kBackwardInput) events[action.stage] += "I";
    if (action.kind == plan::ActionKind::kBackwardWeight) events[action.stage] += "W";
    // The linear layer comes first in a whole backward.
    if (action.kind == plan::ActionKind::kBackward) events[action.stage] += "WI";
  }
  return events;
}

void expect_gradients_of(int pp, const PipelineOptions& options) {
  const int stages = pp * options.chunks;
  const auto nets = marked_nets(pp, stages);
  run_ranks(pp, [&](process::Process& process) {
    auto net = nets[static_cast<size_t>(process.rank())];
    const Pipeline pipeline(*net, process.group(), options);
    std::map<int, std::string> found;
    for (const auto& item : net->named_parameters()) {
      if (!item.value().requires_grad()) continue;  // another rank's
      const int stage = pipeline.stages().at(item.key());
      const char mark = item.value().dim() == 2 ? 'W' : 'I';
      if (item.key().ends_with("bias")) continue;
      item.value().register_hook([&found, stage, mark](const at::Tensor&) { found[stage] += mark; });
    }
    const at::Tensor batch = at::arange(4 * options.microbatches * 4).view({-1, 4}).to(at::kFloat);

    pipeline.forward_backward(batch, [&](const at::Tensor& x) { return net->forward(x).sum(); });

    const auto& order = pipeline.order(options.microbatches);
    EXPECT_EQ(found, gradients_in(order.ranks[static_cast<size_t>(process.rank())])) << plan::order_csv(order);
  });
}

TEST(Pipeline, ComputesGradientsOfWeightsWhenItsOrderSaysSo) {
  expect_gradients_of(2, {.microbatches = 4, .order = OrderKind::k1F1B});
  expect_gradients_of(2, {.microbatches = 6, .order = OrderKind::kInterleavedZeroBubble});
  expect_gradients_of(4, {.microbatches = 8, .order = OrderKind::kInterleavedZeroBubble});
  expect_gradients_of(2, {.chunks = 2, .microbatches = 4, .order = OrderKind::kInterleavedZeroBubble});
  expect_gradients_of(2, {.chunks = 2, .microbatches = 4, .order = OrderKind::kZbvZeroBubble});
}

// In the bubble: on rank r of ZB-H1 the first weights wait for gradients of the inputs of r later microbatches.
TEST(Pipeline, DefersWeightsIntoTheBubble) {
  const auto order = plan::make_order(OrderKind::kInterleavedZeroBubble, {.ranks = 4, .chunks = 1, .microbatches = 8});

  for (int rank = 0; rank < 4; ++rank) {
    const auto events = gradients_in(order.ranks[static_cast<size_t>(rank)]).at(rank);
    EXPECT_EQ(std::count(events.begin(), events.end(), 'I'), 8) << rank;
    EXPECT_EQ(std::count(events.begin(), events.end(), 'W'), 8) << rank;
    EXPECT_EQ(events.find('W'), static_cast<size_t>(rank) + 1) << events;
  }
}

// ---- What a forward may do, and what is refused.

std::vector<std::string> run_stages(int pp, const PipelineOptions& options,
                                    const std::function<void(const Pipeline&, torch::nn::Sequential&, int rank)>& fn) {
  std::vector<torch::nn::Sequential> nets;
  for (int rank = 0; rank < pp; ++rank) {
    torch::manual_seed(0);
    nets.emplace_back(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4), torch::nn::Linear(4, 4),
                      torch::nn::Linear(4, 4));
  }
  return run_ranks_collecting(pp, [&](process::Process& process) {
    auto& net = nets[static_cast<size_t>(process.rank())];
    fn(Pipeline(*net, process.group(), options), net, process.rank());
  });
}

const at::Tensor& four_rows() {
  static const at::Tensor rows = at::arange(16, at::TensorOptions(at::kFloat)).view({4, 4}) / 16;
  return rows;
}

at::Tensor gradient_of_first(const std::function<at::Tensor(torch::nn::Sequential&)>& loss) {
  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4), torch::nn::Linear(4, 4),
                            torch::nn::Linear(4, 4));
  loss(net).backward();
  return net[0]->as<torch::nn::LinearImpl>()->weight.grad();
}

void expect_first_gradient(const Pipeline& pipeline, torch::nn::Sequential& net, const at::Tensor& wanted) {
  const at::Tensor mine = net[0]->as<torch::nn::LinearImpl>()->weight.grad();
  ASSERT_EQ(mine.defined(), pipeline.group().rank() == 0);
  if (mine.defined()) {
    EXPECT_TRUE(at::allclose(mine, wanted, 1e-5, 1e-7));
  }
}

at::Tensor layer(torch::nn::Sequential& net, size_t i, const at::Tensor& x) {
  return net[i]->as<torch::nn::LinearImpl>()->forward(x);
}

// A value of the first stage goes to the second and the last, written in place on its way.
at::Tensor loss_with_skips(torch::nn::Sequential& net, const at::Tensor& x) {
  at::Tensor y = layer(net, 0, x);
  const at::Tensor kept = y.tanh();
  y = layer(net, 1, y);
  y.add_(1);
  y += layer(net, 2, y.clone());
  const auto parts = (layer(net, 3, y) + kept).chunk(2, -1);
  return (parts[0] * parts[1]).pow(2).mean();
}

TEST(Pipeline, CarriesSkipsAndWritesInPlace) {
  const at::Tensor wanted =
      gradient_of_first([](torch::nn::Sequential& net) { return loss_with_skips(net, four_rows()); });
  for (const int pp : {2, 4}) {
    const auto words = run_stages(pp, {.microbatches = 2}, [&](const Pipeline& pipeline, auto& net, int) {
      pipeline.forward_backward(four_rows(), [&](const at::Tensor& x) { return loss_with_skips(net, x); });
      expect_first_gradient(pipeline, net, wanted);
    });
    EXPECT_THAT(words, ::testing::Each(""));
  }
}

TEST(Pipeline, TellsNumbersToAllStages) {
  const auto loss = [](torch::nn::Sequential& net, const at::Tensor& x) {
    at::Tensor y = layer(net, 1, layer(net, 0, x));
    if (y.sum().item<double>() > -1e9) y = y * (y.abs().max().item<double>() + 1);
    return layer(net, 3, layer(net, 2, y)).pow(2).mean();
  };
  const at::Tensor wanted = gradient_of_first([&](torch::nn::Sequential& net) {
    return (loss(net, four_rows().narrow(0, 0, 2)) + loss(net, four_rows().narrow(0, 2, 2))) / 2;
  });
  for (const int chunks : {1, 2}) {
    const auto words =
        run_stages(2, {.chunks = chunks, .microbatches = 2}, [&](const Pipeline& pipeline, auto& net, int) {
          pipeline.forward_backward(four_rows(), [&](const at::Tensor& x) { return loss(net, x); });
          expect_first_gradient(pipeline, net, wanted);
        });
    EXPECT_THAT(words, ::testing::Each(""));
  }
}

TEST(Pipeline, GivesAParameterToAStageThatUsesItOutOfOrder) {
  // The first layer is used again behind the last one.
  const auto loss = [](torch::nn::Sequential& net, const at::Tensor& x) {
    return layer(net, 0, layer(net, 3, layer(net, 2, layer(net, 1, layer(net, 0, x))))).pow(2).mean();
  };
  const at::Tensor wanted = gradient_of_first([&](torch::nn::Sequential& net) { return loss(net, four_rows()); });
  const auto words = run_stages(2, {.microbatches = 2}, [&](const Pipeline& pipeline, auto& net, int) {
    pipeline.forward_backward(four_rows(), [&](const at::Tensor& x) { return loss(net, x); });
    const at::Tensor mine = net[0]->template as<torch::nn::LinearImpl>()->weight.grad();
    EXPECT_TRUE(at::allclose(mine, wanted, 1e-5, 1e-7));
    // A second step adds to the first, and counts the tied weight once.
    pipeline.forward_backward(four_rows(), [&](const at::Tensor& x) { return loss(net, x); });
    EXPECT_TRUE(at::allclose(mine.defined() ? net[0]->template as<torch::nn::LinearImpl>()->weight.grad() : mine,
                             2 * wanted, 1e-5, 1e-7));
  });
  EXPECT_THAT(words, ::testing::Each(""));
}

TEST(Pipeline, SaysWhichParameterASecondStageHoldsAsWell) {
  std::mutex mutex;
  std::vector<std::string> lines;
  setenv("HASTEN_LOG_LEVEL", "info", 1);
  set_log_sink([&](LogLevel, std::string_view line) {
    const std::lock_guard lock(mutex);
    lines.emplace_back(line);
  });
  const auto words = run_stages(2, {.microbatches = 2}, [&](const Pipeline& pipeline, auto& net, int) {
    pipeline.forward_backward(
        four_rows(), [&](const at::Tensor& x) { return layer(net, 0, layer(net, 3, layer(net, 0, x))).mean(); });
  });
  set_log_sink(nullptr);
  unsetenv("HASTEN_LOG_LEVEL");
  EXPECT_THAT(words, ::testing::Each(""));
  EXPECT_THAT(lines, ::testing::Contains(HasSubstr(
                         "'0.weight' of stage 0 is used on stage 1 as well, which holds its 64 bytes, too.")));
}

TEST(Pipeline, WeighsPartsByTheirSamplesOrAsTold) {
  const auto mean = [](torch::nn::Sequential& net, const at::Tensor& x) { return net->forward(x).pow(2).mean(); };
  const at::Tensor by_samples = gradient_of_first([&](torch::nn::Sequential& net) { return mean(net, four_rows()); });
  const at::Tensor as_told = gradient_of_first([&](torch::nn::Sequential& net) {
    return 0.5 * (mean(net, four_rows().narrow(0, 0, 2)) + mean(net, four_rows().narrow(0, 2, 1))) +
           0 * mean(net, four_rows().narrow(0, 3, 1));
  });
  const auto words = run_stages(2, {.microbatches = 3}, [&](const Pipeline& pipeline, auto& net, int) {
    const auto loss = [&](const at::Tensor& x) { return mean(net, x); };
    pipeline.forward_backward(four_rows(), loss);
    expect_first_gradient(pipeline, net, by_samples);
    net->zero_grad();
    pipeline.forward_backward<at::Tensor>(
        four_rows(), loss, [](const at::Tensor& x) { return x.template const_data_ptr<float>()[0] > 0.7 ? 0.0 : 1.0; });
    expect_first_gradient(pipeline, net, as_told);
  });
  EXPECT_THAT(words, ::testing::Each(""));
}

TEST(Pipeline, GivesOutputsOnEveryRankWithoutGradients) {
  torch::manual_seed(0);
  torch::nn::Sequential alone(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4), torch::nn::Linear(4, 4),
                              torch::nn::Linear(4, 4));
  const at::NoGradGuard no_grad;
  const at::Tensor wanted = alone->forward(four_rows());
  const auto words = run_stages(2, {}, [&](const Pipeline& pipeline, auto& net, int rank) {
    const auto output = [&](const at::Tensor& x) { return net->forward(x); };
    EXPECT_TRUE(at::allclose(pipeline.forward(four_rows(), output), wanted));
    EXPECT_EQ(pipeline.forward(four_rows(), output, false).defined(), rank == 1);
    const at::NoGradGuard own_no_grad;
    const auto entered = pipeline.forward_hook()->enter(*net);
    const at::Tensor value = net->forward(four_rows());
    EXPECT_TRUE(is_staged_value(value));
    EXPECT_TRUE(at::allclose(value_everywhere(value), wanted));
  });
  EXPECT_THAT(words, ::testing::Each(""));
}

TEST(Pipeline, KeepsParametersAndFreesThoseOfOtherStages) {
  const auto words = run_stages(2, {.stages = {"3"}}, [](const Pipeline& pipeline, auto& net, int rank) {
    EXPECT_EQ(pipeline.stages().at("2.weight"), 0);
    EXPECT_EQ(pipeline.stages().at("3.weight"), 1);
    int64_t own = 0;
    for (const auto& parameter : net->parameters()) own += parameter.numel();
    EXPECT_EQ(own, rank == 0 ? 60 : 20);
    EXPECT_EQ(net->parameters().size(), 8U);
    EXPECT_EQ(counts_on_this_stage(net->parameters()[0]), rank == 0);
  });
  EXPECT_THAT(words, ::testing::Each(""));
}

TEST(Pipeline, SaysOnAllRanksWhatFailedInAForwardAndGoesOn) {
  const auto words = run_stages(2, {}, [](const Pipeline& pipeline, auto& net, int) {
    EXPECT_THROW(pipeline.forward_backward(four_rows(),
                                           [&](const at::Tensor& x) {
                                             return net->forward(x).view({3, 3}).sum();
                                           }),
                 std::exception);
    pipeline.forward_backward(four_rows(), [&](const at::Tensor& x) { return net->forward(x).mean(); });
    pipeline.forward_backward(four_rows().narrow(0, 0, 2),
                              [&](const at::Tensor& x) { return net->forward(x).view({7}).sum(); });
  });
  EXPECT_THAT(words, ::testing::Each(HasSubstr("shape '[7]' is invalid")));
}

TEST(Pipeline, RefusesPartsThatTakeAnotherWay) {
  const auto words = run_stages(2, {}, [](const Pipeline& pipeline, auto& net, int) {
    int calls = 0;
    pipeline.forward_backward(four_rows(), [&](const at::Tensor& x) {
      const at::Tensor y = net->forward(x);
      return ++calls < 3 ? y.mean() : y.sum();
    });
  });
  EXPECT_THAT(words, ::testing::Contains(HasSubstr("aten::sum on stage 1, recorded was aten::mean on stage 1")));
}

TEST(Pipeline, RefusesWhatWouldBeWrongInSilence) {
  const auto refused = [](const PipelineOptions& options,
                          const std::function<at::Tensor(torch::nn::Sequential&)>& loss) {
    return run_stages(2, options, [&](const Pipeline& pipeline, auto& net, int) {
      pipeline.forward_backward(four_rows(), [&](const at::Tensor&) { return loss(net); });
    })[0];
  };
  EXPECT_THAT(refused({},
                      [](auto& net) {
                        return at::zeros({4, 4}).add_(net->forward(four_rows())).sum();
                      }),
              HasSubstr("writes a value of stage 1 into a tensor that every rank has"));
  EXPECT_THAT(refused({}, [](auto&) { return at::ones({}, at::TensorOptions().requires_grad(true)) * 1; }),
              HasSubstr("a value that no parameter of the model is part of"));
  // A result of the first stage, made behind one of the second, for the second.
  EXPECT_THAT(refused({.chunks = 2},
                      [](auto& net) {
                        const at::Tensor y = layer(net, 2, layer(net, 1, layer(net, 0, four_rows())));
                        return (layer(net, 1, layer(net, 0, four_rows())) + layer(net, 3, y)).sum();
                      }),
              HasSubstr("With several stages a rank (chunks) that would wait for ever"));
}

TEST(Pipeline, RefusesAForwardWithGradientsOutsideOfAStep) {
  const auto words = run_stages(2, {}, [](const Pipeline& pipeline, auto& net, int rank) {
    if (rank == 0) (void)pipeline.forward_hook()->enter(*net);
    if (rank == 1) net->forward(four_rows());
  });
  EXPECT_THAT(words[0], HasSubstr("a forward with gradients of a model that is divided into stages"));
  EXPECT_THAT(words[1], HasSubstr("outside of a pipeline's forward"));
}

TEST(Pipeline, RefusesStagesAndOrdersThatDoNotFit) {
  const auto refused = [](const PipelineOptions& options) {
    return run_stages(2, options, [](const Pipeline&, auto&, int) {})[1];
  };
  EXPECT_THAT(refused({.stages = {"layer"}}),
              AllOf(HasSubstr("stages: 'layer' is no module with parameters"),
                    HasSubstr("Name the first module of each stage behind the first"), HasSubstr("the model has 0, ")));
  EXPECT_THAT(refused({.stages = {"1", "2"}}), HasSubstr("stages names 2 modules; expected 1"));
  EXPECT_THAT(refused({.chunks = 3}), HasSubstr("the model has 4 blocks for 6 stages"));
  EXPECT_THAT(refused({.chunks = 2, .order = OrderKind::k1F1B}), HasSubstr("takes 1 stage a rank, not 2"));
  EXPECT_THAT(refused({.order_csv = "0F0,0B0\n"}), HasSubstr("order_csv has 1 rows"));
}

TEST(Pipeline, RunsAnOrderOfTheProgramsOwn) {
  const at::Tensor wanted =
      gradient_of_first([](torch::nn::Sequential& net) { return net->forward(four_rows()).pow(2).mean(); });
  const auto words =
      run_stages(2, {.order_csv = "0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n"}, [&](const Pipeline& pipeline, auto& net, int) {
        pipeline.forward_backward(four_rows(), [&](const at::Tensor& x) { return net->forward(x).pow(2).mean(); });
        expect_first_gradient(pipeline, net, wanted);
      });
  EXPECT_THAT(words, ::testing::Each(""));
}

}  // namespace
}  // namespace hasten::parallel
