// Settings of sharding on devices: filling ahead and its limits, parameters that stay, dtypes of gradients, what is
// refused, batch norm over all ranks, and how models come to their devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hasten/hasten.h>
#include <torch/torch.h>

#include <algorithm>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/offload/load/load.h"
#include "hasten/parallel/norm/sync_batch_norm.h"
#include "hasten/parallel/shard/in_parts.h"
#include "parallel/shard/device_nets.h"
#include "support/device.h"
#include "support/device_models.h"
#include "support/folder.h"

namespace hasten::parallel {
namespace {

using namespace shard_testing;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::pretend::counts;

constexpr int64_t kUnitBytes = 4 * kUnit;

// Units that a rank has gathered since the step began, at places of the third step. Layers are units.
struct Filled {
  /// Behind each layer's forward; and before and behind the exchange of its gradients.
  std::vector<int64_t> forward, at_gradient, behind_gradient;
  int64_t in_step = 0, max_held_bytes = 0;
};

Filled filled_with(const ShardOptions& options) {
  Filled found;
  run_on_devices(2, [&](auto& process) {
    Trained<Tall> t(process.group(), options, adamw, device_of(process.rank()));
    for (int i = 0; i < 2; ++i) tall_step(t);
    Filled own{std::vector<int64_t>(kLayers), std::vector<int64_t>(kLayers), std::vector<int64_t>(kLayers)};
    const int64_t before = t.sharding->unit_counts().fills;
    const auto fills = [&] { return t.sharding->unit_counts().fills - before; };
    t.net->after_layer = [&](int64_t layer, const at::Tensor& output) {
      own.forward[static_cast<size_t>(layer)] = fills();
      // Behind the exchange of the next layer's gradients.
      output.register_hook([&, layer](const at::Tensor&) {
        if (layer + 1 < kLayers) own.behind_gradient[static_cast<size_t>(layer) + 1] = fills();
      });
      t.net->layers[static_cast<size_t>(layer)]->weight.register_hook(
          [&, layer](const at::Tensor&) { own.at_gradient[static_cast<size_t>(layer)] = fills(); });
    };
    tall_step(t);
    own.in_step = fills();
    own.max_held_bytes = t.sharding->unit_counts().max_held_bytes;
    t.net->after_layer = {};
    if (process.rank() == 0) found = own;
  });
  return found;
}

TEST(DeviceSettings, ForwardPrefetchGathersTheNextUnitWhileOneIsInUse) {
  auto options = unit_a_layer(ShardStage::kParameters);
  const auto ahead = filled_with(options);
  options.forward_prefetch = false;
  const auto on_demand = filled_with(options);

  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const auto i = static_cast<size_t>(layer);
    EXPECT_EQ(ahead.forward[i], std::min(layer + 2, kLayers)) << layer;
    EXPECT_EQ(on_demand.forward[i], layer + 1) << layer;
  }
  EXPECT_EQ(ahead.in_step, on_demand.in_step);
}

// In the middle of backward there have been all of forward, and the layers above but the two that were still there.
TEST(DeviceSettings, BackwardPrefetchGathersTheNextUnitBeforeTheGradientsOrBehindThemOrNotAtAll) {
  const auto filled = [](BackwardPrefetch prefetch) {
    auto options = unit_a_layer(ShardStage::kParameters);
    options.backward_prefetch = prefetch;
    return filled_with(options);
  };
  const auto pre = filled(BackwardPrefetch::kPre), post = filled(BackwardPrefetch::kPost),
             none = filled(BackwardPrefetch::kNone);
  for (int64_t layer = 4; layer < kLayers - 4; ++layer) {
    const auto i = static_cast<size_t>(layer);
    const int64_t own = kLayers + (kLayers - layer) - 2;
    EXPECT_EQ(pre.at_gradient[i], own + 1) << layer;
    EXPECT_EQ(post.at_gradient[i], own) << layer;
    EXPECT_EQ(post.behind_gradient[i], own + 1) << layer;
    EXPECT_EQ(none.at_gradient[i], own) << layer;
    EXPECT_EQ(none.behind_gradient[i], own) << layer;
  }
}

TEST(DeviceSettings, WithoutALimitOfGathersAsManyAreUnderWayAsThePrefetchAllows) {
  auto options = unit_a_layer(ShardStage::kParameters);
  options.prefetch_bytes = 5 * kUnitBytes;
  const auto limited = filled_with(options);
  options.limit_all_gathers = false;
  const auto free = filled_with(options);

  EXPECT_EQ(limited.forward[0], 2);
  EXPECT_EQ(limited.max_held_bytes, 2 * kUnitBytes);
  EXPECT_EQ(free.forward[0], 5);
  EXPECT_EQ(free.max_held_bytes, 5 * kUnitBytes);
}

TEST(DeviceSettings, MaxLiveBytesKeepsMoreUnitsFromForwardToBackward) {
  auto options = unit_a_layer(ShardStage::kParameters);
  const auto two = filled_with(options);
  options.max_live_bytes = 6 * kUnitBytes;
  const auto six = filled_with(options);

  EXPECT_EQ(two.in_step, 2 * kLayers - 2);
  EXPECT_EQ(six.in_step, 2 * kLayers - 6);
  EXPECT_EQ(six.max_held_bytes, 6 * kUnitBytes);
}

// The distance from a layer's forward to its backward grows from the last layer to the first.
TEST(DeviceSettings, MaxReuseBytesKeepsUnitsThatAreReadAgainSoon) {
  auto options = unit_a_layer(ShardStage::kParameters);
  options.max_reuse_bytes = 9 * kUnitBytes;
  const auto some = filled_with(options);
  options.max_reuse_bytes = 3 * kLayers * kUnitBytes;
  const auto all = filled_with(options);

  EXPECT_LT(some.in_step, 2 * kLayers - 4);
  EXPECT_GT(some.in_step, kLayers);
  EXPECT_EQ(all.in_step, kLayers);
  EXPECT_EQ(all.max_held_bytes, kLayers * kUnitBytes);
}

TEST(DeviceSettings, SmallParametersStayOnEachRankUpToTheirTotal) {
  run_on_devices(2, [](auto& process) {
    auto options = unit_a_layer(ShardStage::kParameters);
    options.persist_numel = kWidth + 1;
    options.persist_total_numel = 5 * kWidth;
    Trained<Tall> plain(process.group(), {}, adamw), t(process.group(), options, adamw, device_of(process.rank()));
    int64_t whole = 0;
    for (const auto& layer : t.net->layers) {
      EXPECT_TRUE(is_in_parts(layer->weight));
      whole += is_in_parts(layer->bias) ? 0 : 1;
    }
    EXPECT_EQ(whole, 5);
    for (auto* each : {&plain, &t}) {
      for (int i = 0; i < 3; ++i) tall_step(*each);
    }
    const auto a = plain.parameters(), b = t.parameters();
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::allclose(a[i], b[i], 1e-4, 1e-4)) << i;
  });
}

