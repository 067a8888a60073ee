#include "hasten/parallel/norm/sync_batch_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

#include "hasten/core/error.h"
#include "hasten/parallel/ddp/backward.h"
#include "hasten/parallel/ddp/ddp.h"
#include "support/models.h"
#include "support/ranks.h"

namespace hasten::parallel {
namespace {

using process::Process;
using testing::Cnn;
using ::testing::HasSubstr;
using testing::run_ranks;
using torch::nn::BatchNormOptions;

struct BatchNormCase {
  std::string name;
  std::vector<int64_t> sample;  // [channels, …]
  BatchNormOptions options = BatchNormOptions(3);
  at::ScalarType dtype = at::kFloat;
};

std::shared_ptr<torch::nn::Module> build_batch_norm(const BatchNormCase& test, torch::nn::AnyModule& callable) {
  const auto set_up = [&](auto module) {
    int64_t seed = 1;
    const torch::NoGradGuard no_grad;
    for (auto& parameter : module->parameters()) {
      auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed++));
      parameter.uniform_(0.5, 2, generator);
    }
    module->to(test.dtype);
    callable = torch::nn::AnyModule(module);
    return module.ptr();
  };
  if (test.sample.size() <= 2) return set_up(torch::nn::BatchNorm1d(test.options));
  if (test.sample.size() == 3) return set_up(torch::nn::BatchNorm2d(test.options));
  return set_up(torch::nn::BatchNorm3d(test.options));
}

struct BatchNormResult {
  at::Tensor output, input_gradient;
  std::vector<at::Tensor> parameter_gradients, buffers;
};

// Two training steps and backwards through the second; each sample's output has coefficients of its own.
BatchNormResult run_batch_norm(torch::nn::Module& module, torch::nn::AnyModule& callable, at::Tensor batch,
                               const at::Tensor& coefficients) {
  batch = batch.clone().requires_grad_();
  callable.forward(batch.detach() * 2 + 1);
  const at::Tensor output = callable.forward(batch);
  (output * coefficients).sum().backward();
  BatchNormResult result{output.detach(), batch.grad(), {}, module.buffers()};
  for (const auto& parameter : module.parameters()) result.parameter_gradients.push_back(parameter.grad());
  return result;
}

// Every dimension, with weights and without, with each kind of momentum; and what else a module may be told.
std::vector<BatchNormCase> batch_norm_cases() {
  std::vector<BatchNormCase> cases = {{"no running statistics", {3, 4}, BatchNormOptions(3).track_running_stats(false)},
                                      {"other numbers", {3, 4}, BatchNormOptions(3).eps(0.1)},
                                      {"double", {3, 4, 2}, BatchNormOptions(3), at::kDouble}};
  for (const auto& sample : std::vector<std::vector<int64_t>>{{3}, {3, 5}, {3, 4, 5}, {3, 2, 3, 4}}) {
    for (const bool affine : {true, false}) {
      for (const std::optional<double> momentum : {std::optional(0.1), std::optional(0.7), std::optional<double>()}) {
        cases.push_back({text("[", join(sample), "], affine ", affine, ", momentum ", momentum.value_or(-1)), sample,
                         BatchNormOptions(3).affine(affine).momentum(momentum)});
      }
    }
  }
  return cases;
}

void expect_close(const at::Tensor& mine, const at::Tensor& expected, const std::string& what) {
  EXPECT_EQ(mine.scalar_type(), expected.scalar_type()) << what;
  EXPECT_TRUE(torch::allclose(mine.to(at::kDouble), expected.to(at::kDouble), 1e-5, 1e-5)) << what;
}

