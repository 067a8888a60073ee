// Files of ranks joined to whole tensors, and these under transformers' names; see megatron_folder.h. The state of
// optimizers is joined the same way, slot by slot (megatron_state.h).
#include "hasten/files/folders/megatron_folder.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "files/base/origin.h"
#include "files/folders/megatron_names.h"
#include "files/folders/megatron_sources.h"
#include "files/folders/megatron_state.h"
#include "hasten/core/file.h"
#include "hasten/core/number.h"
#include "hasten/core/sentence.h"
#include "hasten/core/strings.h"
#include "hasten/files/folders/dcp_folder.h"
#include "hasten/files/python/python_file.h"

namespace hasten::files {
namespace {

namespace fs = std::filesystem;
using core::Value;

constexpr std::string_view kLatest = "latest_checkpointed_iteration.txt";
constexpr std::string_view kRankFile = "model_optim_rng.pt";

// ---- Arguments.

std::optional<Value> plain_value(const PythonValue& value) {
  if (value.is_none()) return Value();
  if (value.is_bool()) return Value(value.as_bool());
  if (value.is_int() && !value.is_big_int()) return Value(value.as_int());
  if (value.is_number() && !value.is_int()) return Value(value.as_double());
  if (value.is_string()) return Value(value.as_string());
  return std::nullopt;
}

// Reads a Namespace or a dict, without what is no number, text or flag.
Value arguments_of(const PythonValue* args) {
  Value all = Value::map();
  if (args == nullptr) return all;
  const PythonValue& pairs = args->is_object() ? args->as_object().state : *args;
  if (!pairs.is_mapping()) return all;
  for (const auto& [name, value] : pairs.as_pairs()) {
    if (!name.is_string()) continue;
    if (auto plain = plain_value(value)) all[name.as_string()] = std::move(*plain);
  }
  return all;
}

// ---- Files of ranks.

struct RankFolder {
  std::string name = {};
  int64_t tp = 0, pp = 0;
};

// "mp_rank_01_003": tensor rank 1, stage 3.
std::optional<RankFolder> rank_folder(const std::string& name) {
  constexpr std::string_view kPrefix = "mp_rank_";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const auto parts = core::split(name.substr(kPrefix.size()), '_');
  std::vector<int64_t> numbers;
  for (const std::string& part : parts) {
    const auto number = core::whole_number<int64_t>(part);
    if (!number || *number < 0) return std::nullopt;
    numbers.push_back(*number);
  }
  if (numbers.size() > 2) {
    throw UsageError(kOrigin, "'", name, "' is a folder of a rank of experts, which are not supported.");
  }
  if (numbers.empty()) return std::nullopt;
  return RankFolder{name, numbers[0], numbers.size() == 2 ? numbers[1] : 0};
}

void flatten(const PythonValue& value, const std::string& prefix, NamedTensors& found, int depth = 0) {
  if (value.is_tensor()) {
    if (const auto name = megatron_name(prefix)) found.emplace_back(*name, value.as_tensor());
    return;
  }
  if (!value.is_mapping() || depth > 20) return;
  for (const auto& [key, child] : value.as_pairs()) {
    if (key.is_string())
      flatten(child, prefix.empty() ? key.as_string() : prefix + "." + key.as_string(), found, depth + 1);
  }
}

// The contents of a rank's file: its parts of the model, one a virtual stage.
struct RankParts {
  std::string path = {};
  std::vector<NamedTensors> chunks = {};
  Value arguments = {};
  int64_t version = 0, iteration = 0;
  /// None in a file without one.
  PythonValue optimizer = {};
};

RankParts open_rank(const std::string& folder) {
  RankParts parts{.path = (fs::path(folder) / kRankFile).string()};
  if (!fs::exists(parts.path)) parts.path = (fs::path(folder) / "model_rng.pt").string();
  if (!fs::exists(parts.path)) fail_data(folder, "it has no ", kRankFile, ". Get the rank's folder again.");
  const PythonFile file = PythonFile::open(parts.path);
  if (!file.value().is_mapping()) fail_data(parts.path, "it holds a ", file.value().type_name(), ", expected a dict.");
  const auto add = [&](const PythonValue& model) {
    parts.chunks.emplace_back();
    flatten(model, "", parts.chunks.back());
  };
  if (const PythonValue* const model = file.value().find("model")) add(*model);
  for (int64_t chunk = 0; parts.chunks.size() == static_cast<size_t>(chunk); ++chunk) {
    if (const PythonValue* const model = file.value().find(text("model", chunk))) add(*model);
  }
  if (parts.chunks.empty()) fail_data(parts.path, "it has neither 'model' nor 'model0'.");
  parts.arguments = arguments_of(file.value().find("args"));
  if (const PythonValue* const version = file.value().find("checkpoint_version"); version && version->is_number())
    parts.version = static_cast<int64_t>(version->as_double());
  if (const PythonValue* const iteration = file.value().find("iteration"); iteration && iteration->is_int())
    parts.iteration = iteration->as_int();
  if (const PythonValue* const optimizer = file.value().find("optimizer")) parts.optimizer = *optimizer;
  return parts;
}

// Joins the parts of all ranks; ranks_[stage][tensor rank].
class RankJoin {
 public:
  RankJoin(std::string folder, const Value& own) : folder_(std::move(folder)) {
    std::map<std::pair<int64_t, int64_t>, std::string> there;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      if (const auto rank = rank_folder(entry.path().filename().string())) {
        if (!there.emplace(std::pair(rank->pp, rank->tp), rank->name).second) {
          fail_data(folder_, "it has two folders of tensor rank ", rank->tp, " and stage ", rank->pp, ": ", rank->name,
                    " and ", there[{rank->pp, rank->tp}], ". Remove the older one.");
        }
        tp_ = std::max(tp_, rank->tp + 1);
        pp_ = std::max(pp_, rank->pp + 1);
      }
    }
    const RankParts first = open_rank((fs::path(folder_) / there.begin()->second).string());
    arguments_ = first.arguments;
    for (const auto& [name, value] : own.as_map()) arguments_[name] = value;
    require_size("tensor_model_parallel_size", tp_, there);
    require_size("pipeline_model_parallel_size", pp_, there);
    require_all(there);
    version_ = first.version;
    if (const auto* const version = own.find("checkpoint_version")) version_ = version->as_int();
    iteration_ = first.iteration;
    for (int64_t stage = 0; stage < pp_; ++stage) {
      ranks_.emplace_back();
      for (int64_t rank = 0; rank < tp_; ++rank) {
        ranks_.back().push_back(open_rank((fs::path(folder_) / there.at({stage, rank})).string()));
      }
    }
  }

