#include "hasten/accelerator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <csignal>
#include <new>

#include "hasten/core/error.h"
#include "hasten/data/dataset/tensor_dataset.h"
#include "hasten/optim/schedulers/decay.h"
#include "support/models.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using process::Process;
using testing::Cnn;
using testing::EmbeddingModel;
using testing::GruModel;
using ::testing::HasSubstr;
using testing::Mlp;
using testing::Problem;
using testing::run_ranks;
using testing::run_ranks_collecting;
using testing::TransformerModel;

struct Pairs : torch::data::datasets::Dataset<Pairs> {
  explicit Pairs(Problem problem) : problem(std::move(problem)) {}
  torch::data::Example<> get(size_t index) override {
    const auto i = static_cast<int64_t>(index);
    return {problem.inputs[i], problem.targets[i]};
  }
  std::optional<size_t> size() const override { return problem.targets.size(0); }
  Problem problem;
};

auto stacked(const std::string& kind) {
  return Pairs(testing::problem_for(kind)).map(torch::data::transforms::Stack<>());
}

Accelerator alone() {
  return Accelerator(Process(process::RankInfo{}, comm::Group()));
}

std::vector<at::Tensor> copies(const torch::nn::Module& module) {
  std::vector<at::Tensor> list;
  for (const auto& parameter : module.parameters()) list.push_back(parameter.detach().clone());
  for (const auto& buffer : module.buffers()) list.push_back(buffer.detach().clone());
  return list;
}

using torch::data::samplers::RandomSampler;
using torch::data::samplers::SequentialSampler;

// Its steps are those of prepared optimizers: bits are equal with the same kernel only (optim's tests compare
// the kernels).
template <class Model>
std::vector<at::Tensor> plain_loop(const std::string& kind) {
  torch::manual_seed(11);
  Model net;
  torch::optim::Adam adam(net->parameters(), 5e-3);
  auto train =
      torch::data::make_data_loader<RandomSampler>(stacked(kind), torch::data::DataLoaderOptions().batch_size(5));
  for (int epoch = 0; epoch < 4; ++epoch) {
    for (auto& batch : *train) {
      adam.zero_grad();
      torch::nn::functional::cross_entropy(net(batch.data), batch.target).backward();
      optim::optimizer_step(adam);
    }
  }
  return copies(*net);
}

template <class Model>
std::vector<at::Tensor> prepared_loop(const std::string& kind) {
  const Accelerator accelerator = alone();
  torch::manual_seed(11);
  Model net;
  torch::optim::Adam adam(net->parameters(), 5e-3);
  auto train = accelerator.data_loader<RandomSampler>(stacked(kind), torch::data::DataLoaderOptions().batch_size(5));
  auto [model, optimizer] = accelerator.prepare(net, adam);
  for (int epoch = 0; epoch < 4; ++epoch) {
    for (auto& batch : train) {
      optimizer.zero_grad();
      accelerator.backward(torch::nn::functional::cross_entropy(model(batch.data), batch.target));
      optimizer.step();
    }
  }
  return copies(*net);
}

template <class Model>
void expect_equal_loops(const std::string& kind) {
  const auto plain = plain_loop<Model>(kind);
  const auto prepared = prepared_loop<Model>(kind);

  ASSERT_EQ(plain.size(), prepared.size());
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(torch::equal(plain[i], prepared[i])) << kind << ' ' << i;
}

TEST(Accelerator, AWorldOfOneEqualsThePlainLoopBitForBit) {
  expect_equal_loops<Mlp>("mlp");
  expect_equal_loops<Cnn>("cnn");
  expect_equal_loops<EmbeddingModel>("embedding");
  expect_equal_loops<GruModel>("gru");
  expect_equal_loops<TransformerModel>("transformer");
}

// 20 steps on global batches of 12, in order, cut into one part a rank.
template <class Model>
std::vector<at::Tensor> train_split(const Process& process, const std::string& kind) {
  const Accelerator accelerator(process, {.loader = {.split_batches = true}});
  Model net;
  testing::initialise(*net, 5 + process.rank());
  if (kind == "cnn") net->eval();
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  auto [train, optimizer, model] = accelerator.prepare(
      data::loader<SequentialSampler>(stacked(kind), torch::data::DataLoaderOptions().batch_size(12)), sgd, net);
  for (int epoch = 0; epoch < 10; ++epoch) {
    for (auto& batch : train) {
      optimizer.zero_grad();
      accelerator.backward(torch::nn::functional::cross_entropy(model(batch.data), batch.target));
      optimizer.step();
    }
  }
  return copies(*net);
}

