// Which reader a path needs; see open_source.h.
#include "hasten/files/folders/open_source.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "files/base/named_source.h"
#include "files/base/origin.h"
#include "files/folders/weight_search.h"
#include "hasten/core/listing.h"
#include "hasten/core/sentence.h"
#include "hasten/files/folders/dcp_folder.h"
#include "hasten/files/folders/deepspeed_folder.h"
#include "hasten/files/folders/manifest.h"
#include "hasten/files/folders/megatron_folder.h"
#include "hasten/files/python/python_file.h"
#include "hasten/files/safetensors/hf_index.h"
#include "hasten/files/safetensors/safetensors_header.h"
#include "hasten/files/safetensors/safetensors_source.h"

namespace hasten::files {
namespace {

namespace fs = std::filesystem;

/// A source under other names.
class RenamedSource : public TensorSource {
 public:
  RenamedSource(TensorSourcePtr source, const std::function<std::string(const std::string&)>& keep)
      : source_(std::move(source)) {
    for (const std::string& name : source_->names()) {
      std::string renamed = keep(name);
      if (renamed.empty()) continue;
      if (!old_.emplace(renamed, name).second) {
        throw UsageError(kOrigin, "two tensors would be named '", renamed, "' ('", old_[renamed], "' and '", name,
                         "'). Change the renaming.");
      }
      infos_[renamed] = source_->info(name);
      infos_[renamed].name = renamed;
      names_.push_back(std::move(renamed));
    }
  }
  const std::vector<std::string>& names() const override { return names_; }
  bool contains(std::string_view name) const override { return old_.contains(std::string(name)); }
  const TensorInfo& info(std::string_view name) const override {
    old(name);
    return infos_.at(std::string(name));
  }
  void read(std::string_view name, const Box& box, void* target) const override {
    source_->read(old(name), box, target);
  }
  std::optional<TensorLocation> location(std::string_view name) const override { return source_->location(old(name)); }
  const std::string& path() const override { return source_->path(); }
  std::string_view form() const override { return source_->form(); }
  std::vector<std::string> remarks() const override { return source_->remarks(); }

 private:
  const std::string& old(std::string_view name) const {
    const auto found = old_.find(std::string(name));
    if (found != old_.end()) return found->second;
    throw UsageError(kOrigin, "'", path(), "' has no tensor '", name, "'", guess_end(name, names_),
                     " Correct the name.");
  }
  TensorSourcePtr source_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::string> old_;
  std::unordered_map<std::string, TensorInfo> infos_;
};

/// The sources of several files as one, and remarks of its own. Where there is an index, it says which file a tensor is
/// read from: files may hold stale copies of others' tensors.
class JoinedSource : public NamedSource {
 public:
  JoinedSource(std::string path, std::string_view form, const std::vector<TensorSourcePtr>& sources,
               const WeightFiles& found)
      : NamedSource(std::move(path)), form_(form) {
    for (const std::string& words : found.remarks) remark(words);
    std::vector<std::unordered_set<std::string>> requested(sources.size());
    for (const auto& [name, file] : found.tensors) {
      if (!sources[file]->contains(name)) {
        throw DataError(kOrigin, found.index, "'", found.index, "' has tensor '", name, "' in '", found.files[file],
                        "', which has no such tensor. Get the folder again.");
      }
      requested[file].insert(name);
    }
    std::vector<std::string> left_out;
    for (size_t i = 0; i < sources.size(); ++i) {
      for (const std::string& name : sources[i]->names()) {
        if (!found.index.empty() && !requested[i].contains(name)) {
          left_out.push_back(name);
          continue;
        }
        add(sources[i]->info(name));
        sources_.push_back(sources[i]);
      }
      for (const std::string& words : sources[i]->remarks()) remark(words);
    }
    if (!left_out.empty()) remark(of_left_out(found.index, left_out));
  }
  std::string_view form() const override { return form_; }
  std::optional<TensorLocation> location(std::string_view name) const override {
    return sources_[index_of(name)]->location(name);
  }

