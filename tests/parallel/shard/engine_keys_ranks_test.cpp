// Keys of a DeepSpeed configuration and settings of FSDP beside the split: buffers, outputs, loaders, threads of the
// step, leaf modules, dtypes of the exchange; and parameters whose values nothing gives.
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <set>

#include "hasten/accelerator.h"
#include "hasten/data/dataset/tensor_dataset.h"
#include "hasten/parallel/shard/leaf_modules.h"
#include "hasten/parallel/shard/sharding.h"
#include "parallel/shard/step_threads.h"
#include "parallel/shard/trained.h"
#include "support/folder.h"
#include "support/models.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::run_ranks_collecting;

AcceleratorOptions with_keys(int stage, const std::string& more) {
  auto config = core::Value::parse_json(more);
  config["train_batch_size"] = 8;
  config["zero_optimization"]["stage"] = stage;
  return {.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = config}};
}

// A gate, experts, and buffers.
struct ExpertsImpl : torch::nn::Module {
  ExpertsImpl() {
    for (int i = 0; i < 3; ++i) list->push_back(torch::nn::Linear(8, 8));
    register_module("list", list);
    score = register_buffer("score_correction", torch::ones({8}));
  }
  torch::nn::ModuleList list;
  at::Tensor score;
};
TORCH_MODULE(Experts);

struct MixtureImpl : torch::nn::Module {
  MixtureImpl() {
    register_module("gate", gate);
    register_module("experts", experts);
    register_module("norm", norm);
    table = register_buffer("table", torch::full({8}, 1.0 + 1.0 / 512));
  }
  at::Tensor forward(const at::Tensor& x) {
    auto y = torch::tanh(gate->forward(x)) * table;
    for (const auto& expert : *experts->list) y = y + expert->as<torch::nn::Linear>()->forward(x);
    return norm->forward(y * experts->score);
  }
  torch::nn::Linear gate{8, 8};
  Experts experts;
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({8})};
  at::Tensor table;
};
TORCH_MODULE(Mixture);

TEST(EngineKeys, ReachTheOptionsOfTheirParts) {
  run_ranks(2, [](auto& process) {
    const Accelerator accelerator(process, with_keys(3, R"({"dataloader_drop_last": true,
        "activation_checkpointing": {"number_checkpoints": 4, "cpu_checkpointing": true},
        "zero_optimization": {"stage3_max_reuse_distance": 100,
          "offload_optimizer": {"device": "cpu", "cpuadam_cores_perc": 0.5},
          "leaf_module": {"classes": ["pkg.Experts"], "names": ["a"], "name_suffixes": ["b"]}}})"));
    const auto& options = accelerator.options();
    EXPECT_EQ(options.recompute.num_regions, 4);
    EXPECT_FALSE(options.recompute.enabled);
    EXPECT_EQ(options.shard.max_reuse_bytes, 400);
    EXPECT_EQ(options.shard.optimizer_offload.step_cores, 0.5);
    EXPECT_THAT(options.shard.wrap.leaf_classes, ElementsAre("Experts"));
    EXPECT_THAT(options.shard.wrap.leaf_names, ElementsAre("a"));
    EXPECT_THAT(options.shard.wrap.leaf_suffixes, ElementsAre("b"));
    // Eleven samples: two batches of two for each rank, and three left over.
    auto train = accelerator.prepare(data::loader<torch::data::samplers::SequentialSampler>(
        data::TensorDataset(torch::arange(11), torch::arange(11)), 2));
    EXPECT_EQ(train.size(), 2U);

    const Accelerator plain(process,
                            with_keys(3, R"({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}})"));
    EXPECT_EQ(plain.options().shard.max_reuse_bytes, 0);
    EXPECT_EQ(plain.options().shard.optimizer_offload.step_cores, 0);
    EXPECT_FALSE(plain.options().loader.drop_last);
  });
}

