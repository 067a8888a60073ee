// The same small tasks in fastai and in the Learner: losses of every batch, what validation gives, augmented passes,
// files of predictions, BLEU.
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "hasten/checkpoint/state_dict.h"
#include "hasten/checkpoint/weights.h"
#include "hasten/learner/callbacks.h"
#include "hasten/learner/learner.h"
#include "hasten/learner/metrics.h"
#include "hasten/optim/fastai.h"
#include "support/python.h"

namespace hasten::learner {
namespace {

using nlohmann::json;
namespace nn = torch::nn;

// What all programs begin with: the data and the weights in start.pt.
const std::string kCommon = R"(
import json, pathlib
import torch
import torch.nn.functional as F
from contextlib import contextmanager
from fastai.callback.core import Callback
from fastai.callback.progress import *
from fastai.callback.schedule import *
from fastai.callback.training import GradientClip
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from fastai.losses import CrossEntropyLossFlat
from fastai.metrics import CorpusBLEUMetric, accuracy
from fastai.optimizer import *
torch.set_num_threads(1)
start = torch.load('start.pt', weights_only=True)
class Batches(list):
    device, after_batch = torch.device('cpu'), None
    def to(self, device): return self
def batches(x, y): return [(start[x][i:i + 8], start[y][i:i + 8]) for i in range(0, len(start[x]), 8)]
def learner(**options):
    net = torch.nn.Sequential(torch.nn.Linear(6, 8, bias=False), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    net.load_state_dict({key[4:]: value.clone() for key, value in start.items() if key.startswith('net.')})
    return Learner(DataLoaders(Batches(batches('x', 'y')), Batches(batches('valid_x', 'valid_y'))), net, **options)
)";

// Prints a line a task.
const std::string kFits = R"(
class Watch(Callback):
    def __init__(self): self.seen = []
    def after_batch(self):
        if self.training: self.seen.append(self.loss.item())
def run(name, fit, opt_func=Adam, cbs=()):
    watch = Watch()
    learn = learner(loss_func=F.cross_entropy, metrics=accuracy, opt_func=opt_func, cbs=[watch, *cbs],
                    splitter=lambda m: [[*m[0].parameters(), *m[1].parameters()], [*m[3].parameters()]])
    with learn.no_bar(), learn.no_logging():
        fit(learn)
        valid = list(learn.validate())
    print(json.dumps({'name': name, 'losses': watch.seen, 'valid': valid}))
run('one_cycle', lambda learn: learn.fit_one_cycle(3, slice(1e-3, 1e-2)))
run('fine_tune', lambda learn: learn.fine_tune(2, 1e-2))
run('flat_cos ranger', lambda learn: learn.fit_flat_cos(2, 1e-2), ranger)
run('sgdr clip', lambda learn: learn.fit_sgdr(2, 1, 1e-2), Lamb, [GradientClip(0.5)])
run('decay', lambda learn: learn.fit(2, 1e-2, wd=0.1), RMSProp)
run('larc', lambda learn: learn.fit(2, 0.5), Larc)
)";

// Augmented passes, each with another factor, beside the plain one.
const std::string kTta = R"(
class Augmented(Batches):
    def __init__(self, batches):
        super().__init__(batches)
        self.dataset, self.split, self.passes = self, 1, 0
    @contextmanager
    def set_split_idx(self, split):
        before, self.split = self.split, split
        try: yield self
        finally: self.split = before
    def __iter__(self):
        if self.split == 1: return list.__iter__(self)
        self.passes += 1
        return iter([(x * (1 + 0.25 * self.passes), y) for x, y in list.__iter__(self)])
learn = learner(loss_func=CrossEntropyLossFlat())
with learn.no_bar(), learn.no_logging():
    for options in [{}, {'n': 2, 'beta': 0.5}, {'n': 3, 'use_max': True}]:
        preds, targets = learn.tta(dl=Augmented(batches('valid_x', 'valid_y')), **options)
        print(json.dumps({'options': options, 'preds': preds.tolist(), 'targets': targets.tolist()}))
)";

