// MegatronLMPlugin: the settings of Accelerate's plugin for Megatron-LM, and what they come to.
//
// Pure: a program's fields, then MEGATRON_LM_*, then the defaults. From them follow Megatron's own arguments and a
// layout of ranks. Values are kept by the peer's names, so that a configuration of theirs is read as it is. Functions
// and classes of Python are given by their names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hasten/core/env.h"
#include "hasten/core/value.h"

namespace hasten::plan {

/// Ranks of each axis.
struct MegatronLayout {
  int64_t pp = 1, dp_replicate = 1, dp_shard = 1, cp = 1, tp = 1;
  bool operator==(const MegatronLayout&) const = default;
};

/// All fields of the plugin, after variables and defaults were read. Null: unset.
class MegatronPlugin {
 public:
  /// `fields`: a map of the fields that the program sets. other_megatron_args is a map of Megatron's own arguments,
  /// which count before all else. context_parallel_size is 1 by default, and recompute_* count if recompute_activations
  /// is set.
  /// Throws: UsageError for an unknown field, a value of another kind, a degree or count below 1, or
  /// sequence_parallelism without tp_degree.
  MegatronPlugin(const core::Value& fields, const Environment& environment);

  /// Returns true if the field differs from the peer's default.
  bool is_given(std::string_view name) const;
  const core::Value& operator[](std::string_view name) const { return fields_.at(name); }
  int64_t number(std::string_view name) const { return fields_.at(name).as_int(); }
  bool flag(std::string_view name) const { return fields_.at(name).as_bool(); }

  /// Megatron's arguments by its names.
  core::Value arguments() const;

  /// The ranks of each axis: what tp, pp and context_parallel_size leave of the world is data parallel. It is dp_shard
  /// if optimizer state or parameters are split (use_distributed_optimizer, use_custom_fsdp), else dp_replicate.
  /// Throws: UsageError if the world is no multiple of them; for expert sizes above 1, which are not supported.
  MegatronLayout layout(int64_t world_size) const;

  /// Lines that a program should see once, such as few microbatches for many stages.
  std::vector<std::string> remarks() const;

 private:
  core::Value fields_;
};

/// Returns the field that an argument of Megatron's own sets ("tensor_model_parallel_size": "tp_degree"); "" for none.
std::string megatron_field(std::string_view argument);
/// The arguments that megatron_field knows.
std::vector<std::string> megatron_arguments();

/// A model as Megatron's arguments describe it.
struct MegatronModel {
  /// transformers' model_type: "gpt2", "llama", "megatron-bert", "t5".
  std::string type = {};
  /// Its configuration, by transformers' names.
  core::Value config = {};
  /// Bert: a head for masked words; false: for classes.
  bool masked_words = true;
  /// Lengths of the first batch's input_ids and labels; unset: no batch yet.
  std::optional<int64_t> input_length = {}, label_length = {};
};

struct MegatronNetwork {
  core::Value arguments = {};
  /// Null: unset.
  core::Value seq_length = {}, encoder_seq_length = {}, decoder_seq_length = {};
  std::vector<std::string> warnings = {};
};

/// Returns the arguments that a model adds. A length that the program gives stays, and an encoder's or decoder's own
/// length counts before it. Throws: UsageError for a model of another type; for a configuration that lacks a name.
MegatronNetwork megatron_network(const MegatronPlugin& plugin, const MegatronModel& model);

/// The parts of a training that add arguments: optimizer, schedule and loader.
struct MegatronTraining {
  /// The class and its options: {"type": "AdamW", "lr": …, "betas": […], "eps": …, "weight_decay": …}.
  core::Value optimizer = {};
  /// "no", "fp16", "bf16".
  std::string mixed_precision = "no";
  int64_t micro_batch_size = 1, data_parallel_size = 1;
  /// Steps of the schedule, counted over all data parallel ranks.
  int64_t total_num_steps = 0, warmup_num_steps = 0;
};

struct MegatronTrainingArguments {
  core::Value arguments = {};
  int64_t global_batch_size = 0;
  std::vector<std::string> warnings = {};
};

/// Throws: UsageError for an optimizer that Megatron lacks.
MegatronTrainingArguments megatron_training(const MegatronPlugin& plugin, const MegatronTraining& training);

}  // namespace hasten::plan