TEST(EngineKeys, BuffersAreCastAtPrepareButForThoseThatStayFloat32) {
  run_ranks(2, [](auto& process) {
    const auto dtypes = [&](const AcceleratorOptions& options) {
      const Accelerator accelerator(process, options);
      Mixture net;
      auto model = accelerator.prepare(net);
      const auto output = model(torch::ones({2, 8}));
      EXPECT_TRUE(output.isfinite().all().template item<bool>());
      accelerator.wait_for_everyone();
      return std::pair(net->table.scalar_type(), net->experts->score.scalar_type());
    };
    using Dtypes = std::pair<at::ScalarType, at::ScalarType>;
    EXPECT_EQ(dtypes(with_keys(2, R"({"bf16": {"enabled": true}, "data_types": {"buffer_dtype": "bf16",
                  "keep_in_fp32_modules": ["experts.*correction"]}})")),
              Dtypes(at::kBFloat16, at::kFloat));
    EXPECT_EQ(dtypes(with_keys(2, R"({"data_types": {"buffer_dtype": "half"}})")), Dtypes(at::kHalf, at::kHalf));
    // The names count in training below float32 alone.
    EXPECT_EQ(dtypes(with_keys(2, R"({"data_types": {"buffer_dtype": "fp16", "keep_in_fp32_modules": ["table"]}})")),
              Dtypes(at::kHalf, at::kHalf));
    EXPECT_EQ(dtypes(with_keys(2, R"({"bf16": {"enabled": true}, "data_types": {"keep_in_fp32_modules": "auto"}})")),
              Dtypes(at::kFloat, at::kFloat));
    const auto fsdp = [](const std::string& policy) {
      return AcceleratorOptions{.tune_allocator = false,
                                .fsdp = FsdpPlugin{.mixed_precision_policy = core::Value::parse_json(policy)}};
    };
    EXPECT_EQ(dtypes(fsdp(R"({"buffer_dtype": "bfloat16"})")), Dtypes(at::kBFloat16, at::kBFloat16));
    EXPECT_EQ(dtypes(fsdp(R"({"param_dtype": "bfloat16"})")), Dtypes(at::kFloat, at::kFloat));
  });
}

TEST(EngineKeys, OutputsHaveTheDtypeOfFsdpsPolicy) {
  run_ranks(2, [](auto& process) {
    const auto dtype = [&](const std::string& policy) {
      const Accelerator accelerator(
          process, {.tune_allocator = false,
                    .fsdp = FsdpPlugin{.fsdp_version = 2, .mixed_precision_policy = core::Value::parse_json(policy)}});
      Mixture net;
      auto model = accelerator.prepare(net);
      const auto output = model(torch::ones({2, 8}));
      accelerator.wait_for_everyone();
      return output.scalar_type();
    };
    EXPECT_EQ(dtype(R"({"param_dtype": "bfloat16", "output_dtype": "float16"})"), at::kHalf);
    EXPECT_EQ(dtype(R"({"param_dtype": "bfloat16", "output_dtype": "float32"})"), at::kFloat);
    // A norm's output is float32, also where layers compute in bfloat16.
    EXPECT_EQ(dtype(R"({"param_dtype": "bfloat16", "output_dtype": "bfloat16"})"), at::kBFloat16);
    EXPECT_EQ(dtype(R"({"output_dtype": "bfloat16"})"), at::kBFloat16);
    EXPECT_EQ(dtype(R"({"param_dtype": "bfloat16"})"), at::kFloat);
  });
}

TEST(EngineKeys, RamEfficientLoadingIsInTheEnvironmentOfTheProgram) {
  const auto variable = [] { return Environment::current().text("FSDP_CPU_RAM_EFFICIENT_LOADING").value_or("unset"); };
  const auto make = [](std::optional<bool> loading, bool change_process = true) {
    const Accelerator accelerator(process::Process(), {.tune_allocator = false,
                                                       .change_process = change_process,
                                                       .fsdp = FsdpPlugin{.cpu_ram_efficient_loading = loading}});
  };
  Environment::take("FSDP_CPU_RAM_EFFICIENT_LOADING");
  make(std::nullopt);
  EXPECT_EQ(variable(), "unset");
  make(true, /*change_process=*/false);
  EXPECT_EQ(variable(), "unset");
  make(true);
  EXPECT_EQ(variable(), "True");
  make(false);
  EXPECT_EQ(variable(), "False");
  Environment::take("FSDP_CPU_RAM_EFFICIENT_LOADING");
}

