// Models, optimizers and the rest as pieces; see capture.h.
#include "checkpoint/save/capture.h"

#include <ATen/Functions.h>
#include <torch/nn/module.h>
#include <torch/serialize.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <sstream>
#include <tuple>
#include <unordered_map>

#include "checkpoint/parameter_places.h"
#include "checkpoint/parts.h"
#include "hasten/checkpoint/python_tensor.h"
#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/files/base/box.h"
#include "hasten/optim/prepared/low_weights.h"
#include "hasten/parallel/ddp/distributed_models.h"
#include "hasten/parallel/layout/layout.h"
#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/layout/stages.h"
#include "hasten/parallel/shard/sharding.h"
#include "hasten/process/random.h"
#include "hasten/training/accumulation.h"
#include "hasten/training/gradient_state.h"

namespace hasten::checkpoint {
namespace {

using core::Value;
using training::StateKind;

// A tensor by memory, for tied names.
struct SameMemory {
  const void* data;
  std::vector<int64_t> sizes, strides;
  bool operator<(const SameMemory& other) const {
    return std::tie(data, sizes, strides) < std::tie(other.data, other.sizes, other.strides);
  }
};

bool trains_apart(const RunParts& run) {
  const auto models = run.models->all();
  return std::any_of(models.begin(), models.end(), [](const auto& model) { return model->step().local_sgd().now; });
}

// Pieces of a box of a rank's part: boxes of the whole tensor, one a block of a cut parameter.
void add_box(const std::string& name, const at::Tensor& parameter, const at::Tensor& values, const files::Box& own,
             const std::string& kind, int rank, Capture& out) {
  const auto shape = parallel::whole_sizes(parameter);
  for (auto& box : parallel::part_boxes(parameter, own)) {
    at::Tensor part = values;
    for (int64_t d = 0; d < part.dim(); ++d) {
      part = part.narrow(d, box.in_part.offset[static_cast<size_t>(d)], box.in_part.size[static_cast<size_t>(d)]);
    }
    out.add({{name, file_dtype(part.scalar_type()), shape}, kind, std::move(box.whole), rank}, part);
  }
}

PieceInfo whole_piece(const std::string& name, const at::Tensor& tensor, const std::string& kind, int rank) {
  PieceInfo piece{info_of(name, tensor), kind, {}, rank};
  piece.box = files::whole_box(piece.info.shape);
  return piece;
}

// A flat slice in the memory order of a dense parameter, as boxes of the parameter and views of the slice.
void add_slices(const std::string& name, const parallel::ShardedStatePiece& piece, const std::string& kind, int rank,
                Capture& out) {
  const auto sizes = piece.of.sizes().vec();
  const auto strides = piece.of.strides().vec();
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return strides[a] > strides[b]; });
  std::vector<int64_t> laid;
  for (const size_t d : order) laid.push_back(sizes[d]);
  int64_t begin = 0;
  for (const auto& box : files::boxes_of_range(laid, piece.interval.begin, piece.interval.end)) {
    const int64_t count = files::numel_of(box);
    const at::Tensor view = piece.tensor.reshape({-1}).narrow(0, begin, count).view(box.size);
    begin += count;
    files::Box own{std::vector<int64_t>(sizes.size()), std::vector<int64_t>(sizes.size())};
    std::vector<int64_t> back(sizes.size());
    for (size_t i = 0; i < order.size(); ++i) {
      own.offset[order[i]] = box.offset[i];
      own.size[order[i]] = box.size[i];
      back[order[i]] = static_cast<int64_t>(i);
    }
    add_box(name, piece.of, view.permute(back), own, kind, rank, out);
  }
}

// Parameters of which this rank has a part alone, by name.
std::map<std::string, parallel::ShardedStatePiece> value_parts(const RunParts& run, const ModelEntry& model) {
  std::map<std::string, parallel::ShardedStatePiece> parts;
  if (run.sharding == nullptr || !run.sharding->reads_collectively()) return parts;
  for (const auto& item : model.module->named_parameters()) {
    if (auto part = run.sharding->value_part(item.value())) parts.emplace(item.key(), *std::move(part));
  }
  return parts;
}

// The ranks of the first copy of a model.
bool is_first_copy(const RunParts& run) {
  return run.layout == nullptr || (run.layout->data().rank() == 0 && run.layout->tensor().rank() == 0);
}

