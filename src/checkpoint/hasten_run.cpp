// hasten's own form as a SavedRun: parts of the manifest, and tensors by name; see load_target.h.
#include <ATen/Functions.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "checkpoint/load_target.h"
#include "checkpoint/parameter_places.h"
#include "checkpoint/parts.h"
#include "hasten/checkpoint/python_tensor.h"
#include "hasten/core/error.h"
#include "hasten/core/hash.h"
#include "hasten/files/folders/manifest.h"
#include "hasten/optim/prepared/low_weights.h"
#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/layout/stages.h"
#include "hasten/parallel/shard/sharding.h"
#include "hasten/process/random.h"

namespace hasten::checkpoint {
namespace {

using core::Value;
using training::StateKind;

const Value* part_of(const files::Manifest& manifest, const std::string& kind, const std::string& name) {
  const Value* part = manifest.parts.find(kind);
  return part == nullptr ? nullptr : part->find(name);
}

class HastenRun : public SavedRun {
 public:
  explicit HastenRun(const std::string& folder)
      : SavedRun(folder), manifest_(files::read_manifest(folder)), source_(files::open_hasten_folder(folder)) {
    step = manifest_.step;
    iteration = manifest_.iteration;
    if (const Value* count = manifest_.parts.find("accumulation_step")) accumulation_step = count->as_int();
    for (const auto& tensor : manifest_.tensors) names_[tensor.kind].push_back(tensor.info.name);
  }

  Weights weights(size_t model) const override {
    const auto found = names_.find(model_kind(model));
    if (found == names_.end()) return {};
    return {source_, found->second};
  }
  bool has(const training::Registered& object) const override {
    return part_of(manifest_, part_name(object.kind), object.name) != nullptr;
  }
  std::string others(StateKind kind) const override {
    const Value* part = manifest_.parts.find(part_name(kind));
    if (part == nullptr || part->empty()) return {};
    std::vector<std::string> names;
    for (const auto& item : part->as_map()) names.push_back(item.first);
    return text("; it has ", hasten::join(names));
  }
  std::vector<std::string> models_from(size_t first) const override {
    std::vector<std::string> found;
    for (size_t i = first; names_.count(model_kind(i)) > 0; ++i) found.push_back(model_kind(i));
    return found;
  }
  std::vector<Part> without_object(const training::StateRegistry& registry) const override {
    std::vector<Part> missing;
    for (const auto kind :
         {StateKind::kOptimizer, StateKind::kScheduler, StateKind::kLoader, StateKind::kScaler, StateKind::kCustom}) {
      const Value* part = manifest_.parts.find(part_name(kind));
      if (part == nullptr || !part->is_map()) continue;
      std::set<std::string> known;
      for (const auto& object : registry.of(kind)) known.insert(object.name);
      for (const auto& item : part->as_map()) {
        if (!known.count(item.first)) missing.push_back({kind, text(name_of(kind), ' ', item.first)});
      }
    }
    return missing;
  }
  std::string optimizer_type(const std::string& name) const override {
    const Value* part = part_of(manifest_, "optimizers", name);
    const Value* type = part == nullptr ? nullptr : part->find("type");
    return type == nullptr ? std::string() : type->as_string();
  }

  void load_optimizer(Checkpoints::Impl& own, const std::string& name, torch::optim::Optimizer& optimizer,
                      const ParameterNames& name_of) const override {
    const Value& part = *part_of(manifest_, "optimizers", name);
    if (part.at("type").as_string() == "archive") {
      return load_archive(optimizer, tensor(state_name("optimizer", name, "archive")));
    }
    OptimizerState state;
    state.type = part.at("type").as_string();
    for (const auto& group : part.at("groups").as_list()) {
      OptimizerGroup one{group.at("options"), {}};
      for (const auto& parameter : group.at("params").as_list()) one.parameters.push_back(parameter.as_string());
      state.groups.push_back(std::move(one));
    }
    visit_slots(own, name, optimizer, name_of,
                [&](const std::string& parameter, const Value& skeleton, const Owned& owned) {
                  if (!owned.parameter.defined())
                    return state.state.emplace_back(parameter, Slots()), void();  // for the report
                  const std::string prefix = state_name("optimizer", name, parameter + ".");
                  const auto tree =
                      training::join_tensors(skeleton, [&](const std::string& path) { return tensor(prefix + path); });
                  state.state.emplace_back(parameter, tree.map());
                });
    const auto report =
        checkpoint::load_optimizer_state(optimizer, state, name_of, options_for_own_state(own.run, optimizer));
    if (!report.unused.empty()) {
      own.run.log.warning(
          text("optimizer ", name, ": state of ", hasten::join(report.unused), " is of no parameter here"));
    }
  }

