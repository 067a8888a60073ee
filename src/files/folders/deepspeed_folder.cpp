// Parameters as ranges of the ranks' flat partitions; see deepspeed_folder.h. Facts from DeepSpeed's zero_to_fp32.py.
#include "hasten/files/folders/deepspeed_folder.h"
#include "hasten/core/number.h"
#include "hasten/core/sentence.h"
#include "hasten/files/folders/manifest.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "files/base/named_source.h"
#include "files/base/origin.h"
#include "files/python/tensor_files.h"
#include "hasten/files/python/python_file.h"

namespace hasten::files {
namespace {

namespace fs = std::filesystem;

/// `count` elements of a tensor, from flat index `begin` on, that are elements [from, from + count) of a flat
/// partition.
struct Segment {
  int64_t begin = 0, count = 0;
  PythonTensor partition = {};
  int64_t from = 0;
};

class FlatSource : public NamedSource {
 public:
  using NamedSource::NamedSource;
  using NamedSource::remark;
  std::string_view form() const override { return "deepspeed"; }

  void add_flat(TensorInfo info, std::vector<Segment> segments) {
    int64_t covered = 0;
    for (const Segment& segment : segments) covered += segment.count;
    if (covered != numel_of(info.shape)) {
      fail_data(path(), "the ranks' partitions give tensor '", info.name, "' [", join(info.shape), "] ", covered,
                " elements, expected ", numel_of(info.shape), ". A rank's file is missing or of another run.");
    }
    add(std::move(info));
    tensors_.push_back({std::move(segments), {}});
  }
  void add_whole(const std::string& name, PythonTensor tensor) {
    add({name, tensor.dtype, tensor.shape});
    tensors_.push_back({{}, std::move(tensor)});
  }
  /// Adds `name` as another name of `of`.
  void add_tied(const std::string& name, const std::string& of) {
    TensorInfo same = info(of);
    const Tensor tensor = tensors_[index_of(of)];
    same.name = name;
    add(std::move(same));
    tensors_.push_back(tensor);
  }

 protected:
  void read_tensor(size_t index, const Box& box, void* target) const override {
    const Tensor& tensor = tensors_[index];
    if (tensor.segments.empty()) return files_.read(tensor.whole, box, target);
    const TensorInfo& info = this->info(names()[index]);
    const size_t item = element_bytes(info.dtype);
    char* to = static_cast<char*>(target);
    for_each_run(info.shape, box, [&](Run run) {
      for (const Segment& segment : tensor.segments) {
        const int64_t begin = std::max(run.begin, segment.begin),
                      end = std::min(run.begin + run.count, segment.begin + segment.count);
        if (begin >= end) continue;
        files_.read(segment.partition, {{segment.from + begin - segment.begin}, {end - begin}},
                    to + static_cast<size_t>(begin - run.begin) * item);
      }
      to += static_cast<size_t>(run.count) * item;
    });
  }