void capture_model(const RunParts& run, const ModelEntry& model, int writer, bool apart, Capture& out) {
  std::unordered_map<std::string, at::Tensor> parameters, buffers;
  for (const auto& item : model.module->named_parameters()) parameters.emplace(item.key(), item.value());
  const auto* const stages = parallel::stages_of(*model.module);
  if (stages != nullptr) {
    for (const auto& item : model.module->named_buffers()) buffers.emplace(item.key(), item.value());
  }
  std::map<SameMemory, std::string> seen;
  std::map<const c10::StorageImpl*, std::string> seen_parts;
  std::map<const c10::TensorImpl*, std::string> seen_cut;
  const auto parts = value_parts(run, model);
  for (const auto& [name, tensor] : model.weights) {
    const std::string full = manifest_name(model.index, name);
    if (const auto part = parts.find(name); part != parts.end()) {
      const auto [found, is_new] = seen_parts.emplace(tensor.storage().unsafeGetStorageImpl(), full);
      if (!is_new) {
        out.tied.emplace_back(full, found->second);
      } else if (part->second.interval.size() > 0 && !run.sharding->is_copy() && counts_for(run, parameters.at(name))) {
        add_slices(full, part->second, model_kind(model.index), writer, out);
      }
      continue;
    }
    if (const auto cut = parameters.find(name);
        cut != parameters.end() && is_part(cut->second) && tensor.sizes() == cut->second.sizes()) {
      const auto [found, is_new] = seen_cut.emplace(cut->second.unsafeGetTensorImpl(), full);
      if (!is_new) {
        out.tied.emplace_back(full, found->second);
        continue;
      }
      if (!parallel::counts_on_this_stage(cut->second)) continue;
      PieceInfo piece{{full, file_dtype(tensor.scalar_type()), parallel::whole_sizes(cut->second)},
                      model_kind(model.index)};
      piece.box = files::whole_box(piece.info.shape);
      if (parallel::staged_by(cut->second) != nullptr) piece.rank = writer;
      out.add(std::move(piece), tensor);
      if (parallel::placed_by(cut->second) != nullptr) out.cut.emplace(full, cut->second);
      continue;
    }
    if (tensor.numel() > 0) {
      const SameMemory memory{tensor.const_data_ptr(), tensor.sizes().vec(), tensor.strides().vec()};
      const auto [found, is_new] = seen.emplace(memory, full);
      if (!is_new) {
        out.tied.emplace_back(full, found->second);
        continue;
      }
    }
    if (const auto buffer = buffers.find(name); buffer != buffers.end()) {
      if (stages->is_first_holder(buffer->second) && is_first_copy(run))
        out.add(whole_piece(full, tensor, model_kind(model.index), writer), tensor);
      continue;
    }
    const bool is_equal = parameters.count(name) > 0 && !apart;
    if (!is_equal && writer != 0) continue;
    out.add(whole_piece(full, tensor, model_kind(model.index), is_equal ? kEveryRank : 0), tensor);
  }
}

bool holds_tensor(const Value& skeleton) {
  if (!skeleton.is_map()) return false;
  if (skeleton.contains("$tensor")) return true;
  return std::any_of(skeleton.as_map().begin(), skeleton.as_map().end(),
                     [](const auto& child) { return holds_tensor(child.second); });
}

// Plain parts of all parameters' states: the commonest once, the others by name.
Value compact(const std::vector<std::pair<std::string, Value>>& skeletons, bool all_by_name) {
  Value common;
  Value::Map other;
  for (const auto& [name, skeleton] : skeletons) {
    if (all_by_name || !holds_tensor(skeleton)) {
      other.emplace_back(name, skeleton);
    } else if (common.is_null()) {
      common = skeleton;
    } else if (!(skeleton == common)) {
      other.emplace_back(name, skeleton);
    }
  }
  return Value::map({{"default", std::move(common)}, {"other", Value(std::move(other))}});
}

Value groups_value(const OptimizerState& state) {
  Value groups = Value::list();
  for (const auto& group : state.groups) {
    groups.push_back(Value::map({{"options", group.options}, {"params", Value(group.parameters)}}));
  }
  return groups;
}

// By parameter and slot, for classes whose state is stepped in slices.
using Slices = std::map<std::pair<std::string, std::string>, parallel::ShardedStatePiece>;

Slices slices_of(const RunParts& run, const torch::optim::Optimizer& optimizer, const OptimizerState& state,
                 const ParameterNames& name_of, bool is_split) {
  Slices slices;
  if (!is_split || !steps_in_slices(state.type)) return slices;
  for (auto& piece : run.sharding->sharded_state(optimizer)) {
    std::pair key(name_of(piece.of), piece.name);
    slices.emplace(std::move(key), std::move(piece));
  }
  return slices;
}