  void load_object(Checkpoints::Impl& own, const training::Registered& object) const override {
    const Value& part = *part_of(manifest_, part_name(object.kind), object.name);
    if (object.kind == StateKind::kScheduler) warn_of_options(own, object, part);
    object.load_state(training::join_tensors(
        part, [&](const std::string& path) { return tensor(state_name(name_of(object.kind), object.name, path)); }));
  }

  RunReader* reader(Checkpoints::Impl& own, const std::vector<ModelEntry>& models,
                    const LoadOptions& options) override {
    verifies_ = options.verify;
    reader_ = std::make_unique<RunReader>(manifest_, path, options.verify);
    for (const auto& object : own.run.registry->all()) {
      if (!has(object)) continue;
      if (object.kind == StateKind::kOptimizer && !object.state) {
        if (options.optimizer == OptimizerLoad::kLoad) want_optimizer(own, object);
        continue;
      }
      training::join_tensors(*part_of(manifest_, part_name(object.kind), object.name), [&](const std::string& at) {
        reader_->whole(state_name(name_of(object.kind), object.name, at));
        return at::Tensor();
      });
    }
    for_each_master(own, models, [&](const at::Tensor&, const std::string& name) { reader_->whole(name); });
    for_each_gradient(own, models, [&](const at::Tensor&, const std::vector<std::string>& names) {
      for (const auto& name : names) reader_->whole(name, /*is_own=*/true);
    });
    if (options.random) {
      for (const auto& name : random_names(own)) reader_->whole(name, /*is_own=*/true);
    }
    return reader_.get();
  }

  void load_masters(Checkpoints::Impl& own, const std::vector<ModelEntry>& models) const override {
    for_each_master(own, models, [&](const at::Tensor& parameter, const std::string& name) {
      (*own.run.low_weights)->set_value(parameter, tensor(name));
    });
  }

  void load_gradients(Checkpoints::Impl& own, const std::vector<ModelEntry>& models) const override {
    if (!names_.count("gradient")) return;
    const int64_t count = num_streams(own.run), saved = num_saved_streams();
    for_each_gradient(own, models, [&](at::Tensor parameter, const std::vector<std::string>& names) {
      at::Tensor sum;
      for (const auto& name : names) sum = sum.defined() ? sum.add_(tensor(name)) : tensor(name);
      if (sum.defined() && count != saved) sum.mul_(static_cast<double>(count) / static_cast<double>(saved));
      // Memory of its own: zero_grad refuses views.
      if (sum.defined() && parallel::placed_by(parameter) != nullptr) {
        sum = parallel::part_as(parameter, sum).clone(at::MemoryFormat::Contiguous);
      }
      if (sum.defined()) sum = sum.to(parameter.device());
      parameter.mutable_grad() = sum;
    });
  }

  bool has_component(const std::string& name) const override {
    return part_of(manifest_, "components", name) != nullptr;
  }
  void load_component(const training::NamedStateful& component) const override {
    auto state = component.state();
    state.value = *part_of(manifest_, "components", component.name);
    RunReader reader(manifest_, path, verifies_);
    for (auto& piece : state.pieces) {
      const std::string name = state_name("component", component.name, piece.info.name);
      piece.data = at::empty(piece.box.size, at::TensorOptions().dtype(torch_dtype(source_->info(name).dtype)));
      if (piece.data.numel() > 0) reader.box(name, piece.box, piece.data);
    }
    reader.read(nullptr);
    component.load_state(state);
  }

  void load_random(Checkpoints::Impl& own) const override {
    for_each_stage_stream(own, [&](parallel::StagedParameters& stages, const std::string& name) {
      stages.set_random_state(tensor(name));
    });
    if (const auto stream = restored_stream(own)) return restore(*stream);
    const int64_t stream = stream_of(own.run);
    // The generator's state begins with the seed.
    const at::Tensor state = source_->contains("random.0.cpu") ? tensor("random.0.cpu") : at::Tensor();
    uint64_t words[2] = {0, static_cast<uint64_t>(stream)};
    if (state.defined() && state.nbytes() >= sizeof(uint64_t))
      std::memcpy(words, state.const_data_ptr(), sizeof(uint64_t));
    torch::manual_seed(core::xxh3_128(words, sizeof(words)).low);
    own.run.log.info(text("the saved run had ", num_saved_streams(),
                          " random streams, so this rank's begins anew, from the saved seed and its number ", stream),
                     {.main_process_only = false});
  }

