// Models under every plan and layout: styles of plans, grouped heads, generation, clones, and what is refused by name.
#include <c10/util/ScopeExit.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "hasten/accelerator.h"
#include "hasten/core/log.h"
#include "hasten/core/log_sink.h"
#include "hasten/models/generate.h"
#include "hasten/models/gpt2.h"
#include "hasten/models/llama.h"
#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/tensor/tensor_parallel.h"
#include "offload/stack_net.h"
#include "support/parallel_models.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using namespace hasten::testing;
using ::testing::Each;
using ::testing::HasSubstr;
using Plan = std::vector<std::pair<std::string, std::string>>;
using ModelPair = std::pair<at::Tensor, at::Tensor>;

template <class Net>
std::vector<std::shared_ptr<Net>> models_of(int count, const std::function<std::shared_ptr<Net>()>& make) {
  std::vector<std::shared_ptr<Net>> nets;
  for (int i = 0; i < count; ++i) {
    torch::manual_seed(4);
    nets.push_back(make());
  }
  return nets;
}

// ---- Identity: ten steps of AdamW. In double precision, for in float32 the last bits of sums over ranks grow from
// step to step where a gradient is near zero, of which AdamW makes whole steps.

constexpr int kIdentitySteps = 10;

struct IdentityCase {
  parallel::ParallelOptions layout;
  int data = 1;
};

ParallelRun identity_run(torch::nn::Module& net, const std::function<at::Tensor()>& step_loss) {
  torch::optim::AdamW adamw(net.parameters(), torch::optim::AdamWOptions(1e-3));
  ParallelRun run;
  for (int step = 0; step < kIdentitySteps; ++step) {
    adamw.zero_grad();
    const at::Tensor loss = step_loss();
    loss.backward();
    adamw.step();
    run.losses.push_back(loss.item<double>());
  }
  for (const auto& item : net.named_parameters()) run.weights[item.key()] = item.value().detach().clone();
  return run;
}

// A model of any class behind one handle.
struct AnyModelImpl : torch::nn::Module {
  AnyModelImpl(const ParallelModel& of, std::shared_ptr<torch::nn::Module> made) : loss(of.loss) {
    net = register_module("net", std::move(made));
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) { return loss(*net, x, y); }
  std::shared_ptr<torch::nn::Module> net;
  decltype(ParallelModel::loss) loss;
};

class ParallelIdentity : public ::testing::TestWithParam<ParallelModel> {
 protected:
  static std::shared_ptr<AnyModelImpl> make() {
    torch::manual_seed(0);
    auto made = std::make_shared<AnyModelImpl>(GetParam(), GetParam().make());
    made->to(at::kDouble);
    return made;
  }

  static void expect_ten_steps(const IdentityCase& is) {
    const auto batch = parallel_batch();
    const auto alone = make();
    const auto expected = identity_run(*alone, [&] { return alone->forward(batch.x, batch.y); });
    const auto& layout = is.layout;
    const int world = is.data * layout.tp * layout.cp * layout.sp * layout.pp;
    std::vector<std::shared_ptr<AnyModelImpl>> nets;
    for (int rank = 0; rank < world; ++rank) nets.push_back(make());
    run_ranks(world, [&](process::Process& process) {
      const Accelerator accelerator(process, {.parallel = layout});
      auto net = nets[static_cast<size_t>(process.rank())];
      torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-3));
      auto [model, optimizer] = accelerator.prepare(net, adamw);
      const int64_t rows = batch.x.size(0) / is.data;
      const int64_t first = rows * (process.rank() / (layout.tp * layout.cp * layout.sp) % is.data);
      const ModelPair mine(batch.x.narrow(0, first, rows), batch.y.narrow(0, first, rows));
      for (int step = 0; step < kIdentitySteps; ++step) {
        optimizer.zero_grad();
        at::Tensor loss;
        if (layout.pp > 1) {
          loss = accelerator.forward_backward(
              mine, [&, &model = model](const ModelPair& part) { return model(part.first, part.second); });
        } else {
          loss = model(mine.first, mine.second);
          accelerator.backward(loss);
          loss = accelerator.reduce(parallel::whole_value(loss).detach(), {.op = comm::ReduceOp::kMean});
        }
        optimizer.step();
        EXPECT_NEAR(loss.item<double>(), expected.losses[static_cast<size_t>(step)], 1e-5) << "step " << step;
      }
      for (const auto& item : net->named_parameters()) {
        const auto ends = [&](const std::string& end) { return item.key().ends_with(end); };
        const auto& without = GetParam().without_gradient;
        at::Tensor off = (parallel::gather_parameter(item.value()) - expected.weights.at(item.key())).abs();
        if (std::any_of(without.begin(), without.end(), ends)) continue;
        // Softmax does not see keys' biases, whose gradients are rounding alone.
        if (item.key().ends_with("c_attn.bias")) off.narrow(0, off.size(0) / 3, off.size(0) / 3).zero_();
        EXPECT_LT(off.max().item<double>(), 1e-4) << item.key();
      }
    });
  }
};
INSTANTIATE_TEST_SUITE_P(All, ParallelIdentity, ::testing::ValuesIn(parallel_models()),
                         [](const auto& info) { return info.param.name; });

