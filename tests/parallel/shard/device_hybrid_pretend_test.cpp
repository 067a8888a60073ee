// Parameters that are whole on each host and split among its GPUs (HYBRID_SHARD, hpZ): what is split, what travels
// where, and that the hosts add up their gradients once a window.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hasten/hasten.h>
#include <torch/torch.h>

#include <numeric>

#include "hasten/core/error.h"
#include "hasten/parallel/ddp/no_sync.h"
#include "parallel/shard/device_nets.h"
#include "support/device_models.h"

namespace hasten::parallel {
namespace {

using namespace shard_testing;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

// Ranks 0 and 1 of four are on one host and 2 and 3 on the other; or every other one is.
testing::RankOptions on_two_hosts(bool in_turns = false) {
  return {.adjust = [in_turns](int rank, comm::GroupOptions& options) {
    options.host = (in_turns ? rank % 2 == 0 : rank < 2) ? "a" : "b";
    options.address = "127.0.0.1";
  }};
}

ShardOptions hybrid(ShardStage stage) {
  auto options = unit_a_layer(stage);
  options.across_hosts = false;
  return options;
}

template <class Net>
int64_t state_numel(const Trained<Net>& trained) {
  int64_t sum = 0;
  for (const auto& piece : trained.sharding->sharded_state(*trained.optimizer)) sum += piece.tensor.numel();
  return sum;
}

void expect_close(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(at::allclose(a[i], b[i], 1e-4, 1e-5))
        << what << ", parameter " << i << ", off by " << (a[i] - b[i]).abs().max().item<float>();
}

TEST(DeviceHybrid, StateIsSplitWithinAHostAndTheNumbersAreThoseOfDdp) {
  for (const bool in_turns : {false, true}) {
    run_on_devices(
        4,
        [&](auto& process) {
          Trained<testing::Mlp> plain(process.group(), {}, adamw);
          train(plain, "mlp", 3);
          for (const ShardStage stage : kStages) {
            ShardOptions options{.stage = stage, .wrap = {.unit_bytes = 400}, .across_hosts = false};
            Trained<testing::Mlp> sharded(process.group(), options, adamw, device_of(process.rank()));
            train(sharded, "mlp", 3);
            expect_close(plain.parameters(), sharded.parameters(), text("stage ", static_cast<int>(stage)));
            EXPECT_EQ(sharded.sharding->is_copy(), in_turns ? process.rank() % 2 == 1 : process.rank() >= 2);
            options.across_hosts = true;
            Trained<testing::Mlp> all(process.group(), options, adamw, device_of(process.rank()));
            train(all, "mlp", 1);
            const at::Tensor numel = torch::tensor({state_numel(sharded), state_numel(all)});
            process.group().all_reduce_(numel);
            EXPECT_EQ(numel[0].template item<int64_t>(), 2 * numel[1].template item<int64_t>());
          }
        },
        on_two_hosts(in_turns));
  }
}

// Two hosts have two GPUs each: half of a unit comes from the neighbour, and half of a gradient goes to it. The hosts
// all-reduce a rank's half.
TEST(DeviceHybrid, GathersStayWithinAHostAndSlicesGoAcross) {
  run_on_devices(
      4,
      [](auto& process) {
        const auto sent_by = [&](const ShardOptions& options) {
          Trained<Tall> t(process.group(), options, adamw, device_of(process.rank()));
          for (int i = 0; i < 2; ++i) tall_step(t);
          return wire_of(process.group(), [&] { tall_step(t); });
        };
        const double gathers = 2 - 2.0 / kLayers, within = 0.5, across = 2 * 0.5 * 0.5;
        EXPECT_NEAR(sent_by(hybrid(ShardStage::kParameters)), (gathers + 1) * within + across, 0.03);
        EXPECT_NEAR(sent_by(hybrid(ShardStage::kGradients)), 2 * within + across, 0.03);
        EXPECT_NEAR(sent_by(unit_a_layer(ShardStage::kParameters)), (gathers + 1) * 0.75, 0.03);
      },
      on_two_hosts());
}

// One window of three backwards.
template <class Net>
void window(Trained<Net>& t, const std::function<at::Tensor(int part)>& loss,
            const std::function<void(int part)>& after) {
  t.optimizer->zero_grad();
  for (int part = 0; part < 3; ++part) {
    const bool is_last = part == 2;
    std::optional<NoSync> scope;
    if (!is_last) scope.emplace(Ddp::Models{t.ddp}, t.sharding != nullptr);
    parallel::backward(loss(part), {}, {.models = {t.ddp}, .group = t.group, .ends_window = is_last});
    if (after) after(part);
  }
  t.step();
}

TEST(DeviceHybrid, HostsAddUpTheirGradientsOnceAWindow) {
  run_on_devices(
      4,
      [](auto& process) {
        for (const bool on_host : {false, true}) {
          auto options = hybrid(ShardStage::kGradients);
          if (on_host) options.optimizer_offload.device = OffloadDevice::kCpu;
          Trained<Tall> t(process.group(), options, adamw, device_of(process.rank()));
          const auto loss = [&](int part) { return tall_loss(t, 1 + part); };
          window<Tall>(t, loss, {});
          const double sent = wire_of(process.group(), [&] { window<Tall>(t, loss, {}); });
          // Three reduce-scatters and one gather within a host, and one all-reduce of half across.
          EXPECT_NEAR(sent, 3 * 0.5 + 0.5 + 0.5, 0.03) << on_host;
        }
      },
      on_two_hosts());
}

TEST(DeviceHybrid, WindowsGiveTheNumbersOfDdpAlsoIfGradientsAreReadInTheirMiddle) {
  run_on_devices(
      4,
      [](auto& process) {
        const auto run = [](Trained<testing::Mlp>& t, bool reads) {
          for (int step = 0; step < 3; ++step) {
            window<testing::Mlp>(
                t, [&](int part) { return t.loss("mlp", 3 * step + part); },
                [&](int part) {
                  if (part == 1 && reads) t.gradient(t.net->first->weight);
                });
          }
        };
        Trained<testing::Mlp> plain(process.group(), {}, adamw);
        run(plain, false);
        for (const ShardStage stage : {ShardStage::kGradients, ShardStage::kParameters}) {
          for (const bool on_host : {false, true}) {
            for (const bool reads : {false, true}) {
              ShardOptions options{.stage = stage, .wrap = {.unit_bytes = 400}, .across_hosts = false};
              if (on_host) options.optimizer_offload.device = OffloadDevice::kCpu;
              Trained<testing::Mlp> sharded(process.group(), options, adamw, device_of(process.rank()));
              run(sharded, reads);
              expect_close(plain.parameters(), sharded.parameters(),
                           text("stage ", static_cast<int>(stage), ", on the host ", on_host, ", reads ", reads));
            }
          }
        }
      },
      on_two_hosts());
}

// A gradient that is left from an ended window is whole. What is added to it is added up by itself.
TEST(DeviceHybrid, GradientsThatWereNotZeroedAreAddedToOnce) {
  run_on_devices(
      4,
      [](auto& process) {
        const auto run = [](Trained<testing::Mlp>& t) {
          for (int part = 0; part < 3; ++part) t.backward(t.loss("mlp", part));
          return t.gradient(t.net->first->weight);
        };
        Trained<testing::Mlp> plain(process.group(), {}, adamw);
        const ShardOptions options{.stage = ShardStage::kGradients, .wrap = {.unit_bytes = 400}, .across_hosts = false};
        Trained<testing::Mlp> sharded(process.group(), options, adamw, device_of(process.rank()));
        expect_close({run(plain)}, {run(sharded)}, "gradient");
      },
      on_two_hosts());
}

TEST(DeviceHybrid, HostsOfUnequalSizeAreRefusedByName) {
  const auto words = run_ranks_collecting(
      3,
      [](auto& process) {
        const Trained<Tall> t(process.group(), hybrid(ShardStage::kParameters), adamw, device_of(process.rank()));
      },
      on_two_hosts());
  EXPECT_THAT(words, Each(AllOf(HasSubstr("HYBRID_SHARD"), HasSubstr("2 and 1 rank."), HasSubstr("FULL_SHARD"))));
}

// The front door on devices: what a rank owns of the optimizer's state, with these settings.
int64_t owned_by(process::Process& process, AcceleratorOptions options) {
  const c10::Device device = device_of(process.rank());
  const Accelerator accelerator(process::Process(process.identity(), process.group(), device), std::move(options));
  testing::Mlp net;
  testing::initialise(*net, 5);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto problem = testing::problem_for("mlp", 1);
  accelerator.backward(torch::cross_entropy_loss(model(problem.inputs.to(device)), problem.targets.to(device)));
  optimizer.step();
  int64_t sum = 0;
  for (const auto& piece : accelerator.sharding()->sharded_state(sgd)) sum += piece.tensor.numel();
  accelerator.wait_for_everyone();
  return sum;
}

TEST(DeviceHybrid, SettingsOfFsdpAndDeepSpeedMeanIt) {
  std::vector<int64_t> all(4), of_fsdp(4), of_hpz(4);
  run_on_devices(
      4,
      [&](auto& process) {
        const auto rank = static_cast<size_t>(process.rank());
        const auto config = [](int64_t size) {
          auto value = core::Value::parse_json(R"({"train_micro_batch_size_per_gpu": 2, "zero_optimization":
                         {"stage": 3, "stage3_param_persistence_threshold": 0}})");
          value["zero_optimization"]["zero_hpz_partition_size"] = size;
          return DeepSpeedPlugin{.hf_ds_config = value};
        };
        auto options = testing::quiet_options();
        options.fsdp = FsdpPlugin{.sharding_strategy = "FULL_SHARD"};
        all[rank] = owned_by(process, options);
        options.fsdp = FsdpPlugin{.sharding_strategy = "HYBRID_SHARD"};
        of_fsdp[rank] = owned_by(process, options);
        auto zero = testing::quiet_options();
        zero.deepspeed = config(2);
        of_hpz[rank] = owned_by(process, zero);
        zero.deepspeed = config(3);
        try {
          owned_by(process, zero);
          ADD_FAILURE() << "no error";
        } catch (const UsageError& error) {
          EXPECT_THAT(error.what(), AllOf(HasSubstr("zero_hpz_partition_size is 3"), HasSubstr("4 ranks")));
        }
      },
      on_two_hosts());
  const auto sum = [](const std::vector<int64_t>& each) {
    return std::accumulate(each.begin(), each.end(), int64_t{0});
  };
  EXPECT_EQ(sum(of_fsdp), 2 * sum(all));
  EXPECT_EQ(sum(of_hpz), 2 * sum(all));
}

}  // namespace
}  // namespace hasten::parallel