 private:
  // Visits parameters with the names of what makes their gradient here. On as many streams as saved, each takes its
  // own. On others the first has them all, so that the mean is the same.
  template <class Visit>
  void for_each_gradient(const Checkpoints::Impl& own, const std::vector<ModelEntry>& models,
                         const Visit& visit) const {
    if (!names_.count("gradient")) return;
    const int64_t stream = stream_of(own.run), saved = num_saved_streams();
    const bool takes_own = num_streams(own.run) == saved;
    for (const auto& model : models) {
      for (auto& item : model.module->named_parameters()) {
        if (parallel::is_elsewhere(item.value())) continue;
        std::vector<std::string> names;
        for (int64_t of = 0; of < saved; ++of) {
          if (takes_own ? of != stream : stream != 0) continue;
          auto name = text("gradient.", of, '.', manifest_name(model.index, item.key()));
          if (source_->contains(name)) names.push_back(std::move(name));
        }
        visit(item.value(), names);
      }
    }
  }

  template <class Visit>
  void for_each_stage_stream(const Checkpoints::Impl& own, const Visit& visit) const {
    for (const auto& model : models_of(own.run)) {
      auto* const stages = parallel::stages_of(*model.module);
      if (stages == nullptr) continue;
      const std::string name = stage_random_name(stream_of(own.run), stages->group().rank(), model.index);
      if (source_->contains(name)) visit(*stages, name);
    }
  }

  // The saved stream that this rank goes on with; nothing if its stream begins anew.
  std::optional<int64_t> restored_stream(const Checkpoints::Impl& own) const {
    if (stream_of(own.run) < num_saved_streams()) return stream_of(own.run);
    if (const auto* first = manifest_.find("random.0.cpu"); first != nullptr && streams_are_equal(*first)) return 0;
    return std::nullopt;
  }

  // Tensors that load_random reads.
  std::vector<std::string> random_names(const Checkpoints::Impl& own) const {
    std::vector<std::string> names;
    for_each_stage_stream(own, [&](parallel::StagedParameters&, const std::string& name) { names.push_back(name); });
    const auto stream = restored_stream(own);
    for (auto& name : stream ? stream_names(*stream) : std::vector<std::string>{"random.0.cpu"}) {
      if (source_->contains(name)) names.push_back(std::move(name));
    }
    return names;
  }
  // Names the state of the CPU's generator, and those of as many devices as are here and were saved.
  std::vector<std::string> stream_names(int64_t stream) const {
    std::vector<std::string> names{text("random.", stream, ".cpu")};
    const size_t here = process::capture_random_state().cuda.size();
    for (size_t i = 0; i < here; ++i) {
      auto name = text("random.", stream, ".cuda", i);
      if (!source_->contains(name)) break;
      names.push_back(std::move(name));
    }
    return names;
  }

  bool streams_are_equal(const files::ManifestTensor& first) const {
    for (int64_t rank = 1; rank < num_saved_streams(); ++rank) {
      const auto* other = manifest_.find(text("random.", rank, ".cpu"));
      if (other == nullptr || other->pieces.empty() || first.pieces.empty()) return false;
      if (!(other->pieces[0].xxh3 == first.pieces[0].xxh3)) return false;
    }
    return true;
  }

  // Ranks of one model share a stream.
  int64_t num_saved_streams() const {
    const Value* count = manifest_.parts.find("num_streams");
    return count == nullptr ? manifest_.world_size : count->as_int();
  }

  void restore(int64_t stream) const {
    const auto names = stream_names(stream);
    if (!source_->contains(names[0])) return;
    process::RandomState state{tensor(names[0])};
    for (size_t i = 1; i < names.size(); ++i) state.cuda.push_back(tensor(names[i]));
    process::restore_random_state(state);
  }

  // Read by this rank alone. Throws: DataError if a piece of it is damaged.
  at::Tensor own_tensor(const std::string& name) const {
    RunReader reader(manifest_, path, verifies_);
    reader.whole(name, /*is_own=*/true);
    reader.read(nullptr);
    return reader.take(name);
  }

  // From the bulk read if it was requested there.
  at::Tensor tensor(const std::string& name) const {
    return reader_ != nullptr && reader_->has(name) ? reader_->take(name) : own_tensor(name);
  }

  template <class Visit>
  void for_each_master(const Checkpoints::Impl& own, const std::vector<ModelEntry>& models, const Visit& visit) const {
    if (own.run.low_weights == nullptr || *own.run.low_weights == nullptr) return;
    for (const auto& model : models) {
      for (const auto& item : model.module->named_parameters()) {
        const std::string name = "optimizer.master." + manifest_name(model.index, item.key());
        if (source_->contains(name)) visit(item.value(), name);
      }
    }
  }

