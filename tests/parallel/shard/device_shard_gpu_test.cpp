// Parameters, gradients and optimizer state split over ranks that have a device each: the numbers of Ddp on the CPU.
#include <ATen/autocast_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <future>

#include "hasten/core/error.h"
#include "hasten/parallel/ddp/no_sync.h"
#include "parallel/shard/trained.h"
#include "support/device.h"

namespace hasten::parallel {
namespace {

using namespace shard_testing;
using ::testing::HasSubstr;

c10::Device device_of(int rank) {
  return {at::kCUDA, static_cast<c10::DeviceIndex>(rank)};
}

int num_devices() {
  return at::detail::getCUDAHooks().deviceCount();
}

// Ranks are threads, and autograd has one thread a device.
int most_ranks(int wanted = 2) {
  return std::min(wanted, num_devices());
}

// A GPU rounds sums in another order than the CPU, and AdamW's first steps make that larger.
double tolerance_of_device() {
  return testing::is_pretend() ? 1e-5 : 2e-4;
}

void expect_close(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b, const std::string& what,
                  double tolerance = tolerance_of_device()) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(at::allclose(a[i], b[i], tolerance, tolerance))
        << what << ", parameter " << i << ", most " << (a[i] - b[i]).abs().max().item<double>();
  }
}

template <class Net>
void expect_numbers_of_cpu(const std::function<void(Trained<Net>&)>& run,
                           const typename Trained<Net>::MakeOptimizer& make = adamw,
                           const ShardOptions& base = {.wrap = {.unit_bytes = 400}}, int world = most_ranks()) {
  run_ranks(world, [&](auto& process) {
    Trained<Net> plain(process.group(), {}, make);
    run(plain);
    for (const ShardStage stage : kStages) {
      SCOPED_TRACE("stage " + std::to_string(static_cast<int>(stage)));
      ShardOptions options = base;
      options.stage = stage;
      Trained<Net> sharded(process.group(), options, make, device_of(process.group().rank()));
      run(sharded);
      expect_close(plain.parameters(), sharded.parameters(), "stage " + std::to_string(static_cast<int>(stage)));
    }
  });
}

// The bias of keys, and one in front of a batch norm, have gradients of rounding errors alone, which Adam makes large.
std::unique_ptr<torch::optim::Optimizer> sgd(const std::vector<at::Tensor>& parameters) {
  return std::make_unique<torch::optim::SGD>(parameters, 0.1);
}

TEST(DeviceShard, EveryStageGivesTheNumbersOfDdpOnTheCpu) {
  for (int world = 1; world <= most_ranks(4); ++world) {
    expect_numbers_of_cpu<testing::Mlp>([](auto& t) { train(t, "mlp"); }, adamw, {.wrap = {.unit_bytes = 400}}, world);
    expect_numbers_of_cpu<testing::TransformerModel>([](auto& t) { train(t, "transformer"); }, sgd,
                                                     {.wrap = {.unit_bytes = 4000}}, world);
  }
  expect_numbers_of_cpu<testing::Cnn>([](auto& t) { train(t, "cnn"); }, sgd);
  expect_numbers_of_cpu<testing::EmbeddingModel>([](auto& t) { train(t, "embedding"); });
}

TEST(DeviceShard, EveryOptimizerGivesTheNumbersOfDdpOnTheCpu) {
  using namespace torch::optim;
  const auto check = [](const auto& make) {
    expect_numbers_of_cpu<testing::Mlp>([](auto& t) { train(t, "mlp", 3); }, make);
  };
  check([](const auto& p) { return std::make_unique<SGD>(p, SGDOptions(0.1).momentum(0.9).weight_decay(0.1)); });
  check([](const auto& p) { return std::make_unique<Adam>(p, AdamOptions(0.01).amsgrad(true)); });
  check([](const auto& p) { return std::make_unique<Adagrad>(p, AdagradOptions(0.1)); });
  check([](const auto& p) { return std::make_unique<RMSprop>(p, RMSpropOptions(0.01).centered(true).momentum(0.5)); });
}