void capture_optimizer(const RunParts& run, const std::string& name, const torch::optim::Optimizer& optimizer,
                       const ParameterNames& name_of, int writer, bool apart, Capture& out) {
  require_known_parts(run, optimizer, "save_state");
  if (find_codec(optimizer) == nullptr) {
    out.parts["optimizers"][name] = Value::map({{"type", "archive"}});
    if (writer == 0) {
      const at::Tensor bytes = archive_of(optimizer);
      out.add(whole_piece(state_name("optimizer", name, "archive"), bytes, "optimizer", 0), bytes);
    }
    return;
  }
  const bool is_split = run.sharding != nullptr && run.sharding->steps(optimizer);
  const auto modules = run.models->modules();
  const bool has_stages =
      std::any_of(modules.begin(), modules.end(), [](const auto* module) { return parallel::has_stages(*module); });
  const int shared_rank = apart ? 0 : kEveryRank;
  const auto state = optimizer_state(optimizer, name_of);
  std::unordered_map<std::string, at::Tensor> parameters;
  for (auto& place : places_of(optimizer, name_of))
    parameters.emplace(std::move(place.name), std::move(place.parameter));
  const auto slices = slices_of(run, optimizer, state, name_of, is_split);
  std::vector<std::pair<std::string, Value>> skeletons;
  for (const auto& [parameter, slots] : state.state) {
    const auto own = is_split ? run.sharding->stepped_interval(optimizer, parameters.at(parameter)) : std::nullopt;
    const at::Tensor& of = parameters.at(parameter);
    if (!parallel::counts_on_this_stage(of)) continue;
    if (own && (own->size() == 0 || run.sharding->is_copy() || !counts_for(run, of))) continue;  // another rank's
    const bool is_cut = parallel::placed_by(of) != nullptr;
    auto split = training::split_tensors(training::State(slots));
    skeletons.emplace_back(parameter, std::move(split.value));
    const int rank = own || parallel::staged_by(of) != nullptr ? writer : shared_rank;
    if (rank == 0 && writer != 0) continue;
    for (const auto& [path, tensor] : split.tensors) {
      const std::string full = state_name("optimizer", name, parameter + "." + path);
      const auto slice = slices.find({parameter, path});
      if (slice != slices.end()) {
        add_slices(full, slice->second, "optimizer", rank, out);
      } else if (is_cut && tensor.sizes() == of.sizes()) {
        add_box(full, of, tensor, files::whole_box(of.sizes()), "optimizer", writer, out);
      } else {
        out.add(whole_piece(full, tensor, "optimizer", rank), tensor);
      }
    }
  }
  out.parts["optimizers"][name] = Value::map({{"type", state.type}, {"groups", groups_value(state)}});
  const bool is_own = (is_split || has_stages) && writer != 0;
  auto& where = is_own ? out.own_parts : out.parts;
  where["optimizer_states"][name] = compact(skeletons, is_own);
}

// State trees: values in the manifest, tensors of the first writer.
void capture_tree(int writer, StateKind of, const std::string& name, const training::State& state, Capture& out) {
  const auto split = training::split_tensors(state);
  const std::string kind = name_of(of);
  out.parts[part_name(of)][name] = split.value;
  if (writer != 0) return;
  for (const auto& [path, tensor] : split.tensors) {
    const std::string kept_as = kind == "optimizer" ? "optimizer" : "custom";
    out.add(whole_piece(state_name(kind, name, path), tensor, kept_as, 0), tensor);
  }
}

void capture_registered(const RunParts& run, const training::Registered& object, int writer, Capture& out) {
  try {
    capture_tree(writer, object.kind, object.name, object.state(), out);
  } catch (const UsageError& error) {
    if (object.kind != StateKind::kLoader) throw;
    run.log.warning_once(
        text("loader ", object.name,
             " has no position to save, so a resumed run begins its epoch anew: ", inner_words(error.what()), "."));
  }
}

// Gradients of a window that is open are each rank's own.
void capture_gradients(const RunParts& run, const std::vector<ModelEntry>& models, int writer, Capture& out) {
  if (run.accumulation == nullptr) return;
  out.parts["accumulation_step"] = run.accumulation->step();
  if (run.gradients == nullptr || run.gradients->sync_gradients() || run.sharding != nullptr) return;
  const int stream = stream_of(run);
  for (const auto& model : models) {
    for (const auto& item : model.module->named_parameters()) {
      const at::Tensor gradient = item.value().grad();
      if (!gradient.defined() || gradient.is_sparse() || !parallel::counts_on_this_stage(item.value())) continue;
      const std::string name = text("gradient.", stream, '.', manifest_name(model.index, item.key()));
      add_box(name, item.value(), gradient, files::whole_box(gradient.sizes()), "gradient", writer, out);
    }
  }
}