TEST(SyncBatchNormRanks, EqualsOneProcessOnTheConcatenatedBatchWithUnequalAndEmptyBatches) {
  for (const auto& test : batch_norm_cases()) {
    auto shape = test.sample;
    shape.insert(shape.begin(), 7);
    auto generator = at::detail::createCPUGenerator(5);
    const at::Tensor batch = (at::randn(shape, generator) * 3 + 10).to(test.dtype);
    const at::Tensor coefficients = at::randn(shape, generator).to(test.dtype);
    torch::nn::AnyModule alone;
    const auto module_alone = build_batch_norm(test, alone);
    const auto expected = run_batch_norm(*module_alone, alone, batch, coefficients);
    auto all_sizes = std::vector<std::vector<int64_t>>{{7}, {2, 5}, {4, 0, 3}, {2, 3, 0, 2}};
    // Without running statistics libtorch's module itself refuses a single value a channel.
    if (test.name != "no running statistics") all_sizes.push_back({1, 5, 1});
    for (const auto& sizes : all_sizes) {
      run_ranks(static_cast<int>(sizes.size()), [&](Process& process) {
        const auto rank = static_cast<size_t>(process.rank());
        torch::nn::AnyModule callable;
        const auto module = build_batch_norm(test, callable);
        convert_sync_batchnorm(module, process.group());

        const auto mine = run_batch_norm(*module, callable, batch.split_with_sizes(sizes)[rank],
                                         coefficients.split_with_sizes(sizes)[rank]);

        const std::string what = test.name + " on " + std::to_string(sizes.size()) + " ranks";
        expect_close(mine.output, expected.output.split_with_sizes(sizes)[rank], "output " + what);
        expect_close(mine.input_gradient, expected.input_gradient.split_with_sizes(sizes)[rank],
                     "gradient of the input " + what);
        for (size_t i = 0; i < expected.parameter_gradients.size(); ++i) {
          at::Tensor sum = mine.parameter_gradients[i].clone();
          process.group().all_reduce_(sum);
          expect_close(sum, expected.parameter_gradients[i], "gradient of a parameter " + what);
        }
        for (size_t i = 0; i < expected.buffers.size(); ++i)
          expect_close(mine.buffers[i], expected.buffers[i], "running statistics " + what);
      });
    }
  }
}

TEST(SyncBatchNormRanks, ApexsGroupsNormaliseAmongNeighboursOnly) {
  run_ranks(4, [](Process& process) {
    torch::nn::BatchNorm1d norm(torch::nn::BatchNorm1dOptions(1).affine(true).momentum(1.0));
    convert_sync_batchnorm(norm, create_syncbn_process_group(process.group(), 2));

    norm->forward(torch::full({2, 1}, static_cast<double>(process.rank())));

    EXPECT_NEAR(norm->running_mean.item<double>(), process.rank() < 2 ? 0.5 : 2.5, 1e-6);
    EXPECT_THROW(create_syncbn_process_group(process.group(), 3), UsageError);
  });
}

TEST(SyncBatchNormRanks, ABatchThatIsEmptyEverywhereLeavesTheRunningStatistics) {
  run_ranks(2, [](Process& process) {
    torch::nn::BatchNorm2d norm(3);
    convert_sync_batchnorm(norm, process.group());
    const at::Tensor input = torch::zeros({0, 3, 2, 2}).requires_grad_();

    const at::Tensor output = norm(input);
    output.sum().backward();

    EXPECT_EQ(output.sizes(), input.sizes());
    EXPECT_EQ(input.grad().sizes(), input.sizes());
    EXPECT_TRUE(torch::equal(norm->running_var, torch::ones({3})));
    EXPECT_TRUE(torch::equal(norm->weight.grad(), torch::zeros({3})));
  });
}

TEST(SyncBatchNormRanks, OneValueAChannelOverAllRanksIsRefusedOnAllOfThem) {
  const auto words = testing::run_ranks_collecting(2, [](Process& process) {
    torch::nn::BatchNorm1d norm(3);
    convert_sync_batchnorm(norm, process.group());
    // libtorch's module refuses a single value itself, so the two of rank 0 come without the module.
    const at::Tensor input = torch::zeros({process.rank() == 0 ? 1 : 0, 3});
    torch::batch_norm(input, norm->weight, norm->bias, norm->running_mean, norm->running_var, true, 0.1, 1e-5, false);
  });

  for (const auto& said : words) EXPECT_THAT(said, HasSubstr("1 value a channel"));
}

TEST(SyncBatchNormRanks, AModuleThatTrainsOnOneSampleARankStaysOneThatTrains) {
  run_ranks(3, [](Process& process) {
    torch::nn::BatchNorm1d norm(2);
    convert_sync_batchnorm(norm, process.group());
    const at::Tensor input = torch::full({1, 2}, 3.0 * process.rank());

    norm(input), norm(input);

    EXPECT_TRUE(norm->is_training());
    EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 2);
    EXPECT_TRUE(torch::allclose(norm->running_mean, torch::full({2}, 3.0 * (1 - 0.81))));
    norm->eval();
    EXPECT_TRUE(torch::allclose(norm(norm->running_mean.expand({1, 2})), torch::zeros({1, 2}), 0, 1e-5));
    norm->train();
    revert_sync_batchnorm(*norm);
    EXPECT_THROW(norm(input), c10::Error);
    EXPECT_TRUE(norm->is_training());
  });
}