TEST(DeviceShard, AccumulationClippingAndWeightsGiveTheNumbersOfDdp) {
  expect_numbers_of_cpu<testing::Mlp>([](auto& t) {
    for (int step = 0; step < 3; ++step) {
      t.optimizer->zero_grad();
      for (int part = 0; part < 3; ++part) {
        const bool holds = !t.sharding || !t.sharding->exchanges_each_backward();
        std::optional<NoSync> scope;
        if (part < 2 && holds) scope.emplace(Ddp::Models{t.ddp});
        t.backward(t.loss("mlp", 3 * step + part));
      }
      if (t.sharding) {
        t.sharding->clip_grad_norm_(t.net->parameters(), 0.05);
      } else {
        torch::nn::utils::clip_grad_norm_(t.net->parameters(), 0.05);
      }
      t.step();
    }
  });
  expect_numbers_of_cpu<testing::Mlp>([](auto& t) {
    for (int step = 0; step < 3; ++step) {
      t.optimizer->zero_grad();
      t.backward(t.loss("mlp", step), {.weight = 1.0 + t.group.rank() + step});
      t.step();
    }
  });
}

ShardOptions stage_3(int64_t unit_bytes = 400) {
  return {.stage = ShardStage::kParameters, .wrap = {.unit_bytes = unit_bytes}};
}

TEST(DeviceShard, GradientsInPartsRefuseOperatorsByName) {
  run_ranks(most_ranks(), [](auto& process) {
    Trained<testing::Mlp> t(process.group(), stage_3(), adamw, device_of(process.group().rank()));
    t.backward(t.loss("mlp", 0));
    const at::Tensor gradient = t.net->first->weight.grad();
    ASSERT_TRUE(gradient.defined());
    EXPECT_EQ(gradient.sizes(), t.net->first->weight.sizes());
    try {
      gradient.sum();
      ADD_FAILURE() << "no error";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("first.weight"));
      EXPECT_THAT(error.what(), HasSubstr("full_gradient"));
    }
    EXPECT_THROW(t.optimizer->step(), UsageError);
    EXPECT_GT(t.sharding->full_gradient(t.net->first->weight).abs().sum().template item<double>(), 0);
    process.group().barrier();
  });
}

TEST(DeviceShard, ScalersUnscaleGradientsInParts) {
  run_ranks(most_ranks(), [](auto& process) {
    const auto device = device_of(process.group().rank());
    Trained<testing::Mlp> t(process.group(), stage_3(), adamw, device);
    t.backward(t.loss("mlp", 0));
    const at::Tensor before = t.sharding->full_gradient(t.net->first->weight);
    std::vector<at::Tensor> gradients;
    for (const auto& parameter : t.net->parameters()) gradients.push_back(parameter.grad());
    at::Tensor found = at::zeros({}, at::TensorOptions(device));

    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found, at::full({}, 0.5, at::TensorOptions(device)));
    gradients.front().mul_(2);

    const at::Tensor after = t.sharding->full_gradient(t.net->first->weight);
    EXPECT_TRUE(at::equal(before.cpu(), after.cpu()));
    EXPECT_EQ(found.template item<float>(), 0);
    process.group().barrier();
  });
}

TEST(DeviceShard, ParametersHaveNoMemoryAtRest) {
  run_ranks(most_ranks(), [](auto& process) {
    Trained<testing::Mlp> t(process.group(), stage_3(), adamw, device_of(process.group().rank()));
    train(t, "mlp", 1);
    EXPECT_THROW(t.net->first->weight.template data_ptr<float>(), c10::Error);
    EXPECT_EQ(t.net->first->weight.storage().data(), nullptr);
    EXPECT_EQ(t.net->first->weight.nbytes(), t.net->first->weight.storage().nbytes());
    process.group().barrier();
  });
}

TEST(DeviceShard, ParametersAreWholeInsideSummonAndKeepWhatIsWrittenThere) {
  run_ranks(most_ranks(), [](auto& process) {
    Trained<testing::Mlp> t(process.group(), stage_3(), adamw, device_of(process.group().rank()));
    train(t, "mlp", 2);
    const auto before = t.parameters();
    {
      const auto whole = t.sharding->summon();
      // One rank alone reads.
      if (process.group().rank() == 0) expect_close(before, t.parameters(), "summoned", 0);
      const at::NoGradGuard no_grad;
      for (auto& parameter : t.net->parameters()) parameter.mul_(2);
    }
    auto doubled = before;
    for (auto& value : doubled) value = value * 2;
    expect_close(doubled, t.parameters(), "written", 0);
    train(t, "mlp", 1);
    process.group().barrier();
  });
}

TEST(DeviceShard, WritesAndReplacedStoragesBetweenStepsCount) {
  expect_numbers_of_cpu<testing::Mlp>([](auto& t) {
    train(t, "mlp", 1);
    {
      const at::NoGradGuard no_grad;
      t.net->first->weight.mul_(0.5);
      t.net->second->bias.zero_();
    }
    train(t, "mlp", 1);
    t.net->second->weight.set_data(at::full({4, 16}, 0.25).to(t.device));
    train(t, "mlp", 2);
  });
}