void capture_masters(const RunParts& run, const std::vector<ModelEntry>& models, Capture& out) {
  if (run.low_weights == nullptr || *run.low_weights == nullptr) return;
  for (const auto& model : models) {
    for (const auto& item : model.module->named_parameters()) {
      const at::Tensor exact = (*run.low_weights)->value_of(item.value());
      if (exact.is_same(item.value())) continue;
      out.add(whole_piece("optimizer.master." + manifest_name(model.index, item.key()), exact, "optimizer", kEveryRank),
              exact);
    }
  }
}

void capture_components(const RunParts& run, int writer, Capture& out) {
  for (const auto& component : *run.components) {
    auto state = component.state();
    out.parts["components"][component.name] = std::move(state.value);
    for (auto& piece : state.pieces) {
      if (piece.replica > 0) continue;
      piece.info.name = state_name("component", component.name, piece.info.name);
      out.add({std::move(piece.info), "custom", std::move(piece.box), piece.replica < 0 ? kEveryRank : writer},
              std::move(piece.data));
    }
  }
}

}  // namespace

std::string part_name(StateKind kind) {
  const std::string name = name_of(kind);
  return kind == StateKind::kScaler || kind == StateKind::kCustom || kind == StateKind::kTrackers ? name : name + "s";
}

std::string state_name(const std::string& kind, const std::string& object, const std::string& path) {
  return path.empty() ? kind + "." + object : kind + "." + object + "." + path;
}

std::string stage_random_name(int64_t stream, int stage_rank, size_t model) {
  return text("random.", stream, ".stage", stage_rank, '.', model);
}

std::vector<ModelEntry> models_of(const RunParts& run) {
  std::vector<ModelEntry> models;
  for (auto* module : run.models->modules()) models.push_back({module, models.size(), {}});
  return models;
}

ParameterNames manifest_names(const RunParts& run) {
  auto names = std::make_shared<std::unordered_map<const c10::TensorImpl*, std::string>>();
  for (const auto& model : models_of(run)) {
    for (const auto& item : model.module->named_parameters()) {
      names->emplace(item.value().unsafeGetTensorImpl(), manifest_name(model.index, item.key()));
    }
  }
  return [names](const at::Tensor& parameter) {
    const auto found = names->find(parameter.unsafeGetTensorImpl());
    return found == names->end() ? std::string() : found->second;
  };
}

bool steps_in_slices(const std::string& type) {
  return type == "SGD" || type == "Adam" || type == "AdamW" || type == "Adagrad" || type == "RMSprop";
}

Capture capture_state(const RunParts& run, const std::vector<ModelEntry>& models, int writer) {
  const at::NoGradGuard no_grad;
  Capture out;
  const bool apart = trains_apart(run);
  for (const auto& model : models) capture_model(run, model, writer, apart, out);
  capture_masters(run, models, out);
  const auto name_of = manifest_names(run);
  for (const auto& object : run.registry->all()) {
    if (object.kind == StateKind::kOptimizer && !object.state) {
      const auto* optimizer = static_cast<const torch::optim::Optimizer*>(object.object.get());
      capture_optimizer(run, object.name, *optimizer, name_of, writer, apart, out);
    } else {
      capture_registered(run, object, writer, out);
    }
  }
  capture_components(run, writer, out);
  if (run.process.rank() == first_rank_of_stream(run)) {
    const auto random = process::capture_random_state();
    const std::string own = text("random.", stream_of(run), '.');
    out.add(whole_piece(own + "cpu", random.cpu, "random", writer), random.cpu);
    for (size_t i = 0; i < random.cuda.size(); ++i) {
      out.add(whole_piece(text(own, "cuda", i), random.cuda[i], "random", writer), random.cuda[i]);
    }
  }
  for (const auto& model : models) {
    const auto* const stages = parallel::stages_of(*model.module);
    if (stages == nullptr || (run.layout != nullptr && run.layout->tensor().rank() != 0)) continue;
    const at::Tensor state = stages->random_state();
    out.add(
        whole_piece(stage_random_name(stream_of(run), stages->group().rank(), model.index), state, "random", writer),
        state);
  }
  if (num_streams(run) != run.process.world_size()) out.parts["num_streams"] = num_streams(run);
  capture_gradients(run, models, writer, out);
  return out;
}

at::Tensor archive_of(const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::stringstream stream;
  archive.save_to(stream);
  const std::string bytes = stream.str();
  at::Tensor tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

void load_archive(torch::optim::Optimizer& optimizer, const at::Tensor& bytes) {
  const auto* begin = static_cast<const char*>(bytes.const_data_ptr());
  std::istringstream stream(std::string(begin, begin + bytes.nbytes()));
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  optimizer.load(archive);
}

}  // namespace hasten::checkpoint