  // The state of all ranks; slots are empty if there is none.
  struct State {
    MegatronGroups groups = {};
    std::map<std::string, TensorSourcePtr> slots = {};
  };
  State join_state() const {
    std::vector<std::vector<MegatronRankState>> all;
    for (size_t stage = 0; stage < ranks_.size(); ++stage) {
      all.emplace_back();
      for (const RankParts& rank : ranks_[stage]) {
        if (!rank.optimizer.is_mapping()) return {};
        all.back().push_back(
            megatron_state({rank.path, static_cast<int64_t>(stage), arguments_, rank.chunks}, rank.optimizer));
      }
    }
    State state{.groups = all[0][0].groups};
    for (const auto& [slot, chunks] : all[0][0].slots) {
      RankJoin join = *this;
      for (size_t stage = 0; stage < ranks_.size(); ++stage) {
        for (size_t rank = 0; rank < ranks_[stage].size(); ++rank) {
          const auto own = all[stage][rank].slots.find(slot);
          if (own == all[stage][rank].slots.end())
            fail_data(ranks_[stage][rank].path, "its optimizer has no ", slot, ", which the first rank's has.");
          join.ranks_[stage][rank].chunks = own->second;
        }
      }
      state.slots[slot] = join.join();
    }
    return state;
  }