 protected:
  void read_tensor(size_t index, const Box& box, void* target) const override {
    sources_[index]->read(names()[index], box, target);
  }

 private:
  static std::string of_left_out(const std::string& index, std::vector<std::string> names) {
    const size_t count = names.size();
    if (count > 5) names.resize(5);
    return text("the files of '", index, "' hold ", count, count == 1 ? " tensor" : " tensors",
                " that it does not name there, and that ", count == 1 ? "is" : "are", " left out: ", join(names),
                count > 5 ? ", …" : "", ".");
  }
  std::string_view form_;
  std::vector<TensorSourcePtr> sources_;
};

bool starts_as_safetensors(const std::string& path) {
  const PosixFile file = PosixFile::open_to_read(path);
  char head[9] = {};
  if (file.size() < sizeof head) return path.ends_with(".safetensors");
  file.read_at(0, head, sizeof head);
  return head[8] == '{' || path.ends_with(".safetensors");
}

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

bool has_entry(const std::string& folder, const std::string& name) {
  return fs::exists(fs::path(folder) / name);
}

/// Returns the folder of FSDP's sharded state inside `folder` for the part wanted, "" if there is none.
std::string fsdp_folder(const std::string& folder, const std::string& part) {
  const size_t dash = part.find('_');
  const std::string number = dash == std::string::npos ? "0" : part.substr(dash + 1);
  const std::string name = (part.starts_with("optimizer") ? "optimizer_" : "pytorch_model_fsdp_") + number;
  return has_entry(folder, name) && DcpFolder::is_dcp((fs::path(folder) / name).string())
             ? (fs::path(folder) / name).string()
             : "";
}

std::vector<std::string> sharded_files(const std::string& folder) {
  std::vector<std::string> files;
  for (const std::string& name : files_in(folder)) {
    const std::string path = (fs::path(folder) / name).string();
    if (name.ends_with(".safetensors") && has_sharding_info(path)) files.push_back(path);
  }
  return files;
}

[[noreturn]] void unknown_folder(const std::string& folder) {
  const std::vector<std::string> names = files_in(folder);
  for (const std::string& name : names) {
    if (name.starts_with("pytorch_model_fsdp_") && name.find("rank") != std::string::npos && name.ends_with(".bin")) {
      throw UsageError(kOrigin, "'", folder, "' holds one file a rank (", name,
                       "), whose tensors cannot be put together without the run. "
                       "Load it with the same number of processes in PyTorch and save a full or sharded state_dict.");
    }
  }
  throw UsageError(
      kOrigin, "'", folder,
      "' is no folder of weights: expected manifest.json, model.safetensors, pytorch_model.bin, an index, "
      ".metadata (DCP), pytorch_model_fsdp_0, latest (DeepSpeed) or latest_checkpointed_iteration.txt (Megatron-LM); "
      "it ",
      names.empty()        ? "is empty"
      : names.size() <= 20 ? "has " + join(names)
                           : text("has ", names.size(), " files"),
      ". Give the folder or file of the weights.");
}

std::string form_of_folder(const std::string& folder, const std::string& part) {
  if (has_entry(folder, std::string(kManifestFile))) return "hasten";
  if (is_megatron(folder)) return "megatron";  // some are folders of DCP, under Megatron's names
  if (DcpFolder::is_dcp(folder)) return "dcp";
  if (!fsdp_folder(folder, part).empty() || has_entry(folder, "pytorch_model_fsdp.bin")) return "fsdp";
  if (is_deepspeed(folder)) return "deepspeed";
  const auto names = files_in(folder);
  const bool index = std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return name.ends_with(".index.json") || name == "index.json";
  });
  if (index || has_entry(folder, "model.safetensors") || has_entry(folder, "pytorch_model.bin")) {
    const auto files = find_weights(folder).files;
    const bool safe =
        std::all_of(files.begin(), files.end(), [](const auto& file) { return file.ends_with(".safetensors"); });
    return safe ? "safetensors" : "torch";
  }
  if (!sharded_files(folder).empty()) return "safetensors";
  unknown_folder(folder);
}

