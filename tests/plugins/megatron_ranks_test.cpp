// Accelerate's MegatronLMPlugin through the front door: GPT, BERT and T5 steps against one process, clipping, schedule,
// and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <memory>

#include "hasten/accelerator.h"
#include "hasten/core/error.h"
#include "hasten/data/dataset/tensor_dataset.h"
#include "hasten/data/loader/loader.h"
#include "hasten/models/bert.h"
#include "hasten/models/gpt2.h"
#include "hasten/models/t5.h"
#include "hasten/models/train_steps.h"
#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/recompute/recompute.h"
#include "hasten/plugins/dummy.h"
#include "hasten/plugins/megatron.h"
#include "hasten/settings/megatron_lm_plugin.h"
#include "hasten/settings/megatron_schedule.h"
#include "support/parallel_models.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using core::Value;
using models::TextBatch;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::run_ranks_collecting;
using ::testing::ThrowsMessage;

constexpr int kSteps = 3;
constexpr double kClip = 0.5;

torch::optim::AdamWOptions adamw_options() {
  // A large eps, so that rounding in gradients of zero is not blown up to whole steps.
  return torch::optim::AdamWOptions(1e-2).eps(1e-3);
}

at::Tensor tokens(int64_t rows, int64_t columns, int64_t factor) {
  return (at::arange(rows * columns).view({rows, columns}) * factor + 3).remainder(90);
}

struct GptRun {
  using Net = models::Gpt2Impl;
  static std::shared_ptr<Net> make() { return std::make_shared<Net>(testing::small_gpt2_config()); }
  template <class Call>
  static models::TrainStep step(const Call& call) {
    return models::gpt_train_step({.eos_token_id = 7, .eod_mask_loss = true}, [call](const models::GptBatch& part) {
      return call(part.tokens, at::Tensor(), nullptr);
    });
  }
  static TextBatch batch() { return {{"input_ids", tokens(8, 8, 7)}}; }
};

struct BertRun {
  using Net = models::BertForPreTrainingImpl;
  static std::shared_ptr<Net> make() { return std::make_shared<Net>(testing::small_bert_config()); }
  template <class Call>
  static models::TrainStep step(const Call& call) {
    return models::bert_train_step(
        [call](const models::BertBatch& part) { return call(part.tokens, part.padding_mask, part.types); });
  }
  // As many masked words in each sample, so that parts count alike for both losses.
  static TextBatch batch() {
    const at::Tensor ids = tokens(8, 8, 5), mask = at::ones_like(ids), labels = at::full_like(ids, -100);
    mask.narrow(1, 7, 1).zero_();
    labels.narrow(1, 1, 3).copy_(ids.narrow(1, 1, 3).add(1));
    return {{"input_ids", ids},
            {"attention_mask", mask},
            {"token_type_ids", at::arange(8).ge(4).to(at::kLong).expand({8, 8}).contiguous()},
            {"labels", labels},
            {"next_sentence_label", at::arange(8).remainder(2)}};
  }
};

struct T5Run {
  using Net = models::T5Impl;
  static std::shared_ptr<Net> make() { return std::make_shared<Net>(testing::small_t5_config()); }
  template <class Call>
  static models::TrainStep step(const Call& call) {
    return models::t5_train_step(
        [call](const models::T5Batch& part) { return call(part.tokens_enc, part.attention_mask, part.tokens_dec); });
  }
  static TextBatch batch() {
    const at::Tensor ids = tokens(8, 8, 7), mask = at::ones_like(ids), labels = tokens(8, 5, 11);
    for (int64_t row = 0; row < 8; ++row) {
      mask[row].slice(0, 8 - row % 3).zero_();
      labels[row].slice(0, 5 - row % 2).fill_(-100);
    }
    return {{"input_ids", ids}, {"attention_mask", mask}, {"labels", labels}};
  }
};

template <class Run>
class MegatronSteps : public ::testing::Test {
 protected:
  struct Expected {
    std::vector<double> losses;
    std::map<std::string, at::Tensor> weights;
  };

  static std::vector<std::shared_ptr<typename Run::Net>> nets(int count) {
    std::vector<std::shared_ptr<typename Run::Net>> all;
    for (int i = 0; i < count; ++i) {
      torch::manual_seed(0);
      all.push_back(Run::make());
    }
    return all;
  }

