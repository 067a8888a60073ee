// The fields of a program's plugin are those that the settings know.
#include "hasten/settings/megatron_lm_plugin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hasten/core/env.h"
#include "hasten/settings/megatron_plugin.h"

namespace hasten::plan {
namespace {

using core::Value;

TEST(MegatronLmPlugins, GiveWhatIsSetAndNothingElse) {
  const Value fields = MegatronLmPlugin{.tp_degree = 2, .gradient_clipping = 0.5, .lr_decay_style = "cosine"};

  EXPECT_EQ(fields, Value::map({{"tp_degree", 2}, {"gradient_clipping", 0.5}, {"lr_decay_style", "cosine"}}));
  EXPECT_EQ(Value(MegatronLmPlugin{}), Value::map());
}

TEST(MegatronLmPlugins, HaveAllFieldsButThoseOfPython) {
  const MegatronLmPlugin plugin{.tp_degree = 2,
                                .pp_degree = 2,
                                .num_micro_batches = 2,
                                .context_parallel_size = 2,
                                .sequence_parallelism = true,
                                .num_layers_per_virtual_pipeline_stage = 2,
                                .decoder_last_pipeline_num_layers = 2,
                                .pipeline_model_parallel_split_rank = 1,
                                .expert_model_parallel_size = 2,
                                .expert_tensor_parallel_size = 2,
                                .gradient_clipping = 0.5,
                                .use_distributed_optimizer = true,
                                .use_custom_fsdp = true,
                                .optimizer_cpu_offload = true,
                                .overlap_cpu_optimizer_d2h_h2d = true,
                                .use_precision_aware_optimizer = true,
                                .calculate_per_token_loss = false,
                                .recompute_activations = true,
                                .recompute_granularity = "selective",
                                .recompute_method = "block",
                                .recompute_num_layers = 2,
                                .train_iters = 9,
                                .train_samples = 9,
                                .lr_decay_iters = 9,
                                .lr_decay_samples = 9,
                                .lr_warmup_iters = 9,
                                .lr_warmup_samples = 9,
                                .lr_warmup_fraction = 0.5,
                                .min_lr = 0.5,
                                .start_weight_decay = 0.5,
                                .end_weight_decay = 0.5,
                                .lr_mult = 0.5,
                                .lr_decay_style = "cosine",
                                .weight_decay_incr_style = "linear",
                                .lr_wsd_decay_style = "cosine",
                                .lr_wsd_decay_iters = 9,
                                .lr_wsd_decay_samples = 9,
                                .lr_warmup_init = 0.5,
                                .is_train_batch_min = false,
                                .eval_iters = 9,
                                .eval_interval = 9,
                                .seq_length = 9,
                                .encoder_seq_length = 9,
                                .decoder_seq_length = 9,
                                .attention_dropout = 0.5,
                                .hidden_dropout = 0.5,
                                .attention_softmax_in_fp32 = false,
                                .use_rotary_position_embeddings = false,
                                .attention_backend = false,
                                .return_logits = true,
                                .eod_mask_loss = true,
                                .megatron_dataset_flag = true,
                                .consumed_samples = std::vector<int64_t>{1, 2, 3},
                                .no_load_optim = true,
                                .no_save_optim = true,
                                .set_all_logging_options = true,
                                .tensorboard_dir = "runs",
                                .other_megatron_args = Value::map({{"clip_grad", 0.5}})};
  const Value fields = plugin;
  const MegatronPlugin read(fields, Environment::of({}));

  for (const auto& [name, value] : fields.as_map()) {
    EXPECT_EQ(read[name], value) << name;
    EXPECT_TRUE(read.is_given(name)) << name;
  }
  constexpr size_t kOfPython = 9;  // two conditions, a class, its arguments, and five functions
  EXPECT_EQ(fields.as_map().size() + kOfPython, megatron_arguments().size());
}

}  // namespace
}  // namespace hasten::plan