TEST(SyncBatchNormRanks, EvalModeIsLocalWithAndWithoutRunningStatistics) {
  run_ranks(2, [](Process& process) {
    std::vector<torch::nn::BatchNorm1d> norms;
    for (const bool tracks : {true, false}) {
      norms.emplace_back(BatchNormOptions(3).track_running_stats(tracks));
      convert_sync_batchnorm(norms.back(), process.group());
      norms.back()->eval();
    }
    if (process.rank() == 1) return;  // a collective of rank 0 would fail

    for (auto& norm : norms) {
      torch::nn::BatchNorm1d plain(norm->options);
      plain->eval();
      const at::Tensor input = torch::randn({4, 3});

      EXPECT_TRUE(torch::equal(norm(input), plain(input)));
    }
  });
}

// The second derivative of a gradient penalty, against one process.
TEST(SyncBatchNormRanks, BackwardCanBeDifferentiated) {
  auto generator = at::detail::createCPUGenerator(5);
  const at::Tensor batch = at::randn({6, 3, 2}, generator, at::kDouble);
  const at::Tensor coefficients = at::randn({6, 3, 2}, generator, at::kDouble);
  const auto penalty = [&](torch::nn::BatchNorm1d& norm, at::Tensor x, const at::Tensor& c) {
    norm->to(at::kDouble);
    x = x.clone().requires_grad_();
    const at::Tensor loss = (norm(x).pow(3) * c).sum();
    const at::Tensor gradient = torch::autograd::grad({loss}, {x}, {}, true, true).front();
    gradient.square().sum().backward();
    return x.grad();
  };
  torch::nn::BatchNorm1d alone(3);
  const at::Tensor expected = penalty(alone, batch, coefficients);
  run_ranks(2, [&](Process& process) {
    torch::nn::BatchNorm1d norm(3);
    convert_sync_batchnorm(norm, process.group());
    const std::vector<int64_t> sizes = {2, 4};
    const auto mine = [&](const at::Tensor& all) { return all.split_with_sizes(sizes)[process.rank()]; };

    const at::Tensor gradient = penalty(norm, mine(batch), mine(coefficients));

    EXPECT_TRUE(torch::allclose(gradient, mine(expected), 1e-9, 1e-9));
    at::Tensor weight_gradient = norm->weight.grad().clone();
    process.group().all_reduce_(weight_gradient);
    EXPECT_TRUE(torch::allclose(weight_gradient, alone->weight.grad(), 1e-9, 1e-9));
  });
}

// The CNN with batch norm in training mode, which without synchronisation differs between 1 and N ranks.
std::vector<at::Tensor> train_cnn(int rank, int world_size, const comm::Group& group) {
  Cnn model;
  testing::initialise(*model, 3);
  convert_sync_batchnorm(model, group);
  const Ddp ddp(*model, group, {.buckets = {.first_bytes = 200, .bytes = 1000}});
  model->to(torch::kCPU);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  const auto problem = testing::problem_for("cnn");
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(model(problem.inputs.chunk(world_size)[rank]),
                                         problem.targets.chunk(world_size)[rank])
        .backward();
    optimizer.step();
  }
  auto state = model->parameters();
  for (const auto& buffer : model->buffers()) state.push_back(buffer.to(at::kFloat));
  return state;
}

TEST(SyncBatchNormRanks, TrainingUnderDdpEqualsOneProcessAndLeavesAllRanksEqual) {
  const auto alone = train_cnn(0, 1, comm::Group());
  for (const int world_size : {2, 3, 4}) {
    run_ranks(world_size, [&](Process& process) {
      const auto mine = train_cnn(process.rank(), world_size, process.group());

      for (size_t i = 0; i < alone.size(); ++i) {
        EXPECT_TRUE(torch::allclose(mine[i], alone[i], 1e-4, 1e-5)) << world_size << " ranks, tensor " << i;
        const auto everybodys = process.group().all_gather(mine[i]);
        EXPECT_TRUE(torch::equal(everybodys.front(), everybodys.back())) << i;
      }
    });
  }
}

