// State of Megatron's optimizers in the files of a rank, under the names of its parameters. Private to the room.
//
// Megatron numbers parameters, group by group, in the order of its model; in distrib_optim.pt they lie in a buffer, the
// last one first. Which parameter a number or a place is follows from the model's own order, and is checked by shapes
// and values. Facts from Megatron-Core 0.16: optimizer.py, distrib_optimizer.py, param_and_grad_buffer.py.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "hasten/core/value.h"
#include "hasten/files/python/python_value.h"

namespace hasten::files {

using NamedTensors = std::vector<std::pair<std::string, PythonTensor>>;

/// A rank's file, as far as its state needs it.
struct MegatronRankFile {
  std::string path = {};
  int64_t stage = 0;
  const core::Value& arguments;
  /// Its parameters, one list a virtual stage, in the order of the file.
  const std::vector<NamedTensors>& chunks;
};

/// Megatron decays all parameters but biases and those of one dimension.
bool is_decayed(const std::string& name, size_t num_dims);

struct MegatronGroups {
  /// Options of parameters that are decayed, and of the others. None for a group that is not there.
  PythonValue decayed = {}, others = {};
  int64_t step = 0;
};

/// Reads what a state_dict of Megatron's says of groups and steps. Throws: UsageError for groups by other conditions;
/// DataError without a step.
MegatronGroups megatron_groups(const PythonValue& optimizer, const std::string& path);

struct MegatronRankState {
  MegatronGroups groups = {};
  /// By slot, "exp_avg": tensors under the names of the parameters, one list a virtual stage. "param": values in
  /// float32 of parameters of lower precision.
  std::map<std::string, std::vector<NamedTensors>> slots = {};
};

/// Reads the state of a rank, whose model file holds `optimizer`. With a distributed optimizer it lies beside that.
/// Blocks: on the headers of files. Throws: UsageError for state whose parameters cannot be told, with the remedy;
/// DataError for a damaged file.
MegatronRankState megatron_state(const MegatronRankFile& file, const PythonValue& optimizer);

}  // namespace hasten::files
