// What is written here is opened by PyTorch, safetensors, transformers' loader, Accelerate and DCP, and steps on there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdio>
#include <fstream>

#include "hasten/accelerator.h"
#include "hasten/checkpoint/optimizer_state.h"
#include "hasten/checkpoint/python_tensor.h"
#include "hasten/checkpoint/weights.h"
#include "hasten/core/env.h"
#include "hasten/data/dataset/tensor_dataset.h"
#include "hasten/optim/schedulers/schedulers.h"
#include "support/models.h"
#include "support/python.h"
#include "support/ranks.h"

namespace hasten::checkpoint {
namespace {

class PythonPeers : public testing::InPython {
 protected:
  std::string run(const std::string& program) const { return run_python("import torch\n" + program); }
};

constexpr const char* kNet = R"(
class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.second = torch.nn.Linear(16, 4)
    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))
net = Mlp()
)";

TEST_F(PythonPeers, OptimizersLoadInPythonAndTakeTheSameStep) {
  const auto problem = testing::problem_for("mlp", 3);
  save(StateDict{{"x", problem.inputs}, {"y", problem.targets}}, path("problem.pt"));
  const auto check = [&](const std::string& name, auto make, const std::string& python) {
    testing::Mlp net;
    testing::initialise(*net, 1);
    auto optimizer = make(net->parameters());
    const auto step = [&] {
      optimizer.step([&] {
        optimizer.zero_grad();
        auto loss = torch::cross_entropy_loss(net->forward(problem.inputs), problem.targets);
        loss.backward();
        return loss;
      });
    };
    for (int i = 0; i < 3; ++i) step();
    save(*net, path("net.pth"));
    save(to_python(optimizer_state(optimizer)), path("optimizer.pt"));
    step();
    save(*net, path("after.pth"));
    EXPECT_EQ(run(std::string(kNet) + "net.load_state_dict(torch.load('net.pth', weights_only=True))\n" +
                  "o = " + python + R"(
o.load_state_dict(torch.load('optimizer.pt', weights_only=True))
p = torch.load('problem.pt', weights_only=True)
def closure():
    o.zero_grad()
    loss = torch.nn.functional.cross_entropy(net(p['x']), p['y'])
    loss.backward()
    return loss
o.step(closure)
after = torch.load('after.pth', weights_only=True, mmap=True)
assert list(after) == list(net.state_dict())
for name, value in net.state_dict().items():
    assert torch.allclose(value, after[name], rtol=1e-6, atol=1e-7), (name, (value - after[name]).abs().max())
print('good', end='')
)"),
              "good")
        << name;
  };
  using namespace torch::optim;
  const auto of = [](auto options, auto* type) {
    using O = std::remove_pointer_t<decltype(type)>;
    return [options](auto parameters) { return O(parameters, options); };
  };
  check("SGD", of(SGDOptions(0.1).momentum(0.9), static_cast<SGD*>(nullptr)), "torch.optim.SGD(net.parameters(), 0.5)");
  check("AdamW", of(AdamWOptions(0.01).amsgrad(true), static_cast<AdamW*>(nullptr)),
        "torch.optim.AdamW(net.parameters(), amsgrad=True)");
  check("RMSprop", of(RMSpropOptions(0.01).momentum(0.9).centered(true), static_cast<RMSprop*>(nullptr)),
        "torch.optim.RMSprop(net.parameters())");
  check("Adagrad", of(AdagradOptions(0.1), static_cast<Adagrad*>(nullptr)), "torch.optim.Adagrad(net.parameters())");
  check("LBFGS", of(LBFGSOptions(0.5).max_iter(3), static_cast<LBFGS*>(nullptr)),
        "torch.optim.LBFGS(net.parameters())");
}

