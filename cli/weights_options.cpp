// The tables of weights_options.h.
#include "weights_options.h"

#include <cstdio>
#include <filesystem>
#include <set>

#include "hasten/core/error.h"
#include "hasten/core/number.h"

namespace hasten::cli {
namespace {

namespace fs = std::filesystem;
using launcher::Option;
using launcher::OptionGroup;
using enum launcher::OptionKind;

Option max_shard_size(std::string_view fallback) {
  return {.name = "max_shard_size",
          .peers = launcher::kHasten,
          .fallback = fallback,
          .value = "SIZE",
          .help = "Largest file, such as 5GB or 300MB; a larger tensor gets a file alone"};
}

Option tag() {
  return {.name = "tag",
          .letter = 't',
          .peers = launcher::kHasten,
          .value = "NAME",
          .help = "The tag of a DeepSpeed checkpoint, or the iteration of a Megatron-LM one, instead of the latest"};
}

Option exclude_frozen(std::string_view name) {
  return {.name = name,
          .kind = kSwitch,
          .peers = launcher::kHasten,
          .help = "Leave out frozen parameters of a DeepSpeed checkpoint"};
}

}  // namespace

const std::vector<OptionGroup>& merge_weights_options() {
  static const std::vector<OptionGroup> groups = {
      {"Options",
       "",
       {{.name = "unsafe_serialization",
         .kind = kSwitch,
         .help = "Write pytorch_model.bin instead of model.safetensors"},
        {.name = "remove_checkpoint_dir",
         .kind = kSwitch,
         .help = "Remove the checkpoint's folder, once the output is on disk and reads back with the same bytes"},
        max_shard_size("one file")}}};
  return groups;
}

const std::vector<OptionGroup>& convert_options() {
  static const std::vector<OptionGroup> groups = {
      {"Forms",
       "",
       {{.name = "to",
         .kind = kChoice,
         .peers = launcher::kHasten,
         .fallback = "safetensors",
         .choices = "safetensors torch accelerate hasten",
         .help = "The form to write"},
        {.name = "from",
         .kind = kChoice,
         .peers = launcher::kHasten,
         .fallback = "found out",
         .choices =
             "safetensors torch hasten dcp fsdp deepspeed accelerate megatron megatron_transformers megatron_own",
         .help = "The form of IN"},
        {.name = "dtype",
         .kind = kChoice,
         .peers = launcher::kHasten,
         .choices = "float32 float16 bfloat16",
         .help = "Cast floating-point tensors"},
        max_shard_size("5GB")}},
      {"Tensors",
       "",
       {{.name = "only",
         .peers = launcher::kHasten,
         .fallback = "model",
         .value = "PART",
         .help = "Which part of a checkpoint: model, model_1, optimizer. Without it accelerate and hasten get the "
                 "optimizers' state as well"},
        {.name = "rename",
         .kind = kList,
         .peers = launcher::kHasten,
         .value = "s/OLD/NEW/",
         .help = "Replace in names; OLD is a regular expression; may be given several times"},
        exclude_frozen("exclude_frozen"),
        tag()}}};
  return groups;
}

const std::vector<OptionGroup>& zero_to_fp32_options() {
  static const std::vector<OptionGroup> groups = {
      {"Options",
       "",
       {{.name = "safe_serialization",
         .kind = kSwitch,
         .peers = launcher::kHasten,
         .help = "Write safetensors instead of pytorch_model.bin"},
        max_shard_size("5GB"),
        tag(),
        exclude_frozen("exclude_frozen_parameters"),
        {.name = "debug", .letter = 'd', .kind = kSwitch, .peers = launcher::kHasten, .help = "List the tensors"}}}};
  return groups;
}

const std::vector<OptionGroup>& checkpoint_options() {
  static const std::vector<OptionGroup> groups = {
      {"Options",
       "",
       {{.name = "fast",
         .kind = kSwitch,
         .peers = launcher::kHasten,
         .help = "For verify: files, sizes and headers, not all bytes"},
        {.name = "keep",
         .kind = kInteger,
         .peers = launcher::kHasten,
         .least = 1,
         .most = 1e9,
         .help = "For prune: how many of the newest stay"},
        {.name = "keep_every",
         .kind = kInteger,
         .peers = launcher::kHasten,
         .least = 1,
         .most = 1e9,
         .help = "For prune: numbers that are multiples stay besides"},
        {.name = "dry_run", .kind = kSwitch, .peers = launcher::kHasten, .help = "For prune: say what would go"},
        {.name = "force_takeover",
         .kind = kSwitch,
         .peers = launcher::kHasten,
         .help = "For prune and repair: go on although a run holds the folder"},
        {.name = "json", .kind = kSwitch, .peers = launcher::kHasten, .help = "For list: as JSON"}}}};
  return groups;
}

launcher::CommandLine read_words(const std::string& command, const std::vector<OptionGroup>& options,
                                 const std::vector<std::string>& words, const std::string& names, size_t least,
                                 size_t most) {
  launcher::CommandLine whole;
  std::vector<std::string> left = words, found;
  while (true) {
    launcher::CommandLine part = launcher::read_command_line(options, left);
    whole.help = whole.help || part.help;
    whole.problems.insert(whole.problems.end(), part.problems.begin(), part.problems.end());
    for (auto& [name, given] : part.options) {
      auto& values = whole.options[name].values;
      whole.options[name].written = given.written;
      values.insert(values.end(), given.values.begin(), given.values.end());
    }
    if (part.rest.empty()) break;
    found.push_back(part.rest.front());
    left.assign(part.rest.begin() + 1, part.rest.end());
  }
  if (whole.help) return whole;
  if (found.size() > most) whole.problems.push_back(text("unexpected word '", found[most], "'"));
  if (found.size() < least) {
    const std::string given = found.empty() ? "none is given" : text("only '", join(found, " "), "' is given");
    whole.problems.push_back(text("expected ", names, " beside the options, but ", given));
  }
  if (!whole.problems.empty()) launcher::refuse(command, whole.problems, text("See hasten ", command, " --help."));
  whole.rest = std::move(found);
  return whole;
}

namespace {

// A path that is not there is compared as well.
fs::path canonical(const fs::path& path) {
  return fs::weakly_canonical(fs::absolute(path));
}

}  // namespace

bool is_inside(const std::string& path, const std::string& folder) {
  const fs::path relative = canonical(path).lexically_relative(canonical(folder));
  return !relative.empty() && *relative.begin() != "..";
}

void require_other_files(const std::string& command, const files::TensorSource& source, const std::string& output) {
  const bool is_folder = fs::is_directory(output);
  const fs::path written = canonical(output);
  std::set<std::string> seen;
  for (const auto& name : source.names()) {
    const auto location = source.location(name);
    if (!location || !seen.insert(location->path).second) continue;
    const fs::path read = canonical(location->path);
    const bool is_shard = read.extension() == ".safetensors" || read.extension() == ".bin";
    const bool is_taken = is_folder ? is_shard && read.parent_path() == written : read == written;
    if (!is_taken) continue;
    throw UsageError({command}, "'", location->path, "' is read, and the output '", output,
                     "' would take its place or remove it. Give a path elsewhere.");
  }
}

std::string size_words(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 999.5 && unit < 4; ++unit) value /= 1000;
  return core::fixed_text(value, unit == 0 || value >= 99.5 ? 0 : 1) + " " + kUnits[unit];
}

}  // namespace hasten::cli
