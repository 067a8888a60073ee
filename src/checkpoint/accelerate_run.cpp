// Folders of Accelerate, FSDP, DCP and DeepSpeed as a SavedRun; see load_target.h.
#include <ATen/Functions.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "checkpoint/accelerate_folder.h"
#include "checkpoint/load_target.h"
#include "checkpoint/parameter_places.h"
#include "checkpoint/parts.h"
#include "checkpoint/training_state.h"
#include "hasten/checkpoint/python_tensor.h"
#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/file.h"
#include "hasten/core/hash.h"
#include "hasten/files/folders/dcp_folder.h"
#include "hasten/files/folders/deepspeed_folder.h"
#include "hasten/files/folders/manifest.h"
#include "hasten/files/folders/open_source.h"
#include "hasten/files/folders/retention.h"
#include "hasten/files/python/python_file.h"
#include "hasten/files/safetensors/safetensors_source.h"
#include "hasten/process/random.h"

namespace hasten::checkpoint {
namespace {

using core::Value;
using files::PythonValue;
using training::StateKind;
namespace fs = std::filesystem;

// DeepSpeed's moments by PARAMETER.SLOT. Steps are those of the run.
OptimizerState deepspeed_optimizer(const std::string& folder) {
  const auto saved = files::open_deepspeed_folder(folder);
  OptimizerState state;
  for (size_t g = 0; g < saved.groups.size(); ++g) {
    OptimizerGroup group{core::Value::map(), saved.groups[g]};
    if (saved.param_groups.is_sequence() && g < saved.param_groups.size()) {
      for (const auto& [key, option] : saved.param_groups[g].as_pairs()) {
        const bool plain = key.is_string() && (option.is_number() || option.is_bool() || option.is_sequence()) &&
                           key.as_string() != "params";
        if (plain) group.options[key.as_string()] = state_of_python(option, key.as_string()).value();
      }
    }
    state.groups.push_back(std::move(group));
  }
  std::map<std::string, Slots> slots;
  if (saved.moments != nullptr) {
    for (const auto& name : saved.moments->names()) {
      const size_t dot = name.rfind('.');
      slots[name.substr(0, dot)].emplace_back(name.substr(dot + 1), training::State(read_tensor(*saved.moments, name)));
    }
  }
  for (auto& [name, own] : slots) {
    if (std::none_of(own.begin(), own.end(), [](const auto& slot) { return slot.first == "step"; })) {
      own.emplace_back("step", training::State(saved.step));
    }
    state.state.emplace_back(name, std::move(own));
  }
  return state;
}

// FSDP's folder of DCP, or DeepSpeed's.
OptimizerState folder_optimizer(const std::string& folder, const std::vector<std::string>& names) {
  if (files::is_deepspeed(folder)) return deepspeed_optimizer(folder);
  const auto whole = files::DcpFolder::open(folder).state_dict();
  const auto* inner = whole.find("optimizer");
  return optimizer_from_python(inner != nullptr ? *inner : whole, names);
}

class AccelerateRun : public SavedRun {
 public:
  AccelerateRun(const Checkpoints::Impl& own, const std::string& folder) : SavedRun(folder) {
    const std::string beside = in("hasten.json");
    if (fs::exists(beside)) {
      manifest_ = files::parse_manifest(core::read_file(beside).value_or(""), beside);
      step = manifest_->step;
      iteration = manifest_->iteration;
    }
    while (fs::exists(in(text("random_states_", num_random_, ".pkl")))) ++num_random_;
    note_names(own);
  }

