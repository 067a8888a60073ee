// Using things in the wrong order, where it can be told: a step that does not wait for a window's end, and a
// schedule whose optimizer was not prepared. What is right must pass without a word.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <sstream>

#include "hasten/accelerator.h"
#include "hasten/core/error.h"
#include "hasten/optim/schedulers/decay.h"
#include "support/models.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using process::Process;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Mlp;
using ::testing::Not;
using testing::run_ranks;
using testing::run_ranks_collecting;

constexpr int64_t kWindow = 3;

Process lone_process() {
  return Process(process::RankInfo{}, comm::Group());
}

// Inputs that differ from rank to rank.
at::Tensor loss_of(const parallel::PreparedModel<Mlp>& model, const Process& process) {
  return (model(torch::ones({2, 8})) * (process.rank() + 1.0)).square().mean();
}

template <class Fn>
std::string said_by(const Fn& fn) {
  ::testing::internal::CaptureStderr();
  fn();
  // That these loops read no data is as it should be here.
  std::istringstream lines(::testing::internal::GetCapturedStderr());
  std::string others;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("no loader was prepared") == std::string::npos) others += line + "\n";
  }
  return others;
}

// `between(net, optimizer)` comes after every batch of two windows.
template <class Between>
void accumulate(Process process, const Between& between, AcceleratorOptions options = {}) {
  options.gradient_accumulation_steps = kWindow;
  const Accelerator accelerator(process, options);
  Mlp net;
  testing::initialise(*net, 1);
  torch::optim::SGD sgd(net->parameters(), 0.05);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int64_t i = 0; i < 2 * kWindow; ++i) {
    const auto scope = accelerator.accumulate(model);
    accelerator.backward(loss_of(model, process));
    optimizer.step();
    between(net, sgd);
    optimizer.zero_grad();
  }
}

void step_raw(Mlp&, torch::optim::SGD& sgd) {
  sgd.step();
}

// What `train` says as one process and on two ranks.
std::string said_by_one_and_two(const std::function<void(Process&)>& train) {
  return said_by([&] {
    Process one = lone_process();
    train(one);
    run_ranks(2, train);
  });
}

TEST(WrongOrderRanks, AStepOfTheRawOptimizerInsideAWindowIsRefusedOnAllRanks) {
  for (const int world_size : {2, 3}) {
    const auto words = run_ranks_collecting(world_size, [](Process& process) { accumulate(process, step_raw); });

    for (const auto& said : words) {
      EXPECT_THAT(said, HasSubstr("'first.weight' is no longer the same on all ranks"));
      EXPECT_THAT(said, HasSubstr("step() of an optimizer that was not prepared. Step the one that prepare"));
    }
  }
}

TEST(WrongOrderRanks, AStepOfTheRawOptimizerOnOneRankIsRefusedOnAll) {
  const auto words = run_ranks_collecting(3, [](Process& process) {
    accumulate(process, [&](Mlp&, torch::optim::SGD& sgd) {
      if (process.rank() == 2) sgd.step();
    });
  });

  for (const auto& said : words) EXPECT_THAT(said, HasSubstr("that was not prepared"));
}

TEST(WrongOrderRanks, InOneProcessAStepOfTheRawOptimizerInsideAWindowIsNamedOnce) {
  const std::string said = said_by([] { accumulate(lone_process(), step_raw); });

  EXPECT_THAT(said, HasSubstr("'first.weight' and 3 more changed after backward 1 of a window"));
  EXPECT_THAT(said, HasSubstr("Step the optimizer that prepare gave"));
  EXPECT_EQ(said.find("changed after"), said.rfind("changed after")) << said;
}

TEST(WrongOrderRanks, WhatAllRanksDoToParametersInsideAWindowGoesOn) {
  const auto clamp = [](double most) {
    return [most](Mlp& net, torch::optim::SGD&) {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : net->parameters()) parameter.clamp_(-most, most);
    };
  };
  const auto shrink = [](Mlp& net, torch::optim::SGD&) {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) parameter.mul_(0.99);
  };
  const std::string said = said_by([&] {
    accumulate(lone_process(), clamp(0.01));
    run_ranks(2, [&](Process& process) { accumulate(process, clamp(0.01)); });
  });
  // Only before the first window are values outside.
  EXPECT_EQ(said.find("changed after backward 1"), said.find("changed after")) << said;

  run_ranks(2, [&](Process& process) { accumulate(process, shrink); });
}

// Gradients are exchanged with every batch, so ranks stay alike, but the step takes a part of the window.
TEST(WrongOrderRanks, AStepOfTheRawOptimizerIsNamedOnceWhereGradientsAreExchangedWithEveryBatch) {
  for (const int world_size : {1, 2, 3}) {
    const std::string said = said_by([&] {
      run_ranks(world_size,
                [](Process& process) { accumulate(process, step_raw, {.accumulation = {.sync_each_batch = true}}); });
    });

    EXPECT_THAT(said, HasSubstr("'first.weight' and 3 more changed after backward 1 of a window"));
    EXPECT_EQ(said.find("changed after"), said.rfind("changed after")) << said;
  }
}

