// The same small tasks trained by fastai and by the Learner: losses of every batch, and what validation gives.
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "hasten/checkpoint/state_dict.h"
#include "hasten/checkpoint/weights.h"
#include "hasten/core/env.h"
#include "hasten/learner/callbacks.h"
#include "hasten/learner/learner.h"
#include "hasten/learner/metrics.h"
#include "hasten/optim/fastai.h"
#include "support/folder.h"

namespace hasten::learner {
namespace {

using nlohmann::json;
namespace nn = torch::nn;

// Trains from the weights in start.pt on the data in it, and prints a line a task.
constexpr const char* kFastai = R"(
import json
import torch
import torch.nn.functional as F
from fastai.callback.core import Callback
from fastai.callback.schedule import *
from fastai.callback.training import GradientClip
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from fastai.metrics import accuracy
from fastai.optimizer import *
torch.set_num_threads(1)
start = torch.load('start.pt', weights_only=True)
class Batches(list):
    device, after_batch = torch.device('cpu'), None
    def to(self, device): return self
def batches(x, y): return Batches([(start[x][i:i + 8], start[y][i:i + 8]) for i in range(0, len(start[x]), 8)])
class Watch(Callback):
    def __init__(self): self.seen = []
    def after_batch(self):
        if self.training: self.seen.append(self.loss.item())
def run(name, fit, opt_func=Adam, cbs=()):
    net = torch.nn.Sequential(torch.nn.Linear(6, 8, bias=False), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    net.load_state_dict({key[4:]: value.clone() for key, value in start.items() if key.startswith('net.')})
    watch = Watch()
    learn = Learner(DataLoaders(batches('x', 'y'), batches('valid_x', 'valid_y')), net, loss_func=F.cross_entropy, metrics=accuracy, opt_func=opt_func,
                    cbs=[watch, *cbs], splitter=lambda m: [[*m[0].parameters(), *m[1].parameters()], [*m[3].parameters()]])
    with learn.no_bar(), learn.no_logging():
        fit(learn)
        valid = list(learn.validate())
    print(json.dumps({'name': name, 'losses': watch.seen, 'valid': valid}))
run('one_cycle', lambda learn: learn.fit_one_cycle(3, slice(1e-3, 1e-2)))
run('fine_tune', lambda learn: learn.fine_tune(2, 1e-2))
run('flat_cos ranger', lambda learn: learn.fit_flat_cos(2, 1e-2), ranger)
run('sgdr clip', lambda learn: learn.fit_sgdr(2, 1, 1e-2), Lamb, [GradientClip(0.5)])
run('decay', lambda learn: learn.fit(2, 1e-2, wd=0.1), RMSProp)
)";

struct Losses : Callback {
  std::string_view name() const override { return "losses"; }
  void after_batch(Learner& learn) override {
    if (learn.training()) values.push_back(learn.loss().item<double>());
  }
  std::vector<double> values;
};

struct Task {
  std::function<void(const Learner&)> fit;
  optim::fastai::Factory optimizer = optim::fastai::adam();
  bool clips = false;
};

const std::map<std::string, Task>& tasks() {
  namespace fastai = optim::fastai;
  static const std::map<std::string, Task> kTasks = {
      {"one_cycle", {[](const Learner& learn) { learn.fit_one_cycle(3, slice(1e-3, 1e-2)); }}},
      {"fine_tune", {[](const Learner& learn) { learn.fine_tune(2, 1e-2); }}},
      {"flat_cos ranger", {[](const Learner& learn) { learn.fit_flat_cos(2, 1e-2); }, fastai::ranger()}},
      {"sgdr clip", {[](const Learner& learn) { learn.fit_sgdr(2, 1, 1e-2); }, fastai::lamb(), /*clips=*/true}},
      {"decay", {[](const Learner& learn) { learn.fit(2, 1e-2, {.wd = 0.1}); }, fastai::rms_prop()}}};
  return kTasks;
}

class LearnerPeers : public hasten::testing::InFolder {
 protected:
  static nn::Sequential net() {
    torch::manual_seed(3);
    // A bias in front of a batch norm has a gradient of rounding errors alone (docs/differences.md).
    return nn::Sequential(nn::Linear(nn::LinearOptions(6, 8).bias(false)), nn::BatchNorm1d(8), nn::ReLU(),
                          nn::Linear(8, 3));
  }
  static torch::data::Example<> rows(int64_t count, uint64_t seed) {
    torch::manual_seed(seed);
    const auto x = at::randn({count, 6});
    return {x, x.slice(1, 0, 3).argmax(1)};
  }
};

TEST_F(LearnerPeers, LossesOfEveryBatchAndValidationAreFastais) {
  const std::string python = Environment::current().text("HASTEN_PEERS_PYTHON").value_or("");
  if (python.empty()) GTEST_SKIP() << "HASTEN_PEERS_PYTHON is not set. Let it name a Python with torch and fastai.";
  if (std::system((python + " -c 'import fastai' 2>/dev/null").c_str()) != 0)
    GTEST_SKIP() << python << " has no fastai.";
  const auto train = rows(44, 1), valid = rows(20, 2);  // the last batches are short
  checkpoint::StateDict start{
      {"x", train.data}, {"y", train.target}, {"valid_x", valid.data}, {"valid_y", valid.target}};
  const auto weights = net();
  for (const auto& item : weights->named_parameters()) start.set("net." + item.key(), item.value().detach());
  for (const auto& item : weights->named_buffers()) start.set("net." + item.key(), item.value());
  checkpoint::save(start, path("start.pt"));
  const std::string program = write("program.py", "import os\nos.chdir(r'" + folder_.string() + "')\n" + kFastai);
  FILE* const pipe = ::popen((python + " " + program + " >" + path("out") + " 2>" + path("errors")).c_str(), "r");
  ASSERT_EQ(::pclose(pipe), 0) << std::ifstream(path("errors")).rdbuf();

  std::ifstream lines(path("out"));
  size_t compared = 0;
  for (std::string line; std::getline(lines, line); ++compared) {
    const json theirs = json::parse(line);
    const std::string name = theirs["name"];
    const Task& task = tasks().at(name);
    const Learner learn(tensor_loaders(train, valid, {.batch_size = 8, .shuffle = false}), net(),
                        {.loss = cross_entropy(),
                         .opt_func = task.optimizer,
                         .metrics = {accuracy()},
                         .splitter = child_groups({0, 3}),
                         .path = folder_});
    learn.add(std::make_shared<Losses>());
    if (task.clips) learn.add(GradientClip(0.5));
    learn.no_logging([&] { task.fit(learn); });

    const auto wanted = theirs["losses"].get<std::vector<double>>();
    const auto& given = learn.find<Losses>()->values;
    ASSERT_EQ(given.size(), wanted.size()) << name;
    double most = 0;
    for (size_t i = 0; i < wanted.size(); ++i) most = std::max(most, std::abs(given[i] - wanted[i]));
    std::cout << name << ": " << wanted.size() << " losses within " << most << std::endl;
    EXPECT_LE(most, 1e-6) << name;
    EXPECT_LT(std::accumulate(wanted.end() - 6, wanted.end(), 0.0),
              std::accumulate(wanted.begin(), wanted.begin() + 6, 0.0))
        << name << " learns";
    const auto values = learn.validate();
    ASSERT_EQ(values.size(), theirs["valid"].size());
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_NEAR(values[i], theirs["valid"][i].get<double>(), 1e-6) << name << " " << i;
  }
  EXPECT_EQ(compared, tasks().size());
}

}  // namespace
}  // namespace hasten::learner