 private:
  struct Tensor {
    std::vector<Segment> segments;
    PythonTensor whole;
  };
  std::vector<Tensor> tensors_;
  TensorFiles files_;
};

using Shapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;

Shapes shapes_of(const PythonValue& value) {
  Shapes shapes;
  for (const auto& [name, shape] : value.as_pairs()) {
    std::vector<int64_t> sizes;
    for (const PythonValue& size : shape.as_items()) sizes.push_back(size.as_int());
    shapes.emplace_back(name.as_string(), std::move(sizes));
  }
  return shapes;
}

const PythonTensor& flat_tensor(const PythonValue& value, const std::string& path) {
  const PythonTensor& tensor = value.as_tensor();
  if (tensor.storage == nullptr || tensor.shape.size() != 1)
    fail_data(path, "a partition has ", tensor.shape.size(), " dimensions, expected 1.");
  return tensor;
}

/// Flat tensors of one kind (weights, or a moment): by rank, then by group.
using Partitions = std::vector<std::vector<PythonTensor>>;

struct Files {
  std::string tag_folder = {};
  std::string model = {};                                 ///< mp_rank_00_model_states.pt, or rank 0's of stage 3
  std::vector<std::string> optimizers = {}, models = {};  ///< by rank
};

/// Returns the number behind "pp_rank_", or -1.
int64_t rank_of(const std::string& file) {
  const size_t at = file.find("zero_pp_rank_");
  if (at == std::string::npos) return -1;
  const size_t end = file.find_first_not_of("0123456789", at + 13);
  return core::whole_number<int64_t>(std::string_view(file).substr(at + 13, end - at - 13)).value_or(0);
}

std::vector<std::string> by_rank(const std::map<int64_t, std::string>& files, const std::string& folder,
                                 const char* what) {
  std::vector<std::string> ordered;
  for (const auto& [rank, file] : files) {
    if (rank != static_cast<int64_t>(ordered.size())) {
      fail_data(folder, "the ", what, " file of rank ", ordered.size(), " is missing (there is one of rank ", rank,
                "). Copy all ranks' files.");
    }
    ordered.push_back(file);
  }
  return ordered;
}

Files find_files(const std::string& tag_folder) {
  Files files{.tag_folder = tag_folder};
  std::map<int64_t, std::string> optimizers, models;
  for (const auto& entry : fs::directory_iterator(tag_folder)) {
    const std::string name = entry.path().filename().string(), path = entry.path().string();
    if (name.find("mp_rank_") != std::string::npos && name.find("mp_rank_00") == std::string::npos) {
      throw DataError(kOrigin, path, "'", tag_folder, "' is a model-parallel checkpoint ('", name,
                      "'), which is not read. Merge it with DeepSpeed's ds_to_universal first.");
    }
    if (name.ends_with("_optim_states.pt") && rank_of(name) >= 0) optimizers[rank_of(name)] = path;
    if (name.ends_with("_model_states.pt") && rank_of(name) >= 0) models[rank_of(name)] = path;
    if (name == "mp_rank_00_model_states.pt") files.model = path;
  }
  files.optimizers = by_rank(optimizers, tag_folder, "optimizer");
  files.models = by_rank(models, tag_folder, "model");
  if (files.model.empty() && !files.models.empty()) files.model = files.models.front();
  if (files.model.empty())
    fail_data(tag_folder, "it has no mp_rank_00_model_states.pt. Give the folder that holds DeepSpeed's 'latest'.");
  return files;
}

std::string tag_folder_of(const std::string& folder, const std::string& tag) {
  if (!tag.empty() || fs::is_regular_file(fs::path(folder) / "latest")) {
    const std::string name = tag.empty() ? latest_tag(folder) : tag;
    const fs::path tagged = fs::path(folder) / name;
    if (name.empty() || name.find('/') != std::string::npos || !fs::is_directory(tagged)) {
      std::vector<std::string> tags;
      for (const auto& entry : fs::directory_iterator(folder)) {
        if (entry.is_directory()) tags.push_back(entry.path().filename().string());
      }
      throw UsageError(kOrigin, "'", folder, "' has no checkpoint of tag '", name, "'", guess_end(name, tags),
                       " It has: ", join(tags), ".");
    }
    return tagged.string();
  }
  return folder;
}

/// Contents of the optimizer files of all ranks.
class Optimizers {
 public:
  Optimizers(const Files& files, int64_t stage) {
    for (const std::string& path : files.optimizers) {
      files_.push_back(PythonFile::open(path));
      const PythonValue& state = files_.back()["optimizer_state_dict"];
      const char* key = stage == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups";
      weights.emplace_back();
      for (const PythonValue& group : state.at(key).as_items()) weights.back().push_back(flat_tensor(group, path));
      const PythonValue* base = state.find(stage == 3 ? "optimizer_state_dict" : "base_optimizer_state");
      if (base == nullptr || !base->is_mapping() || base->find("state") == nullptr) continue;
      if (const PythonValue* groups = base->find("param_groups"); groups != nullptr && param_groups.is_none())
        param_groups = *groups;
      add_moments(base->at("state"), path);
    }
  }

