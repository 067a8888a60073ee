// FSDP's and DeepSpeed's settings through the front door: the numbers of Ddp, "auto" at prepare, dummies, several plugins,
// a configuration's clipping, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "hasten/accelerator.h"
#include "hasten/optim/schedulers/deepspeed.h"
#include "hasten/parallel/shard/dummy.h"
#include "hasten/parallel/shard/plugins.h"
#include "hasten/parallel/shard/sharding.h"
#include "support/models.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::run_ranks_collecting;

at::Tensor plugin_loss(testing::Mlp net, const Accelerator& accelerator, int step) {
  const auto problem = testing::problem_for("mlp", 50 + step);
  const auto rows = [&](const at::Tensor& all) { return all.chunk(accelerator.world_size())[accelerator.rank()]; };
  return torch::cross_entropy_loss(net->forward(rows(problem.inputs)), rows(problem.targets));
}

// Four steps of AdamW over prepared objects; the parameters behind them.
std::vector<at::Tensor> trained_with(const Accelerator& accelerator, double max_norm = 0) {
  testing::Mlp net;
  testing::initialise(*net, 5);
  torch::optim::AdamW adam(net->parameters(), 0.01);
  auto [model, optimizer] = accelerator.prepare(net, adam);
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    accelerator.backward(plugin_loss(net, accelerator, step));
    if (max_norm > 0) accelerator.clip_grad_norm_(net->parameters(), max_norm);
    optimizer.step();
  }
  std::vector<at::Tensor> values;
  for (const auto& parameter : net->parameters()) values.push_back(parameter.detach().clone());
  accelerator.wait_for_everyone();
  return values;
}

void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << "parameter " << i;
}

core::Value zero(int stage) {
  auto config = core::Value::parse_json(R"({"train_batch_size": 8, "zero_optimization": {}})");
  config["zero_optimization"]["stage"] = stage;
  return config;
}

TEST(ShardPlugins, fsdp_of_both_versions_and_deepspeed_of_all_stages_give_the_numbers_of_ddp) {
  run_ranks(2, [](auto& process) {
    const auto plain = trained_with(Accelerator(process, {.tune_allocator = false}));
    for (const FsdpPlugin& plugin : {FsdpPlugin{.sharding_strategy = "FULL_SHARD"}, FsdpPlugin{.sharding_strategy = "SHARD_GRAD_OP"},
                                     FsdpPlugin{.sharding_strategy = "NO_SHARD"}, FsdpPlugin{.fsdp_version = 2},
                                     FsdpPlugin{.fsdp_version = 2, .reshard_after_forward = false},
                                     FsdpPlugin{.auto_wrap_policy = "TRANSFORMER_BASED_WRAP", .transformer_cls_names_to_wrap = std::vector<std::string>{"Linear"}},
                                     FsdpPlugin{.fsdp_version = 2, .auto_wrap_policy = "SIZE_BASED_WRAP", .min_num_params = 20},
                                     FsdpPlugin{.auto_wrap_policy = "NO_WRAP"}}) {
      const Accelerator accelerator(process, {.tune_allocator = false, .fsdp = plugin});
      EXPECT_EQ(accelerator.distributed_type(), DistributedType::kFsdp);
      expect_equal(plain, trained_with(accelerator));
    }
    for (const int stage : {0, 1, 2, 3}) {
      const Accelerator accelerator(process, {.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = zero(stage)}});
      EXPECT_EQ(accelerator.distributed_type(), DistributedType::kDeepSpeed);
      EXPECT_EQ(accelerator.sharding() != nullptr, stage > 0);
      expect_equal(plain, trained_with(accelerator));
    }
  });
}

TEST(ShardPlugins, units_follow_the_rules_and_patterns_of_modules_stay_out) {
  const testing::Mlp net;
  size_t linears = 0;
  for (const auto& child : net->modules(/*include_self=*/false)) linears += child->name().find("Linear") != std::string::npos ? 1 : 0;
  const parallel::WrapPolicy policy{.rule = parallel::WrapPolicy::Rule::kTransformer, .classes = {"Linear"}};
  EXPECT_EQ(parallel::wrap_units(*net, policy, {}).size(), linears);
  EXPECT_FALSE(parallel::ignored_names(*net, {".*"}).empty());
  EXPECT_THROW(parallel::ignored_names(*net, {"nothing_like_it"}), UsageError);
  EXPECT_THROW(parallel::ignored_names(*net, {"("}), UsageError);
  EXPECT_THROW(parallel::wrap_units(*net, {.rule = parallel::WrapPolicy::Rule::kTransformer, .classes = {"Liner"}}, {}), UsageError);
}

TEST(ShardPlugins, a_configuration_clips_unless_the_program_has) {
  run_ranks(2, [](auto& process) {
    auto config = zero(2);
    const auto by_call = trained_with(Accelerator(process, {.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = config}}), 0.01);
    config["gradient_clipping"] = 0.01;
    const auto by_file = trained_with(Accelerator(process, {.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = config}}));
    expect_equal(by_call, by_file);
    const auto both = trained_with(Accelerator(process, {.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = config}}), 1e9);
    const auto plain = trained_with(Accelerator(process, {.tune_allocator = false}));
    expect_equal(both, plain);
  });
}

