// FSDP's and DeepSpeed's settings through the front door: the numbers of Ddp, "auto" at prepare, dummies, several
// plugins, a configuration's clipping, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>

#include "hasten/accelerator.h"
#include "hasten/optim/deepspeed.h"
#include "hasten/optim/schedulers/deepspeed.h"
#include "hasten/parallel/shard/sharding.h"
#include "hasten/plugins/dummy.h"
#include "hasten/plugins/plugins.h"
#include "hasten/plugins/shard_options.h"
#include "parallel/shard/wrap_units.h"
#include "plugins/step_report.h"
#include "support/folder.h"
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

// By FSDP's own meaning of the settings below.
ShardStage stage_of(const FsdpPlugin& plugin) {
  if (plugin.sharding_strategy == "NO_SHARD") return ShardStage::kNone;
  const bool gathers =
      plugin.sharding_strategy == "SHARD_GRAD_OP" || plugin.reshard_after_forward == core::Value(false);
  return gathers ? ShardStage::kGradients : ShardStage::kParameters;
}

TEST(ShardPlugins, fsdp_of_both_versions_and_deepspeed_of_all_stages_give_the_numbers_of_ddp) {
  run_ranks(2, [](auto& process) {
    const auto plain = trained_with(Accelerator(process, {.tune_allocator = false}));
    for (const FsdpPlugin& plugin :
         {FsdpPlugin{.sharding_strategy = "FULL_SHARD"}, FsdpPlugin{.sharding_strategy = "SHARD_GRAD_OP"},
          FsdpPlugin{.sharding_strategy = "NO_SHARD"}, FsdpPlugin{.fsdp_version = 2},
          FsdpPlugin{.fsdp_version = 2, .reshard_after_forward = false},
          FsdpPlugin{.auto_wrap_policy = "TRANSFORMER_BASED_WRAP",
          .transformer_cls_names_to_wrap = std::vector<std::string>{"Linear"}},
          FsdpPlugin{.fsdp_version = 2, .auto_wrap_policy = "SIZE_BASED_WRAP", .min_num_params = 20},
          FsdpPlugin{.auto_wrap_policy = "NO_WRAP"}}) {
      const Accelerator accelerator(process, {.tune_allocator = false, .fsdp = plugin});
      EXPECT_EQ(accelerator.distributed_type(), DistributedType::kFsdp);
      EXPECT_EQ(accelerator.sharding() != nullptr, plugin.sharding_strategy != "NO_SHARD");
      EXPECT_EQ(accelerator.options().shard.stage, stage_of(plugin));
      expect_equal(plain, trained_with(accelerator));
    }
    for (const int stage : {0, 1, 2, 3}) {
      const Accelerator accelerator(
          process, {.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = zero(stage)}});
      EXPECT_EQ(accelerator.distributed_type(), DistributedType::kDeepSpeed);
      EXPECT_EQ(accelerator.sharding() != nullptr, stage > 0);
      expect_equal(plain, trained_with(accelerator));
    }
  });
}

TEST(ShardPlugins, units_follow_the_rules_and_patterns_of_modules_stay_out) {
  const testing::Mlp net;
  size_t linears = 0;
  for (const auto& child : net->modules(/*include_self=*/false))
    linears += child->name().find("Linear") != std::string::npos ? 1 : 0;
  const parallel::WrapPolicy policy{.rule = parallel::WrapPolicy::Rule::kTransformer, .classes = {"Linear"}};
  EXPECT_EQ(parallel::wrap_units(*net, policy, {}).size(), linears);
  EXPECT_THAT(parallel::wrap_units(*net, policy, {})[1], ::testing::ElementsAre("second.weight", "second.bias"));
  EXPECT_FALSE(parallel::ignored_names(*net, {".*"}).empty());
  EXPECT_THROW(parallel::ignored_names(*net, {"nothing_like_it"}), UsageError);
  EXPECT_THROW(parallel::ignored_names(*net, {"("}), UsageError);
  EXPECT_THROW(parallel::wrap_units(*net, {.rule = parallel::WrapPolicy::Rule::kTransformer, .classes = {"Liner"}}, {}),
               UsageError);
}