TEST_P(ParallelIdentity, OfTenStepsWithCutLayers) {
  expect_ten_steps({{.tp = 2}});
  expect_ten_steps({{.tp = 2, .sequence_parallel = true}});
}
TEST_P(ParallelIdentity, OfTenStepsOnStages) {
  expect_ten_steps({{.pp = 2, .microbatches = 4}});
}
TEST_P(ParallelIdentity, OfTenStepsBesideDataParallelism) {
  expect_ten_steps({{.dp_replicate = 2, .tp = 2}, 2});
  expect_ten_steps({{.dp_shard = 2, .tp = 2}, 2});
  expect_ten_steps({{.dp_shard = 2, .pp = 2, .microbatches = 2}, 2});
}

class ParallelIdentityOfMany : public ParallelIdentity {};
INSTANTIATE_TEST_SUITE_P(All, ParallelIdentityOfMany, ::testing::ValuesIn(parallel_models()),
                         [](const auto& info) { return info.param.name; });

TEST_P(ParallelIdentityOfMany, OfTenStepsOnFourParts) {
  expect_ten_steps({{.tp = 4}});
  expect_ten_steps({{.pp = 4, .microbatches = 4}});
}
TEST_P(ParallelIdentityOfMany, OfTenStepsWithAllAtOnce) {
  expect_ten_steps({{.dp_shard = 2, .tp = 2, .pp = 2, .sequence_parallel = true, .microbatches = 2}, 2});
}

// ---- Styles of plans.

// Wide layers whose outputs the code takes as whole ones, gated ones in two blocks, and a table cut on features.
struct StyledNetImpl : torch::nn::Module {
  StyledNetImpl() {
    register_module("table", table);
    register_module("mix", mix);
    register_module("back", back);
    register_module("gate_up", gate_up);
    register_module("down", down);
    register_module("norm", norm);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor h = table(ids);
    h = h + back(mix(h).flip(-1));
    const auto halves = gate_up(norm(h)).chunk(2, -1);
    h = h + down(at::silu(halves[0]) * halves[1]);
    return head(h);
  }
  torch::nn::Embedding table{96, 16};
  torch::nn::Linear mix{16, 24}, back{24, 16}, gate_up{16, 64}, down{32, 16};
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({16})};
  torch::nn::Linear head{16, 96};
};

struct StyledRun {
  std::vector<double> losses = {};
  std::map<std::string, at::Tensor> weights = {};
};

template <class Net, class Forward>
StyledRun styled_run(const process::Process& process, const parallel::ParallelOptions& layout,
                     const std::shared_ptr<Net>& net, const Forward& forward) {
  const Accelerator accelerator(process, {.parallel = layout});
  torch::optim::SGD sgd(net->parameters(), 0.2);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto batch = parallel_batch();
  StyledRun run;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const at::Tensor logits = forward(model, batch.x);
    const at::Tensor loss = torch::nn::functional::cross_entropy(logits.flatten(0, 1), batch.y.flatten());
    accelerator.backward(loss);
    accelerator.clip_grad_norm_(net->parameters(), 1.0);
    optimizer.step();
    run.losses.push_back(parallel::whole_value(loss).template item<double>());
  }
  for (const auto& item : net->named_parameters()) {
    run.weights[item.key()] = parallel::gather_parameter(item.value()).detach().clone();
  }
  return run;
}