  static Expected one_process() {
    const auto net = nets(1)[0];
    torch::optim::AdamW adamw(net->parameters(), adamw_options());
    const auto step = Run::step([net](const auto&... arguments) { return net->forward(arguments...); });
    Expected expected;
    for (int i = 0; i < kSteps; ++i) {
      adamw.zero_grad();
      const at::Tensor loss = step.loss(Run::batch());
      loss.backward();
      torch::nn::utils::clip_grad_norm_(net->parameters(), kClip);
      adamw.step();
      expected.losses.push_back(loss.item<double>());
    }
    for (const auto& item : net->named_parameters()) expected.weights[item.key()] = item.value().detach().clone();
    return expected;
  }

  static void expect_like_one_process(Value fields, int world) {
    fields["gradient_clipping"] = kClip;
    const auto expected = one_process();
    const auto all = nets(world);
    run_ranks(world, [&](process::Process& process) {
      const Accelerator accelerator(process, {.tune_allocator = false, .megatron_lm = fields});
      auto net = all[static_cast<size_t>(process.rank())];
      torch::optim::AdamW adamw(net->parameters(), adamw_options());
      auto [model, optimizer] = accelerator.prepare(net, adamw);
      const auto step = Run::step([&model = model](const auto&... arguments) { return model(arguments...); });
      const auto& parallel = accelerator.options().parallel;
      const int data = world / (parallel.tp * parallel.pp * parallel.cp);
      TextBatch mine;
      for (const auto& [name, tensor] : Run::batch())
        mine[name] = tensor.chunk(data)[process.rank() / parallel.tp % data];
      for (int i = 0; i < kSteps; ++i) {
        optimizer.zero_grad();
        const at::Tensor loss = accelerator.forward_backward<TextBatch>(mine, step.loss, step.weight);
        optimizer.step();
        EXPECT_NEAR(loss.template item<double>(), expected.losses[static_cast<size_t>(i)], 1e-5) << i;
      }
      for (const auto& item : net->named_parameters()) {
        const at::Tensor whole = parallel::gather_parameter(item.value());
        EXPECT_LT((whole - expected.weights.at(item.key())).abs().max().template item<double>(), 2e-4) << item.key();
      }
    });
  }
};

using Runs = ::testing::Types<GptRun, BertRun, T5Run>;
TYPED_TEST_SUITE(MegatronSteps, Runs);

TYPED_TEST(MegatronSteps, OnStagesAreThoseOfOneProcess) {
  TestFixture::expect_like_one_process(Value::map({{"pp_degree", 2}, {"num_micro_batches", 4}}), 2);
}
TYPED_TEST(MegatronSteps, OfCutLayersAreThoseOfOneProcess) {
  TestFixture::expect_like_one_process(Value::map({{"tp_degree", 2}, {"num_micro_batches", 2}}), 2);
  TestFixture::expect_like_one_process(Value::map({{"tp_degree", 2}, {"sequence_parallelism", true}}), 2);
}
TYPED_TEST(MegatronSteps, OfBothBesideDataAreThoseOfOneProcess) {
  TestFixture::expect_like_one_process(Value::map({{"tp_degree", 2}, {"pp_degree", 2}, {"num_micro_batches", 2}}), 4);
  TestFixture::expect_like_one_process(
      Value::map({{"pp_degree", 2}, {"num_micro_batches", 2}, {"use_distributed_optimizer", true}}), 4);
}
TYPED_TEST(MegatronSteps, WithRecomputedLayersAreThoseOfOneProcess) {
  TestFixture::expect_like_one_process(
      Value::map({{"tp_degree", 2}, {"recompute_activations", true}, {"recompute_num_layers", 2}}), 2);
}

// ---- The plugin's options.

AcceleratorOptions applied(const Value& fields, const std::map<std::string, std::string>& variables = {}) {
  AcceleratorOptions options;
  if (!fields.is_null()) options.megatron_lm = fields;
  apply_megatron(options, Environment::of(variables));
  return options;
}

