// What a program on several ranks has left out, and ranks that drift apart: found early, and at the end.
#include "accelerator/advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

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
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Mlp;
using ::testing::Not;
using testing::run_ranks;
using testing::run_ranks_collecting;
using testing::said_in;

// `num_steps` steps; `rank_1` is called with rank 1's model after each of them.
void train(const Accelerator& accelerator, int num_steps, const std::function<void(Mlp&)>& rank_1,
           bool rank_1_steps = true) {
  Mlp net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 0; step < num_steps; ++step) {
    optimizer.zero_grad();
    accelerator.backward(model(torch::ones({2, 8})).square().mean());
    if (rank_1_steps || accelerator.rank() != 1) optimizer.step();
    const at::NoGradGuard no_grad;
    if (accelerator.rank() == 1) rank_1(net);
  }
  accelerator.end_training();
}

TEST(DriftRanks, ARankThatNeverStepsIsFoundAfterTheFirstTenSteps) {
  int64_t steps = 0;
  const auto words = run_ranks_collecting(2, [&](Process& process) {
    train(
        Accelerator(process, {}), 100, [&](Mlp&) { ++steps; }, /*rank_1_steps=*/false);
  });

  EXPECT_THAT(words, Each(HasSubstr("is no longer the same on all ranks: rank 1 and rank 0")));
  EXPECT_LE(steps, 10);
}

TEST(DriftRanks, AWeightThatOneRankChangesIsFoundAtTheEndOfTraining) {
  const auto words = run_ranks_collecting(
      3, [](Process& process) { train(Accelerator(process, {}), 3, [](Mlp& net) { net->second->bias[0] += 1; }); });

  EXPECT_THAT(words, Each(HasSubstr("'second.bias' is no longer the same on all ranks: rank 1 and rank 0")));
}

TEST(DriftRanks, RanksThatStayAlikeEndInPeace) {
  EXPECT_THAT(run_ranks_collecting(3, [](Process& process) { train(Accelerator(process, {}), 12, [](Mlp&) {}); }),
              Each(IsEmpty()));
}

using DriftFiles = testing::InFolder;

TEST_F(DriftFiles, ASaveOfRanksThatHaveDriftedIsRefusedOnAll) {
  const auto words = run_ranks_collecting(2, [&](Process& process) {
    const Accelerator accelerator(process, {});
    Mlp net;
    const auto model = accelerator.prepare(net);
    accelerator.save_state((folder_ / "first").string());
    {
      const at::NoGradGuard no_grad;
      if (process.rank() == 1) net->second->bias[0] += 1;
    }
    accelerator.save_state((folder_ / "second").string());
  });

  EXPECT_THAT(words, Each(HasSubstr("'second.bias' is no longer the same on all ranks")));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "first"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "second"));
}

TEST(AdviceRanks, ALoopWithoutALoaderIsSaidOnce) {
  const auto with_loader = [](bool prepares) {
    return said_in([&] {
      run_ranks(2, [&](Process& process) {
        const Accelerator accelerator(process, {});
        if (prepares) (void)accelerator.data_loader(data::TensorDataset(torch::ones({4})), 2);
        train(accelerator, 3, [](Mlp&) {});
      });
    });
  };

  EXPECT_EQ(count_of(with_loader(false), "no loader was prepared, so each of the 2 ranks"), 1);
  EXPECT_THAT(with_loader(true), Not(HasSubstr("no loader")));
}

TEST(AdviceRanks, ALoopInWhichNothingWasPreparedIsSaidAtItsEnd) {
  const auto on = [](int world_size) {
    return said_in([&] { run_ranks(world_size, [](Process& process) { Accelerator(process, {}).end_training(); }); });
  };

  EXPECT_EQ(count_of(on(2), "nothing was prepared by 2 ranks"), 1);
  EXPECT_THAT(on(1), IsEmpty());
}

// Steps of `with` ranks with an optimizer that `make` makes of the prepared model and of another one.
std::string said_of_optimizer(int with, const std::function<std::vector<at::Tensor>(Mlp& net, Mlp& other)>& make) {
  return said_in([&] {
    run_ranks(with, [&](Process& process) {
      const Accelerator accelerator(process, {});
      Mlp net, other;
      torch::optim::SGD sgd(make(net, other), 0.1);
      // The optimizer first: a model that is prepared behind it counts, too.
      auto optimizer = accelerator.prepare(sgd);
      auto model = accelerator.prepare(net);
      (void)accelerator.data_loader(data::TensorDataset(torch::ones({4})), 2);
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        accelerator.backward(model(torch::ones({2, 8})).square().mean());
        optimizer.step();
      }
    });
  });
}

TEST(AdviceRanks, AnOptimizerOfAnotherModelIsSaidOnce) {
  const auto of_other = [](Mlp&, Mlp& other) { return other->parameters(); };
  const auto of_both = [](Mlp& net, Mlp& other) {
    std::vector<at::Tensor> all = net->parameters();
    all.push_back(other->second->bias);
    return all;
  };
  const auto of_net = [](Mlp& net, Mlp&) { return net->parameters(); };

  EXPECT_EQ(count_of(said_of_optimizer(2, of_other), "SGD steps 4 of its 4 parameters in no prepared model"), 1);
  EXPECT_EQ(count_of(said_of_optimizer(2, of_both), "SGD steps 1 of its 5 parameters in no prepared model"), 1);
  EXPECT_THAT(said_of_optimizer(1, of_other), HasSubstr("no prepared optimizer steps the prepared model"));
  EXPECT_THAT(said_of_optimizer(1, of_both), IsEmpty());
  EXPECT_THAT(said_of_optimizer(2, of_net), IsEmpty());
}

