// `hasten checkpoint list|show|verify|diff|prune|repair`: lists, checks and prunes checkpoints, without libtorch.
#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>

#include "commands.h"
#include "hasten/core/error.h"
#include "hasten/core/number.h"
#include "hasten/core/sentence.h"
#include "hasten/core/value.h"
#include "hasten/files/base/cast.h"
#include "hasten/files/disk/durable_folder.h"
#include "hasten/files/folders/manifest.h"
#include "hasten/files/folders/open_source.h"
#include "hasten/files/folders/retention.h"
#include "hasten/files/python/python_file.h"
#include "help.h"
#include "options.h"
#include "weights_options.h"

namespace hasten::cli {
namespace {

namespace fs = std::filesystem;
using launcher::CommandLine;

const HelpText kCheckpointHelp = {
    "hasten checkpoint list|show|verify|diff|prune|repair PATH [PATH] [OPTIONS]",
    "list DIR: the checkpoints of a folder. show PATH: the tensors of any file or folder of weights. verify DIR: all "
    "checksums. "
    "diff A B: names, shapes, dtypes and largest differences. prune DIR --keep N: remove old ones. repair DIR: a lost "
    "manifest anew from the files' headers.",
    "show opens a stranger's pickle without executing anything, and names what Python would have called."};

/// The folder that holds checkpoint_N: `path`, or its folder checkpoints.
std::string folder_of_checkpoints(const std::string& path) {
  if (!fs::is_directory(path)) throw UsageError({"checkpoint"}, "there is no folder '", path, "'. Correct the path.");
  const std::string inner = (fs::path(path) / "checkpoints").string();
  return files::find_checkpoints(path).empty() && fs::is_directory(inner) ? inner : path;
}

std::string age_words(double time) {
  if (time <= 0) return "-";
  const double seconds = std::max(0.0, static_cast<double>(std::time(nullptr)) - time);
  if (seconds < 120) return text(static_cast<int64_t>(seconds), " s");
  if (seconds < 7200) return text(static_cast<int64_t>(seconds / 60), " min");
  if (seconds < 172800) return text(static_cast<int64_t>(seconds / 3600), " h");
  return text(static_cast<int64_t>(seconds / 86400), " d");
}

uint64_t bytes_below(const fs::path& folder) {
  uint64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) bytes += entry.file_size();
  }
  return bytes;
}

/// Columns padded to their widest entry.
void print_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line.append(widths[i] - row[i].size() + 2, ' ');
    }
    std::cout << line << "\n";
  }
}

int list(const CommandLine& line) {
  const std::string folder = folder_of_checkpoints(line.rest[1]);
  std::vector<std::vector<std::string>> rows{{"checkpoint", "step", "age", "size", "world", "strategy", "state"}};
  core::Value json = core::Value::list();
  for (const files::FoundCheckpoint& found : files::find_checkpoints(folder)) {
    files::Manifest manifest;
    const bool own = found.problem.empty() && fs::exists(fs::path(found.path) / files::kManifestFile);
    if (own) manifest = files::read_manifest(found.path);
    const uint64_t bytes = bytes_below(found.path);
    const std::string name = fs::path(found.path).filename().string();
    json.push_back(core::Value::map({{"name", name},
                                     {"number", found.number},
                                     {"complete", found.problem.empty()},
                                     {"problem", found.problem},
                                     {"bytes", bytes},
                                     {"step", manifest.step},
                                     {"time", manifest.time},
                                     {"world_size", manifest.world_size},
                                     {"strategy", manifest.strategy}}));
    rows.push_back({name, own ? std::to_string(manifest.step) : "-", age_words(manifest.time), size_words(bytes),
                    own ? std::to_string(manifest.world_size) : "-",
                    manifest.strategy.empty() ? "-" : manifest.strategy,
                    found.problem.empty() ? (own ? "complete" : "of another program") : found.problem});
  }
  if (line.has("json")) {
    std::cout << json.to_json(2) << "\n";
  } else if (rows.size() == 1) {
    std::cout << "no checkpoint_N in " << folder << "\n";
  } else {
    print_table(rows);
  }
  return 0;
}

std::string shape_words(const std::vector<int64_t>& shape) {
  return text("[", join(shape), "]");
}