template <class Model>
void expect_ranks_equal_one(const std::string& kind) {
  const auto one = train_split<Model>(Process(process::RankInfo{}, comm::Group()), kind);
  for (const int world_size : {2, 3, 4}) {
    run_ranks(world_size, [&](Process& process) {
      const auto mine = train_split<Model>(process, kind);

      for (size_t i = 0; i < one.size(); ++i) {
        EXPECT_TRUE(torch::allclose(mine[i], one[i], 1e-5, 1e-5)) << kind << ", " << world_size << " ranks, " << i;
        const auto everybodys = process.group().all_gather(mine[i]);
        EXPECT_TRUE(torch::equal(everybodys.front(), everybodys.back())) << kind << ' ' << i;
      }
    });
  }
}

TEST(AcceleratorRanks, EqualOneRankOnTheSameGlobalBatchesMlp) {
  expect_ranks_equal_one<Mlp>("mlp");
}
TEST(AcceleratorRanks, EqualOneRankOnTheSameGlobalBatchesCnn) {
  expect_ranks_equal_one<Cnn>("cnn");
}
TEST(AcceleratorRanks, EqualOneRankOnTheSameGlobalBatchesEmbedding) {
  expect_ranks_equal_one<EmbeddingModel>("embedding");
}
TEST(AcceleratorRanks, EqualOneRankOnTheSameGlobalBatchesGru) {
  expect_ranks_equal_one<GruModel>("gru");
}
TEST(AcceleratorRanks, EqualOneRankOnTheSameGlobalBatchesTransformer) {
  expect_ranks_equal_one<TransformerModel>("transformer");
}

TEST(AcceleratorRanks, MetricsSeeEachSampleExactlyOnce) {
  for (const int world_size : {1, 2, 3, 4}) {
    run_ranks(world_size, [](Process& process) {
      const Accelerator accelerator(process);
      Problem problem = testing::problem_for("mlp");
      problem.targets = torch::arange(24);
      auto loader = accelerator.data_loader<SequentialSampler>(Pairs(problem).map(torch::data::transforms::Stack<>()),
                                                               torch::data::DataLoaderOptions().batch_size(5));
      std::vector<at::Tensor> seen;

      for (auto& batch : loader) {
        const auto [inputs, targets] = accelerator.gather_for_metrics(std::make_pair(batch.data, batch.target));
        EXPECT_EQ(inputs.size(0), targets.size(0));
        seen.push_back(targets);
      }

      EXPECT_TRUE(torch::equal(torch::cat(seen), torch::arange(24)));
    });
  }
}

TEST(AcceleratorRanks, PreparingTwiceIsTheSameAsOnce) {
  run_ranks(2, [](Process& process) {
    const Accelerator accelerator(process);
    Mlp net;
    testing::initialise(*net, 1);

    auto once = accelerator.prepare(net);
    auto twice = accelerator.prepare(once);
    auto again = accelerator.prepare(net);
    accelerator.backward(again(torch::ones({2, 8})).sum() * (process.rank() + 1.0));

    EXPECT_EQ(&twice.unwrap(), &once.unwrap());
    EXPECT_EQ(net->second->bias.grad()[0].item<double>(), 3.0);
  });
}

TEST(AcceleratorRanks, ReduceAndGatherAgreeOnStructures) {
  const auto words = run_ranks_collecting(
      2,
      [](Process& process) {
        const Accelerator accelerator(process);
        const auto sum = accelerator.reduce(std::map<std::string, at::Tensor>{{"loss", torch::ones({})}});
        EXPECT_EQ(sum.at("loss").item<double>(), 2.0);
        accelerator.gather(std::vector<at::Tensor>(process.rank() + 1, torch::ones({2})));
      },
      {.check = false});

  for (const auto& said : words) EXPECT_THAT(said, HasSubstr("gather"));
}

