// Opening weights whatever form they have: found out by content, not by name.
#pragma once

#include <functional>
#include <string>

#include "hasten/files/base/tensor_source.h"

namespace hasten::files {

struct SourceOptions {
  /// "": found out. "safetensors", "torch", "hasten", "dcp", "fsdp", "deepspeed", "accelerate", "megatron" to insist.
  std::string form = {};
  /// DeepSpeed's tag, or Megatron-LM's iteration; "": the one that `latest` names.
  std::string tag = {};
  /// Which part of a folder with several: "model", "model_1", "optimizer". "": the model, or all there is.
  std::string part = {};
  bool exclude_frozen_parameters = false;
};

/// Opens a file (safetensors, torch.save, an index) or a folder. Folders: hasten's checkpoint, Hugging Face's model,
/// Accelerate's state, DCP, FSDP, DeepSpeed, Megatron-LM; also a parent of pytorch_model_fsdp_0.
/// Blocks: on headers. Throws: UsageError for a path that is not there or of no known form, naming what is there;
/// DataError for a damaged file.
TensorSourcePtr open_source(const std::string& path, const SourceOptions& options = {});

/// Returns the form that open_source would take: "safetensors", "torch", "dcp", "deepspeed", "megatron" …
/// Throws: UsageError as open_source.
std::string form_of(const std::string& path);

/// Returns a view of a source with names changed: `keep` decides and renames. An empty result leaves the tensor out.
TensorSourcePtr renamed(TensorSourcePtr source, const std::function<std::string(const std::string&)>& keep);

}  // namespace hasten::files