TEST(EngineKeys, ThreadsOfTheStepAreAPartOfTheCores) {
  using parallel::OffloadDevice;
  using parallel::shard::num_step_threads;
  EXPECT_EQ(num_step_threads({.device = OffloadDevice::kCpu, .step_cores = 0.8}, 8, 1), 7);
  EXPECT_EQ(num_step_threads({.device = OffloadDevice::kCpu, .step_cores = 0.8}, 8, 2), 3);
  EXPECT_EQ(num_step_threads({.device = OffloadDevice::kCpu, .step_cores = 0.1}, 2, 2), 1);
  EXPECT_EQ(num_step_threads({.device = OffloadDevice::kCpu}, 8, 1), 0);
  EXPECT_EQ(num_step_threads({.device = OffloadDevice::kFile, .step_cores = 0.8}, 8, 1), 0);
  run_ranks(2, [](auto& process) {
    const int before = at::get_num_threads();
    at::set_num_threads(61);
    for (const double part : {0.01, 0.0}) {
      auto options = parallel::shard_testing::small_units(ShardStage::kGradients);
      options.optimizer_offload = {.device = OffloadDevice::kCpu, .step_cores = part};
      parallel::shard_testing::Trained<testing::Mlp> t(process.group(), options, parallel::shard_testing::adamw);
      t.backward(t.loss("mlp", 0));
      int in_step = 0;
      t.sharding->step(*t.optimizer, [&] {
        in_step = at::get_num_threads();
        return optim::optimizer_step(*t.optimizer);
      });
      EXPECT_EQ(in_step, part > 0 ? 1 : 61);
      EXPECT_EQ(at::get_num_threads(), 61);
      process.group().barrier();
    }
    at::set_num_threads(before);
  });
}

// Units by the names of their parameters.
std::set<std::set<std::string>> units_of(const comm::Group& group, const ShardOptions& options) {
  Mixture net;
  parallel::Sharding sharding(group, options);
  const auto exchange = sharding.make_exchange(group);
  const parallel::Ddp ddp(*net, group, {.exchange = exchange});
  std::vector<std::string> names;
  for (const auto& item : net->named_parameters()) names.push_back(item.key());
  std::set<std::set<std::string>> units;
  for (const auto& unit : exchange->units()) {
    std::set<std::string> members;
    for (const size_t index : unit) members.insert(names[index]);
    units.insert(std::move(members));
  }
  group.barrier();
  return units;
}

TEST(LeafModules, ParametersOfALeafFormOneUnit) {
  run_ranks(2, [](auto& process) {
    std::set<std::string> experts;
    for (int i = 0; i < 3; ++i) {
      for (const char* name : {"weight", "bias"}) experts.insert(text("experts.list.", i, '.', name));
    }
    auto options = parallel::shard_testing::small_units(ShardStage::kGradients);
    EXPECT_FALSE(units_of(process.group(), options).contains(experts));
    auto by_class = options, by_name = options, by_end = options, by_rule = options;
    by_class.wrap.leaf_classes = {"Experts"};
    by_name.wrap.leaf_names = {"experts"};
    by_end.wrap.leaf_suffixes = {"perts"};
    by_rule.wrap = {
        .rule = parallel::WrapPolicy::Rule::kTransformer, .classes = {"Linear"}, .leaf_classes = {"ExpertsImpl"}};
    for (const auto& each : {by_class, by_name, by_end, by_rule}) {
      const auto units = units_of(process.group(), each);
      EXPECT_TRUE(units.contains(experts));
      size_t num_parameters = 0;
      for (const auto& unit : units) num_parameters += unit.size();
      EXPECT_EQ(num_parameters, 10U) << "each parameter is in one unit";
    }
  });
}

TEST(LeafModules, ClassesOfTheSettingsAreLookedForInTheModel) {
  run_ranks(2, [](auto& process) {
    Mixture net;
    EXPECT_THAT(parallel::set_moe_leaf_modules(nullptr, *net, {"Experts"}), ElementsAre("experts"));
    EXPECT_THAT(testing::words_of<UsageError>([&] { parallel::set_moe_leaf_modules(nullptr, *net, {"Expert"}); }),
                AllOf(HasSubstr("the class Expert,"), HasSubstr("did you mean 'Experts'"), HasSubstr("LayerNorm")));

    const auto prepared = [&](const std::string& classes) {
      auto options = with_keys(2, "{}");
      options.deepspeed->transformer_moe_cls_names = classes;
      const Accelerator accelerator(process, options);
      Mixture own;
      auto model = accelerator.prepare(own);
      accelerator.wait_for_everyone();
      return accelerator.sharding()->options().wrap.leaf_classes;
    };
    EXPECT_THAT(prepared("Experts, Linear"), ElementsAre("Experts", "Linear"));
    EXPECT_THAT(testing::words_of<UsageError>([&] { prepared("Moe"); }), HasSubstr("the class Moe,"));
  });
}