  Weights weights(size_t model) const override {
    if (const auto name = file_of_model(model); !name.empty()) {
      Weights found{files::open_source(in(name)), {}, true};
      found.names = found.source->names();
      return found;
    }
    if (model > 0 || num_random_ > 0) return {};
    // A folder of weights alone: DCP's, DeepSpeed's, an export.
    Weights found{files::open_source(path), {}, true};
    found.names = found.source->names();
    return found;
  }
  bool has(const training::Registered& object) const override { return files_.count(key_of(object)) > 0; }
  std::string others(StateKind) const override { return {}; }
  std::vector<std::string> models_from(size_t first) const override {
    std::vector<std::string> found;
    for (size_t i = first; !file_of_model(i).empty(); ++i) found.push_back(file_of_model(i));
    return found;
  }
  std::vector<Part> without_object(const training::StateRegistry& registry) const override {
    std::vector<Part> missing;
    for (const auto kind : {StateKind::kOptimizer, StateKind::kScheduler, StateKind::kLoader, StateKind::kCustom}) {
      for (size_t i = registry.of(kind).size(); !file_of(kind, i).empty(); ++i)
        missing.push_back({kind, file_of(kind, i)});
    }
    const bool lacks_optimizer = registry.of(StateKind::kOptimizer).empty();
    const bool lacks_scheduler = registry.of(StateKind::kScheduler).empty();
    const std::string engine = !lacks_optimizer && !lacks_scheduler ? "" : deepspeed_folder();
    if (engine.empty()) return missing;
    const auto saved = files::open_deepspeed_folder(engine);
    const auto has = [&](const char* key) {
      const PythonValue* const part = saved.model_states.find(key);
      return part != nullptr && !part->is_none();
    };
    if (lacks_optimizer && (saved.moments != nullptr || has("optimizer")))
      missing.push_back({StateKind::kOptimizer, "DeepSpeed's optimizer"});
    if (lacks_scheduler && has("lr_scheduler"))
      missing.push_back({StateKind::kScheduler, "DeepSpeed's learning-rate scheduler"});
    return missing;
  }
  std::string optimizer_type(const std::string&) const override { return {}; }

  void load_optimizer(Checkpoints::Impl& own, const std::string& name, torch::optim::Optimizer& optimizer,
                      const ParameterNames& name_of) const override {
    const std::string file = files_.at({StateKind::kOptimizer, name});
    const auto names = place_names(optimizer, name_of);
    auto state = fs::is_directory(file) ? folder_optimizer(file, names)
                                        : optimizer_from_python(files::PythonFile::open(file).value(), names);
    const auto places = places_of(optimizer, name_of);
    cut_state(state, places);
    if (state.type.empty() && !state.groups.empty())  // before this rank's slices are few, or none
      state.type = guess_optimizer(state.groups[0].options, state.state.empty() ? nullptr : &state.state[0].second);
    const auto* const codec = find_codec(optimizer);
    if (codec != nullptr && steps_in_slices(codec->name)) keep_own_slices(own.run, optimizer, state, places);
    const auto report = load_optimizer_state(optimizer, state, name_of, options_for_own_state(own.run, optimizer));
    if (!report.unused.empty())
      own.run.log.warning(text("'", file, "': state of ", hasten::join(report.unused), " is of no parameter here"));
  }

  void load_object(Checkpoints::Impl& own, const training::Registered& object) const override {
    if (object.kind == StateKind::kLoader) return load_loader(own, object);
    const auto file = files::PythonFile::open(files_.at(key_of(object)));
    if (object.kind == StateKind::kScheduler) {
      const Value now = object.state().value();
      warn_of_options(own, object, scheduler_options_from_python(file.value(), now));
      object.load_state(scheduler_from_python(file.value(), now));
    } else if (object.kind == StateKind::kScaler) {
      object.load_state(scaler_from_python(file.value(), object.state().value()));
    } else {
      object.load_state(state_of_python(file.value(), object.name));
    }
  }