TEST(MegatronOptions, AreReadFromFieldsThenVariables) {
  const auto options = applied(Value::map({{"tp_degree", 2}, {"recompute_activations", true}}),
                               {{"MEGATRON_LM_TP_DEGREE", "4"},
                                {"MEGATRON_LM_PP_DEGREE", "2"},
                                {"MEGATRON_LM_NUM_MICRO_BATCHES", "6"},
                                {"MEGATRON_LM_SEQUENCE_PARALLELISM", "true"},
                                {"MEGATRON_LM_RECOMPUTE_METHOD", "block"},
                                {"MEGATRON_LM_RECOMPUTE_NUM_LAYERS", "3"}});

  EXPECT_EQ(options.parallel.tp, 2);
  EXPECT_EQ(options.parallel.pp, 2);
  EXPECT_EQ(options.parallel.cp, 1);
  EXPECT_EQ(options.parallel.dp_replicate, -1);
  EXPECT_EQ(options.parallel.microbatches, 6);
  EXPECT_TRUE(options.parallel.sequence_parallel);
  EXPECT_TRUE(options.recompute.enabled);
  EXPECT_EQ(options.recompute.max_modules, 3);
}

TEST(MegatronOptions, OfTheLauncherAloneAreApplied) {
  const std::map<std::string, std::string> variables = {{"ACCELERATE_USE_MEGATRON_LM", "true"},
                                                        {"MEGATRON_LM_TP_DEGREE", "2"},
                                                        {"MEGATRON_LM_USE_DISTRIBUTED_OPTIMIZER", "True"}};
  const auto options = applied({}, variables);

  EXPECT_EQ(options.parallel.tp, 2);
  EXPECT_EQ(options.parallel.dp_shard, -1);
  EXPECT_EQ(options.shard.stage, ShardStage::kOptimizer);
  EXPECT_EQ(applied({}, {{"MEGATRON_LM_TP_DEGREE", "2"}}).parallel.tp, 1) << "nobody asked for Megatron-LM";
}

TEST(MegatronOptions, OfMegatronsOwnNamesCountBeforeAll) {
  const auto options = applied(Value::map(
      {{"tp_degree", 4},
       {"other_megatron_args", Value::map({{"tensor_model_parallel_size", 2}, {"use_custom_fsdp", true}})}}));

  EXPECT_EQ(options.parallel.tp, 2);
  EXPECT_EQ(options.shard.stage, ShardStage::kParameters);
  EXPECT_THAT(
      [] {
        applied(Value::map({{"other_megatron_args", Value::map({{"tensor_model_paralel_size", 2}})}}));
      },
      ThrowsMessage<UsageError>(HasSubstr("did you mean 'tensor_model_parallel_size'")));
}

TEST(MegatronOptions, OfMegatronsArgumentsSetOptionsOfTheRun) {
  const auto others =
      Value::map({{"seed", 7}, {"bf16", true}, {"distributed_timeout_minutes", 3}, {"overlap_param_gather", true}});
  const auto options = applied(MegatronLmPlugin{.other_megatron_args = others});

  EXPECT_EQ(options.seed, 7u);
  EXPECT_EQ(options.mixed_precision, Precision::kBf16);
  EXPECT_EQ(options.timeout, std::chrono::minutes(3));
  EXPECT_THAT(megatron_notes(*read_megatron(options, Environment::of({}))),
              Contains(HasSubstr("overlap_param_gather has no effect")));
  EXPECT_THAT(
      [] {
        applied(MegatronLmPlugin{.other_megatron_args = Value::map({{"hidden_size", 64}})});
      },
      ThrowsMessage<UsageError>(HasSubstr("hidden_size (the program makes its model")));
}

TEST(MegatronOptions, OfLengthsAreNoted) {
  const auto notes = [](const MegatronLmPlugin& plugin) {
    return megatron_notes(plan::MegatronPlugin(plugin, Environment::of({})));
  };

  EXPECT_THAT(notes({.seq_length = 128, .decoder_seq_length = 64}),
              ElementsAre(AllOf(HasSubstr("seq_length = 128"), HasSubstr("other loaders have the length that their")),
                          HasSubstr("decoder_seq_length = 64")));
  EXPECT_THAT(notes({}), ::testing::IsEmpty());
  EXPECT_THAT(notes({.megatron_dataset_flag = true}), ElementsAre(HasSubstr("megatron_dataset_flag has no effect")));
}

TEST(MegatronOptions, OfSelectiveRecomputationDropWhatSoftmaxAndDropoutGive) {
  const auto options = applied(MegatronLmPlugin{.recompute_activations = true, .recompute_granularity = "selective"});

  EXPECT_TRUE(options.recompute.enabled);
  EXPECT_EQ(options.recompute.operators, parallel::attention_operators());
  EXPECT_EQ(options.recompute.region_size, 0);
}