template <class Net, class Forward>
void expect_styled_as_alone(const std::function<std::shared_ptr<Net>()>& make,
                            const std::vector<parallel::ParallelOptions>& layouts, const Forward& forward) {
  const auto alone = models_of<Net>(1, make);
  StyledRun expected;
  run_ranks(1, [&](process::Process& process) { expected = styled_run(process, {}, alone[0], forward); });
  for (const auto& layout : layouts) {
    const int world = layout.tp * layout.cp * layout.sp;
    const auto nets = models_of<Net>(world, make);
    run_ranks(world, [&](process::Process& process) {
      const auto own = styled_run(process, layout, nets[static_cast<size_t>(process.rank())], forward);
      for (size_t step = 0; step < own.losses.size(); ++step) {
        EXPECT_NEAR(own.losses[step], expected.losses[step], 2e-5) << "step " << step;
      }
      for (const auto& [name, wanted] : expected.weights) {
        ASSERT_EQ(own.weights.at(name).sizes(), wanted.sizes()) << name;
        EXPECT_LT((own.weights.at(name) - wanted).abs().max().template item<double>(), 2e-5) << name;
      }
    });
  }
}

TEST(ParallelStyles, OfEveryNameTrainAsOnOneProcess) {
  const auto make = [] { return std::make_shared<StyledNetImpl>(); };
  const auto forward = [](const auto& model, const at::Tensor& x) { return model(x); };
  const std::vector<Plan> plans = {
      {{"mix", "colwise_rep"}, {"back", "rowwise_rep"}},
      {{"mix", "colwise_gather_output"}, {"back", "rowwise_split_input"}},
      {{"mix", "colwise"}, {"back", "rowwise"}},
      {{"gate_up", "packed_colwise"}, {"down", "rowwise"}, {"norm", "sequence_parallel"}},
      {{"gate_up", "packed_colwise:2"}, {"down", "rowwise"}, {"table", "embedding_rowwise"}, {"head", "colwise"}},
      // Inputs of a product in blocks: gate_up's outputs lie as they are, the parts of down's inputs too.
      {{"back", "packed_rowwise:2"}, {"mix", "packed_colwise:2"}},
      {{"table", "embedding_colwise"}, {"head", "rowwise_rep"}, {"norm", "replicate"}, {"mix", "all_reduce"}},
      {{"table", "colwise_rep"}, {"head", "colwise_rep"}, {"norm", "replicated_with_grad_allreduce"}},
  };
  std::vector<parallel::ParallelOptions> layouts;
  for (const auto& plan : plans) {
    layouts.push_back({.tp = 2, .tensor_plan = plan});
    layouts.push_back({.tp = 4, .tensor_plan = plan});
    layouts.push_back({.tp = 2, .sequence_parallel = true, .tensor_plan = plan});
  }
  expect_styled_as_alone<StyledNetImpl>(make, layouts, forward);
}

TEST(ParallelStyles, AreWrittenOnceToTheLogWithTheirCuts) {
  const auto nets = models_of<StyledNetImpl>(2, [] { return std::make_shared<StyledNetImpl>(); });
  std::mutex mutex;
  std::vector<std::string> lines;
  setenv("HASTEN_LOG_LEVEL", "info", 1);
  const auto at_end = c10::make_scope_exit([] {
    set_log_sink(nullptr);
    unsetenv("HASTEN_LOG_LEVEL");
  });
  set_log_sink([&](LogLevel, std::string_view line) {
    const std::lock_guard lock(mutex);
    if (line.find("cut over tp 2") != std::string_view::npos) lines.emplace_back(line);
  });
  run_ranks(2, [&](process::Process& process) {
    const Accelerator accelerator(
        process, {.parallel = {.tp = 2, .tensor_plan = {{"gate_up", "packed_colwise"}, {"down", "rowwise"}}}});
    auto model = accelerator.prepare(nets[static_cast<size_t>(process.rank())]);
    auto again = accelerator.prepare(nets[static_cast<size_t>(process.rank())]);
  });
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines[0], HasSubstr("gate_up.weight dim 0 in 2 blocks"));
  EXPECT_THAT(lines[0], HasSubstr("down.weight dim 1"));
}

