// An optimizer's state out of a folder of any form, by parameter name, and into Accelerate's and hasten's own.
//
// The state is a Python value as FSDP has it: {"state": {NAME: {SLOT: value}}, "param_groups": [{options, "params":
// [NAME]}]}. Tensors stay in their files until they are written. Python's own files number parameters in the order of
// the optimizer's groups. Only `param_names` beside the numbers tells which parameter a number is.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hasten/files/base/tensor_source.h"
#include "hasten/files/disk/disk.h"
#include "hasten/files/folders/manifest.h"
#include "hasten/files/folders/open_source.h"
#include "hasten/files/python/python_value.h"

namespace hasten::files {

/// Reads optimizer number `index` of a folder: hasten's own, Accelerate's (optimizer.bin), FSDP's (whole or DCP),
/// DeepSpeed's, Megatron-LM's. `weights`: the model's, whose shapes the state must have. `options`: the form and the
/// tag with which open_source gave the weights. Returns nothing if the folder has no such optimizer. Blocks: on the
/// files. Throws: DataError for a damaged file; UsageError for numbered parameters without `param_names`, for state of
/// other shapes, and as open_megatron_folder and open_deepspeed_folder.
std::optional<PythonValue> read_optimizer(const std::string& folder, size_t index, const TensorSource& weights,
                                          const SourceOptions& options = {});

/// Returns the value as Optimizer.state_dict() of PyTorch gives it: parameters by number, steps as float32 tensors.
/// Throws: DataError for a value of another form.
PythonValue numbered_optimizer(const PythonValue& by_name);

/// Writes FOLDER/state.safetensors with the state of the optimizers, and notes them in the manifest's parts.
/// Blocks: on the disk. Throws: DataError; DiskError.
void write_hasten_optimizers(Disk& disk, const std::string& folder, const std::vector<PythonValue>& optimizers,
                             core::Value& parts);

}  // namespace hasten::files