TEST(MegatronOptions, OfTheStyleWsdLetTheRateFallAtTheEnd) {
  const auto rates = [](const MegatronLmPlugin& fields) {
    torch::nn::Linear net(3, 2);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    AcceleratorOptions options;
    options.megatron_lm = fields;
    MegatronScheduler scheduler(sgd, *read_megatron(options, Environment::of({})), {.samples_per_step = 2});
    std::vector<double> all;
    for (int step = 0; step < 10; ++step) {
      all.push_back(std::round(sgd.param_groups()[0].options().get_lr() * 1e6) / 1e6);
      sgd.step();
      scheduler.step();
    }
    return all;
  };
  const auto expected = ElementsAre(0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.08, 0.06, 0.04);

  EXPECT_THAT(rates({.train_iters = 10,
                     .min_lr = 0.02,
                     .lr_decay_style = "WSD",
                     .lr_wsd_decay_style = "linear",
                     .lr_wsd_decay_iters = 4}),
              expected);
  EXPECT_THAT(rates({.train_iters = 10,
                     .min_lr = 0.02,
                     .lr_decay_style = "WSD",
                     .lr_wsd_decay_style = "linear",
                     .lr_wsd_decay_samples = 8}),
              expected);
  EXPECT_THAT(rates({.train_iters = 10,
                     .min_lr = 0.02,
                     .lr_decay_style = "WSD",
                     .other_megatron_args = Value::map({{"lr_wsd_decay_style", "linear"}, {"lr_wsd_decay_iters", 4}})}),
              expected);
  EXPECT_THAT([&] { rates({.train_iters = 10, .lr_decay_style = "WSD"}); },
              ThrowsMessage<UsageError>(HasSubstr("lr_wsd_decay_iters")));
}

TEST(MegatronOptions, WithoutCounterpartAreRefusedTogetherWithRemedies) {
  EXPECT_THAT(
      [] {
        applied(Value::map({{"lr_mult", 3.0},
                            {"custom_train_step_class", "Mine"},
                            {"attention_dropout", 0.1},
                            {"optimizer_cpu_offload", true}}));
      },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("lr_mult = 3.0 (give the optimizer parameter groups"),
                                      HasSubstr("custom_train_step_class = \"Mine\" (give forward_backward"),
                                      HasSubstr("attention_dropout = 0.1 (the program makes its model"),
                                      HasSubstr("set use_distributed_optimizer too"))));
  EXPECT_THAT(
      [] {
        applied(Value::map({{"expert_model_parallel_size", 2}}));
      },
      ThrowsMessage<UsageError>(HasSubstr("experts are not supported")));
}

TEST(MegatronOptions, BesideAnotherLayoutAreRefused) {
  const auto refused = [](AcceleratorOptions options, const std::map<std::string, std::string>& variables = {}) {
    options.megatron_lm = Value::map({{"tp_degree", 2}});
    apply_megatron(options, Environment::of(variables));
  };

  EXPECT_THAT([&] { refused({.parallel = {.tp = 2}}); },
              ThrowsMessage<UsageError>(HasSubstr("beside sizes in AcceleratorOptions::parallel")));
  EXPECT_THAT(
      [&] {
        refused({}, {{"ACCELERATE_USE_PARALLELISM_CONFIG", "true"}});
      },
      ThrowsMessage<UsageError>(HasSubstr("beside ACCELERATE_USE_PARALLELISM_CONFIG")));
  EXPECT_THAT(
      [&] {
        refused({}, {{"ACCELERATE_USE_FSDP", "true"}});
      },
      ThrowsMessage<UsageError>(HasSubstr("beside FSDP, DeepSpeed")));
  EXPECT_NO_THROW(refused({.parallel = {.stages = {"h.2"}}}));
}