TEST(Accelerator, HandlesBorrowLvaluesAndOwnRvalues) {
  const Accelerator accelerator = alone();
  Mlp net;
  torch::optim::SGD sgd(net->parameters(), 0.1);

  auto borrowed = accelerator.prepare(sgd);
  auto owned = accelerator.prepare(torch::optim::SGD(net->parameters(), 0.1));
  auto shared = accelerator.prepare(std::make_shared<testing::MlpImpl>());
  auto raw = accelerator.prepare(*net);

  EXPECT_EQ(&borrowed.unwrap(), &sgd);
  EXPECT_EQ(owned->param_groups().size(), 1u);
  EXPECT_EQ(shared(torch::ones({1, 8})).size(1), 4);
  EXPECT_EQ(raw->forward(torch::ones({1, 8})).size(1), 4);
  EXPECT_EQ(&accelerator.unwrap_model(raw), net.get());
  EXPECT_EQ(accelerator.unwrap_model(net).get(), net.get());
}

TEST(Accelerator, AnUndefinedLossIsRefused) {
  EXPECT_THROW(alone().backward(at::Tensor()), UsageError);
}

TEST(Accelerator, BackwardBeforePrepareIsRefused) {
  const Accelerator accelerator = alone();
  torch::nn::Linear net(1, 1);
  const at::Tensor loss = net(torch::ones({1, 1})).sum();
  EXPECT_THAT([&] { accelerator.backward(loss); },
              ::testing::ThrowsMessage<UsageError>(HasSubstr("before any model was prepared")));
  { const auto model = accelerator.prepare(net); }
  EXPECT_THAT([&] { accelerator.backward(loss); }, ::testing::ThrowsMessage<UsageError>(HasSubstr("keep the handle")));
}

// Writes down where it is moved.
struct Moved : torch::nn::Module {
  using torch::nn::Module::to;
  void to(c10::Device device, bool) override { place = device; }
  at::Tensor forward(const at::Tensor& x) { return x; }
  std::optional<c10::Device> place;
};

TEST(Accelerator, OneObjectsPlaceGoesBeforeTheOption) {
  const Accelerator accelerator(Process(process::RankInfo{}, comm::Group(), c10::Device(c10::kMeta)));
  Moved here, there, by_default;

  const auto handles = accelerator.prepare({.device_placement = {false, true}}, here, there);
  const auto handle = accelerator.prepare(by_default);

  EXPECT_FALSE(here.place.has_value());
  EXPECT_EQ(there.place, accelerator.device());
  EXPECT_EQ(by_default.place, accelerator.device());
  for (const bool placed : {false, true}) {
    auto loader =
        accelerator.prepare({.device_placement = {placed}}, data::loader<SequentialSampler>(stacked("mlp"), 4));
    for (auto& batch : loader) EXPECT_EQ(batch.data.is_meta(), placed);
  }
}

TEST(AcceleratorRanks, LocalSgdAndMetricsWithoutPaddingTakeTheirPartsFromIt) {
  run_ranks(2, [](Process& process) {
    const Accelerator accelerator(process), other(process);
    torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
    const auto model = accelerator.prepare(net);
    const auto before = net->weight.item<double>();
    auto local = accelerator.local_sgd(model, {.num_steps = 2});

    accelerator.backward(model(torch::full({1, 1}, process.rank() + 1.0F)).sum());
    EXPECT_EQ(net->weight.grad().item<double>(), process.rank() + 1.0) << "kept on its rank";
    {
      const torch::NoGradGuard no_grad;
      net->weight.add_(net->weight.grad());
    }
    local.finish();
    EXPECT_NEAR(net->weight.item<double>(), before + 1.5, 1e-6);
    EXPECT_THROW(other.local_sgd(model), UsageError);

    auto loader = accelerator.data_loader<SequentialSampler>(
        data::TensorDataset(torch::zeros({5, 1}), torch::arange(5)), torch::data::DataLoaderOptions(2));
    std::vector<at::Tensor> mine;
    for (auto& batch : loader) mine.push_back(accelerator.without_padding(batch.target));
    const auto all = std::get<0>(torch::sort(accelerator.gather(torch::cat(mine))));
    EXPECT_TRUE(torch::equal(all, torch::arange(5))) << all;
  });
}