/// safetensors names the framework that wrote a file, and the layouts of others' weights are other ones. A file without
/// any metadata is taken for PyTorch's, as the peer does; `stated`: the caller has named the form.
void require_pytorchs(const std::string& file, bool stated) {
  const SafetensorsHeader header = read_safetensors_header(file);
  const std::string* format = header.find_metadata("format");
  if (format != nullptr ? *format == "pt" : header.metadata.empty() || stated) return;
  if (format == nullptr) {
    throw DataError(
        kOrigin, file, "'", file,
        "' has metadata without \"format\", so it may be of any framework; expected "
        "\"pt\". Save it with {\"format\": \"pt\"}, or name the form: --from safetensors, SourceOptions::form.");
  }
  static const std::map<std::string, std::string> kNames{{"tf", "TensorFlow"}, {"flax", "Flax"}, {"np", "NumPy"},
                                                         {"mlx", "MLX"},       {"jax", "JAX"},   {"paddle", "Paddle"}};
  const auto name = kNames.find(*format);
  throw DataError(kOrigin, file, "'", file, "' holds weights of ",
                  name == kNames.end() ? "another framework" : name->second, " (format '", *format,
                  "'), whose layouts are not PyTorch's; expected 'pt'. Load and save the model with "
                  "its framework's converter to PyTorch.");
}

TensorSourcePtr open_files(const WeightFiles& found, const std::string& path, bool stated_safetensors = false) {
  std::vector<TensorSourcePtr> sources;
  std::string_view form = "safetensors";
  for (const std::string& file : found.files) {
    if (starts_as_safetensors(file)) {
      require_pytorchs(file, stated_safetensors);
      sources.push_back(open_safetensors(file));
    } else {
      sources.push_back(open_python_source(file, {.strip_prefix = found.files.size() == 1}));
      form = "torch.save";
    }
  }
  if (sources.size() == 1 && found.remarks.empty() && found.index.empty()) return sources.front();
  return std::make_shared<JoinedSource>(path, form, sources, found);
}

TensorSourcePtr part_of_hasten(const std::string& folder, const std::string& part) {
  const Manifest manifest = read_manifest(folder);
  std::unordered_map<std::string, std::string> kinds;
  for (const ManifestTensor& tensor : manifest.tensors) kinds[tensor.info.name] = tensor.kind;
  const std::string requested = part.empty() ? "model" : part;
  const std::string prefix = requested + "/";
  return renamed(open_hasten_folder(folder), [&](const std::string& name) {
    if (kinds[name] != requested) return std::string();
    return requested != "model" && requested.starts_with("model") && name.starts_with(prefix)
               ? name.substr(prefix.size())
               : name;
  });
}

/// Returns the numbered file of a part in Accelerate's folder: model_1 is model_1.safetensors or pytorch_model_1.bin.
TensorSourcePtr numbered_part(const std::string& folder, const std::string& part) {
  const std::string suffix = part.substr(part.find_first_of("_") == std::string::npos ? part.size() : part.find('_'));
  const std::string stem = part.substr(0, part.size() - suffix.size());
  for (const std::string& name :
       {stem + suffix + ".safetensors", text("pytorch_", stem, suffix, ".bin"), stem + suffix + ".bin"}) {
    if (has_entry(folder, name)) return open_files({.files = {(fs::path(folder) / name).string()}}, folder);
  }
  throw UsageError(kOrigin, "'", folder, "' has no part '", part, "'; it has ", core::listing(files_in(folder)),
                   ". Name a part by its file without the end (model, model_1, optimizer).");
}

TensorSourcePtr open_deepspeed(const std::string& path, const SourceOptions& options) {
  const DeepSpeedFolder folder = open_deepspeed_folder(path, {options.tag, options.exclude_frozen_parameters});
  if (!options.part.starts_with("optimizer")) return folder.weights;
  if (folder.moments == nullptr)
    throw UsageError(kOrigin, "'", path, "' has no optimizer state that ZeRO split. Read its files with open_source.");
  return folder.moments;
}