// reduce_dtype of FSDP, communication_data_type of DeepSpeed.
TEST(DeviceSettings, GradientsTravelInTheDtypeOfCommunicationInEachStage) {
  run_on_devices(2, [](auto& process) {
    const auto values_after = [&](ShardStage stage, std::optional<c10::ScalarType> dtype, double* wire) {
      const c10::Device device = device_of(process.rank());
      Tall net;
      testing::initialise(*net, 5);
      {
        // Far from saturation, where a small difference grows from layer to layer.
        const at::NoGradGuard no_grad;
        for (auto& parameter : net->parameters()) parameter.mul_(0.3);
      }
      net->to(device);
      DdpOptions options{.communication_dtype = dtype};
      Sharding sharding(process.group(), unit_a_layer(stage));
      options.exchange = sharding.make_exchange(process.group());
      torch::optim::SGD sgd(net->parameters(), 0.05);
      const auto ddp = std::make_shared<const Ddp>(*net, process.group(), options);
      const auto step = [&] {
        sgd.zero_grad();
        const auto x = torch::full({4, kWidth}, 1.0 + process.rank(), at::TensorOptions(device)).requires_grad_();
        parallel::backward(net->forward(x).square().mean(), {}, {.models = {ddp}, .group = process.group()});
        sharding.step(sgd, [&] { return optim::optimizer_step(sgd); });
      };
      step();
      std::vector<at::Tensor> values;
      for (const auto& parameter : net->parameters()) values.push_back(parameter.detach().cpu());
      *wire = wire_of(process.group(), step);
      return values;
    };
    for (const ShardStage stage : kStages) {
      double full = 0, low = 0;
      const auto a = values_after(stage, {}, &full), b = values_after(stage, at::kBFloat16, &low);
      // Stage 1 all-reduces, the others reduce-scatter: of two ranks the whole, or a half. Half of that is saved.
      EXPECT_NEAR(full - low, stage == ShardStage::kOptimizer ? 0.5 : 0.25, 0.02) << static_cast<int>(stage);
      bool differs = false;
      for (size_t i = 0; i < a.size(); ++i) {
        EXPECT_TRUE(at::allclose(a[i], b[i], 1e-2, 1e-3)) << i << ", stage " << static_cast<int>(stage) << ", off by "
                                                          << (a[i] - b[i]).abs().max().template item<float>();
        differs = differs || !at::equal(a[i], b[i]);
      }
      EXPECT_TRUE(differs);
    }
  });
}

TEST(DeviceSettings, ACommHookIsRefusedWithTheRemedy) {
  for (const ShardStage stage : kStages) {
    const auto words = run_ranks_collecting(2, [&](auto& process) {
      const c10::DeviceGuard guard(device_of(process.rank()));
      testing::Mlp net;
      net->to(device_of(process.rank()));
      Sharding sharding(process.group(), {.stage = stage});
      DdpOptions options{.comm_hook = fp16_compress()};
      options.exchange = sharding.make_exchange(process.group());
      const auto ddp = std::make_shared<const Ddp>(*net, process.group(), options);
      const auto problem = testing::problem_for("mlp", 1);
      const auto device = device_of(process.rank());
      parallel::backward(torch::cross_entropy_loss(net->forward(problem.inputs.to(device)), problem.targets.to(device)),
                         {}, {.models = {ddp}, .group = process.group()});
    });
    EXPECT_THAT(words, Each(AllOf(HasSubstr("comm_hook"), HasSubstr("communication_dtype"))));
  }
}