void show_value(const files::PythonValue& value, const std::string& name, int depth) {
  const std::string pad(static_cast<size_t>(2 * depth), ' ');
  const std::string label = name.empty() ? "" : name + ": ";
  using Kind = files::PythonValue::Kind;
  if (value.is_tensor()) {
    const files::PythonTensor& tensor = value.as_tensor();
    std::cout << pad << label << files::torch_name(tensor.dtype) << " " << shape_words(tensor.shape);
    if (!tensor.unreadable.empty()) std::cout << " (" << tensor.unreadable << ")";
    std::cout << "\n";
    return;
  }
  std::cout << pad << label;
  switch (value.kind()) {
    case Kind::kNone:
      std::cout << "None\n";
      return;
    case Kind::kBool:
      std::cout << (value.as_bool() ? "True\n" : "False\n");
      return;
    case Kind::kInt:
      std::cout << value.int_text() << "\n";
      return;
    case Kind::kFloat:
      std::cout << value.as_double() << "\n";
      return;
    case Kind::kString:
      std::cout << core::Value(value.as_string().substr(0, 200)).to_json() << "\n";
      return;
    case Kind::kDtype:
      std::cout << "torch." << files::torch_name(value.as_dtype()) << "\n";
      return;
    default:
      std::cout << value.type_name();
  }
  if (value.size() > 0) std::cout << " of " << value.size();
  std::cout << "\n";
  if (depth >= 8) return;
  if (value.is_mapping()) {
    for (const auto& [key, child] : value.as_pairs()) {
      show_value(child, key.is_string() ? key.as_string() : key.is_int() ? key.int_text() : key.type_name(), depth + 1);
    }
  } else if (value.is_sequence()) {
    size_t shown = 0;
    for (const files::PythonValue& child : value.as_items()) {
      if (++shown > 20) break;
      show_value(child, "", depth + 1);
    }
    if (value.size() > 20) std::cout << pad << "  … " << value.size() - 20 << " more\n";
  } else if (value.is_object()) {
    show_value(value.as_object().state, "state", depth + 1);
  }
}

void show_source(const files::TensorSource& source) {
  std::vector<std::vector<std::string>> rows;
  uint64_t bytes = 0;
  for (const std::string& name : source.names()) {
    const files::TensorInfo& info = source.info(name);
    rows.push_back({name, std::string(files::torch_name(info.dtype)), shape_words(info.shape)});
    bytes += static_cast<uint64_t>(files::bytes_of(info));
  }
  print_table(rows);
  std::cout << rows.size() << " tensors, " << size_words(bytes) << ", " << source.form() << "\n";
}

void show_checkpoint(const std::string& folder) {
  const files::Manifest manifest = files::read_manifest(folder);
  std::cout << "step " << manifest.step << ", iteration " << manifest.iteration << ", saved by " << manifest.world_size
            << (manifest.world_size == 1 ? " process" : " processes")
            << (manifest.strategy.empty() ? "" : text(", ", manifest.strategy)) << ", " << manifest.files.size()
            << " files, " << size_words(manifest.total_bytes()) << "\n";
  std::vector<std::vector<std::string>> rows;
  for (const files::ManifestTensor& tensor : manifest.tensors) {
    const std::string where = tensor.tied_to.empty()
                                  ? text(tensor.pieces.size(), tensor.pieces.size() == 1 ? " piece" : " pieces")
                                  : text("tied to ", tensor.tied_to);
    rows.push_back({tensor.info.name, std::string(files::torch_name(tensor.info.dtype)), shape_words(tensor.info.shape),
                    tensor.kind, where});
  }
  print_table(rows);
}

int show(const CommandLine& line) {
  const std::string& path = line.rest[1];
  if (fs::is_directory(path) && fs::exists(fs::path(path) / files::kManifestFile)) {
    show_checkpoint(path);
    return 0;
  }
  if (fs::is_regular_file(path) && files::PythonFile::is_python_file(path)) {
    const files::PythonFile file = files::PythonFile::open(path);
    show_value(file.value(), "", 0);
    for (const std::string& name : file.unknown_names()) std::cout << "Python would have called " << name << "\n";
    return 0;
  }
  const files::TensorSourcePtr source = files::open_source(path);
  for (const std::string& remark : source->remarks()) std::cerr << "hasten: " << remark << "\n";
  show_source(*source);
  return 0;
}