// A file a batch, and what the same names hold in the folders that the Learner has written.
const std::string kFiles = R"(
learn = learner(loss_func=CrossEntropyLossFlat())
for folder in ['theirs', 'their_targets']: pathlib.Path(folder).mkdir()
with learn.no_bar(), learn.no_logging():
    learn.get_preds(dl=Batches(batches('valid_x', 'valid_y')), with_preds=False, with_targs=False, save_preds=pathlib.Path('theirs'),
                    save_targs=pathlib.Path('their_targets'))
for theirs, ours in [('theirs', 'ours'), ('their_targets', 'our_targets')]:
    names = sorted(file.name for file in pathlib.Path(theirs).iterdir())
    pairs = [(torch.load(f'{theirs}/{name}', weights_only=True), torch.load(f'{ours}/{name}', weights_only=True)) for name in names]
    print(json.dumps({'names': names, 'ours': sorted(file.name for file in pathlib.Path(ours).iterdir()), 'same_type': all(a.dtype == b.dtype for a, b in pairs),
                      'difference': max((a - b).abs().max().item() for a, b in pairs)}))
)";

// BLEU of pairs of batches [rows, steps, words] and [rows, steps]: all batches of a corpus in turn.
const std::string kBleu = R"(
class Validating:
    training = False
for corpus in range(int(start['num_corpora'])):
    metric = CorpusBLEUMetric(vocab_sz=9)
    metric.reset()
    for batch in range(2):
        learn = Validating()
        learn.pred, learn.y = start[f'pred_{corpus}_{batch}'], start[f'targ_{corpus}_{batch}']
        metric.accumulate(learn)
    print(json.dumps(float(metric.value)))
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
      {"decay", {[](const Learner& learn) { learn.fit(2, 1e-2, {.wd = 0.1}); }, fastai::rms_prop()}},
      {"larc", {[](const Learner& learn) { learn.fit(2, 0.5); }, fastai::larc()}}};
  return kTasks;
}

class LearnerPeers : public hasten::testing::InPython {
 protected:
  LearnerPeers() : InPython({"torch", "fastai"}) {}

  void SetUp() override {
    InPython::SetUp();
    if (IsSkipped()) return;
    if (run_python("import fastai").starts_with("failed")) GTEST_SKIP() << python_ << " has no fastai.";
  }

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

  /// Returns what the program prints, a line each; it finds `more` in start.pt as well.
  std::vector<json> lines_of(const std::string& program, const checkpoint::StateDict& more = {}) const {
    checkpoint::StateDict start = more;
    start.set("x", train_.data);
    start.set("y", train_.target);
    start.set("valid_x", valid_.data);
    start.set("valid_y", valid_.target);
    const auto weights = net();
    for (const auto& item : weights->named_parameters()) start.set("net." + item.key(), item.value().detach());
    for (const auto& item : weights->named_buffers()) start.set("net." + item.key(), item.value());
    checkpoint::save(start, path("start.pt"));
    const auto output = run_python(kCommon + program, "", "2>" + path("errors"));
    std::vector<json> lines;
    if (output.starts_with("failed")) {
      ADD_FAILURE() << output << std::ifstream(path("errors")).rdbuf();
      return lines;
    }
    std::istringstream stream(output);
    for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line));
    return lines;
  }

  torch::data::Example<> train_ = rows(44, 1), valid_ = rows(20, 2);  // the last batches are short
};

