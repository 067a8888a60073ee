// The Learner on several ranks: equal to one rank, with uneven data, callbacks that decide alike, and ranks that throw.
#include "hasten/learner/distributed.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>
#include <filesystem>
#include <mutex>

#include "hasten/learner/callbacks.h"
#include "hasten/learner/learner.h"
#include "hasten/learner/metrics.h"
#include "hasten/learner/recorder.h"
#include "learner/small_tasks.h"
#include "support/folder.h"
#include "support/processes.h"
#include "support/ranks.h"

namespace hasten::learner {
namespace {

namespace nn = torch::nn;
using testing::run_ranks;
using testing::run_ranks_collecting;
using DistributedFiles = hasten::testing::InFolder;

torch::data::Example<> examples(int64_t count) {
  const auto x = at::sin(at::arange(count * 4).reshape({count, 4}) * 1.7);
  return {x, (x.sum(1) > 0).to(at::kLong)};
}

/// The same weights on every rank and in every test.
nn::Sequential small_net(bool batch_norm = false) {
  nn::Sequential net(nn::Linear(4, 5));
  if (batch_norm) net->push_back(nn::BatchNorm1d(5));
  net->push_back(nn::Tanh());
  net->push_back(nn::Linear(5, 2));
  const at::NoGradGuard no_grad;
  int64_t k = 0;
  for (auto& parameter : net->parameters())
    parameter.copy_(at::cos(at::arange(parameter.numel()).reshape(parameter.sizes()) + ++k) * 0.5);
  return net;
}

Loaders small_data(int64_t count, int64_t batch_size) {
  return tensor_loaders(examples(count), examples(13), {.batch_size = batch_size, .shuffle = true, .seed = 4});
}

struct Trained {
  std::vector<at::Tensor> weights;
  std::vector<double> losses, lrs, row;
  at::Tensor preds;
};

Trained train(const Learner& learn, int64_t epochs) {
  Trained result;
  learn.no_logging([&] { learn.fit_one_cycle(epochs, 0.1); });
  for (const auto& one : learn.model().module()->parameters()) result.weights.push_back(one.detach().clone());
  result.lrs = learn.recorder().lrs();
  result.row = learn.recorder().final_record();
  result.preds = learn.get_preds().preds;
  return result;
}

LearnerOptions plain_options() {
  return {.loss = cross_entropy(), .opt_func = optim::fastai::sgd({.mom = 0.9}), .metrics = {accuracy(), f1_score()}};
}

TEST(DistributedLearner, EqualsOneRankOnTheSameGlobalBatches) {
  const auto one = train(Learner(small_data(48, 12), small_net(true), plain_options()), 3);

  for (const int world : {2, 3}) {
    run_ranks(world, [&](process::Process& process) {
      const Accelerator accelerator(process);
      const Learner learn(small_data(48, 12 / world), small_net(true), plain_options());
      Trained many;
      learn.distrib_ctx(accelerator, [&] { many = train(learn, 3); });

      for (size_t i = 0; i < one.weights.size(); ++i)
        EXPECT_TRUE(at::allclose(many.weights[i], one.weights[i], 1e-4, 1e-5)) << i;
      EXPECT_EQ(many.lrs, one.lrs);
      EXPECT_NEAR(many.row[1], one.row[1], 1e-5);
      EXPECT_EQ(many.row[2], one.row[2]);
      EXPECT_EQ(many.row[3], one.row[3]);
      EXPECT_TRUE(at::allclose(many.preds, one.preds, 1e-4, 1e-5));
      // Undone: this process alone again, with BatchNorm of its own batch.
      EXPECT_EQ(learn.accelerator().world_size(), 1);
      if (process.rank() == 0) learn.no_logging([&] { learn.fit(1, 0.01); });
    });
  }
}

TEST_F(DistributedFiles, DecidesAlikeWithUnevenData) {
  for (const int world : {2, 4}) {
    std::mutex guard;
    std::vector<int64_t> epochs;
    std::vector<at::Tensor> weights;
    run_ranks(world, [&](process::Process& process) {
      const Accelerator accelerator(process);
      auto options = plain_options();
      options.path = folder_;
      const Learner learn(small_data(37, 3), small_net(), options);
      learn.add(SaveModel({.monitor = "accuracy"}), EarlyStopping({.monitor = "accuracy", .patience = 2}),
                ShortEpoch(0.6), TerminateOnNaN());
      learn.distrib_ctx(accelerator, [&] { learn.no_logging([&] { learn.fit(12, 0.3); }); });
      const std::lock_guard lock(guard);
      epochs.push_back(learn.epoch());
      weights.push_back(learn.model().module()->parameters().front().detach().clone());
    });

    for (size_t i = 1; i < epochs.size(); ++i) {
      EXPECT_EQ(epochs[i], epochs[0]);
      EXPECT_TRUE(weights[i].equal(weights[0]));
    }
  }
}

/// The first column of each training batch of this rank, in order.
struct Seen : Callback {
  std::string_view name() const override { return "seen"; }
  void after_batch(Learner& learn) override {
    if (learn.training()) rows.push_back(learn.targets().front().clone());
  }
  std::vector<at::Tensor> rows;
};

TEST(DistributedLearner, TakesBlocksOfTheOrderAsFastaiDoes) {
  const auto x = at::arange(14).unsqueeze(1).to(at::kFloat).expand({14, 4}).contiguous(),
             y = at::arange(14).to(at::kFloat);
  run_ranks(3, [&](process::Process& process) {
    const Accelerator accelerator(process);
    nn::Sequential net(nn::Linear(4, 1), nn::Flatten(nn::FlattenOptions().start_dim(0)));
    const Learner learn(tensor_loaders({x, y}, {x, y}, {.batch_size = 3, .shuffle = false}), net,
                        {.loss = mse(), .metrics = {mae_metric()}});
    const auto seen = std::make_shared<Seen>();
    learn.add(seen);

    learn.distrib_ctx(accelerator, {.order = LoaderOrder::kBlocks},
                      [&] { learn.no_logging([&] { learn.fit(1, 0.0); }); });

    const auto own = at::cat(seen->rows).to(at::kLong);
    EXPECT_TRUE(own.equal(at::arange(process.rank() * 5, process.rank() * 5 + 5).remainder(14))) << own;
  });
}

/// Metrics of several kinds over ranks of which some have no rows.
TEST(DistributedLearner, AddsUpAllCountsInOneReduction) {
  const auto metrics = [] {
    return std::vector<Metric>{avg_loss(), accuracy(), f1_score({.average = Averaging::kMacro}),
                               value_metric("seven", [] { return 7.0; })};
  };
  const auto p = at::sin(at::arange(30).reshape({10, 3}).to(at::kFloat)), t = at::arange(10).remainder(3);
  const auto input = [&](int64_t begin, int64_t end) {
    return MetricInput{.prediction = p.slice(0, begin, end),
                       .target = t.slice(0, begin, end),
                       .loss = p.slice(0, begin, end).mean(),
                       .size = end - begin};
  };
  const auto whole = metrics();
  for (const auto& metric : whole) metric.accumulate(input(0, 10));
  const auto wanted = MetricValues()(whole, comm::Group());
  run_ranks(3, [&](process::Process& process) {
    const auto mine = metrics();
    MetricValues values;
    for (int pass = 0; pass < 2; ++pass) {
      for (const auto& metric : mine) metric.reset();
      if (process.rank() < 2) {
        for (const auto& metric : mine) metric.accumulate(input(process.rank() * 5, process.rank() * 5 + 5));
      }
      const auto given = values(mine, process.group());
      EXPECT_NEAR(given[0], wanted[0], 1e-6);
      EXPECT_EQ(given[1], wanted[1]);
      EXPECT_EQ(given[2], wanted[2]);
      EXPECT_EQ(given[3], 7.0);
      EXPECT_EQ(mine[1].value(process.group()), wanted[1]);
    }
  });
}

TEST(DistributedLearner, FindsOneRateOnAllRanks) {
  std::mutex guard;
  std::vector<std::vector<double>> losses;
  run_ranks(3, [&](process::Process& process) {
    const Accelerator accelerator(process);
    const Learner learn(small_data(40, 4), small_net(), plain_options());
    LrFindResult found;
    learn.distrib_ctx(accelerator, [&] { found = learn.lr_find({.num_it = 30, .suggest = {Suggestion::kMinimum}}); });
    const std::lock_guard lock(guard);
    losses.push_back(found.losses);
  });

  EXPECT_GT(losses[0].size(), 6U);
  EXPECT_EQ(losses[1], losses[0]);
  EXPECT_EQ(losses[2], losses[0]);
}

TEST(DistributedLearner, AccumulatesOverRanksAsOneRankDoes) {
  const auto accumulating = [](const Learner& learn) {
    learn.no_logging([&] { learn.fit(2, 0.2, {.cbs = callbacks(GradientAccumulation(8))}); });
  };
  const Learner one(small_data(48, 8), small_net(), plain_options());
  one.no_logging([&] { one.fit(2, 0.2, {.cbs = callbacks(GradientAccumulation(16))}); });

  run_ranks(2, [&](process::Process& process) {
    const Accelerator accelerator(process);
    const Learner learn(small_data(48, 4), small_net(), plain_options());
    learn.distrib_ctx(accelerator, [&] { accumulating(learn); });

    const auto mine = learn.model().module()->parameters(), wanted = one.model().module()->parameters();
    for (size_t i = 0; i < mine.size(); ++i) EXPECT_TRUE(at::allclose(mine[i], wanted[i], 1e-4, 1e-5)) << i;
  });
}

/// Calls a function in every event.
struct EveryEvent : Callback {
  using Function = std::function<void(Learner&, Event)>;
  EveryEvent(std::string_view own_name, Function function) : called(own_name), fn(std::move(function)) {}
  std::string_view name() const override { return called; }
  int order() const override { return 30; }
#define HASTEN_TEST_EVENT(event, number) \
  void event(Learner& learn) override { fn(learn, Event::number); }
  HASTEN_TEST_EVENT(before_fit, kBeforeFit)
  HASTEN_TEST_EVENT(before_epoch, kBeforeEpoch)
  HASTEN_TEST_EVENT(before_train, kBeforeTrain)
  HASTEN_TEST_EVENT(before_batch, kBeforeBatch)
  HASTEN_TEST_EVENT(after_pred, kAfterPred)
  HASTEN_TEST_EVENT(after_loss, kAfterLoss)
  HASTEN_TEST_EVENT(before_backward, kBeforeBackward)
  HASTEN_TEST_EVENT(after_cancel_backward, kAfterCancelBackward)
  HASTEN_TEST_EVENT(after_backward, kAfterBackward)
  HASTEN_TEST_EVENT(before_step, kBeforeStep)
  HASTEN_TEST_EVENT(after_cancel_step, kAfterCancelStep)
  HASTEN_TEST_EVENT(after_step, kAfterStep)
  HASTEN_TEST_EVENT(after_cancel_batch, kAfterCancelBatch)
  HASTEN_TEST_EVENT(after_batch, kAfterBatch)
  HASTEN_TEST_EVENT(after_cancel_train, kAfterCancelTrain)
  HASTEN_TEST_EVENT(after_train, kAfterTrain)
  HASTEN_TEST_EVENT(before_validate, kBeforeValidate)
  HASTEN_TEST_EVENT(after_cancel_validate, kAfterCancelValidate)
  HASTEN_TEST_EVENT(after_validate, kAfterValidate)
  HASTEN_TEST_EVENT(after_cancel_epoch, kAfterCancelEpoch)
  HASTEN_TEST_EVENT(after_epoch, kAfterEpoch)
  HASTEN_TEST_EVENT(after_cancel_fit, kAfterCancelFit)
  HASTEN_TEST_EVENT(after_fit, kAfterFit)
#undef HASTEN_TEST_EVENT
  std::string called;
  Function fn;
};

/// Cancels the scope of an after_cancel event at its beginning, on all ranks; nothing for other events.
void lead_to(Learner& learn, Event wanted, Event now) {
  for (size_t i = 0; i < kNumScopes; ++i) {
    const auto scope = static_cast<Scope>(i);
    if (events_of(scope).after_cancel == wanted && events_of(scope).before == now) learn.cancel(scope);
  }
}

TEST(DistributedLearner, EndsEverywhereWhenOneRankThrowsInAnyEvent) {
  for (size_t i = static_cast<size_t>(Event::kBeforeFit); i < kNumEvents; ++i) {
    const auto where = static_cast<Event>(i);
    const int world = 2 + static_cast<int>(i % 2);
    SCOPED_TRACE(text(name_of(where), " of ", world, " ranks"));
    const auto words = run_ranks_collecting(world, [&](process::Process& process) {
      const Accelerator accelerator(process);
      const Learner learn(small_data(20, 4), small_net(), plain_options());
      learn.add(EveryEvent("failing", [&](Learner& own, Event now) {
        if (process.rank() == 1 && now == where && !own.is_unwinding()) throw std::runtime_error("rank 1 gives up");
        if (!own.is_unwinding()) lead_to(own, where, now);
      }));
      try {
        learn.distrib_ctx(accelerator, [&] { learn.no_logging([&] { learn.fit(3, 0.1); }); });
      } catch (...) {
        // The Learner is as before on every way out.
        EXPECT_EQ(learn.find<DistributedTrainer>(), nullptr);
        EXPECT_EQ(learn.accelerator().world_size(), 1);
        throw;
      }
    });

    EXPECT_NE(words[1].find(text("callback 'failing' in ", name_of(where), ": rank 1 gives up")), std::string::npos)
        << words[1];
    // A rank that has left the fit, or skips its epochs, needs no other one.
    if (where == Event::kAfterFit || where == Event::kAfterCancelFit || where == Event::kAfterCancelEpoch) continue;
    EXPECT_FALSE(words[0].empty());
  }
}

TEST_F(DistributedFiles, ResumeInMidEpochBitForBitAtEveryBatch) {
  struct Run {
    std::vector<at::Tensor> weights;
    std::vector<double> losses;
    std::vector<std::vector<double>> values;
  };
  // 23 rows: batches of all sizes on 3 ranks, with padding.
  const auto run = [&](int64_t cut, const std::filesystem::path& resume) {
    std::vector<Run> runs(3);
    run_ranks(3, [&](process::Process& process) {
      const Accelerator accelerator(process);
      const Learner learn(small_data(23, 3), small_net(true), plain_options());
      learn.recorder().options().train_metrics = true;
      learn.add(SaveAndStop(cut, path("checkpoint")), EarlyStopping({.monitor = "valid_accuracy", .patience = 9}),
                MixUp(0.3));
      learn.distrib_ctx(accelerator,
                        [&] { learn.no_logging([&] { learn.fit_one_cycle(3, 0.1, {.resume = resume}); }); });
      auto& own = runs[static_cast<size_t>(process.rank())];
      for (const auto& one : learn.model().module()->parameters()) own.weights.push_back(one.detach().clone());
      for (const auto& one : learn.model().module()->buffers()) own.weights.push_back(one.clone());
      own.losses = learn.recorder().losses();
      own.values = learn.recorder().values();
    });
    return runs;
  };
  const auto whole = run(-1, {});
  ASSERT_EQ(whole[0].losses.size(), 6U);

  for (int64_t cut = 1; cut < 6; ++cut) {
    SCOPED_TRACE(text("cut at batch ", cut));
    run(cut, {});
    const auto resumed = run(-1, path("checkpoint"));
    EXPECT_EQ(resumed[0].losses, whole[0].losses);
    for (size_t rank = 0; rank < 3; ++rank) {
      for (size_t i = 0; i < whole[rank].weights.size(); ++i)
        EXPECT_TRUE(resumed[rank].weights[i].equal(whole[rank].weights[i])) << rank << " " << i;
      // The smoothed loss is each rank's own, and that of rank 0 goes on.
      for (size_t epoch = 0; epoch < 3; ++epoch) {
        const auto &given = resumed[rank].values[epoch], &wanted = whole[rank].values[epoch];
        EXPECT_EQ(std::vector(given.begin() + (rank > 0), given.end()),
                  std::vector(wanted.begin() + (rank > 0), wanted.end()))
            << rank;
      }
    }
  }
}

TEST(DistributedLearner, PredictsEachSampleOnceInTheDatasetsOrder) {
  const PredsOptions everything{.with_input = true, .with_decoded = true, .with_loss = true};
  const Learner alone(small_data(48, 4), small_net(), plain_options());
  const auto wanted = alone.get_preds(everything);
  auto of_training = everything;
  of_training.ds_idx = 0;
  const auto wanted_training = alone.get_preds(of_training);

  run_ranks(4, [&](process::Process& process) {
    const Accelerator accelerator(process);
    const Learner learn(small_data(48, 4), small_net(), plain_options());
    learn.distrib_ctx(accelerator, [&] {
      for (const auto& [given, one] :
           {std::pair{learn.get_preds(everything), wanted}, {learn.get_preds(of_training), wanted_training}}) {
        EXPECT_TRUE(given.inputs.equal(one.inputs));
        EXPECT_TRUE(given.targets.equal(one.targets));
        EXPECT_TRUE(given.decoded.equal(one.decoded));
        EXPECT_TRUE(at::allclose(given.preds, one.preds));
        EXPECT_TRUE(at::allclose(given.losses, one.losses));
      }
    });
  });
}

TEST(DistributedLearner, AnAcceleratorsPrecisionIsThatOfTheFit) {
  const auto weights_in = [](Precision precision) {
    std::vector<at::Tensor> weights(2);
    run_ranks(2, [&](process::Process& process) {
      const Accelerator accelerator(process, {.mixed_precision = precision});
      const Learner learn(small_data(48, 6), small_net(), plain_options());
      const auto dtype = std::make_shared<at::ScalarType>(at::kByte);
      learn.add(EveryEvent("watching", [dtype](Learner& own, Event now) {
        if (now == Event::kAfterPred) *dtype = own.predictions().front().scalar_type();
      }));
      learn.distrib_ctx(accelerator, [&] { learn.no_logging([&] { learn.fit(2, 0.1); }); });
      EXPECT_EQ(*dtype, at::kFloat) << "outputs are float32 again";
      weights[static_cast<size_t>(process.rank())] = learn.model().module()->parameters().front().detach().clone();
    });
    EXPECT_TRUE(weights[0].equal(weights[1]));
    return weights[0];
  };

  const auto full = weights_in(Precision::kNo), half = weights_in(Precision::kBf16);
  EXPECT_FALSE(full.equal(half));
  EXPECT_TRUE(at::allclose(full, half, 0.1, 0.05));
}

TEST(DistributedLearner, ItsContextsAreAlsoFoundByTheirTwoHalves) {
  run_ranks(2, [&](process::Process& process) {
    const Accelerator accelerator(process);
    const Learner learn(small_data(24, 4), small_net(), plain_options());
    bool logged = false, showed_bar = false;
    learn.add(EveryEvent("looking", [&](Learner& own, Event now) {
      if (now != Event::kBeforeTrain) return;
      logged = own.logs();
      showed_bar = own.shows_bar();
      EXPECT_EQ(distributed_world_size(own), own.accelerator().world_size());
    }));

    learn.to_distributed(accelerator);
    EXPECT_EQ(distributed_world_size(learn), 2);
    learn.fit(1, 0.1);
    EXPECT_EQ(logged, process.rank() == 0);
    EXPECT_EQ(showed_bar, process.rank() == 0);
    EXPECT_TRUE(learn.logs()) << "tables come back behind the fit";

    learn.detach_distributed().detach_distributed();
    EXPECT_EQ(distributed_world_size(learn), 1);
    EXPECT_EQ(learn.find<DistributedTrainer>(), nullptr);
  });
}

TEST(DistributedLearner, RunsRankZeroFirstAndReturnsEachRanksValue) {
  std::mutex guard;
  std::vector<int> order;
  run_ranks(3, [&](process::Process& process) {
    const int value = rank0_first(process.group(), [&] {
      const std::lock_guard lock(guard);
      order.push_back(process.rank());
      return process.rank() * 10;
    });
    EXPECT_EQ(value, process.rank() * 10);
  });
  const auto words = run_ranks_collecting(2, [](process::Process& process) {
    rank0_first(process.group(), [&] {
      if (process.rank() == 0) throw std::runtime_error("disk full");
    });
  });

  EXPECT_EQ(order.front(), 0);
  EXPECT_EQ(order.size(), 3U);
  for (const auto& one : words) EXPECT_NE(one.find("disk full"), std::string::npos) << one;
  EXPECT_EQ(rank0_first(comm::Group(), [] { return 7; }), 7);
}

/// A sum of all inputs so far, as a hidden state is.
struct RememberingImpl : nn::Module {
  RememberingImpl() {
    linear = register_module("linear", nn::Linear(4, 2));
    const at::NoGradGuard no_grad;
    linear->weight.fill_(0.1);
    linear->bias.zero_();
  }
  at::Tensor forward(const at::Tensor& x) {
    sum = sum.defined() ? sum + x.detach().sum() : x.detach().sum();
    return linear->forward(x) + sum;
  }
  void reset_state() {
    ++num_resets;
    sum = at::Tensor();
  }
  nn::Linear linear{nullptr};
  at::Tensor sum;
  int num_resets = 0;
};
TORCH_MODULE(Remembering);

TEST(DistributedLearner, ResetsTheHiddenStateThroughDdp) {
  struct ResetInMidEpoch : Callback {
    std::string_view name() const override { return "reset_in_mid_epoch"; }
    void before_batch(Learner& learn) override {
      if (learn.iter() == 1) reset(learn.model());
    }
  };
  run_ranks(2, [&](process::Process& process) {
    const Accelerator accelerator(process);
    const Remembering model;
    const Learner learn(small_data(24, 4), model, plain_options());
    learn.add(ModelResetter());
    std::vector<int> counts;

    learn.distrib_ctx(accelerator, [&] {
      learn.no_logging([&] {
        learn.fit(2, 0.0);
        counts.push_back(model->num_resets);
        learn.fit(1, 0.0, {.cbs = callbacks(ResetInMidEpoch())});
        counts.push_back(model->num_resets);
      });
    });

    // Before the fit, before each training and each validation, behind the fit. Then in each pass's second batch, too.
    EXPECT_EQ(counts, (std::vector<int>{1 + 2 * 2 + 1, 6 + (1 + 2 + 1) + 2}));
    EXPECT_FALSE(model->sum.defined());
  });
}

HASTEN_PROCESS_CASE(setup_and_teardown) {
  const auto accelerator = setup_distrib({.cpu = true});
  const Learner learn(small_data(24, 4), small_net(), plain_options());
  learn.distrib_ctx(accelerator, [&] { learn.no_logging([&] { learn.fit(1, 0.1); }); });
  const auto sum = accelerator.reduce(learn.model().module()->parameters().front().detach().sum());
  std::printf("rank %d of %d, sum %.6f\n", accelerator.rank(), accelerator.world_size(), sum.item<double>());
  teardown_distrib(accelerator);
  std::printf("rank %d has ended\n", accelerator.rank());
  return 0;
}

TEST(DistributedLearner, ABlockLoaderOfAProcessIsThatOfItsGroup) {
  run_ranks(2, [](process::Process& process) {
    const data::TensorDataset set(at::arange(10), at::arange(10) * 2);
    const auto whole = data::loader<torch::data::samplers::SequentialSampler>(set, torch::data::DataLoaderOptions(3));
    std::vector<at::Tensor> seen;
    for (auto& batch : DistributedDL(whole, process)) seen.push_back(batch.data);

    EXPECT_TRUE(at::cat(seen).equal(at::arange(5) + 5 * process.rank()));
  });
}

TEST(DistributedLearner, LoadersOfTensorDatasetsAreThoseOfTheirTensors) {
  const data::TensorDataset train(at::arange(8).to(at::kFloat).view({8, 1}), at::arange(8)), valid = train;

  const auto loaders = tensor_loaders(train, valid, {.batch_size = 4, .shuffle = false});

  const auto prepared = loaders.train.prepare(Accelerator(process::Process({}, comm::Group())));
  std::vector<at::Tensor> targets;
  prepared->begin();
  for (Batch batch; prepared->next(batch);) targets.push_back(batch.targets.front());
  EXPECT_TRUE(at::cat(targets).equal(at::arange(8)));
}

HASTEN_PROCESS_CASE(setup_with_gpu) {
  const auto alone = setup_distrib(std::nullopt, {.cpu = true});
  std::printf("alone among %d\n", alone.world_size());
  try {
    setup_distrib(0, {.cpu = true});
  } catch (const UsageError& error) {
    std::printf("%s\n", error.what());
  }
  return 0;
}

TEST(DistributedLearner, SetupWithTheNumberOfAGpuRefusesAnotherDevice) {
  for (const auto& result : testing::run_processes(2, "setup_with_gpu")) {
    EXPECT_NE(result.output.find("alone among 1\n"), std::string::npos) << result.output;
    EXPECT_NE(result.output.find("setup_distrib(0) asks for GPU 0, but this process computes on cpu"),
              std::string::npos)
        << result.output;
  }
}

TEST_F(DistributedFiles, VerifyRefusesALearner) {
  const std::string recorder = R"({"path":")" + path("record") + R"(","steps":5,"shares":1,"whole":false,"seed":7})";
  for (const auto& result : testing::run_processes(1, "setup_and_teardown", {{"HASTEN_VERIFY", recorder}})) {
    EXPECT_EQ(result.exit_code, 2) << result.output;
    EXPECT_NE(result.output.find("a Learner in distrib_ctx is not compared"), std::string::npos) << result.output;
  }
}

TEST(DistributedLearner, SetupMeetsTheProcessesOfTheEnvironmentAndTeardownEndsThem) {
  const auto results = testing::run_processes(2, "setup_and_teardown");
  const auto line = [](const std::string& output) {
    const auto at = output.find(", sum ");
    return at == std::string::npos ? output : output.substr(at, output.find('\n', at) - at);
  };

  for (int rank = 0; rank < 2; ++rank) {
    const auto& result = results[static_cast<size_t>(rank)];
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_NE(result.output.find(text("rank ", rank, " of 2, sum ")), std::string::npos) << result.output;
    EXPECT_NE(result.output.find(text("rank ", rank, " has ended")), std::string::npos) << result.output;
  }
  EXPECT_EQ(line(results[0].output), line(results[1].output));
}

TEST(ParallelLearner, TrainsOverTwoDevicesOfOneProcess) {
  struct NetImpl : nn::Cloneable<NetImpl> {
    NetImpl() { reset(); }
    void reset() override { linear = register_module("linear", nn::Linear(4, 2)); }
    at::Tensor forward(const at::Tensor& x) { return linear->forward(x); }
    nn::Linear linear{nullptr};
  };
  const auto make = [] {
    auto net = std::make_shared<NetImpl>();
    const at::NoGradGuard no_grad;
    for (auto& parameter : net->parameters())
      parameter.copy_(at::cos(at::arange(parameter.numel()).reshape(parameter.sizes())));
    return net;
  };
  const auto one = make(), two = make();
  const Learner alone(small_data(24, 6), one, plain_options()), parallel(small_data(24, 6), two, plain_options());

  alone.no_logging([&] { alone.fit(2, 0.1); });
  parallel.parallel_ctx({c10::kCPU, c10::kCPU}, [&] { parallel.no_logging([&] { parallel.fit(2, 0.1); }); });

  for (size_t i = 0; i < one->parameters().size(); ++i)
    EXPECT_TRUE(at::allclose(one->parameters()[i], two->parameters()[i], 1e-4, 1e-6)) << i;
  EXPECT_EQ(parallel.find<ParallelTrainer>(), nullptr);
  parallel.to_parallel({c10::kCPU, c10::kCPU});
  parallel.no_logging([&] { parallel.fit(1, 0.1); });
  alone.no_logging([&] { alone.fit(1, 0.1); });
  EXPECT_TRUE(at::allclose(one->parameters()[0], two->parameters()[0], 1e-4, 1e-6));
  EXPECT_EQ(parallel.detach_parallel().find<ParallelTrainer>(), nullptr);
}

}  // namespace
}  // namespace hasten::learner