// Three ranks with three, one and two batches, against one process with the batches there are in each step.
TEST(SyncBatchNormRanks, ABackwardOfNoWeightTakesPartWithZerosAndLeavesGradientsAlone) {
  for (const int64_t rows : {0, 3}) {
    std::vector<at::Tensor> expected, found;
    for (const bool weightless : {false, true}) {
      run_ranks(2, [&](Process& process) {
        torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 1));
        testing::initialise(*net, 3);
        convert_sync_batchnorm(*net, process.group());
        const auto ddp = std::make_shared<Ddp>(*net, process.group());
        const bool counts = process.rank() == 0;
        const at::Tensor x = torch::arange(12.0).sin().view({4, 3}).slice(0, 0, counts ? 4 : rows).clone();
        // A mean over nothing is no number; the plain loss of the same backward is zero times the outputs.
        const at::Tensor y = net->forward(x.requires_grad_());
        at::Tensor loss = y.sum();
        if (!counts) loss = weightless ? y.slice(0, 0, 0).mean() + y.sum() : y.sum() * 0;

        backward(loss, {.weight = counts || !weightless ? 1.0 : 0.0}, {.models = {ddp}, .group = process.group()});

        EXPECT_EQ(x.grad().sizes(), x.sizes());
        if (!counts) return;
        auto& gradients = weightless ? found : expected;
        for (const auto& parameter : net->parameters())
          gradients.push_back(parameter.grad() * (weightless ? 0.5 : 1.0));
      });
    }

    ASSERT_EQ(found.size(), expected.size());
    // In front of the norm the other loss reaches rows of a batch that counts; of one that does not it leaves them out.
    for (size_t i = rows == 0 ? 0 : 2; i < found.size(); ++i)
      EXPECT_TRUE(torch::allclose(found[i], expected[i])) << rows << " " << i;
  }
}

TEST(SyncBatchNormRanks, RanksThatHaveRunOutOfBatchesTakePartWithNothing) {
  const std::vector<int> num_batches = {3, 1, 2};
  auto generator = at::detail::createCPUGenerator(5);
  const at::Tensor batches = at::randn({3, 3, 4, 2}, generator);  // [step, rank, batch, channels]
  const auto run = [&](torch::nn::BatchNorm1d& norm, const at::Tensor& batch) {
    const at::Tensor input = batch.clone().requires_grad_();
    norm(input).pow(3).sum().backward();
    return input.grad();
  };
  std::vector<at::Tensor> expected;
  torch::nn::BatchNorm1d alone(2);
  for (int step = 0; step < 3; ++step) {
    std::vector<at::Tensor> there;
    for (int rank = 0; rank < 3; ++rank)
      if (step < num_batches[rank]) there.push_back(batches[step][rank]);
    expected.push_back(run(alone, at::cat(there)));
  }
  run_ranks(3, [&](Process& process) {
    torch::nn::BatchNorm1d norm(2);
    convert_sync_batchnorm(norm, process.group());
    {
      const UnevenBatchNorms uneven(*norm);
      for (int step = 0; step < num_batches[process.rank()]; ++step) {
        const int64_t before = step < 1 ? process.rank() : process.rank() == 2 ? 1 : 0;

        const at::Tensor gradient = run(norm, batches[step][process.rank()]);

        EXPECT_TRUE(torch::allclose(gradient, expected[step].narrow(0, 4 * before, 4), 1e-5, 1e-5)) << step;
      }
      uneven.answer();
    }
    run(norm, batches[0][process.rank()]);
    if (process.rank() == 0) run(alone, batches[0].flatten(0, 1));
    if (process.rank() == 0) {
      EXPECT_TRUE(torch::allclose(norm->running_var, alone->running_var, 1e-5));
    }
  });
}

// Their exchanges take turns over two groups of connections, each of which has to be answered meanwhile.
TEST(SyncBatchNormRanks, PartsThatWereConvertedApartAreAnsweredBesideEachOther) {
  run_ranks(2, [](Process& process) {
    torch::nn::BatchNorm1d first(2), second(2);
    convert_sync_batchnorm(first, process.group());
    convert_sync_batchnorm(second, process.group());
    const UnevenBatchNorms uneven({first.get(), second.get()});
    int answered = 0;
    if (process.rank() == 0) second(first(torch::randn({4, 2}))).sum().backward();

    uneven.answer([&] { ++answered; });

    EXPECT_EQ(answered, 1);
    EXPECT_EQ(second->num_batches_tracked.item<int64_t>(), process.rank() == 0 ? 1 : 0);
  });
}