  void load_random(Checkpoints::Impl& own) const override {
    if (num_random_ == 0) return;
    const int64_t rank = first_rank_of_stream(own.run);
    const int64_t from = std::min<int64_t>(rank, num_random_ - 1);
    const auto random = random_from_python(files::PythonFile::open(in(text("random_states_", from, ".pkl"))).value());
    if (rank < num_random_) {
      auto state = random.torch;
      state.cuda.resize(std::min(state.cuda.size(), process::capture_random_state().cuda.size()));
      process::restore_random_state(state);
      own.python_random = random.python;
      own.numpy_random = random.numpy;
      return;
    }
    const uint64_t words[2] = {seed_of(random.torch.cpu), static_cast<uint64_t>(rank)};
    torch::manual_seed(core::xxh3_128(words, sizeof(words)).low);
    own.run.log.info(text("the saved run had ", count_text(num_random_, "rank"),
                          ", so this rank's random stream begins anew, from the saved "
                          "seed and its rank"),
                     {.main_process_only = false});
  }

 private:
  using Key = std::pair<StateKind, std::string>;
  static Key key_of(const training::Registered& object) { return {object.kind, object.name}; }
  std::string in(const std::string& name) const { return (fs::path(path) / name).string(); }
  // DeepSpeed's own folder, or the one in a folder of Accelerate; "" for none.
  std::string deepspeed_folder() const {
    for (const std::string& folder : {path, in("pytorch_model")})
      if (files::is_deepspeed(folder)) return folder;
    return {};
  }
  // The first of these names that the folder has; "" for none.
  std::string first_of(const std::vector<std::string>& names) const {
    const auto found =
        std::find_if(names.begin(), names.end(), [this](const auto& name) { return fs::exists(in(name)); });
    return found == names.end() ? std::string() : *found;
  }
  std::string file_of_model(size_t model) const {
    return first_of({numbered("model", model, ".safetensors"), numbered("pytorch_model", model, ".bin"),
                     text("pytorch_model_fsdp_", model), numbered("pytorch_model_fsdp", model, ".bin"),
                     numbered("pytorch_model", model, "")});
  }
  std::string file_of(StateKind kind, size_t i) const {
    if (kind == StateKind::kOptimizer) return first_of({numbered("optimizer", i, ".bin"), text("optimizer_", i)});
    if (kind == StateKind::kScheduler) return first_of({numbered("scheduler", i, ".bin")});
    if (kind == StateKind::kLoader)
      return first_of({numbered("sampler", i, ".bin"), numbered("dl_state_dict", i, ".bin")});
    return first_of({text("custom_checkpoint_", i, ".pkl")});
  }

  // Positions in Accelerate's own files: the seed and epoch of a SeedableRandomSampler, the samples or batches of a
  // StatefulDataLoader.
  void load_loader(Checkpoints::Impl& own, const training::Registered& object) const {
    if (has_position(object)) return object.load_state(training::State(manifest_->parts.at("loaders").at(object.name)));
    const auto found = loader_files_.find(object.name);
    Value state = object.state().value();
    if (!found->second.sampler.empty()) {
      const auto sampler = files::PythonFile::open(found->second.sampler);
      const PythonValue& fields = sampler.value().is_object() ? sampler.value().as_object().state : sampler.value();
      if (const auto* seed = fields.find("initial_seed"); seed != nullptr && seed->is_int())
        state["seed"] = seed->as_int();
      if (const auto* epoch = fields.find("epoch"); epoch != nullptr && epoch->is_int())
        state["epoch"] = epoch->as_int();
    }
    if (!found->second.position.empty()) add_position(own, object, found->second.position, state);
    object.load_state(training::State(state));
  }

  // One process counts batches that it has given; of several, Accelerate writes one rank's number, less those it takes
  // for read ahead.
  void add_position(Checkpoints::Impl& own, const training::Registered& object, const std::string& path,
                    Value& state) const {
    const auto file = files::PythonFile::open(path);
    const auto* finished = file.value().find("_iterator_finished");
    const auto* sampler = file.value().find("_index_sampler_state");
    const auto* yielded = sampler == nullptr || !sampler->is_mapping() ? nullptr : sampler->find("samples_yielded");
    if (finished != nullptr && finished->is_bool() && finished->as_bool()) {
      state["position"] = 0;
      state["epoch"] = state.at("epoch").as_int() + 1;
    } else if (yielded != nullptr && yielded->is_int()) {
      state["position"] = yielded->as_int();
    } else if (const auto* batches = file.value().find("_num_yielded");
               num_random_ == 1 && batches != nullptr && batches->is_int()) {
      state["position"] = 0;
      state["batches"] = batches->as_int();
    } else {
      own.run.log.warning(text("'", path, "' counts batches of one rank, not samples, so loader ", object.name,
                               " begins its epoch anew"));
    }
  }