  /// Returns true if every rank has a partition of this moment for every group. In stages 1 and 2 moments keep the
  /// padding at the end of a group that the weights are saved without.
  bool complete(const std::string& name) const {
    const Partitions& all = moments.at(name);
    return all.size() == weights.size() &&
           std::equal(all.begin(), all.end(), weights.begin(), [](const auto& a, const auto& b) {
             return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](const auto& x, const auto& y) {
                      return x.shape.front() >= y.shape.front();
                    });
           });
  }

  Partitions weights;
  std::map<std::string, Partitions> moments;
  std::map<std::string, PythonValue> scalars;  ///< of group 0, rank 0: "step"
  PythonValue param_groups;

 private:
  void add_moments(const PythonValue& state, const std::string& path) {
    std::map<int64_t, const PythonValue*> by_group;
    for (const auto& [group, slots] : state.as_pairs()) by_group[group.as_int()] = &slots;
    for (const auto& [group, slots] : by_group) {
      for (const auto& [slot, value] : slots->as_pairs()) {
        if (!value.is_tensor() || value.as_tensor().shape.size() != 1) {
          scalars.emplace(slot.as_string(), value);
          continue;
        }
        auto& partitions = moments[slot.as_string()];
        partitions.resize(weights.size());
        partitions.back().push_back(flat_tensor(value, path));
      }
    }
  }

  std::vector<PythonFile> files_;
};

/// Returns the alignment padding behind parameter `index` of a group in stages 1 and 2, which DeepSpeed 0.19 writes
/// down.
int64_t padding_after(const PythonValue* paddings, size_t group, size_t index) {
  if (paddings == nullptr || !paddings->is_sequence() || group >= paddings->size() ||
      !(*paddings)[group].is_sequence() || index >= (*paddings)[group].size()) {
    return 0;
  }
  return (*paddings)[group][index].as_int();
}

/// Segments of [begin, begin + count) of the concatenation of `partitions`.
std::vector<Segment> segments_of(const std::vector<const PythonTensor*>& partitions, int64_t begin, int64_t count) {
  std::vector<Segment> segments;
  int64_t at = 0;
  for (const PythonTensor* partition : partitions) {
    const int64_t size = partition->shape.front();
    const int64_t first = std::max(begin, at), end = std::min(begin + count, at + size);
    if (first < end) segments.push_back({first - begin, end - first, *partition, first - at});
    at += size;
  }
  return segments;
}

using Named = std::map<std::string, std::pair<TensorInfo, std::vector<Segment>>>;

/// Stages 1 and 2: a group's flat buffer is the concatenation of the ranks' partitions, parameters one after the other.
void cut_groups(const std::vector<Shapes>& groups, const Partitions& ranks, const PythonValue* paddings, Named& out) {
  for (size_t g = 0; g < groups.size(); ++g) {
    std::vector<const PythonTensor*> partitions;
    for (const auto& rank : ranks) {
      if (g < rank.size()) partitions.push_back(&rank[g]);
    }
    int64_t at = 0;
    for (size_t i = 0; i < groups[g].size(); ++i) {
      const auto& [name, shape] = groups[g][i];
      const int64_t count = numel_of(shape);
      const Dtype dtype = partitions.empty() ? Dtype::kFloat32 : partitions.front()->dtype;
      out[name] = {{name, dtype, shape}, segments_of(partitions, at, count)};
      at += count + padding_after(paddings, g, i);
    }
  }
}