/// The folders that a command is about: one checkpoint, or all of a folder.
std::vector<std::string> checkpoints_at(const std::string& path) {
  if (fs::exists(fs::path(path) / files::kManifestFile)) return {path};
  std::vector<std::string> folders;
  for (const files::FoundCheckpoint& found : files::find_checkpoints(folder_of_checkpoints(path)))
    folders.push_back(found.path);
  if (folders.empty())
    throw UsageError({"checkpoint"}, "'", path,
                     "' has neither manifest.json nor a folder checkpoint_N. Correct the path.");
  return folders;
}

int verify(const CommandLine& line) {
  bool good = true;
  for (const std::string& folder : checkpoints_at(line.rest[1])) {
    try {
      const files::Verification result = files::verify_folder(folder, line.has("fast"));
      for (const std::string& error : result.errors) std::cout << folder << ": " << error << "\n";
      if (result.errors.empty())
        std::cout << folder << ": good"
                  << (line.has("fast") ? " (files and headers)" : text(", ", size_words(result.bytes), " checked"))
                  << "\n";
      good = good && result.errors.empty();
    } catch (const DataError& error) {
      std::cout << folder << ": " << error.what() << "\n";
      good = false;
    }
  }
  return good ? 0 : 1;
}

/// Returns the largest absolute difference of two tensors of one shape; NaN against NaN is none. -1 if it is unknown.
double largest_difference(const files::TensorSource& one, const files::TensorSource& other, const std::string& name) {
  const files::TensorInfo &a = one.info(name), &b = other.info(name);
  constexpr int64_t kStep = 1 << 20;
  const int64_t numel = files::numel_of(a.shape);
  std::string left, right;
  std::vector<double> x, y;
  const auto read = [](const files::TensorSource& source, const files::TensorInfo& info, int64_t begin, int64_t end,
                       std::string& out) {
    out.resize(static_cast<size_t>(end - begin) * files::element_bytes(info.dtype));
    char* to = out.data();
    for (const files::Box& box : files::boxes_of_range(info.shape, begin, end)) {
      source.read(info.name, box, to);
      to += static_cast<size_t>(files::numel_of(box)) * files::element_bytes(info.dtype);
    }
  };
  double largest = 0;
  for (int64_t begin = 0; begin < numel; begin += kStep) {
    const int64_t end = std::min(numel, begin + kStep);
    read(one, a, begin, end, left);
    read(other, b, begin, end, right);
    if (a.dtype == b.dtype && left == right) continue;
    if (!files::can_cast(a.dtype, files::Dtype::kFloat64) || !files::can_cast(b.dtype, files::Dtype::kFloat64))
      return -1;
    x.resize(static_cast<size_t>(end - begin));
    y.resize(x.size());
    files::cast_elements(a.dtype, left.data(), files::Dtype::kFloat64, x.data(), x.size());
    files::cast_elements(b.dtype, right.data(), files::Dtype::kFloat64, y.data(), y.size());
    for (size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(x[i]) != std::isnan(y[i])) return INFINITY;
      if (!std::isnan(x[i]) && x[i] != y[i]) largest = std::max(largest, std::abs(x[i] - y[i]));
    }
  }
  return largest;
}

files::TensorSourcePtr whole_source(const std::string& path) {
  return fs::exists(fs::path(path) / files::kManifestFile) ? files::open_hasten_folder(path) : files::open_source(path);
}

int diff(const CommandLine& line) {
  const files::TensorSourcePtr a = whole_source(line.rest[1]), b = whole_source(line.rest[2]);
  size_t equal = 0;
  bool same = true;
  const auto differs = [&](const std::string& name, const std::string& words) {
    same = false;
    std::cout << name << ": " << words << "\n";
  };
  for (const std::string& name : a->names()) {
    if (!b->contains(name)) {
      differs(name, text("only in ", line.rest[1]));
      continue;
    }
    const files::TensorInfo &x = a->info(name), &y = b->info(name);
    if (x.shape != y.shape) {
      differs(name, text("shape ", shape_words(x.shape), " and ", shape_words(y.shape)));
      continue;
    }
    const double largest = largest_difference(*a, *b, name);
    const std::string dtypes =
        x.dtype == y.dtype ? "" : text("dtype ", files::torch_name(x.dtype), " and ", files::torch_name(y.dtype), ", ");
    if (largest != 0 || !dtypes.empty()) {
      differs(name, dtypes + (largest < 0 ? "other values" : text("largest difference ", largest)));
    } else {
      ++equal;
    }
  }
  for (const std::string& name : b->names()) {
    if (!a->contains(name)) differs(name, text("only in ", line.rest[2]));
  }
  std::cout << equal << " tensors are equal" << (same ? ", and there are no others" : "") << "\n";
  return same ? 0 : 1;
}