  bool has_position(const training::Registered& object) const {
    const Value* loaders = manifest_ ? manifest_->parts.find("loaders") : nullptr;
    return loaders != nullptr && loaders->contains(object.name);
  }

  // Objects are found by their number: Accelerate's files have no names.
  void note_names(const Checkpoints::Impl& own) {
    std::set<std::string> known{"hasten.json"};
    std::map<StateKind, size_t> count;
    const auto note = [&](const training::Registered& object, const std::string& name) {
      if (!fs::exists(in(name))) return false;
      files_.emplace(key_of(object), in(name));
      known.insert(name);
      return true;
    };
    for (const auto& object : own.run.registry->all()) {
      const size_t i = count[object.kind]++;
      if (object.kind == StateKind::kOptimizer) {
        const bool found = note(object, numbered("optimizer", i, ".bin")) || note(object, text("optimizer_", i));
        if (!found && i == 0 && files::is_deepspeed(path)) files_.emplace(key_of(object), path);
        if (!found && i == 0 && files::is_deepspeed(in("pytorch_model"))) note(object, "pytorch_model");
      } else if (object.kind == StateKind::kScheduler) {
        note(object, numbered("scheduler", i, ".bin"));
      } else if (object.kind == StateKind::kScaler) {
        note(object, "scaler.pt");
      } else if (object.kind == StateKind::kCustom) {
        note(object, text("custom_checkpoint_", i, ".pkl"));
      } else if (has_position(object)) {
        files_.emplace(key_of(object), in("hasten.json"));
      } else {
        LoaderFiles own_files;
        for (const auto& [name, path] : {std::pair(numbered("sampler", i, ".bin"), &own_files.sampler),
                                         std::pair(numbered("dl_state_dict", i, ".bin"), &own_files.position)}) {
          if (!fs::exists(in(name))) continue;
          *path = in(name);
          known.insert(name);
          files_.emplace(key_of(object), in(name));
        }
        loader_files_.emplace(object.name, std::move(own_files));
      }
    }
    for (const auto& entry : fs::directory_iterator(path)) {
      const std::string name = entry.path().filename().string();
      if (!known.count(name) && !is_state_file(name) && name[0] != '.') unknown.push_back(name);
    }
    if (num_random_ > 0 && step == 0) {
      step = random_from_python(files::PythonFile::open(in("random_states_0.pkl")).value()).step;
    }
  }

  std::optional<files::Manifest> manifest_ = {};
  int64_t num_random_ = 0;
  std::map<Key, std::string> files_ = {};
  struct LoaderFiles {
    std::string sampler = {}, position = {};
  };
  std::map<std::string, LoaderFiles> loader_files_ = {};
};

}  // namespace

std::unique_ptr<SavedRun> open_accelerate_run(const Checkpoints::Impl& own, const std::string& path) {
  return std::make_unique<AccelerateRun>(own, path);
}

std::unique_ptr<SavedRun> open_saved_run(const Checkpoints::Impl& own, const std::string& path) {
  if (fs::exists(fs::path(path) / files::kManifestFile)) return open_hasten_run(own, path);
  if (files::lost_manifest(path)) {
    throw DataError(own.origin(), path, "'", path, "' has no manifest.json, without which its files cannot be read. ",
                    "Load another checkpoint.");
  }
  return open_accelerate_run(own, path);
}

}  // namespace hasten::checkpoint