/// Stage 3: every rank holds ceil(n / world) elements of each parameter, those of all groups one after the other.
void cut_parameters(const std::vector<Shapes>& groups, const Partitions& ranks, Named& out) {
  const auto world = static_cast<int64_t>(ranks.size());
  int64_t at = 0;
  for (const Shapes& group : groups) {
    for (const auto& [name, shape] : group) {
      const int64_t count = numel_of(shape), part = (count + world - 1) / world;
      std::vector<Segment> segments;
      for (int64_t r = 0; r < world; ++r) {
        std::vector<const PythonTensor*> partitions;
        for (const PythonTensor& one : ranks[static_cast<size_t>(r)]) partitions.push_back(&one);
        for (Segment& segment : segments_of(partitions, at, std::clamp<int64_t>(count - r * part, 0, part))) {
          segment.begin += r * part;
          segments.push_back(std::move(segment));
        }
      }
      const Dtype dtype = ranks.empty() || ranks.front().empty() ? Dtype::kFloat32 : ranks.front().front().dtype;
      out[name] = {{name, dtype, shape}, std::move(segments)};
      at += part;
    }
  }
}

/// Frozen parameters: whole in the model file in stages 1 and 2, in equal fragments over the ranks in stage 3.
void add_frozen(FlatSource& source, const PythonValue& model, const std::vector<PythonFile>& ranks,
                const std::string& name) {
  const PythonValue* shapes = model.find("frozen_param_shapes");
  const PythonValue* shape = shapes == nullptr ? nullptr : shapes->find(name);
  if (ranks.empty() || shape == nullptr) {
    const PythonValue* fragments = model.find("frozen_param_fragments");
    const PythonValue* whole = fragments == nullptr ? nullptr : fragments->find(name);
    source.add_whole(name, (whole == nullptr ? model.at("module").at(name) : *whole).as_tensor());
    return;
  }
  TensorInfo info{.name = name};
  for (const PythonValue& size : shape->as_items()) info.shape.push_back(size.as_int());
  std::vector<Segment> segments;
  int64_t at = 0;
  for (const PythonFile& rank : ranks) {
    PythonTensor fragment = flat_tensor(rank["frozen_param_fragments"].at(name), rank.path());
    info.dtype = fragment.dtype;
    const int64_t count = std::min(fragment.shape.front(), numel_of(info.shape) - at);
    if (count > 0) segments.push_back({at, count, std::move(fragment), 0});
    at += std::max<int64_t>(count, 0);
  }
  source.add_flat(std::move(info), std::move(segments));
}

/// Returns all names of the model in its order. Those of parameters that only the optimizer has follow.
std::vector<std::string> names_of(const PythonValue& model, const Named& parameters) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  if (const PythonValue* module = model.find("module"); module != nullptr && module->is_mapping()) {
    for (const auto& [name, value] : module->as_pairs()) {
      if (name.is_string() && value.is_tensor() && seen.insert(name.as_string()).second)
        names.push_back(name.as_string());
    }
  }
  for (const auto& [name, parameter] : parameters) {
    if (seen.insert(name).second) names.push_back(name);
  }
  return names;
}

struct Contents {
  const PythonValue& model;
  const std::vector<PythonFile>& ranks;  ///< model files of stage 3
  Named parameters;
};

TensorSourcePtr weights_of(const std::string& folder, const Contents& contents, bool exclude_frozen) {
  auto source = std::make_shared<FlatSource>(folder);
  std::set<std::string> buffers;
  if (const PythonValue* names = contents.model.find("buffer_names"); names != nullptr && names->is_sequence()) {
    for (const PythonValue& name : names->as_items()) buffers.insert(name.as_string());
  }
  std::map<std::string, std::string> shared;
  if (const PythonValue* pairs = contents.model.find("shared_params"); pairs != nullptr && pairs->is_mapping()) {
    for (const auto& [name, of] : pairs->as_pairs()) shared[name.as_string()] = of.as_string();
  }
  std::vector<std::string> tied;
  for (const std::string& name : names_of(contents.model, contents.parameters)) {
    if (const auto found = contents.parameters.find(name); found != contents.parameters.end()) {
      source->add_flat(found->second.first, found->second.second);
    } else if (shared.contains(name)) {
      tied.push_back(name);
    } else if (buffers.contains(name)) {
      source->add_whole(name, contents.model.at("module").at(name).as_tensor());
    } else if (!exclude_frozen) {
      add_frozen(*source, contents.model, contents.ranks, name);
    }
  }
  for (const std::string& name : tied) {
    if (source->contains(shared[name])) source->add_tied(name, shared[name]);
  }
  return source;
}

}  // namespace