TEST(ShardPlugins, a_configuration_clips_unless_the_program_has) {
  run_ranks(2, [](auto& process) {
    auto config = zero(2);
    const auto by_call = trained_with(
        Accelerator(process, {.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = config}}), 0.01);
    config["gradient_clipping"] = 0.01;
    const auto by_file = trained_with(
        Accelerator(process, {.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = config}}));
    expect_equal(by_call, by_file);
    const auto both = trained_with(
        Accelerator(process, {.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = config}}), 1e9);
    const auto plain = trained_with(Accelerator(process, {.tune_allocator = false}));
    expect_equal(both, plain);
  });
}

TEST(ShardPlugins, a_loader_that_is_prepared_already_counts_its_batch_once) {
  run_ranks(2, [](auto& process) {
    const auto config = core::Value::parse_json(R"({"zero_optimization": {"stage": 1}, "train_batch_size": "auto",
      "train_micro_batch_size_per_gpu": "auto", "optimizer": {"type": "Adam", "params": {"lr": "auto"}}})");
    const Accelerator accelerator(process,
                                  {.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = config}});
    testing::Mlp net;
    auto loader = accelerator.data_loader<torch::data::samplers::SequentialSampler>(
        torch::data::datasets::TensorDataset(testing::problem_for("mlp", 1).inputs)
            .map(torch::data::transforms::Stack<torch::data::TensorExample>()),
        2);
    const auto prepared = accelerator.prepare(net, parallel::DummyOptim(net->parameters(), {.lr = 0.05}), loader);

    const auto& filled = accelerator.deepspeed_plugin().config;
    EXPECT_EQ(filled.get_value("train_micro_batch_size_per_gpu"), core::Value(2));
    EXPECT_EQ(filled.get_value("train_batch_size"), core::Value(4));
  });
}

