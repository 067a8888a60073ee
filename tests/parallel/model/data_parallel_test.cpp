#include "hasten/parallel/model/data_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>

#include "hasten/core/error.h"
#include "support/models.h"

namespace hasten::parallel {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

const std::vector<c10::Device> kTwo = {c10::kCPU, c10::kCPU};

// What forward saw; clones share it.
struct Sightings {
  std::mutex mutex;
  std::multiset<int64_t> batch_sizes;
  std::set<std::thread::id> threads;
};

struct CloneableCnnImpl : torch::nn::Cloneable<CloneableCnnImpl> {
  CloneableCnnImpl() { reset(); }
  void reset() override {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 6, 5).padding(2)));
    norm = register_module("norm", torch::nn::BatchNorm2d(6));
    head = register_module("head", torch::nn::Linear(6 * 4 * 4, 4));
  }
  at::Tensor forward(const at::Tensor& x) {
    {
      const std::lock_guard lock(sightings->mutex);
      sightings->batch_sizes.insert(x.size(0));
      sightings->threads.insert(std::this_thread::get_id());
    }
    return head(torch::max_pool2d(torch::relu(norm(conv(x))), 2).flatten(1));
  }
  std::shared_ptr<Sightings> sightings = std::make_shared<Sightings>();
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(CloneableCnn);

torch::nn::Sequential make_mlp() {
  return torch::nn::Sequential(torch::nn::Linear(8, 16), torch::nn::Tanh(), torch::nn::Linear(16, 4));
}

// 10 steps on the problem's first 23 samples, which do not divide by two.
template <class Model, class Call>
std::vector<at::Tensor> train_on(Model& model, const Call& call, const std::string& kind) {
  torch::set_num_threads(1);  // or each part starts a pool of its own in every step
  testing::initialise(*model, 3);
  const auto problem = testing::problem_for(kind);
  const auto inputs = problem.inputs.narrow(0, 0, 23), targets = problem.targets.narrow(0, 0, 23);
  torch::optim::Adam optimizer(model->parameters(), 1e-2);
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(call(inputs), targets).backward();
    optimizer.step();
  }
  return model->parameters();
}

template <class Model>
void expect_the_same_training(Model alone, Model model, const std::string& kind) {
  const auto parallel = data_parallel(model, kTwo);

  const auto expected = train_on(
      alone, [&](const at::Tensor& x) { return alone->forward(x); }, kind);
  const auto mine = train_on(
      model, [&](const at::Tensor& x) { return parallel(x); }, kind);

  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::allclose(mine[i], expected[i], 1e-6, 1e-6)) << kind << i;
  }
}

TEST(DataParallel, TrainsAnMlpAsOneDeviceDoes) {
  expect_the_same_training(make_mlp(), make_mlp(), "mlp");
}

TEST(DataParallel, TrainsACnnAsOneDeviceDoes) {
  CloneableCnn alone, model;
  alone->norm->eval();
  model->norm->eval();
  expect_the_same_training(alone, model, "cnn");
}