bool is_deepspeed(const std::string& folder) {
  if (!fs::is_directory(folder)) return false;
  if (fs::is_regular_file(fs::path(folder) / "latest")) return true;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with("_optim_states.pt") || name == "mp_rank_00_model_states.pt") return true;
  }
  return false;
}

DeepSpeedFolder open_deepspeed_folder(const std::string& folder, const DeepSpeedOptions& options) {
  if (!fs::is_directory(folder)) throw UsageError(kOrigin, "there is no folder '", folder, "'. Correct the path.");
  const Files files = find_files(tag_folder_of(folder, options.tag));
  DeepSpeedFolder result{.tag = fs::path(files.tag_folder).filename().string()};
  try {
    result.model_states = PythonFile::open(files.model).value();
    const PythonValue& model = result.model_states;
    if (const PythonValue* step = model.find("global_steps"); step != nullptr && step->is_int())
      result.step = step->as_int();
    if (files.optimizers.empty()) {
      result.weights = python_source(model.at("module"), folder);
      return result;
    }
    result.stage = files.models.empty() ? 2 : 3;
    const Optimizers optimizers(files, result.stage);
    result.world_size = static_cast<int64_t>(files.optimizers.size());
    if (const PythonValue* world = model.find("dp_world_size");
        world != nullptr && world->is_int() && world->as_int() != result.world_size) {
      fail_data(files.tag_folder, "it has the optimizer files of ", result.world_size, " ranks, expected ",
                world->as_int(), ". Copy all ranks' files.");
    }
    std::vector<PythonFile> ranks;
    for (const std::string& path : files.models) ranks.push_back(PythonFile::open(path));
    std::vector<Shapes> groups;
    for (const PythonValue& group : model.at("param_shapes").as_items()) groups.push_back(shapes_of(group));
    for (const Shapes& group : groups) {
      result.groups.emplace_back();
      for (const auto& [name, shape] : group) result.groups.back().push_back(name);
    }
    const PythonValue rank0 = PythonFile::open(files.optimizers.front())["optimizer_state_dict"];
    const auto cut = [&](const Partitions& partitions) {
      Named named;
      result.stage == 3 ? cut_parameters(groups, partitions, named)
                        : cut_groups(groups, partitions, rank0.find("param_alignment_paddings"), named);
      return named;
    };
    result.weights = weights_of(folder, {model, ranks, cut(optimizers.weights)}, options.exclude_frozen_parameters);
    auto moments = std::make_shared<FlatSource>(folder);
    for (const auto& [slot, partitions] : optimizers.moments) {
      if (!optimizers.complete(slot)) continue;
      for (auto& [name, tensor] : cut(partitions)) {
        tensor.first.name = name + "." + slot;
        moments->add_flat(std::move(tensor.first), std::move(tensor.second));
      }
    }
    result.moments = std::move(moments);
    result.param_groups = optimizers.param_groups;
  } catch (const DataError& error) {
    if (!error.path().empty()) throw;
    fail_data(files.tag_folder, "it is no good checkpoint of DeepSpeed: ", inner_words(error.what()), ".");
  } catch (const UsageError& error) {
    fail_data(files.tag_folder, "it is no good checkpoint of DeepSpeed: ", inner_words(error.what()), ".");
  }
  return result;
}

}  // namespace hasten::files
