// States of loss scaling both ways: PyTorch's GradScaler goes on from ours and ours from its, with the same scales,
// counts and parameters; Apex's amp state is read and written in its form. (Apex itself needs a GPU to be installed.)
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdio>

#include "checkpoint/training_state.h"
#include "hasten/checkpoint/python_tensor.h"
#include "hasten/checkpoint/weights.h"
#include "hasten/core/env.h"
#include "hasten/files/python/python_file.h"
#include "hasten/precision/amp.h"
#include "hasten/precision/grad_scaler.h"
#include "support/python.h"

namespace hasten::checkpoint {
namespace {

using precision::GradScaler;
using precision::GradScalerState;
template <class T>
using Codec = training::StateCodec<T>;

class ScalerPeers : public testing::InPython {
 protected:
  std::string run_script(const std::string& program) const {
    return run_python("import torch\n" + program, "timeout 240");
  }

  template <class T>
  void save_state(const T& state, const std::string& name) const {
    save(to_python(Codec<T>::encode(state)), path(name));
  }
  template <class T>
  T load_state(const std::string& name) const {
    return Codec<T>::decode(state_of_python(files::PythonFile::open(path(name)).value()));
  }
};

// Steps of which some overflow; the parameters afterwards.
at::Tensor scaled_steps(const GradScaler& scaler, const std::vector<bool>& overflows) {
  auto p = torch::ones({2}, torch::requires_grad());
  torch::optim::SGD sgd({p}, 0.1);
  for (const bool overflow : overflows) {
    sgd.zero_grad();
    scaler.scale((p * 0.25).sum()).backward();
    if (overflow) p.mutable_grad()[0] = INFINITY;
    scaler.step(sgd);
    scaler.update();
  }
  return p.detach();
}

TEST_F(ScalerPeers, EachGoesOnFromTheOthersScaler) {
  const GradScalerState start{
      .scale = 1024, .growth_factor = 4, .backoff_factor = 0.25, .growth_interval = 3, .growth_tracker = 2};
  GradScaler ours;
  ours.load_state(start);
  scaled_steps(ours, {false, true, false, false, false});
  save_state(start, "start.pt");
  save_state(ours.state(), "ours.pt");

  ASSERT_EQ(run_script(R"(
def steps(scaler, overflows):
    p = torch.nn.Parameter(torch.ones(2))
    sgd = torch.optim.SGD([p], 0.1)
    for overflow in overflows:
        sgd.zero_grad()
        scaler.scale((p * 0.25).sum()).backward()
        if overflow: p.grad[0] = float('inf')
        scaler.step(sgd)
        scaler.update()
    return p.detach()
def scaler_of(name):
    scaler = torch.amp.GradScaler(device='cpu')
    scaler.load_state_dict(torch.load(name, weights_only=True))
    return scaler
first = scaler_of('start.pt')
steps(first, [0, 1, 0, 0, 0])
assert first.state_dict() == torch.load('ours.pt', weights_only=True), (first.state_dict(), torch.load('ours.pt'))
torch.save(first.state_dict(), 'theirs.pt')
second = scaler_of('ours.pt')
parameters = steps(second, [0, 0, 1, 1, 0, 0, 0, 0])
torch.save(second.state_dict(), 'after.pt')
torch.save({'p': parameters}, 'p.pt')
print('good', end='')
)"),
            "good");

  GradScaler second;
  second.load_state(load_state<GradScalerState>("theirs.pt"));
  const at::Tensor parameters = scaled_steps(second, {false, false, true, true, false, false, false, false});
  const auto theirs = load_state<GradScalerState>("after.pt");
  EXPECT_EQ(second.state().scale, theirs.scale);
  EXPECT_EQ(second.state().growth_tracker, theirs.growth_tracker);
  EXPECT_EQ(second.state().growth_interval, 3);
  EXPECT_TRUE(parameters.equal(tensor_of(files::PythonFile::open(path("p.pt")).value().at("p"))));
}

TEST_F(ScalerPeers, AStateOfADisabledScalerIsEmptyOnBothSides) {
  save_state(GradScaler({.enabled = false}).state(), "ours.pt");

  EXPECT_EQ(run_script(R"(
assert torch.load('ours.pt', weights_only=True) == {}
torch.save(torch.amp.GradScaler(device='cpu', enabled=False).state_dict(), 'theirs.pt')
print('good', end='')
)"),
            "good");
  EXPECT_FALSE(load_state<GradScalerState>("theirs.pt").enabled);
}

TEST_F(ScalerPeers, ApexsStateIsReadAndWrittenInItsForm) {
  // apex.amp.state_dict(): an OrderedDict of one dict a loss. The rule of its LossScaler stands in the program.
  constexpr const char* kRule = R"(
from collections import OrderedDict
def moved(state, overflows):
    for overflow in overflows:
        if overflow: state['loss_scale'], state['unskipped'] = state['loss_scale'] / 2, 0
        else: state['unskipped'] += 1
        if state['unskipped'] == 2000: state['loss_scale'], state['unskipped'] = min(2. ** 24, state['loss_scale'] * 2), 0
    return state
)";
  ASSERT_EQ(run_script(std::string(kRule) + R"(
torch.save(OrderedDict([('loss_scaler0', {'loss_scale': 512.0, 'unskipped': 1998}), ('loss_scaler1', {'loss_scale': 2. ** 24, 'unskipped': 7})]), 'apex.pt')
print('good', end='')
)"),
            "good");
  precision::Amp amp({.opt_level = precision::AmpLevel::kO1, .num_losses = 2, .verbosity = 0});
  amp.load_state(load_state<precision::AmpState>("apex.pt"));
  torch::nn::Linear net(2, 1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = amp.initialize(net, sgd);
  for (const bool overflow : {false, false, false, true, false}) {
    optimizer.zero_grad();
    amp.scale_loss(model(torch::ones({1, 2})).sum(), optimizer,
                   [&](const at::Tensor& scaled) { (overflow ? scaled * INFINITY : scaled).backward(); });
    optimizer.step();
  }
  save_state(amp.state(), "ours.pt");

  EXPECT_EQ(run_script(std::string(kRule) + R"(
ours = torch.load('ours.pt', weights_only=True)
assert list(ours) == ['loss_scaler0', 'loss_scaler1'], ours
want = moved({'loss_scale': 512.0, 'unskipped': 1998}, [0, 0, 0, 1, 0])
assert ours['loss_scaler0'] == want, (ours, want)
assert ours['loss_scaler1'] == {'loss_scale': 2. ** 24, 'unskipped': 7}, ours
assert type(ours['loss_scaler0']['loss_scale']) is float and type(ours['loss_scaler0']['unskipped']) is int
print('good', end='')
)"),
            "good");
}

}  // namespace
}  // namespace hasten::checkpoint
