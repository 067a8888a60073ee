// `hasten convert` and `hasten zero-to-fp32`: weights of any form that is read, written in one that Python or hasten
// loads.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <regex>

#include "commands.h"
#include "hasten/core/error.h"
#include "hasten/core/version.h"
#include "hasten/files/folders/manifest.h"
#include "hasten/files/folders/open_source.h"
#include "hasten/files/folders/optimizer_folder.h"
#include "hasten/files/python/python_file.h"
#include "hasten/files/safetensors/shard_split.h"
#include "hasten/files/safetensors/weight_writer.h"
#include "help.h"
#include "weights_options.h"

namespace hasten::cli {
namespace {

namespace fs = std::filesystem;

const HelpText kConvertHelp = {
    "hasten convert IN OUT [OPTIONS]",
    "Converts weights: IN is a file or folder of safetensors, torch.save (a state_dict, a "
    "checkpoint, a whole pickled module), Accelerate, DCP, FSDP, "
    "DeepSpeed, Megatron-LM or hasten; OUT is a file (.safetensors, .bin, .pt, .pth) or a folder.",
    "Nothing in IN is executed. Memory does not grow with the model."};

const HelpText kZeroHelp = {
    "hasten zero-to-fp32 CHECKPOINT_DIR OUTPUT_DIR [OPTIONS]",
    "Merges the fp32 weights of a DeepSpeed ZeRO checkpoint, as the script zero_to_fp32.py in its folder does.",
    "Folders of save_checkpoint in hasten's own form, and all others that hasten convert reads, are taken as well."};

struct Replacement {
  std::regex old;
  std::string with;
};

/// Reads "s/OLD/NEW/", with any character in the place of "/".
Replacement replacement_of(const std::string& words) {
  const auto fail = [&] {
    throw UsageError({"convert"}, "--rename '", words, "' has another form; expected s/OLD/NEW/.");
  };
  if (words.size() < 4 || words[0] != 's') fail();
  const char mark = words[1];
  const size_t middle = words.find(mark, 2), end = middle == std::string::npos ? middle : words.find(mark, middle + 1);
  if (end == std::string::npos || end + 1 != words.size() || middle == 2) fail();
  try {
    return {std::regex(words.substr(2, middle - 2)), words.substr(middle + 1, end - middle - 1)};
  } catch (const std::regex_error& error) {
    throw UsageError({"convert"}, "--rename '", words, "' holds no regular expression: ", error.what(), ".");
  }
}

files::TensorSourcePtr with_renames(files::TensorSourcePtr source, const std::vector<std::string>& renames) {
  if (renames.empty()) return source;
  std::vector<Replacement> replacements;
  for (const std::string& words : renames) replacements.push_back(replacement_of(words));
  return files::renamed(std::move(source), [&](std::string name) {
    for (const Replacement& one : replacements) name = std::regex_replace(name, one.old, one.with);
    return name;
  });
}

void print_summary(const files::TensorSource& source, const files::WrittenWeights& written) {
  std::cout << source.names().size() << " tensors, " << size_words(written.tensor_bytes) << ", in";
  for (const std::string& file : written.files) std::cout << " " << file;
  std::cout << "\n";
}

/// Makes a folder of weights one of hasten's: a manifest over its files.
void add_manifest(const std::string& folder, core::Value parts) {
  files::Manifest manifest = files::manifest_of_headers(folder);
  manifest.writer = text("hasten ", version(), " convert");
  manifest.parts = std::move(parts);
  for (files::ManifestTensor& tensor : manifest.tensors) {
    if (tensor.kind == "state") tensor.kind = "optimizer";
  }
  files::write_manifest(files::real_disk(), folder, manifest);
}

/// All optimizers of a folder; parameters keep the names that they have there.
std::vector<files::PythonValue> optimizers_of(const std::string& folder, const files::TensorSource& weights,
                                              const files::SourceOptions& options) {
  std::vector<files::PythonValue> all;
  while (auto next = files::read_optimizer(folder, all.size(), weights, options)) all.push_back(*std::move(next));
  return all;
}

/// Accelerate's optimizer.bin, optimizer_1.bin …
void write_numbered(const std::string& folder, const std::vector<files::PythonValue>& optimizers) {
  for (size_t i = 0; i < optimizers.size(); ++i) {
    const std::string name = i == 0 ? "optimizer.bin" : text("optimizer_", i, ".bin");
    files::save_python_file(files::real_disk(), (fs::path(folder) / name).string(),
                            files::numbered_optimizer(optimizers[i]), {.root = "optimizer"});
  }
}

}  // namespace

int convert(const std::vector<std::string>& words) {
  const launcher::CommandLine line = read_words("convert", convert_options(), words, "a source and an output", 2, 2);
  if (line.help) {
    std::cout << help_of(kConvertHelp, convert_options(), colours_wanted());
    return 0;
  }
  const std::string to = line.has("to") ? line.text("to") : "safetensors";
  files::SourceOptions options{.form = line.text("from"),
                               .tag = line.text("tag"),
                               .part = line.text("only"),
                               .exclude_frozen_parameters = line.has("exclude_frozen")};
  if (options.part == "model") options.part.clear();
  const auto renames = line.has("rename") ? line.options.at("rename").values : std::vector<std::string>();
  const files::TensorSourcePtr source = with_renames(files::open_source(line.rest[0], options), renames);
  for (const std::string& remark : source->remarks()) std::cerr << "hasten: " << remark << "\n";
  if (source->names().empty())
    throw UsageError({"convert"}, "'", line.rest[0], "' holds no tensors. Give the file or folder of the weights.");
  files::WeightWriteOptions write{
      .safe_serialization = to != "torch",
      .max_shard_bytes = files::parse_shard_size(line.has("max_shard_size") ? line.text("max_shard_size") : "5GB")};
  if (line.has("dtype")) write.dtype = files::dtype_of_torch_name(line.text("dtype"));
  if (to == "accelerate") write.max_shard_bytes = UINT64_MAX;  // a state folder has one file a model
  const bool folder = to == "accelerate" || to == "hasten";
  if (folder && fs::exists(line.rest[1]) && !fs::is_directory(line.rest[1])) {
    throw UsageError({"convert"}, "'", line.rest[1], "' is a file, and --to ", to,
                     " writes a folder. Give another path.");
  }
  require_other_files("convert", *source, line.rest[1]);
  std::vector<files::PythonValue> optimizers;
  if (folder && !line.has("only") && renames.empty()) optimizers = optimizers_of(line.rest[0], *source, options);
  if (folder) fs::create_directories(line.rest[1]);
  print_summary(*source, files::write_weights(files::real_disk(), *source, line.rest[1], write));
  if (to == "accelerate") write_numbered(line.rest[1], optimizers);
  if (to == "hasten") {
    core::Value parts = core::Value::map();
    files::write_hasten_optimizers(files::real_disk(), line.rest[1], optimizers, parts);
    add_manifest(line.rest[1], std::move(parts));
  }
  if (!optimizers.empty())
    std::cout << "state of " << optimizers.size() << (optimizers.size() == 1 ? " optimizer" : " optimizers") << "\n";
  return 0;
}

int zero_to_fp32(const std::vector<std::string>& words) {
  const launcher::CommandLine line =
      read_words("zero-to-fp32", zero_to_fp32_options(), words, "a checkpoint folder and an output", 2, 2);
  if (line.help) {
    std::cout << help_of(kZeroHelp, zero_to_fp32_options(), colours_wanted());
    return 0;
  }
  const files::TensorSourcePtr source = files::open_source(
      line.rest[0], {.tag = line.text("tag"), .exclude_frozen_parameters = line.has("exclude_frozen_parameters")});
  for (const std::string& remark : source->remarks()) std::cerr << "hasten: " << remark << "\n";
  if (line.has("debug")) {
    for (const std::string& name : source->names())
      std::cout << name << " [" << join(source->info(name).shape) << "]\n";
  }
  const std::string limit = line.has("max_shard_size") ? line.text("max_shard_size") : "5GB";
  files::WeightWriteOptions write{.safe_serialization = line.has("safe_serialization"),
                                  .max_shard_bytes = files::parse_shard_size(limit),
                                  .dtype = files::Dtype::kFloat32};
  require_other_files("zero-to-fp32", *source, line.rest[1]);
  print_summary(*source, files::write_weights(files::real_disk(), *source, line.rest[1], write));
  return 0;
}

}  // namespace hasten::cli