// Each stage with its units in memory, where a write needs no other rank.
TEST(DeviceShard, AWriteOnOneRankIsNamedWhereOperationsAreChecked) {
  if (most_ranks() < 2) GTEST_SKIP() << "needs two devices";
  for (const ShardStage stage : kStages) {
    const auto words = run_ranks_collecting(2, [&](auto& process) {
      ShardOptions options{.stage = stage, .wrap = {.unit_bytes = 400}};
      options.reshard_after_forward = false;
      Trained<testing::Mlp> t(process.group(), options, adamw, device_of(process.group().rank()));
      train(t, "mlp", 1);
      t.backward(t.loss("mlp", 1));
      const at::NoGradGuard no_grad;
      t.net->first->bias.mul_(2);
      if (process.rank() == 1) t.net->second->weight.mul_(2);
      t.step();
    });

    for (const auto& said : words) {
      EXPECT_THAT(said, HasSubstr("'second.weight' was changed by the program between two steps, and rank 1 alone did"))
          << "stage " << static_cast<int>(stage);
    }
  }
}

// Without checks no host waits for another in a step. A rank keeps what it wrote to the stripe that it owns.
TEST(DeviceShard, AWriteOnOneRankCountsForItsStripeWhereOperationsAreNotChecked) {
  if (most_ranks() < 2) GTEST_SKIP() << "needs two devices";
  run_ranks(2,
            [](auto& process) {
              const ShardOptions options{.stage = ShardStage::kGradients, .wrap = {.unit_bytes = 400}};
              Trained<testing::Mlp> t(process.group(), options, sgd, device_of(process.group().rank()));
              t.optimizer->zero_grad();
              t.backward(0 * t.loss("mlp", 0));
              const auto before = t.parameters();
              {
                const at::NoGradGuard no_grad;
                if (process.rank() == 1) {
                  for (const auto& parameter : t.net->parameters()) parameter.add_(1);
                }
              }
              t.step();

              const auto after = t.parameters();
              int64_t changed = 0, all = 0;
              for (size_t i = 0; i < after.size(); ++i) {
                const at::Tensor moved = after[i] != before[i];
                EXPECT_TRUE(at::allclose(after[i], before[i] + moved)) << i;
                changed += moved.sum().template item<int64_t>();
                all += moved.numel();
              }
              EXPECT_GT(changed, 0);
              EXPECT_LT(changed, all);
            },
            {.check = false});
}

TEST(DeviceShard, FrozenParametersAreGatheredAndNotTrained) {
  expect_numbers_of_cpu<testing::Mlp>([](auto& t) {
    train(t, "mlp", 1);
    t.net->first->weight.requires_grad_(false);
    t.ddp->refresh_if_changed();
    train(t, "mlp", 2);
    t.net->first->weight.requires_grad_(true);
    t.ddp->refresh_if_changed();
    train(t, "mlp", 1);
  });
}

TEST(DeviceShard, LowPrecisionGivesTheNumbersOfAutocast) {
  const auto run = [](auto& t) {
    for (int step = 0; step < 3; ++step) {
      t.optimizer->zero_grad();
      at::Tensor loss;
      {
        const auto type = t.device.type();
        const bool before = at::autocast::is_autocast_enabled(type);
        const auto dtype = at::autocast::get_autocast_dtype(type);
        at::autocast::set_autocast_enabled(type, true);
        at::autocast::set_autocast_dtype(type, at::kBFloat16);
        loss = t.loss("transformer", step);
        at::autocast::set_autocast_enabled(type, before);
        at::autocast::set_autocast_dtype(type, dtype);
        at::autocast::clear_cache();
      }
      t.backward(loss);
      t.step();
    }
  };
  run_ranks(most_ranks(), [&](auto& process) {
    const auto device = device_of(process.group().rank());
    const auto sgd = [](const auto& p) { return std::make_unique<torch::optim::SGD>(p, 0.1); };
    Trained<testing::TransformerModel> plain(process.group(), {}, sgd, device);
    run(plain);
    ShardOptions options = stage_3(4000);
    options.param_dtype = "bfloat16";
    Trained<testing::TransformerModel> sharded(process.group(), options, sgd, device);
    run(sharded);
    expect_close(plain.parameters(), sharded.parameters(), "bf16", 2e-3);
  });
}

struct DeepImpl : torch::nn::Module {
  std::vector<torch::nn::Linear> layers;
  torch::nn::Linear head{8, 4};
  DeepImpl() {
    for (int i = 0; i < 5; ++i) layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(8, 8)));
    register_module("head", head);
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = torch::tanh(layer(x));
    return head(x);
  }
};
TORCH_MODULE(Deep);

