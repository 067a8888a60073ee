// Stage 3 on several hosts: each host keeps its stripes, and units come from the others when they are read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <cstring>
#include <limits>
#include <thread>

#include "hasten/accelerator.h"
#include "hasten/checkpoint/weights.h"
#include "hasten/core/error.h"
#include "parallel/shard/trained.h"
#include "support/folder.h"

namespace hasten::parallel {
namespace {

using namespace shard_testing;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

// Ranks 0 and 1 on one host, 2 and 3 on another.
void run_on_two_hosts(const testing::RankFunction& fn, int world_size = 4) {
  run_ranks(world_size, fn, {.adjust = [world_size](int rank, comm::GroupOptions& options) {
              options.host = 2 * rank < world_size ? "a" : "b";
              options.address = "127.0.0.1";
            }});
}

ShardOptions in_stripes(bool across_hosts = true) {
  auto options = small_units(ShardStage::kParameters);
  options.across_hosts = across_hosts;
  return options;
}

template <class Net>
int64_t num_bytes(const Net& net) {
  int64_t sum = 0;
  for (const auto& parameter : net->parameters()) sum += static_cast<int64_t>(parameter.nbytes());
  return sum;
}

TEST(ShardAcrossHosts, StripesGiveTheBitsOfWholeParametersOnEachHost) {
  run_on_two_hosts([](auto& process) {
    for (const auto& make :
         {Trained<testing::Mlp>::MakeOptimizer(adamw), Trained<testing::Mlp>::MakeOptimizer([](const auto& p) {
            return std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(0.1).momentum(0.9));
          })}) {
      Trained<testing::Mlp> whole(process.group(), in_stripes(false), make);
      train(whole, "mlp", 4);
      Trained<testing::Mlp> stripes(process.group(), in_stripes(), make);
      train(stripes, "mlp", 4);
      expect_equal(whole.parameters(), stripes.parameters(), "stripes");
      EXPECT_EQ(whole.sharding->unit_counts().fills, 0);
      EXPECT_GT(stripes.sharding->unit_counts().fills + stripes.sharding->unit_counts().shared, 0);
      process.group().barrier();
    }
  });
}

// Eight units of 16,640 bytes.
struct DeepImpl : torch::nn::Module {
  DeepImpl() {
    for (int i = 0; i < 8; ++i) layers->push_back(torch::nn::Linear(64, 64));
    register_module("layers", layers);
  }
  torch::Tensor forward(torch::Tensor x, size_t count = 8) {
    for (size_t i = 0; i < count; ++i) x = torch::relu(layers[i]->as<torch::nn::Linear>()->forward(x));
    return x;
  }
  torch::nn::ModuleList layers;
};

TEST(ShardAcrossHosts, ARankTakesEachUnitTwiceAStepAtMostAndHoldsFew) {
  run_on_two_hosts([](auto& process) {
    auto options = in_stripes();
    options.wrap.unit_bytes = 20'000;
    auto net = std::make_shared<DeepImpl>();
    Sharding sharding(process.group(), options);
    torch::optim::SGD sgd(net->parameters(), 0.01);
    const auto ddp = std::make_shared<const Ddp>(*net, process.group(),
                                                 DdpOptions{.exchange = sharding.make_exchange(process.group())});
    const int num_steps = 4;
    for (int step = 0; step < num_steps; ++step) {
      sgd.zero_grad();
      parallel::backward(net->forward(torch::ones({4, 64})).pow(2).mean(), {},
                         {.models = {ddp}, .group = process.group()});
      sharding.step(sgd, [&] { return sgd.step(); });
    }
    const auto counts = sharding.unit_counts();
    // For forward and once more for backward, half of it each time; units are padded.
    EXPECT_LE(counts.pulled_bytes, num_steps * 2 * num_bytes(net) / 2 * 13 / 10);
    EXPECT_GT(counts.max_held_bytes, 0);
    EXPECT_LT(counts.max_held_bytes, num_bytes(net) * 3 / 4);
    process.group().barrier();
  });
}

TEST(ShardAcrossHosts, UnitsThatAreNotReleasedAfterForwardAreFilledOnceAStep) {
  run_on_two_hosts([](auto& process) {
    const auto fills_a_step = [&](bool reshard_after_forward) {
      auto options = in_stripes();
      options.wrap.unit_bytes = 20'000;
      options.reshard_after_forward = reshard_after_forward;
      options.forward_prefetch = false;
      options.backward_prefetch = BackwardPrefetch::kNone;
      auto net = std::make_shared<DeepImpl>();
      Sharding sharding(process.group(), options);
      torch::optim::SGD sgd(net->parameters(), 0.01);
      const auto ddp = std::make_shared<const Ddp>(*net, process.group(),
                                                   DdpOptions{.exchange = sharding.make_exchange(process.group())});
      const auto taken = [&] { return sharding.unit_counts().fills + sharding.unit_counts().shared; };
      int64_t before = 0;
      for (int step = 0; step < 2; ++step) {
        before = taken();
        sgd.zero_grad();
        parallel::backward(net->forward(torch::ones({4, 64})).pow(2).mean(), {},
                           {.models = {ddp}, .group = process.group()});
        sharding.step(sgd, [&] { return sgd.step(); });
      }
      const int64_t last = taken() - before;
      process.group().barrier();
      return last;
    };
    const int64_t once = fills_a_step(false), again = fills_a_step(true);
    EXPECT_EQ(once, 8);
    // Backward reads seven of them; two or three are still there from forward.
    EXPECT_GE(again, 8 + 4);
  });
}

// Units that this rank holds or has held since the last step, at three places of a step.
struct HeldUnits {
  int64_t in_forward = 0, in_backward = 0, after_backward = 0;
};

// `less`: waits, a while at most, until more units are held than these.
HeldUnits held_units(const process::Process& process, const ShardOptions& options, const HeldUnits& less = {}) {
  auto net = std::make_shared<DeepImpl>();
  Sharding sharding(process.group(), options);
  torch::optim::SGD sgd(net->parameters(), 0.01);
  const auto ddp = std::make_shared<const Ddp>(*net, process.group(),
                                               DdpOptions{.exchange = sharding.make_exchange(process.group())});
  const auto taken = [&] { return sharding.unit_counts().fills + sharding.unit_counts().shared; };
  const auto more_than = [&](int64_t before, int64_t count) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (taken() - before <= count && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    return taken() - before;
  };
  HeldUnits held;
  for (int step = 0; step < 3; ++step) {
    sgd.zero_grad();
    const int64_t before = taken();
    const at::Tensor output = net->forward(torch::ones({4, 64}));
    // The fourth layer from the end: units of those behind it may still be held from forward.
    const auto hook = net->layers[3]->as<torch::nn::Linear>()->weight.register_hook(
        [&, step](const at::Tensor&) { held.in_backward = step == 2 ? more_than(before, less.in_backward) : 0; });
    parallel::backward(output.pow(2).mean(), {}, {.models = {ddp}, .group = process.group()});
    net->layers[3]->as<torch::nn::Linear>()->weight.remove_hook(hook);
    held.after_backward = taken() - before;
    sharding.step(sgd, [&] { return sgd.step(); });
  }
  const int64_t before = taken();
  const torch::NoGradGuard no_grad;
  // The first layer's weight and bias are in two units.
  net->forward(torch::ones({4, 64}), 1);
  held.in_forward = more_than(before, less.in_forward);
  process.group().barrier();
  return held;
}

TEST(ShardAcrossHosts, HintsSayWhatIsFilledAhead) {
  run_on_two_hosts([](auto& process) {
    auto options = in_stripes();
    options.wrap.unit_bytes = 20'000;
    options.prefetch_bytes = 3 * 20'480;
    options.limit_all_gathers = false;
    auto without = options;
    without.forward_prefetch = false;
    without.backward_prefetch = BackwardPrefetch::kNone;
    const auto when_read = held_units(process, without), ahead = held_units(process, options, when_read);

    // Before the second unit was read, the one behind it had been filled.
    EXPECT_GT(ahead.in_forward, 2);
    EXPECT_EQ(when_read.in_forward, 2);
    EXPECT_GT(ahead.in_backward, when_read.in_backward);
  });
}

TEST(ShardAcrossHosts, OneRankAloneReadsParametersInAnyWay) {
  run_on_two_hosts([](auto& process) {
    Trained<testing::Mlp> plain(process.group(), {}, adamw);
    Trained<testing::Mlp> t(process.group(), in_stripes(), adamw);
    train(plain, "mlp", 2);
    train(t, "mlp", 2);
    process.group().barrier();
    if (process.rank() == 3) {
      const torch::NoGradGuard no_grad;
      const auto problem = testing::problem_for("mlp", 7);
      EXPECT_TRUE(at::allclose(t.net->forward(problem.inputs), plain.net->forward(problem.inputs), 1e-4, 1e-5));
      for (size_t i = 0; i < t.net->parameters().size(); ++i) {
        const auto parameter = t.net->parameters()[i];
        // A pointer that the program has taken itself: the read faults and waits.
        std::vector<float> values(static_cast<size_t>(parameter.numel()));
        std::memcpy(values.data(), parameter.const_data_ptr(), parameter.nbytes());
        EXPECT_TRUE(
            at::allclose(torch::tensor(values).view(parameter.sizes()), plain.net->parameters()[i], 1e-4, 1e-5));
      }
    }
    process.group().barrier();
  });
}

TEST(ShardAcrossHosts, WritesOfAllRanksCountAndOptimizersOfWholeParametersAreRefused) {
  run_on_two_hosts([](auto& process) {
    const auto run = [&](bool across_hosts) {
      Trained<testing::Mlp> t(process.group(), in_stripes(across_hosts), adamw);
      train(t, "mlp", 1);
      {
        const torch::NoGradGuard no_grad;
        for (auto& parameter : t.net->parameters()) parameter.mul_(0.5);
      }
      train(t, "mlp", 2);
      auto values = t.parameters();
      process.group().barrier();
      return values;
    };
    expect_equal(run(false), run(true), "after writes");
    struct Own : torch::optim::SGD {
      using SGD::SGD;
    };
    Trained<testing::Mlp> own(process.group(), in_stripes(),
                              [](const auto& p) { return std::make_unique<Own>(p, 0.1); });
    own.backward(own.loss("mlp", 0));
    EXPECT_THROW(own.step(), UsageError);
    process.group().barrier();
  });
}

TEST(ShardAcrossHosts, SmallParametersStayOnEachHostAndNumbersAreTheSame) {
  run_on_two_hosts([](auto& process) {
    const auto run = [&](int64_t persist_numel, int64_t total = std::numeric_limits<int64_t>::max()) {
      auto options = in_stripes();
      options.persist_numel = persist_numel;
      options.persist_total_numel = total;
      Trained<testing::Mlp> t(process.group(), options, adamw);
      train(t, "mlp", 3);
      auto values = t.parameters();
      process.group().barrier();
      // Counts of all ranks: any of a host fills a unit for the others.
      const auto bytes = torch::full({}, t.sharding->unit_counts().pulled_bytes, at::kLong);
      process.group().all_reduce_(bytes);
      return std::pair(values, bytes.template item<int64_t>());
    };
    const auto all = run(0), few = run(100), none = run(1'000'000'000);
    expect_equal(all.first, few.first, "small ones stay");
    expect_equal(all.first, none.first, "all stay");
    EXPECT_EQ(none.second, 0);
    // The second layer has fewer than 100 elements in each parameter, and more than 20 in all.
    const auto limited = run(100, 20);
    expect_equal(all.first, limited.first, "some stay");
    EXPECT_LT(few.second, all.second);
    EXPECT_LT(few.second, limited.second);
  });
}

TEST(ShardAcrossHosts, SumsOfAHostTravelInTheCommunicationDtype) {
  run_on_two_hosts([](auto& process) {
    for (const bool low : {false, true}) {
      AcceleratorOptions options{.tune_allocator = false};
      options.shard = in_stripes();
      if (low) options.ddp.communication_dtype = at::kBFloat16;
      const Accelerator accelerator(process, options);
      torch::nn::Linear net(torch::nn::LinearOptions(8, 8).bias(false));
      torch::nn::init::zeros_(net->weight);
      torch::optim::SGD sgd(net->parameters(), 4.0);
      auto [model, optimizer] = accelerator.prepare(net, sgd);

      // Each part is a bfloat16, the sum of the first host is none.
      const float part = process.rank() == 0 ? 1.0F : process.rank() == 1 ? 0x1p-9F : 0.0F;
      accelerator.backward(model(torch::full({1, 8}, part)).sum());
      optimizer.step();

      const at::Tensor expected = torch::full({8, 8}, low ? -1.0F : -1.0F - 0x1p-9F);
      EXPECT_TRUE(at::equal(net->weight.detach(), expected)) << low;
      process.wait_for_everyone();
    }
  });
}

TEST(ShardAcrossHosts, AModelThatIsPlannedAnewGoesOn) {
  run_on_two_hosts([](auto& process) {
    const auto run = [&](bool across_hosts) {
      Trained<testing::Mlp> t(process.group(), in_stripes(across_hosts), adamw);
      train(t, "mlp", 2);
      t.net->parameters()[0].set_requires_grad(false);
      t.ddp->refresh_if_changed();
      train(t, "mlp", 2);
      auto values = t.parameters();
      process.group().barrier();
      return values;
    };
    expect_equal(run(false), run(true), "after a change");
  });
}

std::vector<at::Tensor> values_of(const torch::nn::Module& net) {
  std::vector<at::Tensor> values;
  for (const auto& parameter : net.parameters()) values.push_back(parameter.detach().clone());
  return values;
}

// A model of stage 3 whose hosts keep stripes: use(accelerator, net, model, train), where train(first, count) takes
// steps.
template <class Use>
void with_stripes(process::Process& process, const Use& use) {
  AcceleratorOptions options{.tune_allocator = false};
  options.shard = in_stripes();
  Accelerator accelerator(process, options);
  testing::Mlp net;
  testing::initialise(*net, 5);
  torch::optim::AdamW adam(net->parameters(), 0.01);
  auto [model, optimizer] = accelerator.prepare(net, adam);
  const auto train_steps = [&, &model = model, &optimizer = optimizer](int first, int count) {
    for (int step = first; step < first + count; ++step) {
      const auto problem = testing::problem_for("mlp", static_cast<uint64_t>(step));
      const auto rows = [&](const at::Tensor& all) { return all.chunk(accelerator.world_size())[accelerator.rank()]; };
      optimizer.zero_grad();
      accelerator.backward(torch::cross_entropy_loss(model(rows(problem.inputs)), rows(problem.targets)));
      optimizer.step();
    }
  };
  use(accelerator, net, model, train_steps);
  accelerator.wait_for_everyone();
}

using ShardAcrossHostsInFolder = testing::InFolder;

TEST_F(ShardAcrossHostsInFolder, CheckpointsAndExportsHaveWholeParameters) {
  run_on_two_hosts([&](auto& process) {
    std::vector<at::Tensor> after;
    with_stripes(process, [&](auto& accelerator, auto& net, auto& model, const auto& train_steps) {
      train_steps(0, 3);
      accelerator.save_state(path("state"));
      accelerator.save_state(path("accelerate"), {.layout = checkpoint::Layout::kAccelerate});
      accelerator.save_model(model, path("export"));
      accelerator.save(accelerator.get_state_dict(model), path("net.pth"));
      accelerator.wait_for_everyone();
      const auto saved = values_of(*net);
      for (const char* name : {"state", "accelerate", "export", "net.pth"}) {
        testing::Mlp plain;
        checkpoint::load_weights(*plain, path(name));
        expect_equal(saved, values_of(*plain), name);
      }
      accelerator.wait_for_everyone();
      train_steps(3, 2);
      after = values_of(*net);
    });
    for (const char* name : {"state", "accelerate"}) {
      with_stripes(process, [&](auto& accelerator, auto& net, auto&, const auto& train_steps) {
        accelerator.load_state(path(name));
        train_steps(3, 2);
        expect_equal(after, values_of(*net), name);
      });
    }
  });
}

TEST(ShardAcrossHosts, ParametersGoThroughCollectives) {
  run_on_two_hosts([](auto& process) {
    with_stripes(process, [&](auto& accelerator, auto& net, auto&, const auto& train_steps) {
      train_steps(0, 1);
      const at::Tensor weight = net->first->weight.detach(), value = weight.clone();
      for (const auto& all : process.group().all_gather(weight)) EXPECT_TRUE(at::equal(all, value));
      EXPECT_TRUE(at::equal(accelerator.gather(weight).narrow(0, 0, value.size(0)), value));
    });
  });
}

TEST(ShardAcrossHosts, AParameterWhoseSharingHasEndedSaysSo) {
  run_on_two_hosts(
      [](auto& process) {
        testing::Mlp net;
        {
          Sharding sharding(process.group(), in_stripes());
          const Ddp ddp(*net, process.group(), {.exchange = sharding.make_exchange(process.group())});
          process.group().barrier();
        }
        const auto words = testing::words_of<c10::Error>([&] { net->parameters()[0].sum(); });
        EXPECT_THAT(words, HasSubstr("kept by several hosts"));
      },
      2);
}

TEST(ShardAcrossHosts, ARankThatIsGoneIsNamedWhereItsPartIsRead) {
  run_on_two_hosts(
      [](auto& process) {
        auto t = std::make_unique<Trained<testing::Mlp>>(process.group(), in_stripes(), adamw);
        process.group().barrier();
        if (process.rank() == 1) t.reset();
        process.group().barrier();
        if (process.rank() == 1) return;
        const auto words = testing::words_of<CommError>([&] { t->net->parameters()[0].sum(); });
        EXPECT_THAT(words, AllOf(HasSubstr("rank 1"), HasSubstr("part of unit")));
      },
      2);
}

}  // namespace
}  // namespace hasten::parallel
