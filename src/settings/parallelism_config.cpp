// See parallelism_config.h.
#include "hasten/settings/parallelism_config.h"

#include <algorithm>

#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/core/text.h"

namespace hasten::plan {
namespace {

const Origin kParallel{"parallel"};

int64_t size_of(const std::optional<int64_t>& given, const char* variable, const char* name,
                const Environment& environment) {
  const int64_t size = given ? *given : environment.integer(variable).value_or(1);
  if (size < 1) throw UsageError(kParallel, name, " is ", size, "; expected at least 1.");
  return size;
}

std::string one_of(const std::string& value, const char* name, const std::vector<std::string>& choices,
                   const char* why = "") {
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return value;
  throw UsageError(kParallel, name, " is '", value, "'; expected ", join(choices, " or "), why,
                   guess_end(value, choices));
}

// Python's launcher writes None for a value that was not given.
std::optional<std::string> given_text(const Environment& environment, const char* variable) {
  auto value = environment.text(variable);
  return value && *value != "None" ? value : std::nullopt;
}

void read_sequence(const ParallelismConfig& config, const Environment& environment, ResolvedParallelism& found) {
  one_of(config.sp_backend, "sp_backend", {"deepspeed"});
  found.sp_seq_length = config.sp_seq_length;
  if (!found.sp_seq_length && given_text(environment, "PARALLELISM_CONFIG_SP_SEQ_LENGTH")) {
    found.sp_seq_length = environment.integer("PARALLELISM_CONFIG_SP_SEQ_LENGTH", 1);
  }
  found.sp_seq_length_is_variable =
      config.sp_seq_length_is_variable
          ? *config.sp_seq_length_is_variable
          : environment.flag("PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE").value_or(true);
  found.sp_attn_implementation = config.sp_attn_implementation;
  if (!found.sp_attn_implementation)
    found.sp_attn_implementation = given_text(environment, "PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION");
  if (found.sp_attn_implementation) {
    one_of(*found.sp_attn_implementation, "sp_attn_implementation", {"sdpa", "flash_attention_2", "flash_attention_3"},
           ", since others see whole scores");
  }
}

template <class... Names>
std::vector<std::string> above_one(const ResolvedParallelism::Axes& mesh, const Names&... names) {
  std::vector<std::string> found;
  for (const std::string name : {names...}) {
    for (const auto& axis : mesh) {
      if (axis.first == name) found.push_back(name);
    }
  }
  return found;
}

}  // namespace

ResolvedParallelism::Axes ResolvedParallelism::mesh() const {
  Axes axes;
  const Axes all = {{"dp_replicate", dp_replicate}, {"dp_shard", dp_shard}, {"cp", cp}, {"sp", sp}, {"tp", tp}};
  std::copy_if(all.begin(), all.end(), std::back_inserter(axes), [](const auto& axis) { return axis.second > 1; });
  return axes;
}

std::vector<std::string> ResolvedParallelism::data_axes() const {
  return above_one(mesh(), "dp_replicate", "dp_shard");
}
std::vector<std::string> ResolvedParallelism::other_axes() const {
  return above_one(mesh(), "tp", "cp", "sp");
}
std::vector<std::string> ResolvedParallelism::shard_axes() const {
  return above_one(mesh(), "dp_shard", "cp");
}
std::vector<std::string> ResolvedParallelism::loss_axes() const {
  return above_one(mesh(), "dp_replicate", "dp_shard", "cp");
}

ResolvedParallelism resolve_parallelism(const ParallelismConfig& config, const Environment& environment) {
  ResolvedParallelism found;
  found.dp_replicate =
      size_of(config.dp_replicate_size, "PARALLELISM_CONFIG_DP_REPLICATE_SIZE", "dp_replicate_size", environment);
  found.dp_shard = size_of(config.dp_shard_size, "PARALLELISM_CONFIG_DP_SHARD_SIZE", "dp_shard_size", environment);
  found.tp = size_of(config.tp_size, "PARALLELISM_CONFIG_TP_SIZE", "tp_size", environment);
  found.cp = size_of(config.cp_size, "PARALLELISM_CONFIG_CP_SIZE", "cp_size", environment);
  found.sp = size_of(config.sp_size, "PARALLELISM_CONFIG_SP_SIZE", "sp_size", environment);
  if (found.cp > 1 && found.sp > 1) {
    throw UsageError(kParallel, "cp_size ", found.cp, " beside sp_size ", found.sp,
                     ": both cut the sequence. Leave one of them out.");
  }
  one_of(config.cp_backend, "cp_backend", {"torch"});
  if (found.cp > 1) {
    found.cp_comm_strategy = config.cp_comm_strategy;
    if (!found.cp_comm_strategy)
      found.cp_comm_strategy = given_text(environment, "PARALLELISM_CONFIG_CP_COMM_STRATEGY");
    found.cp_comm_strategy =
        one_of(found.cp_comm_strategy.value_or("allgather"), "cp_comm_strategy", {"allgather", "alltoall"});
  }
  if (found.sp > 1) read_sequence(config, environment, found);
  return found;
}

bool uses_parallelism_config(const Environment& environment) {
  return environment.flag("ACCELERATE_USE_PARALLELISM_CONFIG").value_or(false);
}

}  // namespace hasten::plan