TEST(AdviceRanks, AnOptimizerWhoseModelWasForgottenIsSaidWhereTheLoopCallsBackwardItself) {
  const auto said = said_in([] {
    run_ranks(2, [](Process& process) {
      const Accelerator accelerator(process, {});
      Mlp net;
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto optimizer = accelerator.prepare(sgd);
      (void)accelerator.data_loader(data::TensorDataset(torch::ones({4})), 2);
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        net->forward(torch::ones({2, 8})).square().mean().backward();
        optimizer.step();
      }
    });
  });

  EXPECT_EQ(count_of(said, "SGD steps 4 of its 4 parameters in no prepared model"), 1);
}

TEST(AdviceRanks, AnOptimizerThatTrainsNothingIsSaidOnce) {
  const auto of_nothing = [](Mlp&, Mlp&) { return std::vector<at::Tensor>(); };

  EXPECT_EQ(count_of(said_of_optimizer(2, of_nothing), "SGD has no parameter that requires a gradient"), 1);
}

TEST(Advice, AnInputThatIsTrainedThroughAFrozenModelIsNoMistake) {
  const auto said = said_in([&] {
    const Accelerator accelerator(Process(process::RankInfo{}, comm::Group()), {});
    Mlp net;
    for (auto& parameter : net->parameters()) parameter.requires_grad_(false);
    auto x = torch::ones({2, 8}, at::TensorOptions().requires_grad(true));
    torch::optim::SGD sgd({x}, 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);

    accelerator.backward(model(x).square().mean());
    optimizer.step();
  });

  EXPECT_THAT(said, IsEmpty());
}

TEST(Advice, AccumulationWithoutAccumulateIsSaidOnce) {
  Advice advice(Logger("advice"), 1);
  advice.note_loader();

  const auto said = said_in([&] {
    for (int64_t step = 0; step < 5; ++step) advice.before_backward({.num_steps = 4, .optimizer_calls = 2 * step});
  });

  EXPECT_EQ(count_of(said, "gradient_accumulation_steps is 4, and accumulate() is not called"), 1);
}

TEST(Advice, AccumulationThatNothingPreparedStepsIsSaidOnce) {
  Advice advice(Logger("advice"), 1);
  advice.note_loader();

  const auto said = said_in([&] {
    for (int64_t step = 0; step < 40; ++step) advice.before_backward({.num_steps = 3, .optimizer_calls = 0});
  });

  EXPECT_EQ(count_of(said, "neither accumulate() nor a prepared optimizer was called in 13 backwards"), 1);
}

TEST(Advice, WindowsOfTheProgramsOwnAndAccumulateAreRight) {
  Advice own_windows(Logger("advice"), 1), accumulates(Logger("advice"), 1);
  accumulates.note_accumulate();

  const auto said = said_in([&] {
    for (int64_t step = 0; step < 12; ++step) {
      own_windows.before_backward({.num_steps = 4, .optimizer_calls = 2 * (step / 4)});
      accumulates.before_backward({.num_steps = 4, .optimizer_calls = 2 * step});
    }
  });

  EXPECT_THAT(said, IsEmpty());
}

TEST(AdviceRanks, LoadersThatDifferAreRefusedWhenTheyArePrepared) {
  const auto words = run_ranks_collecting(2, [](Process& process) {
    const Accelerator accelerator(process, {});
    (void)accelerator.data_loader(data::TensorDataset(torch::ones({process.rank() == 0 ? 8 : 6})), 2);
  });

  EXPECT_THAT(words, Each(HasSubstr("rank 0's has 8 samples in batches of 2, rank 1's 6 samples in batches of 2")));
}

TEST(AdviceRanks, ADatasetWithoutSamplesIsSaidUnlessAllowed) {
  const auto prepare_empty = [](bool allowed) {
    return said_in([&] {
      const Accelerator accelerator(Process(process::RankInfo{}, comm::Group()), {.loader = {.allow_empty = allowed}});
      (void)accelerator.data_loader(data::TensorDataset(torch::ones({0})), 2);
    });
  };

  EXPECT_THAT(prepare_empty(false), HasSubstr("TensorDataset"));
  EXPECT_THAT(prepare_empty(false), HasSubstr("has no samples, so that a loop over it makes no step"));
  EXPECT_THAT(prepare_empty(true), IsEmpty());
}

TEST(AdviceRanks, ADatasetThatDropLastLeavesOutIsSaid) {
  const auto prepare = [](bool drop_last) {
    return said_in([&] {
      const Accelerator accelerator(Process(process::RankInfo{}, comm::Group()), {.loader = {.drop_last = drop_last}});
      (void)accelerator.data_loader(data::TensorDataset(torch::ones({3})), 4);
    });
  };

  EXPECT_THAT(prepare(true), HasSubstr("it has 3 samples, a step on all ranks takes 4"));
  EXPECT_THAT(prepare(false), IsEmpty());
}

}  // namespace
}  // namespace hasten