  // The part of a parameter's state that this rank steps. The parameter is undefined if this run lacks it.
  struct Owned {
    at::Tensor parameter = {};
    std::optional<parallel::ShardInterval> interval = {};
  };

  // Visits the parameters with state of which this rank has a part, and those that this run lacks. A parameter with
  // tensors and without an own entry has the commonest plain part.
  template <class Visit>
  void visit_slots(const Checkpoints::Impl& own, const std::string& name, const torch::optim::Optimizer& optimizer,
                   const ParameterNames& name_of, const Visit& visit) const {
    const Value* states = part_of(manifest_, "optimizer_states", name);
    if (states == nullptr) return;
    const Value& common = states->at("default");
    std::unordered_map<std::string_view, const Value*> other;
    for (const auto& [parameter, skeleton] : states->at("other").as_map()) other.emplace(parameter, &skeleton);
    std::unordered_map<std::string, at::Tensor> here;
    for (auto& place : places_of(optimizer, name_of)) here.emplace(std::move(place.name), std::move(place.parameter));
    const bool is_split = own.run.sharding != nullptr && own.run.sharding->steps(optimizer);
    std::unordered_set<std::string> done;
    for (const auto& group : part_of(manifest_, "optimizers", name)->at("groups").as_list()) {
      for (const auto& each : group.at("params").as_list()) {
        const std::string& parameter = each.as_string();
        if (!done.insert(parameter).second) continue;
        const auto special = other.find(parameter);
        const Value* skeleton = special == other.end() ? nullptr : special->second;
        const std::string prefix = state_name("optimizer", name, parameter + ".");
        if (skeleton == nullptr && !common.is_null() && has_all(common, prefix)) skeleton = &common;
        if (skeleton == nullptr) continue;
        Owned owned;
        const auto found = here.find(parameter);
        if (found != here.end()) owned.parameter = found->second;
        if (found != here.end() && parallel::is_elsewhere(owned.parameter)) continue;
        if (found != here.end() && is_split)
          owned.interval = own.run.sharding->stepped_interval(optimizer, owned.parameter);
        if (owned.interval && owned.interval->size() == 0) continue;  // another rank's
        visit(parameter, *skeleton, owned);
      }
    }
  }

  void want_optimizer(const Checkpoints::Impl& own, const training::Registered& object) {
    const auto& optimizer = *static_cast<const torch::optim::Optimizer*>(object.object.get());
    const std::string type = optimizer_type(object.name);
    if (type == "archive") return reader_->whole(state_name("optimizer", object.name, "archive"));
    visit_slots(own, object.name, optimizer, manifest_names(own.run),
                [&](const std::string& parameter, const Value& skeleton, const Owned& owned) {
                  if (!owned.parameter.defined()) return;
                  const std::string prefix = state_name("optimizer", object.name, parameter + ".");
                  training::join_tensors(skeleton, [&](const std::string& slot) {
                    want_slot(prefix + slot, type, owned);
                    return at::Tensor();
                  });
                });
  }

  void want_slot(const std::string& name, const std::string& type, const Owned& owned) {
    const auto& shape = source_->info(name).shape;
    const bool fits = shape == parallel::whole_sizes(owned.parameter);
    if (fits && owned.interval && steps_in_slices(type)) {
      reader_->slice(name, owned.parameter, owned.interval->begin, owned.interval->end);
    } else if (fits && parallel::placed_by(owned.parameter) != nullptr) {
      reader_->part(name, owned.parameter);
    } else {
      reader_->whole(name, owned.interval.has_value());
    }
  }

  bool has_all(const Value& skeleton, const std::string& prefix) const {
    bool all = true;
    training::join_tensors(skeleton, [&](const std::string& path) {
      all = all && source_->contains(prefix + path);
      return at::Tensor();
    });
    return all;
  }

  files::Manifest manifest_;
  files::TensorSourcePtr source_;
  bool verifies_ = true;
  std::unique_ptr<RunReader> reader_ = {};
  std::map<std::string, std::vector<std::string>> names_ = {};  // by kind
};

}  // namespace

RunReader* SavedRun::reader(Checkpoints::Impl&, const std::vector<ModelEntry>&, const LoadOptions&) {
  return nullptr;
}
void SavedRun::load_masters(Checkpoints::Impl&, const std::vector<ModelEntry>&) const {}
void SavedRun::load_gradients(Checkpoints::Impl&, const std::vector<ModelEntry>&) const {}

std::unique_ptr<SavedRun> open_hasten_run(const Checkpoints::Impl&, const std::string& path) {
  return std::make_unique<HastenRun>(path);
}

}  // namespace hasten::checkpoint
