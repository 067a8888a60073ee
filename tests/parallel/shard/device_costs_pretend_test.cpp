// What a sharded step costs on a device: bytes on the wire as in the papers, kernels beside those of Ddp, and memory,
// where too little is an error that names the unit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

#include "parallel/shard/device_nets.h"
#include "support/device.h"
#include "support/nccl_double.h"

namespace hasten::parallel {
namespace {

using namespace shard_testing;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::pretend::counts;

// Bytes that rank 0 sends in a step, as multiples of those of the parameters, times (W - 1) / W.
double step_wire_of(std::optional<ShardOptions> options, int world) {
  const testing::UsesNcclDouble with_double;
  double found = 0;
  run_ranks(world,
            [&](auto& process) {
              const int rank = process.group().rank();
              const c10::DeviceGuard guard(device_of(rank));
              Trained<Tall> t(process.group(), options, adamw, device_of(rank));
              for (int i = 0; i < 2; ++i) tall_step(t);
              process.group().barrier();
              const int64_t before = testing::UsesNcclDouble::wire_bytes(rank);
              for (int i = 0; i < 2; ++i) tall_step(t);
              const int64_t sent = testing::UsesNcclDouble::wire_bytes(rank) - before;
              torch::cuda::synchronize(rank);
              process.group().barrier();
              if (rank == 0) found = static_cast<double>(sent) / 2 * world / (world - 1) / (4 * kParameters);
            },
            {.check = false});
  return found;
}

TEST(DeviceShardWire, AStepSendsWhatThePapersCount) {
  for (const int world : {2, 4}) {
    SCOPED_TRACE(text("world ", world));
    // All-reduce: 2 P b. Stage 1 adds the gathering of stepped parameters.
    EXPECT_NEAR(step_wire_of({}, world), 2, 0.04);
    EXPECT_NEAR(step_wire_of(unit_a_layer(ShardStage::kOptimizer), world), 3, 0.06);
    EXPECT_NEAR(step_wire_of(unit_a_layer(ShardStage::kGradients), world), 2, 0.04);
    // The last two units of forward are still there in backward.
    EXPECT_NEAR(step_wire_of(unit_a_layer(ShardStage::kParameters), world), 3 - 2.0 / kLayers, 0.06);
    auto kept = unit_a_layer(ShardStage::kParameters);
    kept.reshard_after_forward = false;
    EXPECT_NEAR(step_wire_of(kept, world), 2, 0.04);
  }
}

// Which step is counted.
struct CountedStep {
  /// Nothing: plain Ddp, or with `is_plain` a loop of one process.
  std::optional<ShardOptions> shard = {};
  bool is_plain = false;
};

at::Tensor counted_loss(Tall net, c10::Device device) {
  return net->forward(torch::ones({4, kWidth}, at::TensorOptions(device)).requires_grad_()).square().mean();
}

void counted_steps(const comm::Group& group, const CountedStep& is, int num_steps) {
  const c10::Device device = device_of(group.rank());
  if (is.is_plain) {
    Tall net;
    net->to(device);
    const auto optimizer = adamw(net->parameters());
    for (int step = 0; step < num_steps; ++step) {
      optimizer->zero_grad();
      counted_loss(net, device).backward();
      optim::optimizer_step(*optimizer);
    }
    return;
  }
  Trained<Tall> t(group, is.shard, adamw, device);
  for (int step = 0; step < num_steps; ++step) {
    t.optimizer->zero_grad();
    t.backward(counted_loss(t.net, device));
    t.step();
  }
  torch::cuda::synchronize(group.rank());
  group.barrier();
}

struct StepCounts {
  double kernels = 0, waits = 0;
};

// What a rank starts and waits for in a step, once the first ones have made what is made once. Counts are the
// process's, so whole runs of all ranks are counted.
StepCounts counts_of_step(const CountedStep& is) {
  const testing::UsesNcclDouble with_double;
  const auto of_run = [&](int num_steps) {
    const int64_t kernels = counts()->kernels, waits = counts()->waits;
    run_ranks(2,
              [&](auto& process) {
                const c10::DeviceGuard guard(device_of(process.group().rank()));
                counted_steps(process.group(), is, num_steps);
              },
              {.check = false});
    return std::pair(counts()->kernels - kernels, counts()->waits - waits);
  };
  const auto many = of_run(6), few = of_run(2);
  const auto of_one = [](int64_t difference) { return static_cast<double>(difference) / (4 * 2); };
  return {of_one(many.first - few.first), of_one(many.second - few.second)};
}

double kernels_of_step(const CountedStep& is) {
  return counts_of_step(is).kernels;
}

ShardOptions unit_of_layers(ShardStage stage, int64_t layers) {
  ShardOptions options{.stage = stage};
  options.units = [layers](const torch::nn::Module& module) {
    std::vector<std::vector<std::string>> units;
    int64_t count = 0;
    for (const auto& child : module.named_children()) {
      if (count++ % layers == 0) units.emplace_back();
      for (const char* name : {".weight", ".bias"}) units.back().push_back(child.key() + name);
    }
    return units;
  };
  return options;
}

// A unit has one copy of all its gradients, and one kernel of each gather and of the reduce-scatter. Of the gathers of
// forward and backward the last two units need none. torch's Ddp copies each gradient into its bucket.
TEST(DeviceShardKernels, AStepStartsAFewAUnitBesideThoseOfThePlainLoop) {
  const double plain = kernels_of_step({.is_plain = true}), ddp = kernels_of_step({});
  EXPECT_LE(ddp - plain, 6);
  const double torchs = plain + 2 * kLayers;
  for (const int64_t layers : {1, 4}) {
    SCOPED_TRACE(text(layers, " layers a unit; plain ", plain, ", ddp ", ddp));
    const auto of = [&](ShardStage stage) { return kernels_of_step({.shard = unit_of_layers(stage, layers)}); };
    const auto units = static_cast<double>(kLayers / layers);
    const double one = of(ShardStage::kOptimizer), two = of(ShardStage::kGradients),
                 three = of(ShardStage::kParameters);
    EXPECT_EQ(one, ddp + units);
    EXPECT_EQ(two, plain + 3 * units + 2);
    EXPECT_EQ(three, plain + 4 * units);
    if (layers == 1) continue;
    for (const double each : {one, two, three}) EXPECT_LE(each, 1.05 * torchs);
  }
}

TEST(DeviceShardKernels, AStepOfNoStageWaitsForTheDevice) {
  for (const ShardStage stage : kStages)
    EXPECT_EQ(counts_of_step({.shard = unit_of_layers(stage, 2)}).waits, 0) << static_cast<int>(stage);
}

class DeviceShardLimit : public ::testing::Test {
 protected:
  ~DeviceShardLimit() override { counts()->limit_bytes = 0; }
  static int64_t used(int rank) { return counts()->bytes[static_cast<size_t>(rank)]; }
};

TEST_F(DeviceShardLimit, AUnitWithoutRoomIsNamedWithItsBytesAndARemedy) {
  const auto words = run_ranks_collecting(2,
                                          [](auto& process) {
                                            const int rank = process.group().rank();
                                            Trained<Tall> t(process.group(), unit_a_layer(ShardStage::kParameters),
                                                            adamw, device_of(rank));
                                            process.group().barrier();
                                            if (rank == 0) counts()->limit_bytes = std::max(used(0), used(1)) + 4096;
                                            process.group().barrier();
                                            tall_step(t);
                                          },
                                          {.timeout = std::chrono::seconds(5)});
  for (const auto& each : words) {
    EXPECT_THAT(each,
                AllOf(HasSubstr("the unit of 'layer0.weight'"), HasSubstr(text(4 * kUnit)), HasSubstr("unit_bytes")));
  }
}

TEST_F(DeviceShardLimit, AModelWithoutRoomIsNamedInPrepareAndInSummon) {
  const int64_t most = std::max(used(0), used(1));
  counts()->limit_bytes = most + 2 * kUnit;
  const auto prepared =
      run_ranks_collecting(2,
                           [](auto& process) {
                             Tall net;
                             Sharding sharding(process.group(), unit_a_layer(ShardStage::kParameters));
                             sharding.set_device(device_of(process.group().rank()));
                             DdpOptions options;
                             options.exchange = sharding.make_exchange(process.group());
                             const Ddp ddp(*net, process.group(), options);
                           },
                           {.timeout = std::chrono::seconds(5)});
  for (const auto& each : prepared) EXPECT_THAT(each, AllOf(HasSubstr("the unit of 'layer"), HasSubstr("in prepare")));

  counts()->limit_bytes = 0;
  const auto summoned = run_ranks_collecting(2,
                                             [](auto& process) {
                                               const int rank = process.group().rank();
                                               Trained<Tall> t(process.group(), unit_a_layer(ShardStage::kParameters),
                                                               adamw, device_of(rank));
                                               process.group().barrier();
                                               if (rank == 0)
                                                 counts()->limit_bytes = std::max(used(0), used(1)) + 6 * 4 * kUnit;
                                               process.group().barrier();
                                               const auto whole = t.sharding->summon();
                                             },
                                             {.timeout = std::chrono::seconds(5)});
  for (const auto& each : summoned) EXPECT_THAT(each, AllOf(HasSubstr("the unit of 'layer"), HasSubstr("of memory")));
}

}  // namespace
}  // namespace hasten::parallel