TensorSourcePtr open_megatron(const std::string& path, const std::string& form, const SourceOptions& options) {
  if (!options.part.empty() && options.part != "model") {
    throw UsageError(kOrigin, "'", path, "' is a folder of Megatron-LM, of which weights alone are read; part '",
                     options.part, "' is asked for. Leave it out (--only model).");
  }
  const auto names = form == "megatron_own"            ? MegatronNames::kMegatron
                     : form == "megatron_transformers" ? MegatronNames::kTransformers
                                                       : MegatronNames::kModel;
  return open_megatron_folder(path, {.tag = options.tag, .names = names}).weights;
}

TensorSourcePtr open_folder(const std::string& path, const SourceOptions& options) {
  const std::string form = options.form.empty() ? form_of_folder(path, options.part) : options.form;
  if (options.exclude_frozen_parameters && form != "deepspeed") {
    throw UsageError(kOrigin, "'", path, "' is a folder of the form ", form,
                     ", which does not tell frozen parameters from others; only DeepSpeed's does. Leave out "
                     "exclude_frozen_parameters.");
  }
  if (form == "hasten") return part_of_hasten(path, options.part);
  if (form == "deepspeed") return open_deepspeed(path, options);
  if (form.starts_with("megatron")) return open_megatron(path, form, options);
  if (form == "dcp") return DcpFolder::open(path).tensors();
  if (form == "fsdp") {
    if (const std::string folder = fsdp_folder(path, options.part); !folder.empty())
      return DcpFolder::open(folder).tensors();
    return open_python_source(
        (fs::path(path) / (options.part.starts_with("optimizer") ? "optimizer.bin" : "pytorch_model_fsdp.bin"))
            .string());
  }
  if (!options.part.empty() && options.part != "model") return numbered_part(path, options.part);
  if (form == "safetensors" && !has_entry(path, "model.safetensors") &&
      !has_entry(path, "model.safetensors.index.json")) {
    if (const auto shards = sharded_files(path); !shards.empty()) {
      for (const std::string& file : shards) require_pytorchs(file, true);
      return open_sharded_safetensors(path, shards);
    }
  }
  return open_files(find_weights(path), path, options.form == "safetensors");
}

}  // namespace

TensorSourcePtr renamed(TensorSourcePtr source, const std::function<std::string(const std::string&)>& keep) {
  return std::make_shared<RenamedSource>(std::move(source), keep);
}

TensorSourcePtr open_source(const std::string& path, const SourceOptions& options) {
  static const std::vector<std::string> kForms{
      "safetensors", "torch",      "hasten",   "dcp",          "fsdp",
      "deepspeed",   "accelerate", "megatron", "megatron_own", "megatron_transformers"};
  if (!options.form.empty() && std::find(kForms.begin(), kForms.end(), options.form) == kForms.end()) {
    throw UsageError(kOrigin, "there is no form '", options.form, "'", guess_end(options.form, kForms),
                     " Expected one of ", join(kForms), ".");
  }
  if (!fs::exists(path)) throw UsageError(kOrigin, "there is no file or folder '", path, "'. Correct the path.");
  if (fs::is_directory(path)) return open_folder(tagged_folder(path, options.tag), options);
  return open_files(find_weights(path), path, options.form == "safetensors");
}

std::string form_of(const std::string& path) {
  if (!fs::exists(path)) throw UsageError(kOrigin, "there is no file or folder '", path, "'. Correct the path.");
  if (fs::is_directory(path)) return form_of_folder(path, "");
  if (path.ends_with(".json")) {
    const auto files = read_hf_index(path).files();
    return std::all_of(files.begin(), files.end(),
                       [](const std::string& file) { return file.ends_with(".safetensors"); })
               ? "safetensors"
               : "torch";
  }
  return starts_as_safetensors(path) ? "safetensors" : "torch";
}

}  // namespace hasten::files