int prune(const CommandLine& line) {
  if (!line.has("keep"))
    throw UsageError({"checkpoint"}, "prune needs --keep N: how many of the newest checkpoints stay.");
  const std::string folder = folder_of_checkpoints(line.rest[1]);
  const files::FolderLock lock(folder, line.has("force_takeover"));
  std::map<int64_t, std::string> complete;
  for (const files::FoundCheckpoint& found : files::find_checkpoints(folder)) {
    if (found.problem.empty()) complete[found.number] = found.path;
  }
  std::vector<int64_t> numbers;
  for (const auto& [number, path] : complete) numbers.push_back(number);
  files::Retention retention{.total_limit = core::whole_number<int64_t>(line.text("keep")).value()};
  if (line.has("keep_every")) retention.keep_every = core::whole_number<int64_t>(line.text("keep_every")).value();
  for (const int64_t number : files::to_delete(numbers, retention)) {
    if (!line.has("dry_run")) files::remove_durably(files::real_disk(), complete[number]);
    std::cout << (line.has("dry_run") ? "would remove " : "removed ") << complete[number] << "\n";
  }
  return 0;
}

int repair(const CommandLine& line) {
  const std::string& folder = line.rest[1];
  if (fs::exists(fs::path(folder) / files::kManifestFile)) {
    const files::Manifest there = files::read_manifest(folder);
    files::check_files(there, folder);
    std::cout << folder << " has a good manifest; nothing to repair\n";
    return 0;
  }
  const std::string parent = fs::absolute(folder).parent_path().string();
  const files::FolderLock lock(parent, line.has("force_takeover"));
  const files::Manifest manifest = files::manifest_of_headers(folder);
  files::write_manifest(files::real_disk(), folder, manifest);
  files::real_disk().sync_folder(folder);
  std::cout << folder << ": a manifest of " << manifest.tensors.size() << " tensors in " << manifest.files.size()
            << " files; step, schedulers, positions of loaders and the layout of optimizers stood in the old one and "
               "are lost: weights load, optimizers begin anew\n";
  return 0;
}

}  // namespace

int checkpoint(const std::vector<std::string>& words) {
  const CommandLine line = read_words("checkpoint", checkpoint_options(), words, "an action and its paths", 1, 3);
  if (line.help) {
    std::cout << help_of(kCheckpointHelp, checkpoint_options(), colours_wanted());
    return 0;
  }
  static const std::map<std::string, std::pair<size_t, std::function<int(const CommandLine&)>>> kActions{
      {"list", {2, list}}, {"show", {2, show}},   {"verify", {2, verify}},
      {"diff", {3, diff}}, {"prune", {2, prune}}, {"repair", {2, repair}}};
  const auto found = kActions.find(line.rest.front());
  if (found == kActions.end()) {
    std::vector<std::string> names;
    for (const auto& [name, action] : kActions) names.push_back(name);
    throw UsageError({"checkpoint"}, "unknown action '", line.rest.front(), "'", guess_end(line.rest.front(), names),
                     " Expected one of ", join(names), ". See hasten checkpoint --help.");
  }
  const auto& [count, action] = found->second;
  if (line.rest.size() != count) {
    throw UsageError({"checkpoint"}, line.rest.front(), " takes ", count - 1, count == 2 ? " path" : " paths", ", not ",
                     line.rest.size() - 1, ". See hasten checkpoint --help.");
  }
  refuse_options_of_others("checkpoint", line, line.rest.front(),
                           {{"fast", {"verify"}},
                            {"keep", {"prune"}},
                            {"keep_every", {"prune"}},
                            {"dry_run", {"prune"}},
                            {"force_takeover", {"prune", "repair"}},
                            {"json", {"list"}}});
  return action(line);
}

}  // namespace hasten::cli