TEST(AcceleratorRanks, ItsPropertiesAreThoseOfTheProcess) {
  run_ranks(3, [](Process& process) {
    const Accelerator accelerator(process);

    EXPECT_EQ(accelerator.process_index(), process.rank());
    EXPECT_EQ(accelerator.local_process_index(), process.local_rank());
    EXPECT_EQ(accelerator.num_processes(), 3);
    EXPECT_TRUE(accelerator.use_distributed());
    EXPECT_EQ(accelerator.is_main_process(), process.rank() == 0);
    EXPECT_EQ(accelerator.is_local_main_process(), process.local_rank() == 0);
    EXPECT_EQ(accelerator.is_last_process(), process.rank() == 2);
    EXPECT_EQ(accelerator.device(), process.device());
  });
  const Accelerator one = alone();
  EXPECT_EQ(one.process_index() + one.local_process_index(), 0);
  EXPECT_EQ(one.num_processes(), 1);
  EXPECT_FALSE(one.use_distributed());
  EXPECT_TRUE(one.is_main_process() && one.is_local_main_process() && one.is_last_process());
  EXPECT_TRUE(one.sync_gradients());
  EXPECT_FALSE(one.gradient_state().in_dataloader());
  EXPECT_FALSE(one.optimizer_step_was_skipped());
  static_assert(std::is_const_v<std::remove_reference_t<decltype(one.gradient_state())>>, "read-only");
}

TEST(AcceleratorRanks, AModelThatWasChangedIsHookedAgainByTheNextForward) {
  run_ranks(2, [](Process& process) {
    const Accelerator accelerator(process);
    Mlp net;
    const auto model = accelerator.prepare(net);
    const at::Tensor late = net->register_parameter("late", torch::full({4}, process.rank() + 1.0));

    const at::Tensor output = model(torch::ones({2, 8}));
    EXPECT_TRUE(torch::equal(late, torch::ones({4}))) << "rank 0's";
    accelerator.backward((output * late * (process.rank() + 1.0)).sum());

    const auto everybodys = process.group().all_gather(late.grad());
    EXPECT_TRUE(torch::equal(everybodys[0], everybodys[1]));
  });
}

TEST(AcceleratorRanks, SaysWhereFilesGoAndWhatTakesPart) {
  run_ranks(2, [](Process& process) {
    const Accelerator accelerator(process, {.project = {.project_dir = "run"}});
    EXPECT_EQ(accelerator.project_dir(), "run");
    EXPECT_EQ(accelerator.logging_dir(), "run");
    EXPECT_EQ(accelerator.distributed_type(), DistributedType::kMultiCpu);
  });
  EXPECT_EQ(alone().distributed_type(), DistributedType::kNo);
}

TEST(AcceleratorRanks, AClosureOfLbfgsTrainsAsOnOneProcess) {
  const auto train = [](const Process& process) {
    const Accelerator accelerator(process);
    Mlp net;
    testing::initialise(*net, 3);
    net->to(at::kDouble);
    torch::optim::LBFGS lbfgs(net->parameters(), torch::optim::LBFGSOptions(0.5).line_search_fn("strong_wolfe"));
    auto [model, optimizer] = accelerator.prepare(net, lbfgs);
    const auto problem = testing::problem_for("mlp");
    const auto inputs = problem.inputs.to(at::kDouble).chunk(process.world_size())[process.rank()];
    const auto targets = problem.targets.chunk(process.world_size())[process.rank()];
    int evaluations = 0;
    for (int step = 0; step < 3; ++step) {
      optimizer.step([&, &model = model, &optimizer = optimizer] {
        ++evaluations;
        optimizer.zero_grad();
        const at::Tensor loss = torch::nn::functional::cross_entropy(model(inputs), targets);
        accelerator.backward(loss);
        return accelerator.reduce(loss.detach(), {.op = comm::ReduceOp::kMean});
      });
    }
    auto list = copies(*net);
    list.push_back(torch::tensor(evaluations));
    return list;
  };
  const auto one = train(Process(process::RankInfo{}, comm::Group()));
  for (const int world_size : {2, 3}) {
    run_ranks(world_size, [&](Process& process) {
      const auto mine = train(process);
      for (size_t i = 0; i < one.size(); ++i)
        EXPECT_TRUE(torch::allclose(mine[i], one[i], 1e-6, 1e-8)) << world_size << " ranks, " << i;
    });
  }
}

