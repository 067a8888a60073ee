// Gradients that are born in their buckets: that they are, and that memory which was lent to something else
// is left to it.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <atomic>

#include "hasten/memory/allocator.h"
#include "hasten/parallel/ddp/ddp.h"
#include "support/processes.h"
#include "support/ranks.h"

namespace hasten::parallel {
namespace {

using process::Process;
using testing::run_ranks;

constexpr int kRows = 12;
constexpr int64_t kWeightBytes = 16 * 16 * 4;
constexpr int kAllocatorSteps = 8;

// The first layer's gradients come after the others', when it is known that a backward is under way.
struct LayersImpl : torch::nn::Module {
  LayersImpl() {
    register_module("first", first);
    register_module("middle", middle);
    register_module("last", last);
    const at::NoGradGuard no_grad;
    for (auto& parameter : parameters())
      parameter.copy_(torch::linspace(-0.2, 0.2, parameter.numel()).view_as(parameter));
  }
  at::Tensor forward(const at::Tensor& x) { return last(torch::tanh(middle(torch::tanh(first(x))))).square().mean(); }
  torch::nn::Linear first{16, 16}, middle{16, 16}, last{16, 2};
};
TORCH_MODULE(Layers);

// Calls `before` and `after` around each step; `before` is given the step's number.
struct Training {
  Layers model = {};
  std::function<void(int)> before = [](int) {};
  std::function<void(int)> after = [](int) {};

  at::Tensor& weight() { return model->first->weight; }

  void run(const comm::Group& group, std::optional<int64_t> in_place_bytes = 1) {
    const Ddp ddp(*model, group, {.in_place_bytes = in_place_bytes});
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    const at::Tensor rows = torch::sin(torch::arange(kRows * 16)).view({kRows, 16});
    for (int step = 0; step < kAllocatorSteps; ++step) {
      before(step);
      optimizer.zero_grad();
      before_forward(ddp);
      model(rows.chunk(group.world_size())[group.rank()]).backward();
      after(step);
      optimizer.step();
    }
  }

  static void expect_as_alone(const Layers& trained) {
    Training alone;
    alone.run(comm::Group());
    for (size_t i = 0; i < trained->parameters().size(); ++i)
      EXPECT_TRUE(torch::allclose(trained->parameters()[i], alone.model->parameters()[i], 1e-5, 1e-6)) << i;
  }
};

TEST(BirthplacesRanks, GradientsOfTheSizeThatWasAskedForAreBornInTheirBuckets) {
  for (const auto in_place_bytes :
       {std::optional<int64_t>(kWeightBytes), std::optional<int64_t>(kWeightBytes + 1), {}}) {
    run_ranks(2, [in_place_bytes](Process& process) {
      Training training;
      void* made_at = nullptr;
      training.weight().register_hook([&](const at::Tensor& gradient) { made_at = gradient.data_ptr(); });
      bool born_there = false;
      training.after = [&](int) { born_there = made_at == training.weight().grad().data_ptr(); };

      training.run(process.group(), in_place_bytes);

      EXPECT_EQ(born_there, in_place_bytes == kWeightBytes);
      Training::expect_as_alone(training.model);
    });
  }
}

// An Accelerator has given libtorch an allocator before the first model is prepared.
HASTEN_PROCESS_CASE(births_over_an_accelerators_allocator) {
  memory::tune_malloc(Environment::of({}));
  std::atomic<int> born_there = 0;
  run_ranks(2, [&](Process& process) {
    Training training;
    void* made_at = nullptr;
    training.weight().register_hook([&](const at::Tensor& gradient) { made_at = gradient.data_ptr(); });
    training.after = [&](int step) {
      if (step == kAllocatorSteps - 1 && made_at == training.weight().grad().data_ptr()) ++born_there;
    };
    training.run(process.group());
  });
  return born_there == 2 ? 0 : 1;
}

TEST(BirthplacesRanks, AnAcceleratorsAllocatorLendsToo) {
  const auto result = testing::run_processes(1, "births_over_an_accelerators_allocator")[0];

  EXPECT_EQ(result.exit_code, 0) << result.output;
}

TEST(BirthplacesRanks, WhoKeepsAGradientKeepsWhatItWas) {
  for (const bool detached : {false, true}) {
    run_ranks(2, [detached](Process& process) {
      Training training;
      std::vector<at::Tensor> kept, copies;
      int step_now = 0;
      training.before = [&](int step) { step_now = step; };
      training.weight().register_hook([&](const at::Tensor& gradient) {
        if (step_now < 4) return;  // by then it is born in its bucket
        kept.push_back(detached ? gradient.detach() : gradient);
        copies.push_back(gradient.clone());
      });

      training.run(process.group());

      ASSERT_EQ(kept.size(), kAllocatorSteps - 4);
      for (size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(torch::equal(kept[i], copies[i])) << i;
      Training::expect_as_alone(training.model);
    });
  }
}

TEST(BirthplacesRanks, AnotherTensorThatGotTheMemoryKeepsIt) {
  run_ranks(3, [](Process& process) {
    std::vector<at::Tensor> kept;
    int num_in_slots = 0;
    {
      Training training;
      void* slot = nullptr;
      int step_now = 0;
      training.before = [&](int step) { step_now = step; };
      training.after = [&](int) { slot = training.weight().grad().data_ptr(); };
      // Comes in where the first layer's gradient came before.
      training.model->middle->weight.register_hook([&](const at::Tensor&) {
        if (step_now < 4) return;
        kept.push_back(torch::full({16, 16}, 7.0));
        num_in_slots += kept.back().data_ptr() == slot;
      });

      training.run(process.group());

      Training::expect_as_alone(training.model);
    }
    EXPECT_GT(num_in_slots, 0) << "the test does not test anything";
    // Model, buckets and group may have gone.
    for (const at::Tensor& tensor : kept) EXPECT_TRUE(torch::equal(tensor, torch::full({16, 16}, 7.0)));
  });
}

TEST(BirthplacesRanks, WhatABackwardThatThrewHasLeftIsNotLentAgain) {
  run_ranks(2, [](Process& process) {
    Training training;
    bool throws = false;
    void* slot = nullptr;
    int num_in_slots = 0;
    training.after = [&](int) { slot = training.weight().grad().data_ptr(); };
    std::vector<at::Tensor> kept, copies;
    training.weight().register_hook([&](const at::Tensor& gradient) {
      if (!throws) return;
      kept.push_back(gradient);
      num_in_slots += gradient.data_ptr() == slot;
      copies.push_back(gradient.clone());
      throw std::runtime_error("as a test wants it");
    });
    training.before = [&](int step) {
      if (step < 5) return;
      throws = true;
      training.model->zero_grad();
      EXPECT_THROW(training.model(torch::ones({2, 16})).backward(), std::runtime_error);
      throws = false;
    };

    training.run(process.group());

    EXPECT_GT(num_in_slots, 0) << "the test does not test anything";
    for (size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(torch::equal(kept[i], copies[i])) << i;
    Training::expect_as_alone(training.model);
  });
}

}  // namespace
}  // namespace hasten::parallel