struct CloneableReaderImpl : torch::nn::Cloneable<CloneableReaderImpl> {
  CloneableReaderImpl() { reset(); }
  void reset() override {
    using torch::nn::TransformerEncoderLayerOptions;
    table = register_module("table", torch::nn::Embedding(20, 8));
    gru = register_module("gru", torch::nn::GRU(torch::nn::GRUOptions(8, 8).batch_first(true)));
    layer = register_module("layer", torch::nn::TransformerEncoderLayer(
                                         TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0.0)));
    head = register_module("head", torch::nn::Linear(8, 4));
  }
  at::Tensor forward(const at::Tensor& tokens) {
    const at::Tensor read = std::get<0>(gru(table(tokens)));
    return head(layer(read.transpose(0, 1)).mean(0));
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::GRU gru{nullptr};
  torch::nn::TransformerEncoderLayer layer{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(CloneableReader);

TEST(DataParallel, TrainsAnEmbeddingWithAGruAndATransformerAsOneDeviceDoes) {
  CloneableReader alone, model;
  // Attention's bias of keys has no gradient but rounding, of which Adam makes a step in single precision.
  alone->to(at::kDouble);
  model->to(at::kDouble);
  expect_the_same_training(alone, model, "embedding");
}

TEST(DataParallel, EveryDeviceRunsItsPartInAThreadOfItsOwn) {
  CloneableCnn model;
  data_parallel(model, {c10::kCPU, c10::kCPU, c10::kCPU})(torch::zeros({7, 1, 8, 8}));

  EXPECT_THAT(model->sightings->batch_sizes, UnorderedElementsAre(3, 3, 1));
  EXPECT_EQ(model->sightings->threads.size(), 3);
  EXPECT_EQ(model->sightings->threads.count(std::this_thread::get_id()), 1);
}

TEST(DataParallel, ReplicasFollowTheModelsValuesModesAndBuffers) {
  CloneableCnn model;
  const auto parallel = data_parallel(model, kTwo);
  const at::Tensor x = torch::randn({6, 1, 8, 8});
  parallel(x);
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.mul_(0.5);
    model->norm->running_mean.fill_(0.3);
    model->eval();

    EXPECT_TRUE(torch::allclose(parallel(x), model(x), 1e-6, 1e-6));
  }
}

TEST(DataParallel, RunningStatisticsAreThoseOfTheFirstPart) {
  CloneableCnn alone, model;
  testing::initialise(*alone, 3);
  testing::initialise(*model, 3);
  const at::Tensor x = torch::randn({6, 1, 8, 8});

  data_parallel(model, kTwo)(x);
  alone(x.narrow(0, 0, 3));

  EXPECT_TRUE(torch::allclose(model->norm->running_var, alone->norm->running_var));
  EXPECT_EQ(model->norm->num_batches_tracked.item<int64_t>(), 1);
}

TEST(DataParallel, FrozenParametersGetNoGradientAndInputsGetTheirs) {
  auto model = make_mlp();
  const auto parallel = data_parallel(model, kTwo);
  model[0]->as<torch::nn::Linear>()->weight.set_requires_grad(false);
  const at::Tensor x = torch::randn({5, 8}).requires_grad_(), y = x.detach().clone().requires_grad_();

  parallel(x).sum().backward();
  EXPECT_FALSE(model[0]->as<torch::nn::Linear>()->weight.grad().defined());
  model->forward(y).sum().backward();

  EXPECT_TRUE(torch::allclose(x.grad(), y.grad(), 1e-6, 1e-6));
}

TEST(DataParallel, WithoutGradientsNoGraphIsMadeInAnyThread) {
  auto model = make_mlp();
  const torch::NoGradGuard no_grad;

  EXPECT_FALSE(data_parallel(model, kTwo)(torch::randn({4, 8})).requires_grad());
}

TEST(DataParallel, RandomNumbersOfTheProgramAreNotDrawn) {
  auto model = make_mlp();
  torch::manual_seed(4);
  const at::Tensor expected = torch::rand({3});
  torch::manual_seed(4);

  const auto parallel = data_parallel(model, kTwo);

  EXPECT_TRUE(torch::equal(torch::rand({3}), expected));
}

struct StructuredImpl : torch::nn::Cloneable<StructuredImpl> {
  void reset() override {}
  std::map<std::string, at::Tensor> forward(const std::pair<at::Tensor, at::Tensor>& pair, double factor) {
    if (factor < 0) throw std::runtime_error("part of " + std::to_string(pair.first.size(0)));
    return {{"product", pair.first * pair.second * factor}, {"sum", pair.first.sum()}};
  }
};
TORCH_MODULE(Structured);

TEST(DataParallel, StructuresAreScatteredAndGatheredAndScalarsBecomeAVector) {
  Structured model;
  const auto parallel = data_parallel(model, kTwo);
  const at::Tensor rows = torch::arange(1., 6.);

  const auto output = parallel(std::pair{rows, torch::tensor(10.)}, 2.0);

  EXPECT_TRUE(torch::equal(output.at("product"), rows * 20));
  EXPECT_TRUE(torch::equal(output.at("sum"), torch::tensor({6., 9.})));
}

template <class Fn>
std::string words_of(const Fn& fn) {
  try {
    fn();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(DataParallel, WhatAPartThrowsComesOutWhenAllHaveEnded) {
  Structured model;
  const auto parallel = data_parallel(model, kTwo);

  EXPECT_EQ(words_of([&] { parallel(std::pair{torch::ones({3}), torch::ones({3})}, -1.0); }), "part of 2");
}

TEST(DataParallel, WhatCannotWorkIsRefusedByName) {
  auto mlp = make_mlp();
  testing::Mlp not_cloneable;
  Structured model;
  const std::vector<c10::Device> meta = {c10::kMeta}, none;

  EXPECT_THAT(words_of([&] { data_parallel(mlp, meta); }),
              HasSubstr("parameter '0.weight' is on cpu, the first device is meta"));
  EXPECT_THAT(words_of([&] { data_parallel(mlp, none); }), HasSubstr("the list of devices is empty"));
  EXPECT_THAT(words_of([&] { data_parallel(not_cloneable, kTwo); }), HasSubstr("MlpImpl' cannot be replicated"));
  EXPECT_THAT(words_of([&] { data_parallel(not_cloneable, kTwo); }), HasSubstr("torch::nn::Cloneable"));
  EXPECT_THAT(words_of([&] {
                data_parallel(model, kTwo)(std::pair{torch::ones({3}), torch::ones({2})}, 1.0);
              }),
              HasSubstr("inputs have 3 and 2 rows"));
}

// In a process of its own, which may start no thread.
void run_without_threads() {
  constexpr unsigned kNobody = 65534;
  const rlimit none = {0, 0};
  if (setrlimit(RLIMIT_NPROC, &none) != 0) _exit(2);
  if (getuid() == 0 && setuid(kNobody) != 0) _exit(2);  // root has no limit
  try {
    detail::run_in_threads(3, [](size_t) {});
  } catch (const std::system_error&) {
    _exit(0);
  }
  _exit(1);
}

TEST(DataParallel, WhereNoThreadMayBeStartedIsAnErrorAndNotTheProgramsEnd) {
  EXPECT_EXIT(run_without_threads(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace hasten::parallel