  TensorSourcePtr join() {
    num_layers_.clear();
    source_ = std::make_shared<RankSource>(folder_);
    const size_t chunks = ranks_[0][0].chunks.size();
    for (const auto& stage : ranks_) {
      for (const auto& rank : stage) {
        if (rank.chunks.size() == chunks) continue;
        fail_data(rank.path, "it has ", rank.chunks.size(), " virtual stages, and ", ranks_[0][0].path, ' ', chunks,
                  ".");
      }
    }
    for (size_t chunk = 0; chunk < chunks; ++chunk) {
      for (const auto& stage : ranks_) join_stage(stage, chunk);
    }
    require_layers();
    return source_;
  }
  const Value& arguments() const { return arguments_; }
  int64_t version() const { return version_; }
  int64_t iteration() const { return iteration_; }
  int64_t tp() const { return tp_; }
  int64_t pp() const { return pp_; }

 private:
  using Folders = std::map<std::pair<int64_t, int64_t>, std::string>;

  static std::string listed(const Folders& there) {
    std::vector<std::string> names;
    for (const auto& [place, name] : there) names.push_back(name);
    std::sort(names.begin(), names.end());
    return join_words(names);
  }
  static std::string join_words(const std::vector<std::string>& names) { return hasten::join(names); }

  void require_size(const char* argument, int64_t found, const Folders& there) const {
    const Value* const size = arguments_.find(argument);
    if (size == nullptr || !size->is_int() || size->as_int() == found) return;
    fail_data(folder_, "the arguments say ", argument, ' ', size->as_int(), ", and there are folders of ", found, ": ",
              listed(there), ". Get the missing ones, or remove those of another run.");
  }
  void require_all(const Folders& there) const {
    std::vector<std::string> missing;
    for (int64_t stage = 0; stage < pp_; ++stage) {
      for (int64_t rank = 0; rank < tp_; ++rank) {
        if (!there.contains({stage, rank})) missing.push_back(text("tensor rank ", rank, " of stage ", stage));
      }
    }
    if (missing.empty()) return;
    fail_data(folder_, "it has no folder of ", join_words(missing), "; there are ", listed(there),
              ". Get the missing ones.");
  }

  void join_stage(const std::vector<RankParts>& ranks, size_t chunk) {
    std::map<std::string, int64_t> layers;
    for (const auto& [name, tensor] : ranks[0].chunks[chunk]) {
      std::string global = name;
      if (const auto layer = megatron_layer(name)) {
        auto& count = layers[layer->stack];
        count = std::max(count, layer->number + 1);
        global = text(layer->stack, ".layers.", num_layers_[layer->stack] + layer->number, '.', layer->rest);
      }
      // Tied and shared ones are held by several stages.
      if (!source_->contains(global)) join_tensor(global, name, ranks, chunk);
    }
    for (const auto& [stack, count] : layers) num_layers_[stack] += count;
  }