TEST(WrongOrderRanks, GradientsThatAreDroppedInsideAWindowAreNamedOnce) {
  const auto zero_raw = [](Mlp&, torch::optim::SGD& sgd) { sgd.zero_grad(); };
  for (const bool each : {false, true}) {
    for (const int world_size : {1, 2}) {
      const std::string said = said_by([&] {
        run_ranks(world_size, [&](Process& process) {
          accumulate(process, zero_raw, {.accumulation = {.sync_each_batch = each}});
        });
      });

      EXPECT_THAT(said, HasSubstr("the gradients after backward 1 of a window"));
      EXPECT_EQ(said.find("are gone"), said.rfind("are gone")) << said;
      EXPECT_THAT(said, Not(HasSubstr("changed after")));
    }
  }
}

// zero_grad() of the prepared optimizer drops nothing that waits for a step, so it may stand at both places.
TEST(WrongOrderRanks, ZeroGradAtTheLoopsHeadTrainsAsBehindTheStep) {
  const auto train = [](Process& process, bool at_head) {
    const Accelerator accelerator(process, {.gradient_accumulation_steps = kWindow, .tune_allocator = false});
    Mlp net;
    testing::initialise(*net, 1);
    torch::optim::SGD sgd(net->parameters(), 0.05);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int64_t i = 0; i < 3 * kWindow; ++i) {
      const auto scope = accelerator.accumulate(model);
      if (at_head) optimizer.zero_grad();
      accelerator.backward(
          model(torch::full({2, 8}, 0.1 * static_cast<double>(i + 1 + process.rank()))).square().sum());
      optimizer.step();
      if (!at_head) optimizer.zero_grad();
    }
    return net->first->weight.detach().clone();
  };
  for (const int world_size : {1, 2}) {
    const std::string said = said_by([&] {
      run_ranks(world_size,
                [&](Process& process) { EXPECT_TRUE(torch::equal(train(process, true), train(process, false))); });
    });

    EXPECT_THAT(said, IsEmpty());
  }
}

// As a plain loop that accumulates does it.
TEST(WrongOrderRanks, GradientsMayBeDroppedBetweenWindows) {
  const auto train = [](Process& process) {
    const Accelerator accelerator(process, {.gradient_accumulation_steps = kWindow});
    Mlp net;
    torch::optim::SGD sgd(net->parameters(), 0.05);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int64_t i = 0; i < 3 * kWindow; ++i) {
      const auto scope = accelerator.accumulate(model);
      if (i % kWindow == 0) sgd.zero_grad();
      accelerator.backward(loss_of(model, process));
      if (!accelerator.sync_gradients()) continue;
      sgd.step();
      if (i < kWindow) net->zero_grad();
    }
  };
  const std::string said = said_by_one_and_two(train);

  EXPECT_THAT(said, IsEmpty());
}

// Its last batch is left out, as where its loss is no number.
TEST(WrongOrderRanks, AWindowMayBeGivenUpAtItsEnd) {
  const auto train = [](Process& process) {
    const Accelerator accelerator(process, {.gradient_accumulation_steps = kWindow});
    Mlp net;
    torch::optim::SGD sgd(net->parameters(), 0.05);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int64_t i = 1; i <= 3 * kWindow; ++i) {
      const auto scope = accelerator.accumulate(model);
      if (i != kWindow) {
        accelerator.backward(loss_of(model, process));
        optimizer.step();
      }
      optimizer.zero_grad();
    }
  };
  const std::string said = said_by_one_and_two(train);

  EXPECT_THAT(said, IsEmpty());
}

TEST(WrongOrderRanks, AccumulationWithPreparedOptimizersSaysNothing) {
  const auto nothing = [](auto&&...) {};
  const std::string said = said_by([&] {
    for (const bool each : {false, true}) {
      accumulate(lone_process(), nothing, {.accumulation = {.sync_each_batch = each}});
      run_ranks(2,
                [&](Process& process) { accumulate(process, nothing, {.accumulation = {.sync_each_batch = each}}); });
    }
  });

  EXPECT_THAT(said, IsEmpty());
}

// A critic that learns from every batch and a generator that learns from some, one window for both.
void train_gan(Process& process) {
  const Accelerator accelerator(process, {.gradient_accumulation_steps = 2});
  Mlp generator, critic;
  torch::optim::Adam generators(generator->parameters()), critics(critic->parameters());
  auto [made, judged, step_made, step_judged] = accelerator.prepare(generator, critic, generators, critics);
  for (int i = 0; i < 8; ++i) {
    const auto scope = accelerator.accumulate(made, judged);
    accelerator.backward(loss_of(judged, process));
    step_judged.step();
    step_judged.zero_grad();
    if (i % 3 == 0 || accelerator.sync_gradients()) accelerator.backward(loss_of(made, process));
    step_made.step();
    step_made.zero_grad();
  }
}

TEST(WrongOrderRanks, TwoModelsWithAnOptimizerEachPass) {
  const std::string said = said_by_one_and_two(train_gan);

  EXPECT_THAT(said, IsEmpty());
}