TEST(AcceleratorRanks, GradientsAreExchangedAtTheEndOfAWindowOnly) {
  run_ranks(2, [](Process& process) {
    const Accelerator accelerator(process, {.gradient_accumulation_steps = 2});
    torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const at::Tensor before = net->weight.detach().clone();
    const auto batch = [&] {
      const auto scope = accelerator.accumulate(model);
      accelerator.backward(model(torch::ones({1, 1}) * (process.rank() + 1)).sum());
      optimizer.step();
      return net->weight.grad().item<double>();
    };

    EXPECT_EQ(batch(), (process.rank() + 1) / 2.0) << "this rank's own, divided by the batches of a window";
    EXPECT_FALSE(accelerator.sync_gradients());
    EXPECT_TRUE(torch::equal(net->weight, before));
    EXPECT_EQ(batch(), 1.5) << "the mean over ranks and batches";
    EXPECT_TRUE(torch::allclose(net->weight, before - 1.5));
  });
}

TEST(AcceleratorRanks, WeightsCountOverAWindowAndAStepWithoutAnyIsSkipped) {
  run_ranks(2, [](Process& process) {
    const Accelerator accelerator(process, {.gradient_accumulation_steps = 2});
    torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto window = [&](std::vector<double> weights) {
      for (const double weight : weights) {
        const auto scope = accelerator.accumulate(model);
        accelerator.backward(model(torch::full({1, 1}, weight)).sum(), {.weight = weight});
        optimizer.step();
      }
      const at::Tensor gradient = net->weight.grad();
      optimizer.zero_grad();
      return gradient.defined() ? gradient.item<double>() : NAN;
    };

    EXPECT_EQ(window(process.rank() == 0 ? std::vector{1.0, 3.0} : std::vector{0.0, 4.0}), 26.0 / 8.0);
    EXPECT_FALSE(accelerator.optimizer_step_was_skipped());
    EXPECT_TRUE(std::isnan(window({0.0, 0.0})));
    EXPECT_TRUE(accelerator.optimizer_step_was_skipped());
  });
}

TEST(AcceleratorRanks, NoSyncKeepsGradientsOnTheirRank) {
  run_ranks(2, [](Process& process) {
    const Accelerator accelerator(process);
    torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
    const auto model = accelerator.prepare(net);
    const auto backward = [&] {
      accelerator.backward(model(torch::ones({1, 1}) * (process.rank() + 1)).sum());
      return net->weight.grad().item<double>();
    };
    {
      const auto scope = accelerator.no_sync(model);
      EXPECT_EQ(backward(), process.rank() + 1.0);
    }
    EXPECT_EQ(backward(), 3.0) << "what was kept and the new ones, averaged";
  });
}

TEST(Accelerator, AccumulateRefusesAModelOfAnotherAccelerator) {
  const Accelerator ours = alone(), theirs = alone();
  torch::nn::Linear net(1, 1);
  const auto model = theirs.prepare(net);
  EXPECT_THAT([&] { const auto scope = ours.accumulate(model); },
              ::testing::ThrowsMessage<UsageError>(HasSubstr("prepared by another Accelerator. Prepare it with")));
}

TEST(Accelerator, AWindowOfNoBatchesIsRefused) {
  EXPECT_THAT(([] { Accelerator(Process(process::RankInfo{}, comm::Group()), {.gradient_accumulation_steps = 0}); }),
              ::testing::ThrowsMessage<UsageError>(HasSubstr("gradient_accumulation_steps is 0")));
}

TEST(AcceleratorRanks, ATriggerOfOneRankIsSeenByAllOnce) {
  run_ranks(3, [](Process& process) {
    const Accelerator accelerator(process);
    EXPECT_FALSE(accelerator.check_trigger());
    if (process.rank() == 1) accelerator.set_trigger();
    EXPECT_TRUE(accelerator.check_trigger());
    EXPECT_FALSE(accelerator.check_trigger());
  });
}