  const PythonTensor& tensor_of(const RankParts& rank, size_t chunk, const std::string& name) const {
    const auto& all = rank.chunks[chunk];
    const auto found = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.first == name; });
    if (found == all.end()) fail_data(rank.path, "it has no '", name, "', which the first tensor rank has.");
    if (found->second.storage == nullptr) fail_data(rank.path, "tensor '", name, "' has no values.");
    return found->second;
  }

  void join_tensor(const std::string& global, const std::string& name, const std::vector<RankParts>& ranks,
                   size_t chunk) {
    const PythonTensor& first = tensor_of(ranks[0], chunk, name);
    const MegatronCut cut = megatron_cut(global, is_gated(arguments_), version_);
    TensorInfo info{global, first.dtype, first.shape};
    if (cut.dim < 0 || tp_ == 1) return source_->add_tensor(info, {{first, whole_box(first.shape)}});
    const auto dim = static_cast<size_t>(cut.dim);
    if (first.shape.size() <= dim || first.shape[dim] % cut.blocks != 0) {
      fail_data(ranks[0].path, "tensor '", name, "' is of shape [", hasten::join(first.shape), "], which has no ",
                cut.blocks, " equal parts along dimension ", cut.dim, ".");
    }
    const int64_t size = first.shape[dim], part = size / cut.blocks;
    info.shape[dim] = size * tp_;
    std::vector<RankSource::Part> parts;
    for (int64_t rank = 0; rank < tp_; ++rank) {
      const RankParts& file = ranks[static_cast<size_t>(rank)];
      const PythonTensor& tensor = tensor_of(file, chunk, name);
      if (tensor.shape != first.shape || tensor.dtype != first.dtype) {
        fail_data(file.path, "tensor '", name, "' is ", torch_name(tensor.dtype), " [", hasten::join(tensor.shape),
                  "], and that of the first tensor rank ", torch_name(first.dtype), " [", hasten::join(first.shape),
                  "].");
      }
      for (int64_t block = 0; block < cut.blocks; ++block) {
        PythonTensor view = tensor;
        view.offset += block * part * tensor.stride[dim];
        view.shape[dim] = part;
        Box box = whole_box(view.shape);
        box.offset[dim] = (block * tp_ + rank) * part;
        parts.push_back({std::move(view), std::move(box)});
      }
    }
    source_->add_tensor(std::move(info), std::move(parts));
  }

  void require_layers() const {
    const Value* const given = arguments_.find("num_layers");
    if (given == nullptr || !given->is_int() || num_layers_.size() != 1) return;
    const auto& [stack, count] = *num_layers_.begin();
    if (given->as_int() == count) return;
    fail_data(folder_, "the arguments say num_layers ", given->as_int(), ", and the files of all stages hold ", count,
              ": one is cut short, or of another run.");
  }

  std::string folder_;
  Value arguments_;
  int64_t tp_ = 0, pp_ = 0, version_ = 0, iteration_ = 0;
  std::vector<std::vector<RankParts>> ranks_;
  std::map<std::string, int64_t> num_layers_;
  std::shared_ptr<RankSource> source_;
};

// ---- Folders of DCP.

void require_torch_dist(const std::string& folder) {
  const std::string path = (fs::path(folder) / "metadata.json").string();
  const auto bytes = core::read_file(path);
  if (!bytes) return;
  const Value metadata = Value::parse_json(*bytes, path);
  const Value* const backend = metadata.find("sharded_backend");
  if (backend == nullptr || !backend->is_string() || backend->as_string() == "torch_dist") return;
  throw UsageError(kOrigin, "'", folder, "' is of Megatron's form ", backend->as_string(),
                   "; expected torch_dist. Save it with --dist-ckpt-format torch_dist, or --ckpt-format torch.");
}

constexpr std::string_view kState = "optimizer.state.";

// Weights, or with a prefix such as "optimizer.state.exp_avg." a slot of the optimizer.
TensorSourcePtr open_distributed(const std::string& folder, const TensorSourcePtr& there,
                                 const std::string& prefix = {}) {
  auto source = std::make_shared<StackedSource>(folder, there);
  constexpr std::string_view kLayers = ".layers.";
  for (const std::string& full : there->names()) {
    const bool is_state = full.starts_with("optimizer.") || full.starts_with("chained_") || full.starts_with("rng_") ||
                          full.starts_with("rerun_");
    if (prefix.empty() ? is_state : !full.starts_with(prefix)) continue;
    const std::string plain = full.substr(prefix.size());
    const auto name = megatron_name(plain.starts_with("model.") ? plain.substr(6) : plain);
    if (!name) continue;
    const size_t at = name->find(kLayers);
    if (at == std::string::npos || megatron_layer(*name)) {
      source->add_whole(*name, full);
      continue;
    }
    const auto& shape = there->info(full).shape;
    for (int64_t layer = 0; !shape.empty() && layer < shape[0]; ++layer) {
      source->add_layer(text(name->substr(0, at), kLayers, layer, '.', name->substr(at + kLayers.size())), full, layer);
    }
  }
  return source;
}

