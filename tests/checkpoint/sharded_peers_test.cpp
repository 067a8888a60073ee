// Sharded runs go on from FSDP2's and DeepSpeed's folders, and those from ours: parameters after further steps, to
// 1e-5.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>
#include <utility>
#include <vector>

#include "hasten/accelerator.h"
#include "hasten/checkpoint/weights.h"
#include "hasten/core/env.h"
#include "support/models.h"
#include "support/python.h"
#include "support/ranks.h"

namespace hasten::checkpoint {
namespace {

constexpr int kBefore = 3, kAfter = 3;

// Two ranks of Python over gloo. work(rank, net) is a test's; steps are those of `problem.pt`.
constexpr const char* kTwoRanks = R"(
import torch.distributed as dist, torch.multiprocessing as mp
class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.second = torch.nn.Linear(16, 4)
    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))
def steps(first, count, forward, backward, step):
    problem = torch.load('problem.pt', weights_only=True)
    for i in range(first, first + count):
        x, y = (problem[k + str(i)].chunk(2)[dist.get_rank()] for k in 'xy')
        backward(torch.nn.functional.cross_entropy(forward(x), y))
        step()
def same(state, file):
    want = torch.load(file, weights_only=True)
    for name, value in want.items():
        assert torch.allclose(state[name], value, rtol=1e-5, atol=1e-6), (name, (state[name] - value).abs().max())
def run(rank, port):
    os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port), RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE='2', DS_ACCELERATOR='cpu')
    torch.set_num_threads(1)
    torch.manual_seed(1)
    work(rank)
    dist.barrier()
    dist.destroy_process_group()
def main():
    import socket
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    mp.spawn(run, args=(port,), nprocs=2)
    print('good', end='')
)";

constexpr const char* kFsdp2 = R"(
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import *
def sharded():
    if not dist.is_initialized(): dist.init_process_group('gloo')
    from torch.distributed.fsdp import fully_shard
    mesh = torch.distributed.device_mesh.init_device_mesh('cpu', (2,))
    net = Mlp()
    for part in (net.first, net.second, net): fully_shard(part, mesh=mesh)
    return net, torch.optim.AdamW(net.parameters(), 0.01)
def train(net, o, first, count):
    steps(first, count, net, lambda loss: loss.backward(), lambda: (o.step(), o.zero_grad()))
WHOLE = StateDictOptions(full_state_dict=True)
)";

constexpr const char* kFromOurShards = R"(
# DCP's own reader puts our shards into those of FSDP2.
def from_our_shards(net, o):
    from torch.distributed.checkpoint import HuggingFaceStorageReader
    import glob, shutil
    if dist.get_rank() == 0:
        for part in ('model', 'state'):
            shutil.rmtree(part, ignore_errors=True)
            os.makedirs(part)
            for file in glob.glob('ours/%s*.safetensors' % part): shutil.copy(file, part)
    dist.barrier()
    model = get_model_state_dict(net)
    dcp.load(model, storage_reader=HuggingFaceStorageReader('model'))
    set_model_state_dict(net, model)
    own = get_optimizer_state_dict(net, o)
    slots = {'optimizer.0.%s.%s' % (name, slot): slots[slot] for name, slots in own['state'].items() for slot in ('exp_avg', 'exp_avg_sq')}
    dcp.load(slots, storage_reader=HuggingFaceStorageReader('state'))
    for name, of in own['state'].items(): of['step'].fill_(3)
    set_optimizer_state_dict(net, o, own)
)";

constexpr const char* kDeepSpeed = R"(
def engine_of(net, stage, o):
    import deepspeed, logging
    deepspeed.ops.__compatible_ops__ = {}  # nothing is compiled
    deepspeed.utils.logger.setLevel(logging.ERROR)
    if not dist.is_initialized(): deepspeed.init_distributed('gloo')
    return deepspeed.initialize(model=net, optimizer=o, config={'train_micro_batch_size_per_gpu': 12, 'zero_allow_untested_optimizer': True,
        'zero_optimization': {'stage': stage, 'stage3_param_persistence_threshold': 0}})[0]
def train(engine, first, count):
    steps(first, count, engine, engine.backward, engine.step)
def whole(net):
    from deepspeed.utils import safe_get_full_fp32_param
    return {name: safe_get_full_fp32_param(p) for name, p in net.named_parameters()}
)";

class ShardedPeers : public testing::InPython {
 protected:
  void SetUp() override {
    InPython::SetUp();
    if (IsSkipped()) return;
    StateDict problem;
    for (int step = 0; step < kBefore + kAfter; ++step) {
      const auto data = testing::problem_for("mlp", 40 + static_cast<uint64_t>(step));
      problem.set("x" + std::to_string(step), data.inputs);
      problem.set("y" + std::to_string(step), data.targets);
    }
    save(problem, path("problem.pt"));
  }