// A unit a layer: the head's, and five of the same size.
ShardOptions unit_a_layer() {
  auto options = stage_3();
  options.units = [](const torch::nn::Module& module) {
    std::vector<std::vector<std::string>> units;
    for (const auto& child : module.named_children()) units.push_back({child.key() + ".weight", child.key() + ".bias"});
    return units;
  };
  return options;
}

TEST(DeviceShard, UnitsAreGatheredForForwardAndAgainForBackwardAndTwoAreHeld) {
  run_ranks(most_ranks(), [](auto& process) {
    const int64_t world = process.group().world_size();
    Trained<Deep> t(process.group(), unit_a_layer(), adamw, device_of(process.group().rank()));
    train(t, "mlp", 2);
    const auto before = t.sharding->unit_counts();
    train(t, "mlp", 1);
    const auto after = t.sharding->unit_counts();
    // Six in forward. In backward the last two are still there, and the first layer's input needs no gradient.
    EXPECT_EQ(after.fills - before.fills, 6 + 3);
    // 64 + 8 elements, at multiples of 64 on each rank.
    const int64_t bytes = (world == 1 ? 128 : 64 * world) * 4;
    EXPECT_EQ(after.pulled_bytes - before.pulled_bytes, 9 * bytes / world * (world - 1));
    EXPECT_EQ(after.max_held_bytes, 2 * bytes);
  });
}

TEST(DeviceShard, UnitsStayFromForwardToBackwardWithoutResharding) {
  run_ranks(most_ranks(), [](auto& process) {
    auto options = unit_a_layer();
    options.reshard_after_forward = false;
    Trained<Deep> t(process.group(), options, adamw, device_of(process.group().rank()));
    train(t, "mlp", 2);
    const auto before = t.sharding->unit_counts();
    train(t, "mlp", 1);
    EXPECT_EQ(t.sharding->unit_counts().fills - before.fills, 6);
  });
}

TEST(DeviceShard, ARankThatReadsAloneIsToldWhatToDo) {
  if (most_ranks() < 2) GTEST_SKIP() << "needs two devices";
  std::promise<void> ended;
  const auto words = run_ranks_collecting(2,
                                          [&](auto& process) {
                                            Trained<testing::Mlp> t(process.group(), stage_3(), adamw,
                                                                    device_of(process.group().rank()));
                                            if (process.group().rank() == 1) return ended.get_future().wait();
                                            try {
                                              t.net->first->weight.sum();
                                            } catch (...) {
                                              ended.set_value();
                                              throw;
                                            }
                                            ended.set_value();
                                          },
                                          {.timeout = std::chrono::seconds(2)});
  EXPECT_THAT(words[0], HasSubstr("'first.weight'"));
  EXPECT_THAT(words[0], HasSubstr("summon"));
}

TEST(DeviceShard, AModelThatHasEndedNamesWhatIsGone) {
  run_ranks(most_ranks(), [](auto& process) {
    testing::Mlp kept(nullptr);
    {
      Trained<testing::Mlp> t(process.group(), stage_3(), adamw, device_of(process.group().rank()));
      train(t, "mlp", 1);
      kept = t.net;
    }
    try {
      kept->first->weight.sum();
      ADD_FAILURE() << "no error";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("first.weight"));
      EXPECT_THAT(error.what(), HasSubstr("state_dict"));
    }
  });
}

TEST(DeviceShard, OptimizersOnTheCpuGiveTheSameNumbers) {
  for (const bool parameters : {false, true}) {
    ShardOptions base{.wrap = {.unit_bytes = 400}};
    base.optimizer_offload.device = OffloadDevice::kCpu;
    if (parameters) base.parameter_offload.device = OffloadDevice::kCpu;
    expect_numbers_of_cpu<testing::Mlp>([](auto& t) { train(t, "mlp"); }, adamw, base);
    expect_numbers_of_cpu<testing::Mlp>(
        [](auto& t) {
          for (int step = 0; step < 3; ++step) {
            t.optimizer->zero_grad();
            for (int part = 0; part < 2; ++part) {
              const bool holds = !t.sharding || !t.sharding->exchanges_each_backward();
              std::optional<NoSync> scope;
              if (part == 0 && holds) scope.emplace(Ddp::Models{t.ddp});
              t.backward(t.loss("mlp", 2 * step + part));
            }
            t.step();
          }
        },
        adamw, base);
  }
}

}  // namespace
}  // namespace hasten::parallel
