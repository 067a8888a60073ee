// Weights of a module in files: written for Python and transformers, read from anywhere.
//
// save_model writes what load_checkpoint_in_model and transformers read, load_weights reads any TensorSource:
// safetensors, Hugging Face's indexes, torch.save files, DCP and DeepSpeed folders, hasten's own checkpoints. A load
// checks names and shapes first, so that one that is refused leaves the module as it was.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hasten/checkpoint/state_dict.h"
#include "hasten/core/value.h"
#include "hasten/files/base/tensor_source.h"
#include "hasten/files/python/python_value.h"
#include "hasten/training/stateful.h"

namespace torch::nn {
class Module;
}
namespace hasten::comm {
class Group;
}

namespace hasten::checkpoint {

struct SaveModelOptions {
  /// "10GB", "300MB" or bytes as text: TB, GB, MB, KB in powers of ten.
  std::string max_shard_size = "10GB";
  /// safetensors; false: pytorch_model*.bin in torch.save's form.
  bool safe_serialization = true;
  /// Put into file names: "fp16" gives model.fp16.safetensors.
  std::string variant = {};
  /// Accelerator::save_model: all ranks that reach the folder write a part of the files. The call is then collective.
  bool by_all_ranks = false;
};

/// Writes a state_dict to a folder: one file, or several and an index. Files of an earlier save that are no longer part
/// of it are removed last. Tensors of one memory are stored once in safetensors, under the first of their names.
/// Blocks: on the disk. Throws: UsageError if the folder is a file, or for a size that is none;
/// DataError.
void save_model(const StateDict& state, const std::string& folder, const SaveModelOptions& options = {});
/// The same for a module's state_dict. Collective: with parameters of which ranks have parts; each writes the folder
/// that it names.
void save_model(const torch::nn::Module& module, const std::string& folder, const SaveModelOptions& options = {});

struct SavePretrainedOptions {
  /// False: nothing is written (transformers' is_main_process).
  bool is_main_process = true;
  /// Writes one file instead of the library's own writer.
  std::function<void(const StateDict&, const std::string& path)> save_function = {};
  std::string max_shard_size = "50GB";
  std::string variant = {};
  bool safe_serialization = true;
  /// Written to config.json unless it is null.
  core::Value config = {};
};

/// transformers' save_pretrained: model[.variant].safetensors, with an index if there are several, and config.json.
/// Blocks: on the disk. Throws: as save_model.
void save_pretrained(const std::string& folder, const StateDict& state, const SavePretrainedOptions& options = {});

struct SaveFileOptions {
  /// safetensors instead of torch.save's form; tensors only.
  bool safe_serialization = false;
};

/// torch.save: the file appears by rename. Python opens it with torch.load(…, weights_only=True).
/// Blocks: on the disk. Throws: UsageError for a dtype or layout that the form lacks; DataError.
void save(const StateDict& state, const std::string& path, const SaveFileOptions& options = {});
void save(const at::Tensor& tensor, const std::string& path, const SaveFileOptions& options = {});
void save(const training::State& state, const std::string& path, const SaveFileOptions& options = {});
void save(const files::PythonValue& value, const std::string& path);
/// A module's state_dict: no C++ library can pickle Python's classes.
void save(const torch::nn::Module& module, const std::string& path, const SaveFileOptions& options = {});

struct LoadWeightsOptions {
  /// All tensors of the module must be there, and no others; false: what fits is taken.
  bool strict = true;
  /// Floating tensors of the module get this dtype; unset: files' values are cast to the module's.
  std::optional<c10::ScalarType> dtype = {};
  /// Prefixes of names in the file, and their replacements in the module.
  std::vector<std::pair<std::string, std::string>> rename = {};
  /// Names or patterns with '*' of the module's tensors that are left alone (non-persistent buffers).
  std::vector<std::string> exclude = {};
  /// The ranks of this group load alike: each reads a part of the files, and they hand the parts around. Null: this
  /// rank reads everything. With a group the call is collective.
  const comm::Group* share = nullptr;
};

struct WeightsReport {
  /// Names of the module that the file lacks, and of the file that the module lacks.
  std::vector<std::string> missing = {}, unexpected = {};
  /// Notes of the reader, each once.
  std::vector<std::string> remarks = {};
};

/// Copies tensors into the module's. Dtype and device stay the module's; tied tensors stay tied.
/// Collective: with LoadWeightsOptions::share. Blocks: on the files. Throws: UsageError with all that is missing,
/// unexpected (did you mean) and mismatched, in which case nothing has changed; DataError for files that cannot be
/// read; CommError.
WeightsReport load_weights(torch::nn::Module& module, const files::TensorSource& source,
                           const LoadWeightsOptions& options = {});
/// A path: a file of weights, an index, a folder (files::find_weights), or a checkpoint of any form.
WeightsReport load_weights(torch::nn::Module& module, const std::string& path, const LoadWeightsOptions& options = {});
inline WeightsReport load_weights(torch::nn::Module& module, const char* path, const LoadWeightsOptions& options = {}) {
  return load_weights(module, std::string(path), options);
}
inline WeightsReport load_weights(torch::nn::Module& module, const std::filesystem::path& path,
                                  const LoadWeightsOptions& options = {}) {
  return load_weights(module, path.string(), options);
}
/// A state_dict of a Python file, or a whole module in one.
WeightsReport load_weights(torch::nn::Module& module, const files::PythonValue& value,
                           const LoadWeightsOptions& options = {});
WeightsReport load_weights(torch::nn::Module& module, const StateDict& state, const LoadWeightsOptions& options = {});

/// Returns a StateDict as a source. Throws: UsageError for a dtype that files lack.
files::TensorSourcePtr source_of(const StateDict& state, const std::string& path = "state_dict");

// ---- For loads of several modules at once.

/// A tensor that a load fills.
struct WantedTensor {
  std::string name = {};
  at::Tensor tensor = {};
};

/// Which tensor of a source fills which wanted one. Nothing is read yet.
struct WeightMatch {
  /// Index into the wanted tensors, and the name in the source.
  std::vector<std::pair<size_t, std::string>> pairs = {};
  std::vector<std::string> missing = {}, unexpected = {}, mismatched = {};
};

/// `names`: those of the source that count. A wanted tensor of the same memory as a matched one is not missing.
WeightMatch match_weights(const std::vector<WantedTensor>& requested, const files::TensorSource& source,
                          const std::vector<std::string>& names,
                          const std::vector<std::pair<std::string, std::string>>& rename = {});
/// Returns a sentence with all differences; "" if there are none.
std::string describe(const WeightMatch& match, const std::vector<WantedTensor>& requested);
/// Reads the tensor of a source into `target`, in its dtype, strides and device. `through_copy`: by copy_, for memory
/// that others watch. Blocks: on the file. Throws: DataError.
void read_into(const at::Tensor& target, const files::TensorSource& source, const std::string& name,
               bool through_copy = false);

}  // namespace hasten::checkpoint