TEST(ShardPlugins, dummies_become_what_the_configuration_names) {
  run_ranks(2, [](auto& process) {
    const auto config = core::Value::parse_json(R"({"zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
      "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_clipping": "auto",
      "optimizer": {"type": "Adam", "params": {"lr": "auto", "weight_decay": "auto", "betas": [0.8, 0.9]}},
      "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_max_lr": "auto", "warmup_min_lr": "auto", "warmup_num_steps": "auto"}}})");
    const Accelerator accelerator(process,
                                  {.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = config}});
    testing::Mlp net;
    testing::initialise(*net, 5);
    const auto problem = testing::problem_for("mlp", 1);
    auto loader = data::loader<torch::data::samplers::SequentialSampler>(
        torch::data::datasets::TensorDataset(problem.inputs)
            .map(torch::data::transforms::Stack<torch::data::TensorExample>()),
        2);
    parallel::DummyOptim dummy(net->parameters(), {.lr = 0.05, .weight_decay = 0.1});
    auto [model, optimizer, train, scheduler] = accelerator.prepare(
        net, dummy, loader, parallel::DummyScheduler(dummy, {.total_num_steps = 20, .warmup_num_steps = 4}));
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
                                            .deepspeed_plugins = {{"student", {.hf_ds_config = zero(2)}},
                                                                  {"teacher", {.hf_ds_config = zero(0)}}}});
    testing::Mlp student, teacher;
    auto first = accelerator.prepare(student);
    accelerator.select_deepspeed_plugin("teacher");
    auto second = accelerator.prepare(teacher);
    EXPECT_TRUE(first.ddp()->shares_parameters());
    EXPECT_FALSE(second.ddp()->shares_parameters());
    EXPECT_EQ(accelerator.deepspeed_plugin().config.get_value("zero_optimization.stage"), core::Value(0));
    EXPECT_THAT([&] { accelerator.select_deepspeed_plugin("teecher"); },
                ::testing::ThrowsMessage<UsageError>(HasSubstr("did you mean 'teacher'")));
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
  EXPECT_THAT(message({.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = both}}),
              HasSubstr("fp16"));
  EXPECT_THAT(
      message({.tune_allocator = false, .fsdp = FsdpPlugin{}, .deepspeed = DeepSpeedPlugin{.hf_ds_config = zero(2)}}),
      HasSubstr("both FSDP"));
  EXPECT_THAT(message({.tune_allocator = false, .shard = {.stage = ShardStage::kGradients}, .fsdp = FsdpPlugin{}}),
              HasSubstr("AcceleratorOptions::shard"));
  auto nvme = zero(3);
  nvme["zero_optimization"]["offload_optimizer"]["device"] = "nvme";
  EXPECT_THAT(message({.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = nvme}}),
              HasSubstr("nvme_path"));
  auto steps = zero(2);
  steps["gradient_accumulation_steps"] = 2;
  EXPECT_THAT(message({.gradient_accumulation_steps = 3,
                       .tune_allocator = false,
                       .deepspeed = DeepSpeedPlugin{.hf_ds_config = steps}}),
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

TEST(ShardPlugins, what_stands_beside_zero_reaches_the_options) {
  run_ranks(2, [](auto& process) {
    const auto config =
        core::Value::parse_json(R"({"train_batch_size": 8, "checkpoint": {"use_node_local_storage": true},
      "zero_optimization": {"stage": 3, "overlap_comm": false, "ignore_unused_parameters": false, "zero_hpz_partition_size": 2,
        "allgather_bucket_size": 100, "stage3_gather_16bit_weights_on_model_save": true,
        "offload_optimizer": {"device": "nvme", "nvme_path": "/tmp", "buffer_count": 5}},
      "aio": {"block_size": 8192, "queue_depth": 3, "thread_count": 2},
      "fp16": {"enabled": true, "hysteresis": 3, "consecutive_hysteresis": true, "initial_scale_power": 4, "loss_scale_window": 7, "min_loss_scale": 2}})");
    const Accelerator accelerator(process,
                                  {.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = config}});
    const auto& options = accelerator.options();
    EXPECT_TRUE(options.ddp.delay_allreduce);
    EXPECT_FALSE(options.ddp.allow_unused);
    EXPECT_TRUE(options.project.save_on_each_node);
    EXPECT_FALSE(options.shard.across_hosts);
    EXPECT_EQ(options.shard.wrap.unit_bytes, 400);
    EXPECT_EQ(options.shard.optimizer_offload.num_buffers, 5);
    EXPECT_EQ(options.shard.optimizer_offload.block_bytes, 8192);
    EXPECT_EQ(options.shard.optimizer_offload.queue_depth, 3);
    EXPECT_EQ(options.shard.optimizer_offload.num_threads, 2);
    EXPECT_EQ(options.scaler.rule, precision::LossScaleKind::kDeepSpeed);
    EXPECT_EQ(options.scaler.hysteresis, 3);
    EXPECT_TRUE(options.scaler.consecutive_hysteresis);
    EXPECT_EQ(options.scaler.init_scale, 16);
    EXPECT_EQ(options.scaler.growth_interval, 7);
    EXPECT_EQ(options.scaler.min_scale, 2);
    testing::Mlp net;
    auto model = accelerator.prepare(net);
    EXPECT_EQ(accelerator.get_state_dict(model).begin()->second.scalar_type(), at::kHalf);
    accelerator.wait_for_everyone();
    auto autocast = zero(1);
    autocast["torch_autocast"] = core::Value::map({{"enabled", true}, {"dtype", "bfloat16"}});
    const Accelerator low(process, {.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = autocast}});
    EXPECT_EQ(low.mixed_precision(), Precision::kBf16);
    const Accelerator hybrid(process,
                             {.tune_allocator = false,
                              .fsdp = FsdpPlugin{.sharding_strategy = "HYBRID_SHARD", .cast_forward_inputs = true}});
    EXPECT_FALSE(hybrid.options().shard.across_hosts);
    EXPECT_TRUE(hybrid.options().precision.cast_inputs);
    const Accelerator full(process,
                           {.tune_allocator = false,
                            .fsdp = FsdpPlugin{.sharding_strategy = "FULL_SHARD",
                                               .state_dict_config = plan::StateDictConfig{.rank0_only = true}}});
    EXPECT_TRUE(full.options().shard.across_hosts);
    testing::Mlp other;
    auto handle = full.prepare(other);
    EXPECT_EQ(full.get_state_dict(handle).empty(), process.rank() > 0);
    full.wait_for_everyone();
  });
}