TEST(MegatronOptions, OfLayersInAStageGiveItsChunks) {
  const auto words = run_ranks_collecting(2, [](process::Process& process) {
    const auto fields = [](int layers) {
      return Value::map(
          {{"pp_degree", 2}, {"num_micro_batches", 2}, {"num_layers_per_virtual_pipeline_stage", layers}});
    };
    const Accelerator accelerator(process, {.tune_allocator = false, .megatron_lm = fields(1)});
    EXPECT_EQ(accelerator.distributed_type(), DistributedType::kMegatronLm);
    const auto nets = std::vector{GptRun::make(), GptRun::make()};
    auto model = accelerator.prepare(nets[0]);
    const auto loss = accelerator.forward_backward(GptRun::batch().at("input_ids"), [&](const at::Tensor& ids) {
      return model(ids, at::Tensor(), nullptr).mean();
    });
    EXPECT_TRUE(loss.isfinite().item<bool>());
    int held = 0;  // two of four layers in turns
    for (const auto& item : nets[0]->named_parameters()) {
      if (item.key().ends_with("ln_1.weight") && item.value().numel() > 0) {
        ++held;
        EXPECT_EQ(item.key()[14] - '0', process.rank() + 2 * (held - 1)) << item.key();
      }
    }
    EXPECT_EQ(held, 2);
    const Accelerator other(process, {.tune_allocator = false, .megatron_lm = fields(3)});
    auto refused = other.prepare(nets[1]);
  });

  EXPECT_THAT(words[0], HasSubstr("the model has 4 layers, which is no multiple of 6"));
}

// Names of the layers of which this rank holds parameters, in order.
std::vector<std::string> layers_held(const torch::nn::Module& net, const std::string& part) {
  std::vector<std::string> held;
  for (const auto& item : net.named_parameters()) {
    if (item.key().ends_with(part) && item.value().numel() > 0)
      held.push_back(item.key().substr(0, item.key().size() - part.size()));
  }
  return held;
}

// The layers of each rank of a model that is prepared with the plugin; or what refuses it.
template <class Run>
std::vector<std::vector<std::string>> layers_of_ranks(int world, const MegatronLmPlugin& plugin, const char* part) {
  std::vector<std::vector<std::string>> all(static_cast<size_t>(world));
  std::vector<std::shared_ptr<typename Run::Net>> nets;
  for (int i = 0; i < world; ++i) nets.push_back(Run::make());
  run_ranks(world, [&](process::Process& process) {
    const Accelerator accelerator(process, {.tune_allocator = false, .megatron_lm = plugin});
    const auto& net = nets[static_cast<size_t>(process.rank())];
    auto model = accelerator.prepare(net);
    all[static_cast<size_t>(process.rank())] = layers_held(*net, part);
  });
  return all;
}

TEST(MegatronOptions, OfAnUnevenLastStageGiveItItsLayers) {
  using Layers = std::vector<std::vector<std::string>>;
  const std::string h = "transformer.h.";

  EXPECT_EQ(layers_of_ranks<GptRun>(2, {.pp_degree = 2, .decoder_last_pipeline_num_layers = 1}, ".ln_1.weight"),
            (Layers{{h + "0", h + "1", h + "2"}, {h + "3"}}));
  EXPECT_EQ(layers_of_ranks<GptRun>(2, {.pp_degree = 2, .decoder_last_pipeline_num_layers = 3}, ".ln_1.weight"),
            (Layers{{h + "0"}, {h + "1", h + "2", h + "3"}}));
  EXPECT_EQ(layers_of_ranks<GptRun>(3, {.pp_degree = 3, .decoder_last_pipeline_num_layers = 2}, ".ln_1.weight"),
            (Layers{{h + "0"}, {h + "1"}, {h + "2", h + "3"}}));
}

TEST(MegatronOptions, OfASplitRankBeginTheDecoderThere) {
  using Layers = std::vector<std::vector<std::string>>;
  const std::string part = ".layer.0.SelfAttention.q.weight", enc = "encoder.block.", dec = "decoder.block.";

  EXPECT_EQ(layers_of_ranks<T5Run>(2, {.pp_degree = 2, .pipeline_model_parallel_split_rank = 1}, part.c_str()),
            (Layers{{enc + "0", enc + "1"}, {dec + "0", dec + "1"}}));
  EXPECT_EQ(layers_of_ranks<T5Run>(3, {.pp_degree = 3, .pipeline_model_parallel_split_rank = 2}, part.c_str()),
            (Layers{{enc + "0"}, {enc + "1"}, {dec + "0", dec + "1"}}));
  EXPECT_EQ(layers_of_ranks<T5Run>(3, {.pp_degree = 3, .pipeline_model_parallel_split_rank = 1}, part.c_str()),
            (Layers{{enc + "0", enc + "1"}, {dec + "0"}, {dec + "1"}}));
}

