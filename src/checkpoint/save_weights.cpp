// Weights written as safetensors or in torch.save's form; see weights.h.
#include <ATen/Functions.h>
#include <torch/nn/module.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <unordered_map>

#include "checkpoint/checkpoints_state.h"
#include "checkpoint/write_file.h"
#include "hasten/checkpoint/project_save.h"
#include "hasten/checkpoint/python_tensor.h"
#include "hasten/checkpoint/weights.h"
#include "hasten/core/error.h"
#include "hasten/files/disk/disk.h"
#include "hasten/files/python/python_file.h"
#include "hasten/files/safetensors/safetensors_header.h"
#include "hasten/files/safetensors/shard_split.h"
#include "hasten/files/safetensors/weight_writer.h"
#include "hasten/parallel/layout/placement.h"

namespace hasten::checkpoint {
namespace {

namespace fs = std::filesystem;

// The first of the names of one memory, in order. Views that overlap without being equal stay apart: each is written
// whole.
std::vector<StateDict::Item> without_ties(const StateDict& state) {
  std::set<std::tuple<const void*, std::vector<int64_t>, std::vector<int64_t>>> seen;
  std::vector<StateDict::Item> kept;
  for (const auto& [name, tensor] : state) {
    const bool is_new = tensor.numel() == 0 ||
                        seen.emplace(tensor.const_data_ptr(), tensor.sizes().vec(), tensor.strides().vec()).second;
    if (is_new) kept.emplace_back(name, tensor);
  }
  return kept;
}

std::vector<files::ShardTensor> shard_tensors(const std::vector<StateDict::Item>& items) {
  std::vector<files::ShardTensor> tensors;
  for (const auto& [name, tensor] : items) {
    files::ShardTensor one{name, static_cast<uint64_t>(tensor.nbytes()), {}};
    if (tensor.numel() > 0)
      one.storage = static_cast<int64_t>(reinterpret_cast<intptr_t>(tensor.storage().unsafeGetStorageImpl()));
    tensors.push_back(std::move(one));
  }
  return tensors;
}

StateDict part_of(const StateDict& state, const std::vector<std::string>& names, bool with_versions) {
  StateDict part;
  if (with_versions) part.versions = state.versions;
  for (const auto& name : names) part.set(name, state.at(name));
  return part;
}

void require_folder(const std::string& folder) {
  if (fs::exists(folder) && !fs::is_directory(folder)) {
    throw UsageError(Origin{"checkpoint"}, "'", folder,
                     "' is a file; expected a folder for the weights. Name another one.");
  }
  files::require_no_state(folder);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw DataError(Origin{"checkpoint"}, folder, "the folder '", folder, "' cannot be made: ", error.message(),
                    ". Name a folder in one that may be written.");
  }
}

// Shards of any earlier save, whichever of the two forms it had, and the other form's index.
void remove_stale(const std::string& folder, const std::vector<std::string>& patterns,
                  const std::set<std::string>& written) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool is_ours = std::any_of(patterns.begin(), patterns.end(),
                                     [&](const std::string& pattern) { return files::is_shard_of(name, pattern); });
    if (is_ours && !written.count(name)) files::real_disk().unlink(entry.path());
  }
}

void write_one(const StateDict& state, const std::string& path, bool safe) {
  if (safe) {
    write_safetensors(state, path);
  } else {
    save(to_python(state), path);
  }
}

using WriteOne = std::function<void(const StateDict&, const std::string&)>;

// The files of a model and their names.
struct ModelFiles {
  std::string safe = {}, plain = {};
  bool is_safe = true;
  files::ShardSplit split = {};

  std::string without_suffix() const {
    std::string name = is_safe ? safe : plain;
    return name.erase(name.find("{suffix}"), 8);
  }
};

ModelFiles split_model(const StateDict& state, const SaveModelOptions& options) {
  const uint64_t limit = files::parse_shard_size(options.max_shard_size);
  const std::string variant = options.variant.empty() ? "" : "." + options.variant;
  ModelFiles out{"model" + variant + "{suffix}.safetensors", "pytorch_model" + variant + "{suffix}.bin",
                 options.safe_serialization};
  const auto items = out.is_safe ? without_ties(state) : std::vector<StateDict::Item>(state.begin(), state.end());
  out.split = files::split_into_shards(shard_tensors(items), limit, out.is_safe ? out.safe : out.plain);
  if (out.split.files.empty()) out.split.files.push_back({out.without_suffix(), {}});  // a module without tensors
  return out;
}

