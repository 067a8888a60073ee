// See megatron_lm_plugin.h.
#include "hasten/settings/megatron_lm_plugin.h"

namespace hasten::plan {
core::Value MegatronLmPlugin::fields() const {
  core::Value all = core::Value::map();
  const auto put = [&](const char* name, const auto& field) {
    if (field) all[name] = core::Value(*field);
  };
  put("tp_degree", tp_degree);
  put("pp_degree", pp_degree);
  put("num_micro_batches", num_micro_batches);
  put("context_parallel_size", context_parallel_size);
  put("sequence_parallelism", sequence_parallelism);
  put("num_layers_per_virtual_pipeline_stage", num_layers_per_virtual_pipeline_stage);
  put("decoder_last_pipeline_num_layers", decoder_last_pipeline_num_layers);
  put("pipeline_model_parallel_split_rank", pipeline_model_parallel_split_rank);
  put("expert_model_parallel_size", expert_model_parallel_size);
  put("expert_tensor_parallel_size", expert_tensor_parallel_size);
  put("gradient_clipping", gradient_clipping);
  put("use_distributed_optimizer", use_distributed_optimizer);
  put("use_custom_fsdp", use_custom_fsdp);
  put("optimizer_cpu_offload", optimizer_cpu_offload);
  put("overlap_cpu_optimizer_d2h_h2d", overlap_cpu_optimizer_d2h_h2d);
  put("use_precision_aware_optimizer", use_precision_aware_optimizer);
  put("calculate_per_token_loss", calculate_per_token_loss);
  put("recompute_activations", recompute_activations);
  put("recompute_granularity", recompute_granularity);
  put("recompute_method", recompute_method);
  put("recompute_num_layers", recompute_num_layers);
  put("train_iters", train_iters);
  put("train_samples", train_samples);
  put("lr_decay_iters", lr_decay_iters);
  put("lr_decay_samples", lr_decay_samples);
  put("lr_warmup_iters", lr_warmup_iters);
  put("lr_warmup_samples", lr_warmup_samples);
  put("lr_warmup_fraction", lr_warmup_fraction);
  put("min_lr", min_lr);
  put("start_weight_decay", start_weight_decay);
  put("end_weight_decay", end_weight_decay);
  put("lr_mult", lr_mult);
  put("lr_decay_style", lr_decay_style);
  put("weight_decay_incr_style", weight_decay_incr_style);
  put("lr_wsd_decay_style", lr_wsd_decay_style);
  put("lr_wsd_decay_iters", lr_wsd_decay_iters);
  put("lr_wsd_decay_samples", lr_wsd_decay_samples);
  put("lr_warmup_init", lr_warmup_init);
  put("is_train_batch_min", is_train_batch_min);
  put("eval_iters", eval_iters);
  put("eval_interval", eval_interval);
  put("seq_length", seq_length);
  put("encoder_seq_length", encoder_seq_length);
  put("decoder_seq_length", decoder_seq_length);
  put("attention_dropout", attention_dropout);
  put("hidden_dropout", hidden_dropout);
  put("attention_softmax_in_fp32", attention_softmax_in_fp32);
  put("use_rotary_position_embeddings", use_rotary_position_embeddings);
  put("attention_backend", attention_backend);
  put("return_logits", return_logits);
  put("eod_mask_loss", eod_mask_loss);
  put("megatron_dataset_flag", megatron_dataset_flag);
  put("consumed_samples", consumed_samples);
  put("no_load_optim", no_load_optim);
  put("no_save_optim", no_save_optim);
  put("set_all_logging_options", set_all_logging_options);
  put("tensorboard_dir", tensorboard_dir);
  if (!other_megatron_args.is_null()) all["other_megatron_args"] = other_megatron_args;
  return all;
}

}  // namespace hasten::plan