TEST_F(LearnerPeers, LossesOfEveryBatchAndValidationAreFastais) {
  const auto lines = lines_of(kFits);

  for (const json& theirs : lines) {
    const std::string name = theirs["name"];
    const Task& task = tasks().at(name);
    const Learner learn(tensor_loaders(train_, valid_, {.batch_size = 8, .shuffle = false}), net(),
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
  EXPECT_EQ(lines.size(), tasks().size());
}

TEST_F(LearnerPeers, AugmentedPassesAreMixedAsFastaisTta) {
  const auto lines = lines_of(kTta);
  ASSERT_EQ(lines.size(), 3U);

  for (const json& theirs : lines) {
    int64_t batches = 0;
    auto loaders = tensor_loaders(train_, valid_, {.batch_size = 8, .shuffle = false});
    loaders.augment = [&](const Batch& batch) {  // 3 batches a pass
      const double factor = 1 + 0.25 * static_cast<double>(1 + batches++ / 3);
      return Batch{{batch.inputs.front() * factor}, batch.targets};
    };
    const Learner learn(loaders, net(), {.loss = cross_entropy(), .path = folder_});
    const json& options = theirs["options"];

    const auto given = learn.tta(
        {.n = options.value("n", 4), .beta = options.value("beta", 0.25), .use_max = options.value("use_max", false)});

    ASSERT_EQ(given.preds.sizes(), at::IntArrayRef({20, 3}));
    for (int64_t i = 0; i < 20; ++i) {
      const auto row = theirs["preds"][static_cast<size_t>(i)].get<std::vector<double>>();
      EXPECT_TRUE(at::allclose(given.preds[i].to(at::kDouble), at::tensor(row, at::kDouble), 0, 1e-6))
          << options << " row " << i << "\n"
          << given.preds[i];
      EXPECT_EQ(given.targets[i].item<int64_t>(), theirs["targets"][static_cast<size_t>(i)].get<int64_t>());
    }
    EXPECT_FALSE(at::allclose(given.preds, learn.get_preds().preds)) << "augmented passes change something";
  }
}

TEST_F(LearnerPeers, FilesOfPredictionsHaveFastaisNamesAndContents) {
  const Learner learn(tensor_loaders(train_, valid_, {.batch_size = 8, .shuffle = false}), net(),
                      {.loss = cross_entropy(), .path = folder_});
  learn.get_preds({.with_preds = false, .save_preds = path("ours"), .save_targs = path("our_targets")});

  const auto lines = lines_of(kFiles);

  ASSERT_EQ(lines.size(), 2U);
  for (const json& line : lines) {
    EXPECT_EQ(line["names"], json({"0", "1", "2"}));
    EXPECT_EQ(line["ours"], line["names"]);
    EXPECT_TRUE(line["same_type"]);
    EXPECT_LE(line["difference"].get<double>(), 1e-6);
  }
}

TEST_F(LearnerPeers, BleuOfRandomCorporaIsFastais) {
  constexpr int64_t kWords = 9, kRows = 5, kCorpora = 12;
  checkpoint::StateDict more{{"num_corpora", at::tensor(kCorpora)}};
  std::vector<double> given;
  torch::manual_seed(7);
  for (int64_t corpus = 0; corpus < kCorpora; ++corpus) {
    const auto metric = corpus_bleu(kWords);
    metric.reset();
    for (int64_t batch = 0; batch < 2; ++batch) {
      // From the same sentences to unrelated ones; predictions shorter than, as long as, or longer than the targets.
      const int64_t steps = 6 + corpus % 3, other_steps = 7 + batch;
      const auto targets = at::randint(kWords, {kRows, other_steps}, at::kLong);
      auto words = at::randint(kWords, {kRows, steps}, at::kLong);
      const int64_t common = std::min(steps, other_steps);
      const auto keeps = at::rand({kRows, common}) < 1 - static_cast<double>(corpus) / (kCorpora - 1);
      words.slice(1, 0, common).copy_(at::where(keeps, targets.slice(1, 0, common), words.slice(1, 0, common)));
      const auto predictions = at::one_hot(words, kWords).to(at::kFloat) + at::rand({kRows, steps, kWords}) * 0.5;
      more.set(text("pred_", corpus, "_", batch), predictions);
      more.set(text("targ_", corpus, "_", batch), targets);
      metric.accumulate({.prediction = predictions, .target = targets, .size = kRows});
    }
    given.push_back(metric.value(comm::Group()));
  }

  const auto lines = lines_of(kBleu, more);

  ASSERT_EQ(lines.size(), given.size());
  for (size_t i = 0; i < given.size(); ++i) EXPECT_NEAR(given[i], lines[i].get<double>(), 1e-9) << "corpus " << i;
  EXPECT_GT(given.front(), 0.6);
  EXPECT_LT(given.back(), 0.2);
}

}  // namespace
}  // namespace hasten::learner