// The critic's gradients are exchanged with every batch, so its own optimizer may step with every batch.
TEST(WrongOrderRanks, AModelThatIsNotHeldBackMayStepAsItLikes) {
  const auto train = [](Process& process) {
    const Accelerator accelerator(process, {.gradient_accumulation_steps = 2});
    Mlp generator, critic;
    torch::optim::Adam critics(critic->parameters());
    const auto [made, judged] = accelerator.prepare(generator, critic);
    for (int i = 0; i < 4; ++i) {
      const auto scope = accelerator.accumulate(made);
      accelerator.backward(loss_of(made, process));
      accelerator.backward(loss_of(judged, process));
      critics.step();
      critics.zero_grad();
    }
  };
  const std::string said = said_by_one_and_two(train);

  EXPECT_THAT(said, IsEmpty());
}

TEST(WrongOrderRanks, ClosuresPass) {
  const auto train = [](Process& process) {
    const Accelerator accelerator(process, {.gradient_accumulation_steps = 2});
    Mlp net;
    torch::optim::LBFGS lbfgs(net->parameters(), torch::optim::LBFGSOptions(0.1).max_iter(3));
    auto [model, optimizer] = accelerator.prepare(net, lbfgs);
    for (int i = 0; i < 4; ++i) {
      const auto scope = accelerator.accumulate(model);
      accelerator.backward(loss_of(model, process));
      optimizer.step([&, &model = model, &optimizer = optimizer] {
        optimizer.zero_grad();
        const at::Tensor loss = loss_of(model, process);
        accelerator.backward(loss);
        return loss;
      });
    }
  };
  const std::string said = said_by_one_and_two(train);

  EXPECT_THAT(said, IsEmpty());
}

TEST(WrongOrderRanks, LoadingTheSameInsideAWindowOnAllRanksPasses) {
  Mlp saved;
  std::stringstream bytes;
  torch::save(saved, bytes);
  const auto load = [&](Mlp& net, torch::optim::SGD&) {
    std::istringstream in(bytes.str());
    torch::load(net, in);
  };
  const std::string said = said_by([&] {
    accumulate(lone_process(), load);
    run_ranks(2, [&](Process& process) { accumulate(process, load); });
  });

  EXPECT_THAT(said, IsEmpty());
}

TEST(WrongOrderRanks, LocalSgdMayAverageInsideAWindow) {
  const std::string said = said_by([] {
    run_ranks(2, [](Process& process) {
      const Accelerator accelerator(process, {.gradient_accumulation_steps = 2});
      Mlp net;
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      auto local = accelerator.local_sgd(model, {.num_steps = 3});
      for (int i = 0; i < 8; ++i) {
        const auto scope = accelerator.accumulate(model);
        accelerator.backward(loss_of(model, process));
        optimizer.step();
        optimizer.zero_grad();
        local.step();
      }
      local.finish();
      for (int i = 0; i < 4; ++i) {
        const auto scope = accelerator.accumulate(model);
        accelerator.backward(loss_of(model, process));
        optimizer.step();
        optimizer.zero_grad();
      }
    });
  });

  EXPECT_THAT(said, IsEmpty());
}

// The loop leaves out the backward with which a window would have ended, and steps all the same.
TEST(WrongOrderRanks, AStepWithGradientsThatWereNeverExchangedIsRefusedWhereRanksPart) {
  const auto train = [](Process& process) {
    const Accelerator accelerator(process, {.gradient_accumulation_steps = 2});
    Mlp net;
    testing::initialise(*net, 1);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int i = 0; i < 4; ++i) {
      const auto scope = accelerator.accumulate(model);
      if (i != 1) accelerator.backward(loss_of(model, process));
      optimizer.step();
      optimizer.zero_grad();
    }
  };
  const std::string said = said_by([&] {
    Process one = lone_process();
    train(one);
  });
  const auto words = run_ranks_collecting(2, train);

  EXPECT_THAT(said, IsEmpty());
  for (const auto& rank : words) {
    EXPECT_THAT(rank, HasSubstr("is no longer the same on all ranks"));
    EXPECT_THAT(rank, Not(HasSubstr("not prepared")));
  }
}

TEST(WrongOrder, AScheduleWhoseOptimizerWasNotPreparedIsRefused) {
  const Accelerator accelerator(lone_process()), by_call(lone_process(), {.step_scheduler_with_optimizer = false});
  Mlp net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  optim::StepLR schedule(sgd, {.step_size = 1, .gamma = 0.5});
  const auto scheduler = accelerator.prepare(schedule);

  EXPECT_THAT([&] { scheduler.step(); },
              ::testing::ThrowsMessage<UsageError>(HasSubstr("its optimizer was not prepared")));
  EXPECT_EQ(schedule.last_epoch(), 0);

  by_call.prepare(schedule).step();
  EXPECT_EQ(schedule.last_epoch(), 1) << "counts calls, and needs no optimizer";
  const auto optimizer = accelerator.prepare(sgd);
  scheduler.step();
  EXPECT_EQ(schedule.last_epoch(), 2) << "prepared in any order";
}

}  // namespace
}  // namespace hasten