  std::string run(const std::string& program) const {
    return run_python("import torch\n" + (kTwoRanks + program) + "\nif __name__ == '__main__': main()\n",
                      "timeout 240");
  }

  static std::string without_deepspeed() { return testing::why_without_python("HASTEN_PEERS_PYTHON", {"deepspeed"}); }

  static AcceleratorOptions at_stage(ShardStage stage) {
    AcceleratorOptions options{.tune_allocator = false};
    options.shard = {.stage = stage, .wrap = {.unit_bytes = 400}};
    return options;
  }

  template <class Model, class Optimizer>
  static void steps(const Accelerator& accelerator, Model& model, Optimizer& optimizer, int first, int count) {
    for (int step = first; step < first + count; ++step) {
      const auto data = testing::problem_for("mlp", 40 + static_cast<uint64_t>(step));
      const auto rows = [&](const at::Tensor& all) { return all.chunk(accelerator.world_size())[accelerator.rank()]; };
      optimizer.zero_grad();
      accelerator.backward(torch::cross_entropy_loss(model(rows(data.inputs)), rows(data.targets)));
      optimizer.step();
    }
  }

  // Goes on from `folder` on two and on three ranks; expects the parameters of `after`.
  void expect_to_go_on(const std::string& folder, const std::string& after, ShardStage stage) const {
    for (const int world_size : {2, 3}) {
      testing::run_ranks(world_size, [&](auto& process) {
        Accelerator accelerator(process, at_stage(stage));
        testing::Mlp net;
        torch::optim::AdamW adam(net->parameters(), 0.5);
        auto [model, optimizer] = accelerator.prepare(net, adam);
        accelerator.load_state(path(folder));
        steps(accelerator, model, optimizer, kBefore, kAfter);

        testing::Mlp wanted;
        load_weights(*wanted, path(after));
        for (const auto& item : wanted->named_parameters()) {
          const auto mine = net->named_parameters()[item.key()];
          EXPECT_TRUE(torch::allclose(mine, item.value(), 1e-5, 1e-6))
              << item.key() << " on " << world_size << " ranks, off by "
              << (mine - item.value()).abs().max().template item<float>();
        }
        process.wait_for_everyone();
      });
    }
  }

  // Saves after kBefore steps on two ranks in both layouts, and the parameters after all.
  void train_here() const {
    testing::run_ranks(2, [&](auto& process) {
      Accelerator accelerator(process, at_stage(ShardStage::kParameters));
      testing::Mlp net;
      testing::initialise(*net, 1);
      torch::optim::AdamW adam(net->parameters(), 0.01);
      auto [model, optimizer] = accelerator.prepare(net, adam);
      steps(accelerator, model, optimizer, 0, kBefore);
      accelerator.save_state(path("accelerate"), {.layout = Layout::kAccelerate});
      accelerator.save_state(path("ours"));
      steps(accelerator, model, optimizer, kBefore, kAfter);
      accelerator.save(accelerator.get_state_dict(model), path("after.pt"));
      process.wait_for_everyone();
    });
  }
};

TEST_F(ShardedPeers, RunsGoOnFromFoldersOfFsdp2) {
  ASSERT_EQ(run(std::string(kFsdp2) + R"(
def work(rank):
    net, o = sharded()
    train(net, o, 0, 3)
    dcp.save({'model': get_model_state_dict(net)}, checkpoint_id='run/pytorch_model_fsdp_0')
    dcp.save({'optimizer': get_optimizer_state_dict(net, o)}, checkpoint_id='run/optimizer_0')
    train(net, o, 3, 3)
    whole = get_model_state_dict(net, options=WHOLE)
    if rank == 0: torch.save(whole, 'after.pt')
)"),
            "good");

  for (const auto stage : {ShardStage::kOptimizer, ShardStage::kParameters}) expect_to_go_on("run", "after.pt", stage);
}

TEST_F(ShardedPeers, Fsdp2GoesOnFromBothLayouts) {
  train_here();

  EXPECT_EQ(run(std::string(kFsdp2) + kFromOurShards + R"(
def from_accelerates_layout(net, o):
    from safetensors.torch import load_file
    names = [name for name, _ in net.named_parameters()]
    set_model_state_dict(net, load_file('accelerate/model.safetensors'), options=WHOLE)
    saved = torch.load('accelerate/optimizer.bin', weights_only=True)
    state = {names[i]: slots for i, slots in saved['state'].items()}
    groups = [dict(group, params=[names[i] for i in group['params']]) for group in saved['param_groups']]
    set_optimizer_state_dict(net, o, {'state': state, 'param_groups': groups}, options=WHOLE)
def work(rank):
    for load in (from_accelerates_layout, from_our_shards):
        net, o = sharded()
        load(net, o)
        train(net, o, 3, 3)
        same({name: p.full_tensor().detach() for name, p in net.named_parameters()}, 'after.pt')
)"),
            "good");
}