TEST(ShardPlugins, a_parameter_that_nothing_uses_is_an_error_where_the_configuration_says_so) {
  const auto words = run_ranks_collecting(2, [](auto& process) {
    auto config = zero(2);
    config["zero_optimization"]["ignore_unused_parameters"] = false;
    const Accelerator accelerator(process,
                                  {.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = config}});
    testing::Mlp net;
    net->register_parameter("spare", torch::ones({3}));
    auto model = accelerator.prepare(net);
    accelerator.backward(plugin_loss(net, accelerator, 0));
  });
  for (const auto& each : words) EXPECT_THAT(each, AllOf(HasSubstr("'spare'"), HasSubstr("allow_unused")));
}

TEST(ShardPlugins, lines_come_every_so_many_steps_with_what_the_configuration_asks_for) {
  ::testing::internal::CaptureStdout();
  run_ranks(2, [](auto& process) {
    auto config = zero(2);
    config["steps_per_print"] = 2;
    config["wall_clock_breakdown"] = true;
    config["memory_breakdown"] = true;
    trained_with(Accelerator(process, {.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = config}}));
  });
  const std::string printed = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(std::count(printed.begin(), printed.end(), '\n'), 2) << printed;
  EXPECT_THAT(printed, AllOf(HasSubstr("step=2, skipped=0, lr=[0.01]; ms a step: forward and data "),
                             HasSubstr("step=4"), HasSubstr("; MB: resident ")));
}

TEST(ShardPlugins, sync_module_states_that_is_off_compares_the_ranks_values) {
  const auto words = run_ranks_collecting(2, [](auto& process) {
    testing::Mlp net;
    testing::initialise(*net, 5 + process.rank());
    const Accelerator accelerator(
        process, {.tune_allocator = false, .fsdp = FsdpPlugin{.fsdp_version = 1, .sync_module_states = false}});
    const auto model = accelerator.prepare(net);
  });
  for (const auto& said : words)
    EXPECT_THAT(said, HasSubstr("'first.weight' has other values on rank 1 than on rank 0"));
}

TEST(ShardPlugins, the_flops_profiler_counts_the_forward_of_one_step) {
  ::testing::internal::CaptureStdout();
  run_ranks(2, [](auto& process) {
    auto config = zero(2);
    config["flops_profiler"] = core::Value::map({{"enabled", true}, {"profile_step", 2}});
    config["steps_per_print"] = 1000;
    trained_with(Accelerator(process, {.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = config}}));
  });
  const std::string printed = ::testing::internal::GetCapturedStdout();
  const testing::Mlp net;
  int64_t parameters = 0;
  for (const auto& parameter : net->parameters()) parameters += parameter.numel();
  EXPECT_THAT(printed, HasSubstr(text("flops profiler, step 2: parameters ", parameters, ", forward ")));
  EXPECT_THAT(printed, HasSubstr("aten::addmm: 2 calls"));
}

TEST(ShardPlugins, the_flops_profiler_brings_the_times_of_steps) {
  const auto printed_with = [](bool profiles) {
    ::testing::internal::CaptureStdout();
    run_ranks(1, [&](auto& process) {
      auto config = zero(0);
      config["flops_profiler"] = core::Value::map({{"enabled", profiles}, {"profile_step", 1000}});
      config["steps_per_print"] = 1;
      trained_with(
          Accelerator(process, {.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = config}}));
    });
    return ::testing::internal::GetCapturedStdout();
  };
  const auto times = [&](const std::string& printed) { return printed.find(" ms") != std::string::npos; };

  EXPECT_TRUE(times(printed_with(true)));
  EXPECT_FALSE(times(printed_with(false)));
}

class ShardMonitors : public testing::InFolder {};