RankJoin::State distributed_state(const std::string& folder, const TensorSourcePtr& there, const PythonValue& common) {
  std::set<std::string> slots;
  for (const std::string& name : there->names()) {
    if (name.starts_with(kState))
      slots.insert(name.substr(kState.size(), name.find('.', kState.size()) - kState.size()));
    if (!name.starts_with("optimizer.distributed.") && !name.starts_with("chained_")) continue;
    throw UsageError(kOrigin, "'", folder, "' has the optimizer's state as the ranks of its run had it ('",
                     name.substr(0, 80),
                     "'), without the names of parameters. Save with "
                     "--dist-ckpt-optim-fully-reshardable, or read weights alone (--only model).");
  }
  const PythonValue* const optimizer = common.find("optimizer");
  if (slots.empty() || optimizer == nullptr) return {};
  RankJoin::State state{.groups = megatron_groups(*optimizer, folder)};
  for (const std::string& slot : slots)
    state.slots[slot == "fp32_param" ? "param" : slot] = open_distributed(folder, there, text(kState, slot, '.'));
  return state;
}

// ---- The optimizer under the names of the weights.

// A weight that is `scale` times Megatron's has gradients smaller by that, and their squares by its square.
double state_scale(const std::string& slot, double scale) {
  return slot == "param" ? scale : std::pow(scale, slot.ends_with("_sq") ? -2 : -1);
}

// A second weight of the same rows was one parameter there.
std::vector<MegatronTensor> without_copies(const std::vector<MegatronTensor>& tensors) {
  std::vector<MegatronTensor> kept;
  std::set<std::pair<std::string, int64_t>> seen;
  for (const MegatronTensor& tensor : tensors) {
    if (seen.emplace(tensor.rows.front().name, tensor.rows.front().from).second) kept.push_back(tensor);
  }
  return kept;
}

MegatronOptimizer optimizer_of(const RankJoin::State& state, const std::string& folder, const TensorSource& own,
                               const std::vector<MegatronTensor>* tensors) {
  MegatronOptimizer optimizer{.step = state.groups.step};
  if (state.slots.empty()) return optimizer;
  for (const auto& [slot, source] : state.slots) {
    TensorSourcePtr named = source;
    if (tensors != nullptr) {
      auto converted = std::make_shared<ConvertedSource>(folder, source);
      for (MegatronTensor tensor : without_copies(*tensors)) {
        tensor.scale = tensor.scale == 1 ? 1 : state_scale(slot, tensor.scale);
        if (source->contains(tensor.rows.front().name)) converted->add_tensor(std::move(tensor));
      }
      named = std::move(converted);
    }
    (slot == "param" ? optimizer.exact_weights : optimizer.slots[slot]) = std::move(named);
  }
  MegatronGroup decayed{.options = state.groups.decayed}, others{.options = state.groups.others};
  if (decayed.options.is_none()) decayed.options = others.options;
  const bool has_both = !state.groups.others.is_none();
  const auto add = [&](const std::string& theirs, const std::string& ours) {
    const bool is_own = !has_both || is_decayed(theirs, own.info(theirs).shape.size());
    (is_own ? decayed : others).parameters.push_back(ours);
  };
  if (tensors == nullptr) {
    for (const std::string& name : own.names()) add(name, name);
  } else {
    for (const MegatronTensor& tensor : without_copies(*tensors)) add(tensor.rows.front().name, tensor.name);
  }
  for (MegatronGroup* const group : {&decayed, &others}) {
    if (!group->parameters.empty()) optimizer.groups.push_back(std::move(*group));
  }
  return optimizer;
}

// ---- Folders.

bool has_ranks(const std::string& folder) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    if (entry.is_directory(none) && entry.path().filename().string().starts_with("mp_rank_")) return true;
  }
  return false;
}

bool has_megatrons_metadata(const std::string& folder) {
  const auto bytes = core::read_file(fs::path(folder) / "metadata.json");
  return bytes && bytes->find("\"sharded_backend\"") != std::string::npos;
}

std::string iteration_name(const std::string& tag) {
  const auto number = core::whole_number<int64_t>(tag);
  if (!number) return tag;
  std::string digits = std::to_string(*number);
  if (digits.size() < 7) digits.insert(0, 7 - digits.size(), '0');
  return "iter_" + digits;
}

