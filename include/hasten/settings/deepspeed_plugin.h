// DeepSpeedPlugin: the settings of Accelerate's plugin, from arguments, then variables; and what fills "auto".
//
// Pure. resolve_deepspeed_plugin() gives the configuration that the peer's plugin arrives at. fill_auto() fills in the
// values known to a call of prepare. deepspeed_config.h decides whether a configuration can be carried out
// (resolve_deepspeed).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hasten/core/env.h"
#include "hasten/settings/deepspeed_config.h"

namespace hasten::plan {

/// Settings of a program. Unset members follow their variables, else the defaults of the peer.
struct DeepSpeedPlugin {
  /// A file's path, a map, JSON text, or urlsafe base64 of it; null: ACCELERATE_DEEPSPEED_CONFIG_FILE.
  core::Value hf_ds_config = {};
  /// A number or "auto"; ACCELERATE_GRADIENT_ACCUMULATION_STEPS.
  core::Value gradient_accumulation_steps = {};
  /// A number, 0 for none, or "auto"; ACCELERATE_GRADIENT_CLIPPING.
  core::Value gradient_clipping = {};
  /// 0 to 3; ACCELERATE_DEEPSPEED_ZERO_STAGE, else 2.
  core::Value zero_stage = {};
  /// True: the smallest batch of several loaders counts, else the largest.
  bool is_train_batch_min = true;
  /// none, cpu, nvme; ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE, …_OFFLOAD_PARAM_DEVICE, and …_NVME_PATH.
  std::optional<std::string> offload_optimizer_device = {}, offload_param_device = {};
  std::optional<std::string> offload_optimizer_nvme_path = {}, offload_param_nvme_path = {};
  /// ACCELERATE_DEEPSPEED_ZERO3_INIT, else true at stage 3.
  std::optional<bool> zero3_init_flag = {};
  /// ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL.
  std::optional<bool> zero3_save_16bit_model = {};
  /// Class names, separated by commas; ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES. A hint for units.
  std::optional<std::string> transformer_moe_cls_names = {};
  /// MS-AMP is refused; ACCELERATE_FP8_BACKEND=MSAMP.
  std::optional<bool> enable_msamp = {};
  std::optional<std::string> msamp_opt_level = {};
};

/// Values of a plugin once its settings were read.
struct DeepSpeedSettings {
  core::Value gradient_accumulation_steps = "auto", gradient_clipping = "auto", zero_stage = 2;
  bool is_train_batch_min = true;
  std::string offload_optimizer_device = "none", offload_param_device = "none";
  std::string offload_optimizer_nvme_path = "none", offload_param_nvme_path = "none";
  bool zero3_init_flag = false, zero3_save_16bit_model = false;
  std::vector<std::string> transformer_moe_cls_names = {};
  DeepSpeedConfig config = {};
  /// Returns true if the file, an argument or a variable sets it. A default of the peer does not count.
  bool writes_clipping = false, writes_accumulation = false;
  /// The file's value; `config` has infinity, as the peer's. Null: not written.
  core::Value steps_per_print = {};
  std::vector<std::string> notes = {};
};

/// Reads the settings. Blocks: for the file.
/// Throws: UsageError naming variable, value and what was expected; DataError for a file that cannot be read.
DeepSpeedSettings resolve_deepspeed_plugin(const DeepSpeedPlugin& plugin, const Environment& environment);

/// Sets fp16.enabled and bf16.enabled for a precision (no, fp16, bf16, fp8). Missing sections are made.
/// Throws: UsageError if the file enables the other dtype.
void set_mixed_precision(DeepSpeedSettings& settings, const std::string& mixed_precision);

/// Values known to a call of prepare. Unset members fill nothing.
struct AutoInputs {
  int world_size = 1;
  bool split_batches = false;
  /// Batch sizes of the loaders, in order; unset elements are loaders without one.
  std::vector<std::optional<int64_t>> batch_sizes = {};
  /// The Accelerator's; 1 if the program sets none.
  int64_t gradient_accumulation_steps = 1;
  bool has_model = true;
  std::optional<int64_t> hidden_size = {};
  enum class Given { kNothing, kDummy, kDummyWithCallable, kReal };
  Given optimizer = Given::kNothing, scheduler = Given::kNothing;
  double lr = 1e-3, weight_decay = 0.0;
  std::optional<int64_t> total_num_steps = {};
  int64_t warmup_num_steps = 0;
};

/// Fills "auto" with known values, in the peer's order. Unknown values stay "auto".
/// Throws: UsageError for an optimizer or scheduler in the program that the configuration
/// has as well (or a dummy that it lacks); UsageError for numbers of accumulation or batches that contradict each
/// other.
void fill_auto(DeepSpeedSettings& settings, const AutoInputs& inputs);

/// Throws UsageError naming each key that is still "auto", and what was missing. For the first backward.
void require_filled(const DeepSpeedSettings& settings);

}  // namespace hasten::plan