TEST_F(ShardMonitors, of_a_configuration_are_trackers) {
  run_ranks(2, [&](auto& process) {
    auto config = zero(2);
    config["train_batch_size"] = 16;
    config["csv_monitor"] =
        core::Value::map({{"enabled", true}, {"output_path", folder_.string()}, {"job_name", "job"}});
    const Accelerator accelerator(process,
                                  {.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = config}});
    trained_with(accelerator);
    accelerator.end_training();
  });

  std::string written;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_ / "job")) {
    if (entry.path().filename() != "metrics.csv") continue;
    std::ifstream file(entry.path());
    written.assign(std::istreambuf_iterator<char>(file), {});
  }
  EXPECT_THAT(written, AllOf(HasSubstr("Train/Samples/train_loss"), HasSubstr("Train/Samples/lr,0.01")));
  EXPECT_THAT(written, AllOf(HasSubstr("\n16,"), HasSubstr("\n64,")));
}

TEST(ShardPlugins, lion_and_lamb_of_a_configuration_step_slices_and_whole_parameters_with_the_numbers_of_one_process) {
  const auto train = [](const Accelerator& accelerator) {
    testing::Mlp net;
    testing::initialise(*net, 5);
    auto [model, optimizer] =
        accelerator.prepare(net, parallel::DummyOptim(net->parameters(), {.lr = 0.01, .weight_decay = 0.1}));
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      accelerator.backward(plugin_loss(net, accelerator, step));
      optimizer.step();
    }
    std::vector<at::Tensor> values;
    for (const auto& parameter : net->parameters()) values.push_back(parameter.detach().clone());
    accelerator.wait_for_everyone();
    return values;
  };
  for (const char* type : {"Lion", "Lamb"}) {
    run_ranks(2, [&](auto& process) {
      std::vector<std::vector<at::Tensor>> by_stage;
      for (const int stage : {0, 2, 3}) {
        auto config = zero(stage);
        config["optimizer"] = core::Value::map(
            {{"type", type}, {"params", core::Value::parse_json(R"({"lr": "auto", "weight_decay": "auto"})")}});
        by_stage.push_back(train(
            Accelerator(process, {.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = config}})));
      }
      expect_equal(by_stage[0], by_stage[1]);
      expect_equal(by_stage[0], by_stage[2]);
    });
  }
}

TEST(ShardPlugins, lion_and_lamb_have_the_numbers_of_their_definitions) {
  const auto w = torch::tensor({1.0, -2.0, 0.5}, at::kDouble), g = torch::tensor({0.1, 0.3, -0.2}, at::kDouble);
  const auto stepped = [&](auto make) {
    auto parameter = w.clone().requires_grad_();
    parameter.mutable_grad() = g.clone();
    auto optimizer = make(std::vector<at::Tensor>{parameter});
    optimizer.step();
    optimizer.step();
    return parameter.detach();
  };
  // Both steps of Lion go by the sign of the gradient.
  const auto decayed = (w * (1 - 0.1 * 0.5) - 0.1 * g.sign()) * (1 - 0.1 * 0.5) - 0.1 * g.sign();
  const auto lion =
      stepped([](auto p) { return optim::deepspeed::Lion(p, optim::deepspeed::LionOptions(0.1).weight_decay(0.5)); });
  EXPECT_TRUE(at::allclose(lion, decayed, 1e-12, 1e-12));
  auto value = w.clone();
  auto first = at::zeros_like(w), second = at::zeros_like(w);
  for (int t = 1; t <= 2; ++t) {
    first = 0.9 * first + 0.1 * g;
    second = 0.999 * second + 0.001 * g * g;
    const auto update = first / (second.sqrt() + 1e-8) + 0.5 * value;
    const double ratio = std::clamp((value.norm() / update.norm()).item<double>(), 0.05, 0.2);
    value = value - 0.1 * std::sqrt(1 - std::pow(0.999, t)) / (1 - std::pow(0.9, t)) * ratio * update;
  }
  const auto lamb = stepped([](auto p) {
    return optim::deepspeed::Lamb(p,
                                  optim::deepspeed::LambOptions(0.1).weight_decay(0.5).max_coeff(0.2).min_coeff(0.05));
  });
  EXPECT_TRUE(at::allclose(lamb, value, 1e-10, 1e-10)) << lamb << value;
}

}  // namespace
}  // namespace hasten