// Parts of cut parameters, of stages, and of both beside sharding are boxes of whole tensors, which DCP's reader puts
// together.
TEST_F(ShardedPeers, Fsdp2GoesOnFromModelsOverSeveralRanks) {
  const parallel::ParallelOptions cut{.tp = 2, .tensor_plan = {{"first", "colwise"}, {"second", "rowwise"}}};
  auto split = cut;
  split.dp_shard = 2;
  const std::vector<std::pair<int, parallel::ParallelOptions>> layouts = {
      {2, cut}, {4, split}, {2, {.pp = 2, .stages = {"second"}}}};
  for (size_t i = 0; i < layouts.size(); ++i) {
    const auto& [world, layout] = layouts[i];
    std::filesystem::remove_all(path("ours"));
    testing::run_ranks(world, [&](auto& process) {
      Accelerator accelerator(process, {.tune_allocator = false, .parallel = layout});
      testing::Mlp net;
      testing::initialise(*net, 1);
      torch::optim::AdamW adam(net->parameters(), 0.01);
      auto [model, optimizer] = accelerator.prepare(net, adam);
      const auto train = [&, &model = model, &optimizer = optimizer](int first, int count) {
        for (int step = first; step < first + count; ++step) {
          const auto data = testing::problem_for("mlp", 40 + static_cast<uint64_t>(step));
          const int place = layout.dp_shard > 1 ? process.rank() / 2 : 0;
          const std::pair<at::Tensor, at::Tensor> mine(data.inputs.chunk(layout.dp_shard)[place],
                                                       data.targets.chunk(layout.dp_shard)[place]);
          const auto loss = [&](const auto& part) { return torch::cross_entropy_loss(model(part.first), part.second); };
          optimizer.zero_grad();
          if (layout.pp > 1) {
            accelerator.forward_backward(mine, loss);
          } else {
            accelerator.backward(loss(mine));
          }
          optimizer.step();
        }
      };
      train(0, kBefore);
      accelerator.save_state(path("ours"));
      train(kBefore, kAfter);
      accelerator.save(accelerator.get_state_dict(model), path("after.pt"));
      process.wait_for_everyone();
    });

    EXPECT_EQ(run(std::string(kFsdp2) + kFromOurShards + R"(
def work(rank):
    net, o = sharded()
    from_our_shards(net, o)
    train(net, o, 3, 3)
    same({name: p.full_tensor().detach() for name, p in net.named_parameters()}, 'after.pt')
)"),
              "good")
        << i;
  }
}

TEST_F(ShardedPeers, RunsGoOnFromFoldersOfDeepSpeedOfEveryStage) {
  if (const auto why = without_deepspeed(); !why.empty()) GTEST_SKIP() << why;
  ASSERT_EQ(run(std::string(kDeepSpeed) + R"(
def work(rank):
    for stage in (1, 2, 3):
        net = Mlp()
        engine = engine_of(net, stage, torch.optim.AdamW(net.parameters(), 0.01))
        train(engine, 0, 3)
        engine.save_checkpoint('zero%d' % stage)
        train(engine, 3, 3)
        state = whole(net)
        if rank == 0: torch.save(state, 'after%d.pt' % stage)
)"),
            "good");

  for (const int stage : {1, 2, 3}) {
    expect_to_go_on("zero" + std::to_string(stage), "after" + std::to_string(stage) + ".pt",
                    static_cast<ShardStage>(stage));
  }
}

// Its moments have no place before the first step, so both sides begin with a new optimizer.
TEST_F(ShardedPeers, DeepSpeedGoesOnFromOurWeights) {
  if (const auto why = without_deepspeed(); !why.empty()) GTEST_SKIP() << why;
  train_here();
  testing::run_ranks(2, [&](auto& process) {
    Accelerator accelerator(process, at_stage(ShardStage::kParameters));
    testing::Mlp net;
    load_weights(*net, path("accelerate"));
    torch::optim::AdamW adam(net->parameters(), 0.01);
    auto [model, optimizer] = accelerator.prepare(net, adam);
    steps(accelerator, model, optimizer, kBefore, kAfter);
    accelerator.save(accelerator.get_state_dict(model), path("fresh.pt"));
    process.wait_for_everyone();
  });

  EXPECT_EQ(run(std::string(kDeepSpeed) + R"(
def work(rank):
    from safetensors.torch import load_file
    for stage in (1, 2, 3):
        net = Mlp()
        net.load_state_dict(load_file('accelerate/model.safetensors'))
        engine = engine_of(net, stage, torch.optim.AdamW(net.parameters(), 0.01))
        train(engine, 3, 3)
        same(whole(net), 'fresh.pt')
)"),
            "good");
}

}  // namespace
}  // namespace hasten::checkpoint