struct NormedImpl : torch::nn::Module {
  torch::nn::Linear first{8, 16}, second{16, 4};
  torch::nn::BatchNorm1d norm{16};
  NormedImpl() {
    register_module("first", first);
    register_module("norm", norm);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::relu(norm(first(x)))); }
};
TORCH_MODULE(Normed);

TEST(DeviceSettings, SyncBatchNormInAShardedModelNormalisesOverAllRanks) {
  const auto problem = testing::problem_for("mlp", 1);
  Normed alone;
  testing::initialise(*alone, 5);
  torch::optim::SGD sgd(alone->parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    sgd.zero_grad();
    torch::cross_entropy_loss(alone->forward(problem.inputs), problem.targets).backward();
    sgd.step();
  }
  run_on_devices(2, [&](auto& process) {
    for (const ShardStage stage : kStages) {
      const c10::Device device = device_of(process.rank());
      const auto rows = [&](const at::Tensor& all) { return all.chunk(2)[process.rank()].to(device); };
      Normed net;
      testing::initialise(*net, 5);
      net->to(device);
      convert_sync_batchnorm(*net, process.group());
      Sharding sharding(process.group(), small_units(stage));
      DdpOptions options;
      options.exchange = sharding.make_exchange(process.group());
      torch::optim::SGD own(net->parameters(), 0.1);
      const auto ddp = std::make_shared<const Ddp>(*net, process.group(), options);
      for (int step = 0; step < 3; ++step) {
        own.zero_grad();
        parallel::backward(torch::cross_entropy_loss(net->forward(rows(problem.inputs)), rows(problem.targets)), {},
                           {.models = {ddp}, .group = process.group()});
        sharding.step(own, [&] { return optim::optimizer_step(own); });
      }
      const auto wanted = alone->parameters(), found = net->parameters();
      for (size_t i = 0; i < wanted.size(); ++i)
        EXPECT_TRUE(at::allclose(found[i].detach().cpu(), wanted[i], 1e-4, 1e-5))
            << i << ", " << static_cast<int>(stage);
      EXPECT_TRUE(at::allclose(net->norm->running_mean.cpu(), alone->norm->running_mean, 1e-4, 1e-5));
    }
  });
}

TEST(DeviceSettings, PrepareHoldsItsStripesAndTwoUnits) {
  run_on_devices(2, [](auto& process) {
    const auto rank = static_cast<size_t>(process.rank());
    Tall net;
    Sharding sharding(process.group(), unit_a_layer(ShardStage::kParameters));
    sharding.set_device(device_of(process.rank()));
    DdpOptions options;
    options.exchange = sharding.make_exchange(process.group());
    process.group().barrier();
    const int64_t before = counts()->bytes[rank];
    counts()->peak_bytes[rank] = before;
    const Ddp ddp(*net, process.group(), options);
    EXPECT_LE(counts()->peak_bytes[rank] - before, (kLayers / 2 + 2) * kUnitBytes);
    EXPECT_LE(counts()->bytes[rank] - before, (kLayers / 2) * kUnitBytes * 105 / 100);
    process.group().barrier();
  });
}

using DeviceSettingsInFolder = testing::InFolder;

TEST_F(DeviceSettingsInFolder, ACheckpointThatIsLoadedBetweenBuildAndPrepareIsWhatIsTrained) {
  Tall saved;
  testing::initialise(*saved, 9);
  checkpoint::save_model(*saved, path("model"));
  run_on_devices(2, [&](auto& process) {
    for (const ShardStage stage : kStages) {
      auto options = testing::quiet_options();
      options.shard = unit_a_layer(stage);
      const Accelerator accelerator(process::Process(process.identity(), process.group(), device_of(process.rank())),
                                    options);
      auto net = accelerator.build([] { return Tall(); });
      EXPECT_TRUE(net->layers[0]->weight.is_meta());
      offload::load_checkpoint_in_model(*net, path("model"));
      auto model = accelerator.prepare(net);
      EXPECT_TRUE(net->layers[0]->weight.is_cuda());
      EXPECT_EQ(is_in_parts(net->layers[0]->weight), stage == ShardStage::kParameters);
      const auto wanted = saved->parameters(), found = net->parameters();
      for (size_t i = 0; i < wanted.size(); ++i)
        EXPECT_TRUE(at::equal(found[i].detach().cpu(), wanted[i])) << i << ", " << static_cast<int>(stage);
      accelerator.wait_for_everyone();
    }
  });
}

}  // namespace
}  // namespace hasten::parallel