TEST(ShardPlugins, dummies_become_what_the_configuration_names) {
  run_ranks(2, [](auto& process) {
    const auto config = core::Value::parse_json(R"({"zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
      "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_clipping": "auto",
      "optimizer": {"type": "Adam", "params": {"lr": "auto", "weight_decay": "auto", "betas": [0.8, 0.9]}},
      "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_max_lr": "auto", "warmup_min_lr": "auto", "warmup_num_steps": "auto"}}})");
    const Accelerator accelerator(process, {.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = config}});
    testing::Mlp net;
    testing::initialise(*net, 5);
    const auto problem = testing::problem_for("mlp", 1);
    auto loader = data::loader<torch::data::samplers::SequentialSampler>(
        torch::data::datasets::TensorDataset(problem.inputs).map(torch::data::transforms::Stack<torch::data::TensorExample>()), 2);
    parallel::DummyOptim dummy(net->parameters(), {.lr = 0.05, .weight_decay = 0.1});
    auto [model, optimizer, train, scheduler] =
        accelerator.prepare(net, dummy, loader, parallel::DummyScheduler(dummy, {.total_num_steps = 20, .warmup_num_steps = 4}));
    const auto& filled = accelerator.deepspeed_plugin().config;
    EXPECT_EQ(filled.get_value("train_micro_batch_size_per_gpu"), core::Value(2));
    EXPECT_EQ(filled.get_value("train_batch_size"), core::Value(4));
    EXPECT_EQ(filled.get_value("scheduler.params.warmup_num_steps"), core::Value(2));
    EXPECT_TRUE(filled.auto_keys().empty()) << join(filled.auto_keys());
    const auto* adamw = dynamic_cast<torch::optim::AdamW*>(&optimizer.unwrap());
    ASSERT_NE(adamw, nullptr);
    const auto& options = dynamic_cast<const torch::optim::AdamWOptions&>(adamw->param_groups()[0].options());
    EXPECT_EQ(options.weight_decay(), 0.1);
    EXPECT_EQ(options.betas(), std::make_tuple(0.8, 0.9));
    std::vector<double> rates;
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      accelerator.backward(plugin_loss(net, accelerator, step));
      optimizer.step();
      scheduler.step();
      rates.push_back(scheduler.rates()[0]);
    }
    EXPECT_EQ(rates[0], 0.0);
    EXPECT_DOUBLE_EQ(rates[1], 0.05);
    accelerator.wait_for_everyone();
  });
}

TEST(ShardPlugins, several_plugins_are_selected_by_name_and_each_model_keeps_its_own) {
  run_ranks(2, [](auto& process) {
    const Accelerator accelerator(process, {.tune_allocator = false,
                                            .deepspeed_plugins = {{"student", {.hf_ds_config = zero(2)}}, {"teacher", {.hf_ds_config = zero(0)}}}});
    testing::Mlp student, teacher;
    auto first = accelerator.prepare(student);
    accelerator.select_deepspeed_plugin("teacher");
    auto second = accelerator.prepare(teacher);
    EXPECT_TRUE(first.ddp()->shares_parameters());
    EXPECT_FALSE(second.ddp()->shares_parameters());
    EXPECT_EQ(accelerator.deepspeed_plugin().config.get_value("zero_optimization.stage"), core::Value(0));
    EXPECT_THAT([&] { accelerator.select_deepspeed_plugin("teecher"); }, ::testing::ThrowsMessage<UsageError>(HasSubstr("did you mean 'teacher'")));
    accelerator.wait_for_everyone();
  });
}

TEST(ShardPlugins, what_is_wrong_is_refused_by_name) {
  const auto message = [](const AcceleratorOptions& options, const std::function<void(const Accelerator&)>& use = {}) {
    return run_ranks_collecting(2, [&](auto& process) {
      const Accelerator accelerator(process, options);
      if (use) use(accelerator);
    })[0];
  };
  auto both = zero(2);
  both["fp16"]["enabled"] = true;
  both["bf16"]["enabled"] = true;
  EXPECT_THAT(message({.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = both}}), HasSubstr("fp16"));
  EXPECT_THAT(message({.tune_allocator = false, .fsdp = FsdpPlugin{}, .deepspeed = DeepSpeedPlugin{.hf_ds_config = zero(2)}}), HasSubstr("both FSDP"));
  EXPECT_THAT(message({.tune_allocator = false, .shard = {.stage = ShardStage::kGradients}, .fsdp = FsdpPlugin{}}), HasSubstr("AcceleratorOptions::shard"));
  auto nvme = zero(3);
  nvme["zero_optimization"]["offload_optimizer"]["device"] = "nvme";
  EXPECT_THAT(message({.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = nvme}}), HasSubstr("nvme_path"));
  auto steps = zero(2);
  steps["gradient_accumulation_steps"] = 2;
  EXPECT_THAT(message({.gradient_accumulation_steps = 3, .tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = steps}}),
              AllOf(HasSubstr("2 in"), HasSubstr("3 in the program")));
  // A value that nobody fills.
  EXPECT_THAT(message({.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.zero_stage = 2}},
                      [](const Accelerator& accelerator) { trained_with(accelerator); }),
              AllOf(HasSubstr("train_micro_batch_size_per_gpu"), HasSubstr("auto")));
  EXPECT_THAT(message({.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = zero(2)}},
                      [](const Accelerator& accelerator) {
                        testing::Mlp net;
                        auto unused = accelerator.prepare(net, parallel::DummyOptim(net->parameters()));
                      }),
              HasSubstr("no optimizer section"));
}

}  // namespace
}  // namespace hasten