// ---- Models of other families.

models::LlamaConfig kin_config(int64_t heads, int64_t kv_heads) {
  models::LlamaConfig config;
  config.vocab_size = 97;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_hidden_layers = 2;
  config.num_attention_heads = heads;
  config.num_key_value_heads = kv_heads;
  config.max_position_embeddings = 64;
  return config;
}

const auto kCallLanguageModel = [](const auto& model, const at::Tensor& x) {
  return model(x, at::Tensor(), static_cast<models::KvCache*>(nullptr));
};

std::function<std::shared_ptr<models::CausalLmModule>()> by_type(const std::string& type) {
  return [=] {
    return models::make_causal_lm(core::Value::map({{"model_type", type},
                                                    {"vocab_size", 97},
                                                    {"hidden_size", 32},
                                                    {"intermediate_size", 48},
                                                    {"num_hidden_layers", 2},
                                                    {"num_attention_heads", 4},
                                                    {"num_key_value_heads", 2},
                                                    {"sliding_window", 5},
                                                    {"max_position_embeddings", 64}}));
  };
}

TEST(ParallelFamilies, OfMistralAndQwenTrainAsOnOneProcess) {
  for (const char* type : {"mistral", "qwen2"}) {
    SCOPED_TRACE(type);
    expect_styled_as_alone<models::CausalLmModule>(
        by_type(type), {{.tp = 2}, {.tp = 2, .sequence_parallel = true}, {.cp = 2}, {.sp = 2}}, kCallLanguageModel);
  }
}

TEST(ParallelFamilies, OfFewerKeyValueHeadsThanRanksTrainAsOnOneProcess) {
  for (const int64_t kv_heads : {1, 2}) {
    SCOPED_TRACE(kv_heads);
    expect_styled_as_alone<models::LlamaImpl>(
        [=] { return std::make_shared<models::LlamaImpl>(kin_config(4, kv_heads)); }, {{.sp = 4}, {.sp = 2}},
        kCallLanguageModel);
  }
}

// ---- Dimensions of samples.

TEST(ParallelParts, AreCutAlongTheDimensionsOfSamples) {
  const auto nets =
      models_of<models::Gpt2Impl>(3, [] { return std::dynamic_pointer_cast<models::Gpt2Impl>(gpt2_model().make()); });
  const auto batch = parallel_batch();
  const auto loss_alone = language_loss(nets[2]->forward(batch.x, {}, nullptr), batch.y);
  loss_alone.backward();
  run_ranks(2, [&](process::Process& process) {
    const Accelerator accelerator(process, {.parallel = {.pp = 2, .microbatches = 4, .chunk_dims = {1, 0, -1}}});
    auto net = nets[static_cast<size_t>(process.rank())];
    auto model = accelerator.prepare(net);
    // Samples of the first lie along dim 1, and every part has the third whole.
    using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
    const Three three(batch.x.t().contiguous(), batch.y, at::ones({3}));
    const at::Tensor loss = accelerator.forward_backward(three, [&](const Three& part) {
      EXPECT_EQ(std::get<0>(part).size(1), 2);
      EXPECT_EQ(std::get<2>(part).numel(), 3);
      const at::Tensor logits = model(std::get<0>(part).t(), at::Tensor(), nullptr);
      return language_loss(logits, std::get<1>(part)) * std::get<2>(part).mean();
    });
    EXPECT_NEAR(loss.item<double>(), loss_alone.item<double>(), 1e-5);
    const auto expected = nets[2]->named_parameters();
    for (const auto& item : net->named_parameters()) {
      if (item.value().numel() == 0) continue;
      EXPECT_LT((item.value().grad() - expected[item.key()].grad()).abs().max().item<double>(), 1e-5) << item.key();
    }
  });
}