TEST_F(PythonPeers, AccelerateLoadsItsLayoutAndOursIsReadByDcpAndSafetensors) {
  testing::run_ranks(2, [&](auto& process) {
    AcceleratorOptions options{.tune_allocator = false};
    options.shard = {.stage = ShardStage::kParameters, .wrap = {.unit_bytes = 400}};
    Accelerator accelerator(process, options);
    testing::Mlp net;
    testing::initialise(*net, 1);
    torch::optim::AdamW adam(net->parameters(), 0.01);
    optim::StepLR step_lr(adam, {.step_size = 2});
    auto [model, optimizer, scheduler] = accelerator.prepare(net, adam, step_lr);
    const auto problem = testing::problem_for("mlp", 3);
    for (int i = 0; i < 3; ++i) {
      optimizer.zero_grad();
      accelerator.backward(torch::cross_entropy_loss(model(problem.inputs), problem.targets));
      optimizer.step();
      scheduler.step();
    }
    accelerator.save_state(path("accelerate"), {.layout = Layout::kAccelerate});
    accelerator.save_state(path("ours"));
    accelerator.save_model(model, path("export"), {.max_shard_size = "600"});
    accelerator.save(accelerator.get_state_dict(model), path("net.pth"));
    process.wait_for_everyone();
  });

  EXPECT_EQ(run(std::string(kNet) + R"(
from accelerate import Accelerator, load_checkpoint_in_model
from safetensors.torch import load_file
import torch.distributed.checkpoint as dcp
want = torch.load('net.pth', weights_only=True)
acc = Accelerator(cpu=True)
o = torch.optim.AdamW(net.parameters(), 0.5)
s = torch.optim.lr_scheduler.StepLR(o, 2)
net, o, s = acc.prepare(net, o, s)
acc.load_state('accelerate')
for name, value in net.state_dict().items(): assert torch.equal(value, want[name]), name
assert s.scheduler.last_epoch == 3 and abs(o.param_groups[0]['lr'] - 0.001) < 1e-12
moment = o.optimizer.state[list(net.parameters())[0]]['exp_avg']
assert moment.shape == (16, 8) and moment.abs().sum() > 0
load_file('ours/model-00001-of-00002.safetensors')
plain = Mlp()
load_checkpoint_in_model(plain, 'export')
for name, value in plain.state_dict().items(): assert torch.equal(value, want[name]), name
# The split moments, put together by DCP's own reader.
from torch.distributed.checkpoint import HuggingFaceStorageReader
state = {'optimizer.0.first.weight.exp_avg': torch.zeros(16, 8)}
os.makedirs('state_only', exist_ok=True)
import shutil, glob
for file in glob.glob('ours/state*.safetensors'): shutil.copy(file, 'state_only')
dcp.load(state, storage_reader=HuggingFaceStorageReader('state_only'), no_dist=True)
assert torch.equal(state['optimizer.0.first.weight.exp_avg'], moment), 'moments'
print('good', end='')
)"),
            "good");
}

// Accelerate saves torchdata's StatefulDataLoader with its position; the loop goes on with the batch that came next
// there.
TEST_F(PythonPeers, ATorchdataLoaderIsGoneOnWithInTheMiddleOfItsEpoch) {
  const std::string next = run(std::string(kNet) + R"(
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
acc = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True))
data = torch.utils.data.TensorDataset(torch.arange(512.).reshape(64, 8), torch.arange(64) % 4)
o = torch.optim.AdamW(net.parameters(), 0.01)
net, o, loader = acc.prepare(net, o, torch.utils.data.DataLoader(data, batch_size=8))
batches = iter(loader)
for _ in range(3): next(batches)
acc.save_state('python')
assert os.path.exists('python/dl_state_dict.bin')
print(int(next(batches)[0][0, 0]), end='')
)");
  ASSERT_EQ(next, "192");

  testing::run_ranks(1, [&](auto& process) {
    Accelerator accelerator(process, {.tune_allocator = false});
    testing::Mlp net;
    torch::optim::AdamW adam(net->parameters(), 0.5);
    auto loader = accelerator.prepare(data::loader<torch::data::samplers::SequentialSampler>(
        data::TensorDataset(torch::arange(512.0).reshape({64, 8}), torch::arange(64) % 4), 8));
    [[maybe_unused]] auto [model, optimizer] = accelerator.prepare(net, adam);

    accelerator.load_state(path("python"));

    int64_t batches = 0;
    double first = 0;
    for (auto& batch : loader) {
      if (batches++ == 0) first = batch.data[0][0].template item<double>();
    }
    EXPECT_EQ(first, 192);
    EXPECT_EQ(batches, 5);
  });
}

}  // namespace
}  // namespace hasten::checkpoint