TYPED_TEST(MegatronSteps, OnUnevenStagesAreThoseOfOneProcess) {
  if constexpr (std::is_same_v<TypeParam, T5Run>) {
    TestFixture::expect_like_one_process(
        MegatronLmPlugin{.pp_degree = 2, .num_micro_batches = 2, .pipeline_model_parallel_split_rank = 1}, 2);
  } else {
    TestFixture::expect_like_one_process(
        MegatronLmPlugin{.pp_degree = 2, .num_micro_batches = 2, .decoder_last_pipeline_num_layers = 1}, 2);
  }
}

TEST(MegatronOptions, OfStagesThatCannotBeAreRefused) {
  const auto refused = [](const MegatronLmPlugin& plugin, const AcceleratorOptions& more = {}) {
    return run_ranks_collecting(2, [&](process::Process& process) {
      auto options = more;
      options.tune_allocator = false;
      options.megatron_lm = plugin;
      const Accelerator accelerator(process, options);
      auto model = accelerator.prepare(GptRun::make());
    })[0];
  };

  EXPECT_THAT(refused({.tp_degree = 2, .decoder_last_pipeline_num_layers = 1}),
              HasSubstr("with pp_degree 1: there are no stages"));
  EXPECT_THAT(refused({.pp_degree = 2, .decoder_last_pipeline_num_layers = 4}),
              HasSubstr("of 4 layers it leaves 0 to 1 stages, which is no multiple. Choose one of 3, 2, 1"));
  EXPECT_THAT(refused({.pp_degree = 2, .pipeline_model_parallel_split_rank = 2}),
              HasSubstr("expected a rank from 1 to 1"));
  EXPECT_THAT(refused({.pp_degree = 2, .pipeline_model_parallel_split_rank = 1}),
              HasSubstr("the model has 1 lists of layers, transformer.h; expected an encoder's and a decoder's"));
  EXPECT_THAT(
      refused({.pp_degree = 2, .num_layers_per_virtual_pipeline_stage = 1, .decoder_last_pipeline_num_layers = 1}),
      HasSubstr("beside several stages a rank"));
  EXPECT_THAT(refused({.pp_degree = 2, .decoder_last_pipeline_num_layers = 1}, {.parallel = {.stages = {"h.1"}}}),
              HasSubstr("both say where stages begin"));
}

// The same schedule in samples: a step is a batch of each of the data parallel ranks.
TEST(MegatronOptions, ASchedulesSamplesAreThoseOfAllRanks) {
  run_ranks(2, [](process::Process& process) {
    const auto rates = [&](const MegatronLmPlugin& plugin) {
      const Accelerator accelerator(process, {.tune_allocator = false, .megatron_lm = plugin});
      torch::nn::Linear net(3, 2);
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
      auto train = accelerator.data_loader(data::TensorDataset(at::ones({24, 3})), 3);
      auto [model, optimizer, scheduler] =
          accelerator.prepare(net, sgd, parallel::DummyScheduler(sgd, {.total_num_steps = 999}));
      std::vector<double> all;
      for ([[maybe_unused]] auto& batch : train) {
        all.push_back(sgd.param_groups()[0].options().get_lr());
        optimizer.zero_grad();
        accelerator.backward(model(at::ones({3, 3})).sum());
        optimizer.step();
        scheduler.step();
      }
      return all;
    };
    // 6 samples a step.
    const auto in_steps = rates({.train_iters = 8, .lr_decay_iters = 6, .lr_warmup_iters = 2, .min_lr = 0.01});
    const auto in_samples =
        rates({.train_samples = 48, .lr_decay_samples = 36, .lr_warmup_samples = 12, .min_lr = 0.01});
    const auto mixed =
        rates({.train_iters = 8, .train_samples = 1, .lr_decay_samples = 36, .lr_warmup_iters = 2, .min_lr = 0.01});
    const auto of_training = rates({.train_samples = 48});

    ASSERT_EQ(in_steps.size(), 4U);
    for (size_t i = 0; i < in_steps.size(); ++i) {
      EXPECT_NEAR(in_samples[i], in_steps[i], 1e-12) << i;
      EXPECT_NEAR(mixed[i], in_steps[i], 1e-12) << i;
      EXPECT_NEAR(of_training[i], 0.1 * (1 - static_cast<double>(i) / 8), 1e-12) << i;
    }
    EXPECT_NEAR(in_steps[1], 0.05, 1e-12);
  });
}