// Index and stale files come last: a folder without its index is no model.
void finish_model(const ModelFiles& files, const std::string& folder) {
  std::set<std::string> written;
  for (const auto& file : files.split.files) written.insert(file.file);
  if (files.split.is_sharded()) {
    const std::string index = files.without_suffix() + ".index.json";
    write_text(folder + "/" + index, files::to_json(files.split.index()));
    written.insert(index);
  }
  remove_stale(folder, {files.safe, files.plain}, written);
  files::real_disk().sync_folder(folder);
}

void write_model(const StateDict& state, const std::string& folder, const SaveModelOptions& options,
                 const WriteOne& write) {
  require_folder(folder);
  const auto files = split_model(state, options);
  for (const auto& file : files.split.files) {
    write(part_of(state, file.names, !files.split.is_sharded()), folder + "/" + file.file);
  }
  finish_model(files, folder);
}

// A safetensors file that several ranks write: its layout is known to all of them.
struct JointFile {
  std::string path = {}, temporary = {};
  files::SafetensorsLayout layout = {};
  std::vector<std::string> names = {};
};

std::vector<JointFile> joint_files(const StateDict& state, const ModelFiles& files, const std::string& folder,
                                   const std::string& mark) {
  std::vector<JointFile> out;
  for (const auto& file : files.split.files) {
    std::vector<files::TensorInfo> infos;
    for (const auto& name : file.names) infos.push_back(info_of(name, state.at(name)));
    out.push_back({folder + "/" + file.file, folder + "/." + file.file + ".tmp-" + mark,
                   files::lay_out_safetensors(infos, {{"format", "pt"}}), file.names});
  }
  return out;
}

// Writes the tensors that fall to this rank: all of them in a row, cut by bytes.
void write_part(const StateDict& state, const std::vector<JointFile>& files, size_t index, size_t count) {
  uint64_t total = 0, at = 0;
  for (const auto& file : files) {
    for (const auto& name : file.names) total += state.at(name).nbytes();
  }
  for (const auto& file : files) {
    std::unique_ptr<files::DiskFile> out;
    for (size_t i = 0; i < file.names.size(); ++i) {
      const at::Tensor& tensor = state.at(file.names[i]);
      const uint64_t middle = at + tensor.nbytes() / 2;
      at += tensor.nbytes();
      if (tensor.nbytes() == 0 || middle * count / std::max<uint64_t>(total, 1) != index) continue;
      const at::Tensor plain = tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
      if (out == nullptr) out = files::real_disk().open(file.temporary);
      out->write_at(file.layout.offsets[i], plain.const_data_ptr(), plain.nbytes());
    }
    if (out == nullptr) continue;
    out->sync();
    out->close();
  }
}

// Runs one rank's part of a step; all ranks throw if one has failed. Collective: yes.
std::vector<std::string> in_step(const process::Process& process, const std::function<std::string()>& act) {
  Failure failure;
  std::string note;
  try {
    note = act();
  } catch (const std::exception& error) {
    failure = {error.what(), dynamic_cast<const DataError*>(&error) != nullptr};
  }
  return agree(process, failure, note);
}

void write_together(const process::Process& process, const StateDict& state, const std::string& folder,
                    const SaveModelOptions& options) {
  const auto files = split_model(state, options);
  std::vector<JointFile> joint;
  std::vector<std::string> created;  // by rank 0
  const bool is_first = process.is_main_process();
  try {
    const auto marks = in_step(process, [&] {
      if (!is_first) return std::string();
      require_folder(folder);
      const std::string mark = std::to_string(::getpid());
      for (const auto& file : joint_files(state, files, folder, mark)) {
        created.push_back(file.temporary);
        const auto out = files::real_disk().create(file.temporary);
        out->write_at(0, file.layout.head.data(), file.layout.head.size());
        out->truncate(file.layout.file_bytes);
        out->sync();
        out->close();
      }
      return mark;
    });
    joint = joint_files(state, files, folder, marks[0]);
    const auto seen = in_step(process, [&] { return std::string(fs::exists(joint[0].temporary) ? "yes" : "no"); });
    const auto own = static_cast<std::ptrdiff_t>(process.rank());
    const auto index = static_cast<size_t>(std::count(seen.begin(), seen.begin() + own, "yes"));
    const auto count = static_cast<size_t>(std::count(seen.begin(), seen.end(), "yes"));
    in_step(process, [&] {
      if (seen[static_cast<size_t>(own)] == "yes") write_part(state, joint, index, count);
      return std::string();
    });
    in_step(process, [&] {
      if (!is_first) return std::string();
      for (const auto& file : joint) files::real_disk().rename(file.temporary, file.path, files::Rename::kReplace);
      finish_model(files, folder);
      return std::string();
    });
  } catch (...) {
    std::error_code ignored;
    for (const auto& temporary : created) fs::remove(temporary, ignored);
    throw;
  }
}

}  // namespace