// ---- Generation.

TEST(ParallelGeneration, GivesTheTokensOfOneProcess) {
  const auto prompt = parallel_batch().x.narrow(1, 0, 5).narrow(0, 0, 3);
  at::Tensor mask = at::ones_like(prompt);
  mask[0].slice(0, 0, 2).zero_();
  using Made = std::shared_ptr<models::CausalLmModule>;
  const std::vector<std::function<Made()>> makes = {
      [] { return Made(std::make_shared<models::Gpt2Impl>(small_gpt2_config(32, 2))); },
      [] { return Made(std::make_shared<models::LlamaImpl>(kin_config(4, 2))); }, by_type("qwen2")};
  for (const auto& make : makes) {
    for (const double temperature : {0.0, 0.8}) {
      const models::GenerateOptions options{
          .max_new_tokens = 9, .temperature = temperature, .top_k = 20, .seed = 11, .attention_mask = mask};
      const auto nets = models_of<models::CausalLmModule>(3, make);
      const at::Tensor expected = models::generate(*nets[2], prompt, options);
      run_ranks(2, [&](process::Process& process) {
        const Accelerator accelerator(process, {.parallel = {.tp = 2}});
        auto model = accelerator.prepare(nets[static_cast<size_t>(process.rank())]);
        EXPECT_TRUE(models::generate(*model.unwrap(), prompt, options).equal(expected)) << temperature;
      });
    }
  }
}

TEST(ParallelGeneration, KeepsCachesOfThisRanksHeads) {
  const auto nets =
      models_of<models::Gpt2Impl>(2, [] { return std::make_shared<models::Gpt2Impl>(small_gpt2_config(32, 1)); });
  const auto ids = parallel_batch().x.narrow(1, 0, 4);
  run_ranks(2, [&](process::Process& process) {
    const Accelerator accelerator(process, {.parallel = {.tp = 2, .strict = true}});
    auto model = accelerator.prepare(nets[static_cast<size_t>(process.rank())]);
    const at::NoGradGuard no_grad;
    models::KvCache cache(1, 16);
    (void)model.unwrap()->forward(ids, {}, &cache);
    const at::Tensor more = at::ones({8, 4, 1, 8});
    const auto [keys, values] = cache.append(0, more, more);
    EXPECT_TRUE(parallel::is_cut_value(keys));
    EXPECT_EQ(parallel::local_value(keys).size(1), 2);
    EXPECT_EQ(parallel::local_value(values).size(1), 2);
    EXPECT_EQ(keys.size(1), 4);
    EXPECT_EQ(keys.size(2), 5);
  });
}

TEST(ParallelGeneration, OnStagesIsRefusedByName) {
  const auto nets =
      models_of<models::Gpt2Impl>(2, [] { return std::make_shared<models::Gpt2Impl>(small_gpt2_config(32, 2)); });
  const auto words = run_ranks_collecting(2, [&](process::Process& process) {
    const Accelerator accelerator(process, {.parallel = {.pp = 2}});
    auto model = accelerator.prepare(nets[static_cast<size_t>(process.rank())]);
    (void)models::generate(*model.unwrap(), parallel_batch().x.narrow(1, 0, 4));
  });
  EXPECT_THAT(words, Each(HasSubstr("generate")));
  EXPECT_THAT(words, Each(HasSubstr("stages")));
  EXPECT_THAT(words, Each(HasSubstr("tp")));
}

// ---- What is refused before prepare.

std::vector<std::string> words_of_prepare(const parallel::ParallelOptions& layout,
                                          const std::function<void(const Accelerator&)>& fn) {
  return run_ranks_collecting(2, [&](process::Process& process) {
    const Accelerator accelerator(process, {.parallel = layout});
    fn(accelerator);
  });
}

struct ScriptInside : torch::nn::Module {
  explicit ScriptInside(torch::jit::Module script) : script(std::move(script)) {
    register_module("inner", this->script);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& x) { return head(script->forward(x).toTensor()); }
  parallel::JitModule script;
  torch::nn::Linear head{4, 4};
};

