#include "hasten/parallel/model/jit_module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <sstream>

#include "hasten/parallel/ddp/ddp.h"
#include "hasten/parallel/model/prepared_model.h"
#include "support/models.h"
#include "support/ranks.h"

namespace hasten::parallel {
namespace {

using process::Process;
using ::testing::ElementsAre;
using testing::run_ranks;

// tanh(x W) in a submodule, twice that in training, and a count of calls.
torch::jit::Module make_script() {
  auto generator = at::detail::createCPUGenerator(3);
  torch::jit::Module inner("Inner");
  inner.register_parameter("weight", at::randn({8, 4}, generator).requires_grad_(), /*is_buffer=*/false);
  inner.define("def forward(self, x):\n    return torch.tanh(torch.mm(x, self.weight))\n");
  torch::jit::Module script("Script");
  script.register_parameter("scale", torch::full({4}, 2.0).requires_grad_(), /*is_buffer=*/false);
  script.register_buffer("calls", torch::zeros({1}));
  script.register_attribute("training", c10::BoolType::get(), true);
  script.register_module("inner", inner);
  script.define(R"(
def forward(self, x):
    self.calls.add_(1)
    out = self.inner.forward(x) * self.scale
    if self.training:
        out = out * 2
    return out
)");
  return script;
}

TEST(JitModule, NamesAndTensorsAreTheScripts) {
  auto script = make_script();
  const JitModule module(script);

  EXPECT_THAT(module->named_parameters().keys(), ElementsAre("scale", "inner.weight"));
  EXPECT_THAT(module->named_buffers().keys(), ElementsAre("calls"));
  EXPECT_TRUE(
      module->named_parameters()["inner.weight"].is_same(script.attr("inner").toModule().attr("weight").toTensor()));
}

TEST(JitModule, RunsAsTheScriptInItsMode) {
  JitModule module(make_script());
  const PreparedModel<JitModule> model(std::make_shared<JitModule>(module),
                                       std::make_shared<Ddp>(*module, comm::Group()));
  const at::Tensor x = torch::ones({2, 8});

  const at::Tensor training = model(x).toTensor();
  model->eval();
  const at::Tensor evaluating = model(x).toTensor();

  EXPECT_TRUE(torch::equal(training, evaluating * 2));
  EXPECT_FALSE(module->jit().is_training());
  EXPECT_EQ(module->named_buffers()["calls"].item<double>(), 2);
}

TEST(JitModule, ConversionsReachTheScript) {
  JitModule module(make_script());

  module->to(at::kDouble);

  EXPECT_EQ(module->forward(torch::ones({1, 8}, at::kDouble)).toTensor().scalar_type(), at::kDouble);
}

std::vector<at::Tensor> train_script(int rank, const comm::Group& group, torch::jit::Module script) {
  JitModule module(script);
  const Ddp ddp(*module, group, {.buckets = {.first_bytes = 1, .bytes = 1}});
  torch::optim::SGD optimizer(module->parameters(), 0.1);
  const auto problem = testing::problem_for("mlp");
  const int world_size = group.world_size();
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    const at::Tensor output = module->forward(problem.inputs.chunk(world_size)[rank]).toTensor();
    torch::nn::functional::cross_entropy(output, problem.targets.chunk(world_size)[rank]).backward();
    optimizer.step();
  }
  // Saved and loaded with its code, as scripts are.
  std::stringstream file;
  script.save(file);
  std::vector<at::Tensor> parameters;
  for (const auto& parameter : torch::jit::load(file).parameters()) parameters.push_back(parameter.detach());
  return parameters;
}

TEST(JitModuleRanks, RanksEqualOneRankAndEachOther) {
  const auto alone = train_script(0, comm::Group(), make_script());
  run_ranks(2, [&](Process& process) {
    const auto mine = train_script(process.rank(), process.group(), make_script());

    ASSERT_EQ(mine.size(), 2);
    for (size_t i = 0; i < alone.size(); ++i) {
      EXPECT_TRUE(torch::allclose(mine[i], alone[i], 1e-5, 1e-6)) << i;
      const auto everybodys = process.group().all_gather(mine[i]);
      EXPECT_TRUE(torch::equal(everybodys[0], everybodys[1])) << i;
    }
  });
}

TEST(JitModule, ACloneHasTensorsOfItsOwn) {
  JitModule module(make_script());
  const at::Tensor x = torch::randn({5, 8});
  const auto copy = std::dynamic_pointer_cast<JitModuleImpl>(module->clone());

  copy->forward(x).toTensor().sum().backward();

  EXPECT_FALSE(module->parameters()[0].grad().defined());
  EXPECT_TRUE(copy->parameters()[0].grad().defined());
}

}  // namespace
}  // namespace hasten::parallel