void write_text(const std::string& path, const std::string& bytes) {
  const std::string temporary = temporary_name(path);
  files::write_file(files::real_disk(), temporary, bytes);
  files::real_disk().rename(temporary, path, files::Rename::kReplace);
}

std::string temporary_name(const std::string& path) {
  const fs::path full(path);
  return (full.parent_path() / text('.', full.filename().string(), ".tmp-", ::getpid())).string();
}

void write_safetensors(const StateDict& state, const std::string& path) {
  std::vector<files::TensorInfo> infos;
  for (const auto& [name, tensor] : state) infos.push_back(info_of(name, tensor));
  const auto layout = files::lay_out_safetensors(infos, {{"format", "pt"}});
  const std::string temporary = temporary_name(path);
  try {
    auto file = files::real_disk().create(temporary);
    file->write_at(0, layout.head.data(), layout.head.size());
    size_t i = 0;
    for (const auto& [name, tensor] : state) {
      const at::Tensor plain = tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
      if (plain.numel() > 0) file->write_at(layout.offsets[i], plain.const_data_ptr(), plain.nbytes());
      ++i;
    }
    file->sync();
    file->close();
    files::real_disk().rename(temporary, path, files::Rename::kReplace);
  } catch (...) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw;
  }
}

void save_model(const StateDict& state, const std::string& folder, const SaveModelOptions& options) {
  write_model(state, folder, options,
              [safe = options.safe_serialization](const StateDict& part, const std::string& path) {
                write_one(part, path, safe);
              });
}

void save_model(const torch::nn::Module& module, const std::string& folder, const SaveModelOptions& options) {
  save_model(whole(state_dict(module)), folder, options);
}

void save_pretrained(const std::string& folder, const StateDict& state, const SavePretrainedOptions& options) {
  if (!options.is_main_process) return;
  const SaveModelOptions model{options.max_shard_size, options.safe_serialization, options.variant};
  if (options.save_function) {
    write_model(state, folder, model, options.save_function);
  } else {
    save_model(state, folder, model);
  }
  if (!options.config.is_null()) write_text(folder + "/config.json", options.config.to_json(2) + "\n");
}

void save(const files::PythonValue& value, const std::string& path) {
  files::save_python_file(files::real_disk(), path, value);
}

void save(const StateDict& state, const std::string& path, const SaveFileOptions& options) {
  if (!options.safe_serialization) return save(to_python(state), path);
  StateDict kept;
  for (const auto& [name, tensor] : without_ties(state)) kept.set(name, tensor);
  write_safetensors(kept, path);
}

void save(const at::Tensor& tensor, const std::string& path, const SaveFileOptions& options) {
  if (options.safe_serialization) {
    throw UsageError(Origin{"checkpoint"},
                     "a single tensor has no name for safetensors; expected a StateDict. Give it a name.");
  }
  save(to_python(training::State(tensor)), path);
}

void save(const training::State& state, const std::string& path, const SaveFileOptions& options) {
  if (!options.safe_serialization) return save(to_python(state), path);
  const auto split = training::split_tensors(state);
  StateDict tensors;
  for (const auto& [name, tensor] : split.tensors) tensors.set(name, tensor);
  save(tensors, path, options);
}

void save(const torch::nn::Module& module, const std::string& path, const SaveFileOptions& options) {
  save(state_dict(module), path, options);
}

void save_model(const process::Process& process, const ProjectConfiguration& project, const torch::nn::Module& module,
                const std::string& folder, const SaveModelOptions& options) {
  if (!options.by_all_ranks || process.world_size() == 1) {
    const bool is_writer = writes(process, project);
    const auto state = whole(state_dict(module), is_writer);
    if (is_writer) save_model(state, folder, options);
    return;
  }
  if (project.save_on_each_node || !options.safe_serialization) {
    throw UsageError(Origin{"checkpoint", process.rank(), process.world_size()},
                     "by_all_ranks writes one folder of safetensors files; expected save_on_each_node = false and "
                     "safe_serialization = true.");
  }
  write_together(process, whole(state_dict(module)), folder, options);
}

}  // namespace hasten::checkpoint