TEST(ParallelRefusals, OfScriptsAreByName) {
  const auto script = [] {
    torch::jit::Module made("Scripted");
    made.register_parameter("weight", at::ones({4, 4}), false);
    made.define("def forward(self, x):\n    return x @ self.weight\n");
    return made;
  };
  for (const auto& [layout, axis] : std::vector<std::pair<parallel::ParallelOptions, std::string>>{
           {{.tp = 2, .tensor_plan = {{"**", "colwise"}}}, "tp = 2"}, {{.pp = 2}, "pp = 2"}}) {
    const auto whole =
        words_of_prepare(layout, [&](const Accelerator& accelerator) { auto model = accelerator.prepare(script()); });
    EXPECT_THAT(whole, Each(HasSubstr(axis + " with a TorchScript module")));
    const auto inside = words_of_prepare(layout, [&](const Accelerator& accelerator) {
      auto model = accelerator.prepare(std::make_shared<ScriptInside>(script()));
    });
    EXPECT_THAT(inside, Each(HasSubstr(axis + " with a TorchScript module ('inner')")));
  }
}

class ParallelRefusalsInFolder : public offload::StackInFile {};

TEST_F(ParallelRefusalsInFolder, OfDispatchedModelsAreByName) {
  for (const auto& [layout, axis] : std::vector<std::pair<parallel::ParallelOptions, std::string>>{
           {{.tp = 2, .tensor_plan = {{"**", "colwise"}}}, "tp = 2"}, {{.pp = 2}, "pp = 2"}}) {
    // Limits below the model's size: weights are read while it runs.
    std::vector<offload::Dispatched<offload::Stack>> dispatched = {load(limited()), load(limited())};
    const auto words = run_ranks_collecting(2, [&, &layout = layout](process::Process& process) {
      const Accelerator accelerator(process, {.parallel = layout});
      auto model = accelerator.prepare(dispatched[static_cast<size_t>(process.rank())].model());
    });
    EXPECT_THAT(words, Each(HasSubstr(axis + " with a model whose weights a device map or a Placement has put")));
    EXPECT_THAT(words, Each(HasSubstr("undispatch")));
  }
}

// ---- Clones.

struct CloneableNetImpl : torch::nn::Cloneable<CloneableNetImpl> {
  CloneableNetImpl() { CloneableNetImpl::reset(); }
  void reset() override {
    up = register_module("up", torch::nn::Linear(8, 16));
    down = register_module("down", torch::nn::Linear(16, 8));
  }
  at::Tensor forward(const at::Tensor& x) { return down(up(x).relu()); }
  torch::nn::Linear up = nullptr, down = nullptr;
};

// Parts without their record would compute another model without a word: inner sizes fit each other.
TEST(ParallelClones, OfDividedModelsAreRefusedWhereTheyCompute) {
  for (const parallel::ParallelOptions& layout :
       {parallel::ParallelOptions{.tp = 2, .tensor_plan = {{"up", "colwise"}, {"down", "rowwise"}}},
        parallel::ParallelOptions{.pp = 2, .stages = {"down"}}}) {
    for (const bool with_gradients : {true, false}) {
      const auto nets = models_of<CloneableNetImpl>(2, [] { return std::make_shared<CloneableNetImpl>(); });
      const auto words = run_ranks_collecting(2, [&](process::Process& process) {
        const Accelerator accelerator(process, {.parallel = layout});
        auto model = accelerator.prepare(nets[static_cast<size_t>(process.rank())]);
        const auto copy = std::dynamic_pointer_cast<CloneableNetImpl>(model.unwrap()->clone());
        // Copies of parts are for averages.
        const at::NoGradGuard no_grad;
        for (const auto& parameter : copy->parameters()) parameter.mul_(0.5).add_(1);
        const at::AutoGradMode mode(with_gradients);
        (void)copy->forward(at::ones({2, 8}));
      });
      EXPECT_THAT(words, Each(HasSubstr("a copy (clone()) of"))) << with_gradients;
      EXPECT_THAT(words, Each(HasSubstr("before prepare"))) << with_gradients;
    }
  }
}

}  // namespace
}  // namespace hasten