TEST(Accelerator, ClipsByNormAndByValue) {
  const Accelerator accelerator = alone();
  const at::Tensor weight = torch::zeros({2}, torch::requires_grad());
  const auto set = [&] { weight.mutable_grad() = torch::tensor({3.0F, -4.0F}); };

  set();
  EXPECT_EQ(accelerator.clip_grad_norm_({weight}, 1.0), 5.0);
  EXPECT_TRUE(torch::allclose(weight.grad(), torch::tensor({0.6F, -0.8F}), 1e-4));
  set();
  EXPECT_EQ(accelerator.clip_grad_norm_({weight}, 2.0, INFINITY), 4.0);
  EXPECT_TRUE(torch::allclose(weight.grad(), torch::tensor({1.5F, -2.0F}), 1e-4));
  set();
  accelerator.clip_grad_value_({weight}, 3.5);
  EXPECT_TRUE(torch::equal(weight.grad(), torch::tensor({3.0F, -3.5F})));
}

TEST(Accelerator, ItsLoadersTakeItsDataloaderConfig) {
  const Accelerator stateful(Process(process::RankInfo{}, comm::Group()),
                             {.loader = {.use_stateful_dataloader = true}});
  const auto unordered = torch::data::DataLoaderOptions(4).workers(2).enforce_ordering(false);

  EXPECT_THROW(stateful.data_loader(stacked("mlp"), unordered), UsageError);
  EXPECT_NO_THROW(alone().data_loader(stacked("mlp"), unordered));
  auto loader = stateful.data_loader<torch::data::samplers::SequentialSampler>(stacked("mlp"), 4);
  auto it = loader.begin();
  EXPECT_EQ(loader.state_dict().position, 4u);
}

TEST(AcceleratorRanks, ForwardsToTheRoomsForEverydayLoops) {
  run_ranks(2, [](Process& process) {
    const Accelerator accelerator(process, {.optimizer = {.maximize = true}});
    Mlp net;
    torch::optim::SGD sgd(net->parameters(), 0.1);

    const auto model = accelerator.prepare_model(net);
    const auto optimizer = accelerator.prepare_optimizer(sgd);
    optim::StepLR schedule(sgd, {.step_size = 1, .gamma = 0.5});
    const auto scheduler = accelerator.prepare_scheduler(schedule);
    auto loader = accelerator.prepare_data_loader(data::loader<SequentialSampler>(stacked("mlp"), 4));

    EXPECT_EQ(accelerator.get_state_dict(model).size(), net->parameters().size() + net->buffers().size());
    EXPECT_TRUE(optimizer.options().maximize);
    scheduler.step();
    EXPECT_EQ(scheduler.rates(), std::vector<double>{0.05});
    EXPECT_EQ(loader.size(), 3u) << "24 samples in batches of 4, on two ranks";
    EXPECT_NO_THROW(accelerator.free_memory());
    EXPECT_EQ(accelerator.split_between_processes(std::vector<int>{4, 5, 6}),
              process.rank() == 0 ? (std::vector<int>{4, 5}) : std::vector<int>{6});
    const auto fits = accelerator.find_executable_batch_size(16, [&](int64_t size) {
      if (process.rank() == 1 && size > 4) throw std::bad_alloc();
      return size;
    });
    EXPECT_EQ(fits, 4);
    EXPECT_FALSE(accelerator.should_stop());
    accelerator.wait_for_everyone();
    if (process.rank() == 1) std::raise(SIGUSR1);
    EXPECT_TRUE(accelerator.should_stop());
    accelerator.end_training();
  });
}

TEST(AcceleratorRanks, TrainsTorchScriptModulesLikeOthers) {
  run_ranks(2, [](Process& process) {
    const Accelerator accelerator(process);
    torch::jit::Module script("Script");
    script.register_parameter("weight", torch::ones({2}).requires_grad_(), /*is_buffer=*/false);
    script.define("def forward(self, x):\n    return (self.weight * x).sum()\n");

    const auto model = accelerator.prepare(script);
    accelerator.backward(model(torch::full({2}, process.rank() + 1.0)).toTensor());

    EXPECT_TRUE(torch::equal(script.attr("weight").toTensor().grad(), torch::full({2}, 1.5)));
  });
}

}  // namespace
}  // namespace hasten