TEST(SyncBatchNormRanks, RanksWithBatchesThatDoDifferentThingsAreToldSo) {
  const auto words = testing::run_ranks_collecting(2, [](Process& process) {
    torch::nn::ModuleList norms(torch::nn::BatchNorm1d(2), torch::nn::BatchNorm1d(3));
    convert_sync_batchnorm(norms, process.group());
    const UnevenBatchNorms uneven(*norms);
    norms[process.rank()]->as<torch::nn::BatchNorm1d>()->forward(torch::randn({4, 2 + process.rank()}));
  });

  for (const auto& said : words) EXPECT_THAT(said, HasSubstr("exchange different statistics: [1, 5, 6]"));
}

TEST(SyncBatchNormRanks, TypesAndNamesAndFilesStayAsTheyWere) {
  run_ranks(2, [](Process& process) {
    Cnn plain, model;
    convert_sync_batchnorm(model, process.group());
    std::ostringstream before, after;

    torch::save(model, after);
    std::istringstream file(after.str());
    torch::load(plain, file);

    EXPECT_NE(model->norm->as<torch::nn::BatchNorm2d>(), nullptr);
    EXPECT_EQ(model->named_parameters().keys(), plain->named_parameters().keys());
    EXPECT_EQ(model->named_buffers().keys(), plain->named_buffers().keys());
    EXPECT_TRUE(torch::equal(plain->conv->weight, model->conv->weight));
  });
}

// Whether the ranks' batches, which differ in their means, are normalised together.
bool synchronised(torch::nn::BatchNorm1dImpl& norm, const Process& process) {
  const at::Tensor input = torch::randn({4, 3}).to(norm.running_mean.dtype()) + 100 * process.rank();
  return norm.forward(input).mean().abs().item<double>() > 0.5;
}

TEST(SyncBatchNormRanks, ConversionsClonesAndLoadingKeepTheMark) {
  run_ranks(2, [](Process& process) {
    for (const bool affine : {true, false}) {
      torch::nn::BatchNorm1d norm(BatchNormOptions(3).affine(affine));
      convert_sync_batchnorm(norm, process.group());

      const auto copy = std::dynamic_pointer_cast<torch::nn::BatchNorm1dImpl>(norm->clone());
      norm->to(at::kDouble);
      std::stringstream file;
      torch::save(norm, file);
      torch::load(norm, file);

      EXPECT_TRUE(synchronised(*norm, process));
      EXPECT_TRUE(synchronised(*copy, process));
    }
  });
}

TEST(SyncBatchNormRanks, AClonesModeIsNotGuessed) {
  run_ranks(2, [](Process& process) {
    torch::nn::BatchNorm1d norm(BatchNormOptions(3).track_running_stats(false));
    convert_sync_batchnorm(norm, process.group());
    const auto copy = std::dynamic_pointer_cast<torch::nn::BatchNorm1dImpl>(norm->clone());

    try {
      copy->forward(torch::randn({4, 3}));
      FAIL() << "ran";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("a clone of 'torch::nn::BatchNorm1dImpl' runs"));
    }
    convert_sync_batchnorm(*copy, process.group());
    copy->forward(torch::randn({4, 3}));
  });
}

TEST(SyncBatchNormRanks, AMarkLostWithItsDataIsNoticedInBackwardAndMendedByConvertingAgain) {
  run_ranks(2, [](Process& process) {
    Cnn model;
    convert_sync_batchnorm(model, process.group());
    model->norm->weight.set_data(torch::ones({6}));
    const auto backward = [&] { model(torch::randn({2, 1, 8, 8})).sum().backward(); };

    try {
      backward();
      FAIL() << "went on";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("'norm' normalised this rank's batch alone"));
      EXPECT_THAT(error.what(), HasSubstr("Convert the model again"));
    }
    convert_sync_batchnorm(model, process.group());
    backward();
  });
}

TEST(SyncBatchNorm, AWorldOfOneStaysPlain) {
  torch::nn::BatchNorm2d norm(3);
  convert_sync_batchnorm(norm, comm::Group());

  EXPECT_EQ(norm->weight.key_set(), torch::ones({3}).requires_grad_().key_set());
}

TEST(SyncBatchNorm, AModuleWithoutATensorForTheMarkIsRefusedByName) {
  const torch::nn::ModuleList inner(
      torch::nn::BatchNorm1d(BatchNormOptions(3).affine(false).track_running_stats(false)));
  torch::nn::ModuleList model(torch::nn::Linear(3, 3), inner);

  try {
    convert_sync_batchnorm(model, comm::Group());
    FAIL() << "converted";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'1.0' has no tensor that could carry the mark"));
    EXPECT_THAT(error.what(), HasSubstr("Switch one of them on"));
  }
}

}  // namespace
}  // namespace hasten::parallel