// Gradients of a step on both ranks.
std::map<std::string, at::Tensor> exchanged(const comm::Group& group, std::optional<ShardStage> stage,
                                            const std::vector<std::string>& classes, bool low) {
  Mixture net;
  testing::initialise(*net, 5);
  std::optional<parallel::Sharding> sharding;
  parallel::DdpOptions options;
  if (stage) {
    sharding.emplace(group, ShardOptions{.stage = *stage});
    options.exchange = sharding->make_exchange(group);
  }
  if (low) options.communication_dtype = at::kBFloat16;
  options.communication_classes = classes;
  const auto ddp = std::make_shared<const parallel::Ddp>(*net, group, options);
  const auto x = torch::linspace(-1, 1, 32).reshape({4, 8}) + group.rank();
  parallel::backward(net->forward(x).pow(3).mean(), {}, {.models = {ddp}, .group = group});
  std::map<std::string, at::Tensor> gradients;
  for (const auto& item : net->named_parameters()) gradients[item.key()] = item.value().grad().clone();
  group.barrier();
  return gradients;
}

TEST(EngineKeys, GradientsOfTheNamedClassesAloneAreExchangedInTheLowerDtype) {
  run_ranks(2, [](auto& process) {
    const auto& group = process.group();
    for (const auto stage : {std::optional<ShardStage>(), std::optional(ShardStage::kGradients)}) {
      const auto plain = exchanged(group, stage, {}, false), some = exchanged(group, stage, {"Linear"}, true),
                 all = exchanged(group, stage, {}, true);
      EXPECT_TRUE(at::equal(some.at("norm.weight"), plain.at("norm.weight")));
      EXPECT_FALSE(at::equal(all.at("norm.weight"), plain.at("norm.weight")));
      for (const char* name : {"gate.weight", "experts.list.1.weight"}) {
        EXPECT_FALSE(at::equal(some.at(name), plain.at(name))) << name;
        EXPECT_TRUE(at::equal(some.at(name), all.at(name))) << name;
      }
    }
    const Accelerator accelerator(process, with_keys(2, R"({"torch_autocast": {"enabled": true, "dtype": "bfloat16",
        "lower_precision_safe_modules": ["torch.nn.Linear", "torch.nn.Conv2d"]}})"));
    EXPECT_EQ(accelerator.options().ddp.communication_dtype, at::kBFloat16);
    EXPECT_THAT(accelerator.options().ddp.communication_classes, ElementsAre("Linear", "Conv2d"));
    const Accelerator without(process, with_keys(2, R"({"torch_autocast": {"enabled": true}})"));
    EXPECT_FALSE(without.options().ddp.communication_dtype.has_value());
  });
}

struct OnMetaImpl : torch::nn::Module {
  explicit OnMetaImpl(c10::Device device) {
    const auto options = at::TensorOptions(device);
    weight = register_parameter("weight", torch::ones({4, 4}, options));
    bias = register_parameter("bias", torch::ones({4}, options));
  }
  at::Tensor weight, bias;
};
TORCH_MODULE(OnMeta);

TEST(MetaParameters, OfWhichNothingGivesTheValuesAreNamedOnAllRanks) {
  const auto words = run_ranks_collecting(2, [](auto& process) {
    const Accelerator accelerator(process, {.tune_allocator = false, .shard = {.stage = ShardStage::kParameters}});
    OnMeta net{c10::Device(at::kMeta)};
    auto model = accelerator.prepare(net);
  });
  for (const auto& each : words) {
    EXPECT_THAT(each, AllOf(HasSubstr("on the meta device"), HasSubstr("weight, bias"), HasSubstr("ShardOptions::init"),
                            HasSubstr("checkpoint")));
  }
}

TEST(MetaParameters, GetTheValuesOfInitOrOfRankZero) {
  run_ranks(2, [](auto& process) {
    const auto value = [&](bool with_init, c10::Device device) {
      AcceleratorOptions options{.tune_allocator = false, .shard = {.stage = ShardStage::kParameters}};
      if (with_init) {
        options.shard.init = [](torch::nn::Module& module) {
          for (auto& parameter : module.parameters()) torch::nn::init::constant_(parameter, 3);
        };
      }
      const Accelerator accelerator(process, options);
      OnMeta net(device);
      auto model = accelerator.prepare(net);
      const double sum = net->weight.sum().template item<double>();
      accelerator.wait_for_everyone();
      return sum;
    };
    EXPECT_EQ(value(true, at::kMeta), 48);
    EXPECT_EQ(value(false, process.rank() == 0 ? at::kCPU : at::kMeta), 16);
  });
}

}  // namespace
}  // namespace hasten
