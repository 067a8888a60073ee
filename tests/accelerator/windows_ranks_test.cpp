// Windows of accumulation that a program opens or uses in a wrong way, and handles that were moved from.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>
#include <string>
#include <utility>

#include "hasten/accelerator.h"
#include "hasten/data/dataset/tensor_dataset.h"
#include "support/folder.h"
#include "support/models.h"
#include "support/ranks.h"
#include "support/standard_error.h"

namespace hasten {
namespace {

using process::Process;
using testing::count_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Mlp;
using testing::run_ranks;
using testing::said_in;
using torch::data::samplers::SequentialSampler;

Process process_of_one() {
  return Process(process::RankInfo{}, comm::Group());
}

enum class Clip { kNorm, kValue };

// The first weights after 8 batches in windows of 4, whose gradients are clipped at each batch or at a window's end.
at::Tensor clipped(const Process& process, Clip clip, bool at_each_batch) {
  AcceleratorOptions options;
  options.gradient_accumulation_steps = 4;
  const Accelerator accelerator(process, options);
  Mlp net;
  testing::initialise(*net, 5);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto problem = testing::problem_for("mlp", 9);
  for (int64_t i = 0; i < 8; ++i) {
    const auto scope = accelerator.accumulate(model);
    const auto rows = problem.inputs.narrow(0, 3 * ((2 * i + process.rank()) % 8), 3);
    accelerator.backward(30 * model(rows).square().mean());
    if (at_each_batch || accelerator.sync_gradients()) {
      if (clip == Clip::kNorm) {
        EXPECT_GT(accelerator.clip_grad_norm_(net->parameters(), 0.01), 0);
      } else {
        accelerator.clip_grad_value_(net->parameters(), 0.001);
      }
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  return net->parameters()[0].detach().clone();
}

TEST(AccumulationWindows, AClipInTheMiddleOfAWindowChangesNothing) {
  for (const int world_size : {1, 2}) {
    run_ranks(world_size, [](Process& process) {
      for (const Clip clip : {Clip::kNorm, Clip::kValue})
        EXPECT_TRUE(clipped(process, clip, true).equal(clipped(process, clip, false))) << static_cast<int>(clip);
    });
  }
}

struct Trained {
  explicit Trained(Accelerator own) : accelerator(std::move(own)) { testing::initialise(*net, 5); }

  Accelerator accelerator;
  Mlp net;
  torch::optim::SGD sgd{net->parameters(), 0.1};
  decltype(accelerator.prepare(net, sgd)) prepared = accelerator.prepare(net, sgd);

  auto& model() { return std::get<0>(prepared); }
  auto& optimizer() { return std::get<1>(prepared); }
  void backward() { accelerator.backward(model()(torch::ones({2, 8})).square().mean()); }
  void step() {
    optimizer().step();
    optimizer().zero_grad();
  }
};

AcceleratorOptions of_windows(int64_t num_steps) {
  AcceleratorOptions options;
  options.gradient_accumulation_steps = num_steps;
  return options;
}

TEST(AccumulationWindows, AScopeInsideOfAScopeIsRefusedAtTheBackward) {
  Trained run(Accelerator(process_of_one(), of_windows(3)));
  const auto outer = run.accelerator.accumulate(run.model());
  {
    const auto inner = run.accelerator.accumulate(run.model());
    EXPECT_THAT(testing::words_of<UsageError>([&] { run.backward(); }),
                HasSubstr("backward inside of 2 scopes of accumulate(), which have counted the batch as often"));
  }
  EXPECT_NO_THROW(run.backward());
}

TEST(AccumulationWindows, AScopeThatTakesThePlaceOfTheOneBeforeIsRight) {
  Trained run(Accelerator(process_of_one(), of_windows(2)));
  std::optional<parallel::NoSync> scope;
  const auto before = run.net->parameters()[0].detach().clone();
  for (int i = 0; i < 2; ++i) {
    scope.emplace(run.accelerator.accumulate(run.model()));
    EXPECT_NO_THROW(run.backward());
    run.step();
  }
  EXPECT_FALSE(run.net->parameters()[0].equal(before));
}

TEST(AccumulationWindows, OneScopeForManyBatchesIsSaidOnce) {
  const auto said_of = [](bool for_each_batch) {
    return said_in([&] {
      Trained run(Accelerator(process_of_one(), of_windows(3)));
      auto batches = run.accelerator.data_loader<SequentialSampler>(data::TensorDataset(torch::ones({16, 8})), 2);
      std::optional<parallel::NoSync> scope;
      if (!for_each_batch) scope.emplace(run.accelerator.accumulate(run.model()));
      for (auto& batch : batches) {
        if (for_each_batch) scope.emplace(run.accelerator.accumulate(run.model()));
        run.accelerator.backward(run.model()(at::Tensor(batch)).square().mean());
        run.step();
      }
    });
  };

  EXPECT_EQ(count_of(said_of(false), "accumulate() was called once for 4 batches"), 1);
  EXPECT_THAT(said_of(true), IsEmpty());
}

TEST(AccumulationWindows, AStepInsideOfNoSyncIsSaidOnce) {
  const auto said_of = [](bool steps_inside) {
    return said_in([&] {
      run_ranks(2, [&](Process& process) {
        Trained run{Accelerator(process, {})};
        (void)run.accelerator.data_loader(data::TensorDataset(torch::ones({4})), 2);
        for (int i = 0; i < 3; ++i) {
          std::optional<parallel::NoSync> scope(run.accelerator.no_sync(run.model()));
          run.backward();
          if (!steps_inside) {
            scope.reset();
            run.backward();
          }
          run.step();
        }
      });
    });
  };

  EXPECT_EQ(count_of(said_of(true), "a step inside of no_sync()"), 1);
  EXPECT_THAT(said_of(false), IsEmpty());
}

TEST(AccumulationWindows, BackwardsInFp16ThatNothingPreparedStepsAreSaidOnce) {
  const auto said_of = [](Precision precision, bool steps_raw) {
    return said_in([&] {
      AcceleratorOptions options;
      options.mixed_precision = precision;
      Trained run(Accelerator(process_of_one(), options));
      for (int i = 0; i < 8; ++i) {
        run.backward();
        if (steps_raw) {
          run.sgd.zero_grad();
        } else {
          run.step();
        }
      }
    });
  };

  EXPECT_EQ(count_of(said_of(Precision::kFp16, true), "5 backwards in fp16 without a step() or zero_grad()"), 1);
  EXPECT_EQ(count_of(said_of(Precision::kFp16, false), "backwards in fp16"), 0);
  EXPECT_EQ(count_of(said_of(Precision::kBf16, true), "backwards in fp16"), 0);
}

TEST(MovedHandles, AreHandlesStill) {
  Accelerator accelerator(process_of_one(), {});
  Mlp net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  auto batches = accelerator.data_loader<SequentialSampler>(data::TensorDataset(torch::ones({4, 8})), 2);
  const auto other_accelerator = std::move(accelerator);
  const auto other_model = std::move(model);
  const auto other_optimizer = std::move(optimizer);
  const auto other_batches = std::move(batches);

  int steps = 0;
  for (auto& batch : batches) {                                      // NOLINT(bugprone-use-after-move)
    accelerator.backward(model(at::Tensor(batch)).square().mean());  // NOLINT(bugprone-use-after-move)
    optimizer.step();                                                // NOLINT(bugprone-use-after-move)
    other_optimizer.zero_grad();
    ++steps;
  }

  EXPECT_EQ(steps, 2);
  EXPECT_EQ(model.ddp(), other_model.ddp());  // NOLINT(bugprone-use-after-move)
}

}  // namespace
}  // namespace hasten
