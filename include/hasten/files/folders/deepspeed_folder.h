// Checkpoint folders of DeepSpeed: fp32 weights and moments out of ZeRO 1, 2 and 3, as zero_to_fp32.py merges them.
//
// Layout: `latest` names the tag; TAG/mp_rank_00_model_states.pt, TAG/[bf16_]zero_pp_rank_R_mp_rank_00_optim_states.pt,
// in stage 3 also TAG/zero_pp_rank_R_mp_rank_00_model_states.pt. docs/formats/deepspeed.md describes them.
#pragma once

#include <string>
#include <vector>

#include "hasten/files/base/tensor_source.h"
#include "hasten/files/python/python_value.h"

namespace hasten::files {

struct DeepSpeedOptions {
  std::string tag = {};  ///< "": the one that `latest` names
  bool exclude_frozen_parameters = false;
};

struct DeepSpeedFolder {
  std::string tag = {};
  int64_t stage = 0, world_size = 1, step = 0;
  /// Parameters in fp32 where the optimizer holds them, buffers, frozen and tied parameters. In the model's order.
  TensorSourcePtr weights = {};
  /// The optimizer's state, named PARAMETER.SLOT ("a.weight.exp_avg"), with the shapes of the parameters. Null without
  /// ZeRO.
  TensorSourcePtr moments = {};
  /// Names of the parameters of each group, and the groups' options.
  std::vector<std::vector<std::string>> groups = {};
  PythonValue param_groups = {};
  /// The whole of the model's file, with what the user added (client_state).
  PythonValue model_states = {};
};

/// Opens FOLDER or FOLDER/TAG.
/// Blocks: on the headers of all files. Throws: UsageError if there is no such folder or tag; DataError if a rank's
/// file is missing or sizes do not add up. Both name the file. Model-parallel checkpoints (mp_rank_01) are refused.
DeepSpeedFolder open_deepspeed_folder(const std::string& folder, const DeepSpeedOptions& options = {});

/// Returns true if `folder` has the file `latest` with a tag beside it, or is a tag's folder.
bool is_deepspeed(const std::string& folder);

}  // namespace hasten::files