std::string iteration_folder(const std::string& folder, const std::string& given) {
  const fs::path latest = fs::path(folder) / kLatest;
  if (given.empty() && !fs::exists(latest) && (has_ranks(folder) || has_megatrons_metadata(folder))) return folder;
  std::string tag = given;
  if (tag.empty()) {
    const auto bytes = core::read_file(latest);
    if (!bytes) {
      throw UsageError(kOrigin, "'", folder, "' is no folder of Megatron-LM: it has neither ", kLatest,
                       " nor folders mp_rank_*. Give the folder that --save named.");
    }
    tag = core::trim(*bytes);
    if (!core::whole_number<int64_t>(tag) && tag != "release")
      fail_data(latest.string(), "it has '", tag.substr(0, 40), "', expected a number or release.");
  }
  const fs::path found = fs::path(folder) / iteration_name(tag);
  if (fs::is_directory(found)) return found.string();
  std::vector<std::string> there;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("iter_") || name == "release") there.push_back(name);
  }
  std::sort(there.begin(), there.end());
  throw UsageError(kOrigin, "'", folder, "' has no ", iteration_name(tag),
                   given.empty() ? text(", which ", kLatest, " names") : "", "; it has ",
                   there.empty() ? "no iteration" : hasten::join(there), ". Name one that is there.");
}

}  // namespace

MegatronFolder open_megatron_folder(const std::string& path, const MegatronOptions& options) {
  require_known_arguments(options.arguments);
  if (!fs::is_directory(path)) throw UsageError(kOrigin, "there is no folder '", path, "'. Correct the path.");
  const std::string folder = iteration_folder(path, options.tag);
  MegatronFolder result{.tag = fs::path(folder).filename().string()};
  TensorSourcePtr own;
  RankJoin::State state;
  int64_t version = 3;
  if (has_ranks(folder)) {
    RankJoin ranks(folder, options.arguments);
    own = ranks.join();
    if (options.optimizer) state = ranks.join_state();
    version = ranks.version();
    result.arguments = ranks.arguments();
    result.iteration = ranks.iteration();
    result.tp = ranks.tp();
    result.pp = ranks.pp();
  } else if (DcpFolder::is_dcp(folder) || has_megatrons_metadata(folder)) {
    require_torch_dist(folder);
    const TensorSourcePtr there = DcpFolder::open(folder, {.open_single_key = false}).tensors();
    own = open_distributed(folder, there);
    if (const std::string common = (fs::path(folder) / "common.pt").string(); fs::exists(common)) {
      const PythonFile file = PythonFile::open(common);
      result.arguments = arguments_of(file.value().find("args"));
      if (const PythonValue* const iteration = file.value().find("iteration"); iteration && iteration->is_int())
        result.iteration = iteration->as_int();
      if (options.optimizer) state = distributed_state(folder, there, file.value());
    }
    for (const auto& [name, value] : options.arguments.as_map()) result.arguments[name] = value;
  } else {
    fail_data(folder, "it has neither folders mp_rank_* nor .metadata. Get the folder again.");
  }
  if (options.names == MegatronNames::kMegatron) {
    result.weights = own;
    result.optimizer = optimizer_of(state, folder, *own, nullptr);
    return result;
  }
  MegatronModel model = megatron_model(*own, result.arguments, version, options.names == MegatronNames::kTransformers);
  result.model = model.type;
  result.optimizer = optimizer_of(state, folder, *own, &model.tensors);
  auto converted = std::make_shared<ConvertedSource>(folder, own);
  for (MegatronTensor& tensor : model.tensors) converted->add_tensor(std::move(tensor));
  for (const std::string& words : model.remarks) converted->remark(words);
  result.weights = std::move(converted);
  return result;
}

bool is_megatron(const std::string& folder) {
  return fs::exists(fs::path(folder) / kLatest) || has_ranks(folder) || has_megatrons_metadata(folder);
}

}  // namespace hasten::files