TEST(MegatronOptions, SamplesWithoutALoaderAreRefused) {
  EXPECT_THAT(run_ranks_collecting(
                  1,
                  [](process::Process& process) {
                    const Accelerator accelerator(
                        process, {.tune_allocator = false, .megatron_lm = MegatronLmPlugin{.train_samples = 48}});
                    torch::nn::Linear net(3, 2);
                    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
                    auto all = accelerator.prepare(net, sgd, parallel::DummyScheduler(sgd, {.total_num_steps = 9}));
                  })[0],
              HasSubstr("no loader has been prepared"));
}

// Rates and weight decay of Megatron-Core's formulas; biases, which have no decay, keep none.
TEST(MegatronOptions, ADummySchedulerFollowsMegatronsSchedule) {
  run_ranks(1, [](process::Process& process) {
    const auto fields = Value::map({{"lr_decay_style", "cosine"},
                                    {"min_lr", 1e-3},
                                    {"weight_decay_incr_style", "linear"},
                                    {"start_weight_decay", 0.01},
                                    {"end_weight_decay", 0.1}});
    const Accelerator accelerator(process, {.tune_allocator = false, .megatron_lm = fields});
    torch::nn::Linear net(3, 2);
    using Group = torch::optim::OptimizerParamGroup;
    torch::optim::AdamW adamw(
        std::vector<Group>{
            Group({net->weight}, std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions(0.1))),
            Group({net->bias},
                  std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions(0.1).weight_decay(0)))},
        torch::optim::AdamWOptions(0.1));
    auto [model, optimizer, scheduler] = accelerator.prepare(
        net, adamw, parallel::DummyScheduler(adamw, {.total_num_steps = 10, .warmup_num_steps = 2}));
    const plan::MegatronSchedule expected({.max_lr = 0.1,
                                           .min_lr = 1e-3,
                                           .warmup = 2,
                                           .decay = 10,
                                           .style = "cosine",
                                           .start_weight_decay = 0.01,
                                           .end_weight_decay = 0.1,
                                           .weight_decay_steps = 10,
                                           .weight_decay_style = "linear"});

    for (int step = 0; step < 6; ++step) {
      const auto decay = [&](size_t group) {
        return static_cast<torch::optim::AdamWOptions&>(adamw.param_groups()[group].options()).weight_decay();
      };
      EXPECT_NEAR(adamw.param_groups()[0].options().get_lr(), expected.rate(step), 1e-12) << step;
      EXPECT_NEAR(decay(0), expected.weight_decay(step), 1e-12) << step;
      EXPECT_EQ(decay(1), 0) << step;
      optimizer.zero_grad();
      accelerator.backward(model(at::ones({4, 3})).sum());
      optimizer.step();
      scheduler.step();
    }
  });
}

// Megatron's two ways: the first n layers alone, or n layers a region.
TEST(MegatronOptions, RecomputeLayersInBlocksOrAlike) {
  const auto dropped = [](const Value& fields) {
    const auto before = parallel::recompute_counts().dropped;
    run_ranks(1, [&](process::Process& process) {
      const Accelerator accelerator(process, {.tune_allocator = false, .megatron_lm = fields});
      auto model = accelerator.prepare(GptRun::make());
      accelerator.backward(model(GptRun::batch().at("input_ids"), at::Tensor(), nullptr).mean());
    });
    return parallel::recompute_counts().dropped - before;
  };
  const auto fields = [](const char* method, int layers) {
    return Value::map(
        {{"recompute_activations", true}, {"recompute_method", method}, {"recompute_num_layers", layers}});
  };

  const auto one = dropped(fields("block", 1)), three = dropped(fields("block", 3)), all = dropped(fields("block", 9));
  EXPECT_GT(one, 0);
  EXPECT_EQ(three, 3 * one);
  EXPECT_EQ(all, 4 * one);
  EXPECT_EQ(dropped(fields("uniform", 1)), all);
  EXPECT_GT(dropped(fields("uniform", 2)), all) << "inputs of every second layer go too";
  EXPECT_EQ(dropped(Value::map({{"recompute_activations", true}, {"recompute_granularity", "selective"}})), 0);
}

}  // namespace
}  // namespace hasten
