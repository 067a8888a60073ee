// MegatronLmPlugin: the settings of Accelerate's MegatronLMPlugin as a program writes them.
//
// It becomes the map that AcceleratorOptions::megatron_lm takes, and that configuration files hold:
// `.megatron_lm = MegatronLmPlugin{.tp_degree = 2, .pp_degree = 2}`. settings/megatron_plugin.h reads the map. Fields
// that only Python can fill (functions, classes, conditions) are not here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hasten/core/value.h"

namespace hasten::plan {

/// Unset members follow their variables MEGATRON_LM_<NAME>, where these exist, else the defaults of the peer.
struct MegatronLmPlugin {
  // ---- Ranks and parts of a batch.
  std::optional<int64_t> tp_degree = {}, pp_degree = {}, num_micro_batches = {}, context_parallel_size = {};
  std::optional<bool> sequence_parallelism = {};
  /// Layers of each stage, several a rank; of the last stage; the rank of pp with which a decoder begins.
  std::optional<int64_t> num_layers_per_virtual_pipeline_stage = {}, decoder_last_pipeline_num_layers = {},
                         pipeline_model_parallel_split_rank = {};
  /// Above 1 they are refused.
  std::optional<int64_t> expert_model_parallel_size = {}, expert_tensor_parallel_size = {};

  // ---- Steps.
  /// 0: gradients are not clipped.
  std::optional<double> gradient_clipping = {};
  std::optional<bool> use_distributed_optimizer = {}, use_custom_fsdp = {}, optimizer_cpu_offload = {},
                      overlap_cpu_optimizer_d2h_h2d = {}, use_precision_aware_optimizer = {},
                      calculate_per_token_loss = {};
  std::optional<bool> recompute_activations = {};
  /// "full" or "selective"; "uniform" or "block".
  std::optional<std::string> recompute_granularity = {}, recompute_method = {};
  std::optional<int64_t> recompute_num_layers = {};

  // ---- Schedule: in optimizer steps, or in samples of all ranks. Steps count if both are given.
  std::optional<int64_t> train_iters = {}, train_samples = {}, lr_decay_iters = {}, lr_decay_samples = {},
                         lr_warmup_iters = {}, lr_warmup_samples = {};
  std::optional<double> lr_warmup_fraction = {}, min_lr = {}, start_weight_decay = {}, end_weight_decay = {},
                        lr_mult = {};
  /// As plan::MegatronScheduleOptions: style and weight_decay_style.
  std::optional<std::string> lr_decay_style = {}, weight_decay_incr_style = {};
  /// Megatron's arguments of these names, which Accelerate's plugin lacks. With style "WSD": how the rate falls at the
  /// end, and how long that is. The rate with which the warm-up begins.
  std::optional<std::string> lr_wsd_decay_style = {};
  std::optional<int64_t> lr_wsd_decay_iters = {}, lr_wsd_decay_samples = {};
  std::optional<double> lr_warmup_init = {};
  /// True: the smallest batch of several loaders counts for samples, else the largest.
  std::optional<bool> is_train_batch_min = {};
  std::optional<int64_t> eval_iters = {}, eval_interval = {};

  // ---- Model, data and files.
  std::optional<int64_t> seq_length = {}, encoder_seq_length = {}, decoder_seq_length = {};
  std::optional<double> attention_dropout = {}, hidden_dropout = {};
  std::optional<bool> attention_softmax_in_fp32 = {}, use_rotary_position_embeddings = {}, attention_backend = {},
                      return_logits = {}, eod_mask_loss = {}, megatron_dataset_flag = {};
  std::optional<std::vector<int64_t>> consumed_samples = {};
  std::optional<bool> no_load_optim = {}, no_save_optim = {}, set_all_logging_options = {};
  std::optional<std::string> tensorboard_dir = {};

  /// A map of arguments by Megatron's own names (megatron_arguments.h), which count before all; null: none.
  core::Value other_megatron_args = {};

  /// Returns the fields that are set, by their names.
  core::Value fields() const;
  operator core::Value() const { return fields(); }  // NOLINT(google-explicit-constructor): as an option of that type
};

}  // namespace hasten::plan

namespace hasten {
using plan::MegatronLmPlugin;
}
