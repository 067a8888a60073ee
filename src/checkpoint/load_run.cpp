// Loading a saved state on any number of ranks: agree on the folder, check everything, then write; see checkpoints.h.
#include <ATen/Functions.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "checkpoint/accelerate_folder.h"
#include "checkpoint/impl.h"
#include "checkpoint/load_target.h"
#include "hasten/checkpoint/python_tensor.h"
#include "hasten/checkpoint/weights.h"
#include "hasten/comm/nested/objects.h"
#include "hasten/core/error.h"
#include "hasten/core/hash.h"
#include "hasten/files/manifest.h"
#include "hasten/files/retention.h"
#include "hasten/optim/prepared/low_weights.h"
#include "hasten/process/random.h"
#include "hasten/training/accumulation.h"

namespace hasten::checkpoint {
namespace {

using core::Value;
using training::StateKind;
namespace fs = std::filesystem;

// Rank 0 decides, so that all ranks load one folder.
struct Decision {
  std::string path = {}, error = {};
};

std::string complete_ones(const std::string& folder) {
  std::vector<std::string> complete;
  for (const auto& found : files::find_checkpoints(folder)) {
    if (found.problem.empty()) complete.push_back(text("checkpoint_", found.number));
  }
  return complete.empty() ? "no complete checkpoint lies beside it" : text("complete there: ", hasten::join(complete));
}

std::string with_home(const std::string& path) {
  if (path != "~" && path.rfind("~/", 0) != 0) return path;
  const auto home = Environment::current().text("HOME");
  return home ? *home + path.substr(1) : path;
}

std::string newest(Checkpoints::Impl& own, const std::optional<int64_t>& step) {
  const auto all = files::find_checkpoints(own.checkpoints_folder());
  for (auto found = all.rbegin(); found != all.rend(); ++found) {
    if (!found->problem.empty()) {
      own.run.log.warning(text("'", found->path, "' is not complete (", found->problem, "); taking the checkpoint before it"));
      continue;
    }
    if (!step) return found->path;
    if (fs::exists(fs::path(found->path) / files::kManifestFile) && files::read_manifest(found->path).step == *step) return found->path;
  }
  return {};
}

Decision decide(Checkpoints::Impl& own, const std::string& given, const std::optional<int64_t>& step, bool must) {
  Decision decision;
  try {
    if (own.run.process.rank() == 0) {
      if (given.empty()) {
        if (own.project.project_dir.empty()) {
          throw UsageError(own.origin(), "loading without a path; expected one, or ProjectConfiguration::project_dir.");
        }
        decision.path = newest(own, step);
        if (decision.path.empty() && (must || step)) {
          throw UsageError(own.origin(), "no complete checkpoint", step ? text(" of step ", *step) : std::string(), " in '",
                           own.checkpoints_folder(), "'; ", complete_ones(own.checkpoints_folder()), '.');
        }
      } else {
        decision.path = with_home(given);
        files::recover_folder(files::real_disk(), decision.path);
        if (!fs::is_directory(decision.path)) {
          throw UsageError(own.origin(), "'", decision.path, "' is no folder; ",
                           complete_ones(fs::path(decision.path).parent_path().string()), ". Name one of these.");
        }
      }
    }
  } catch (const std::exception& error) {
    decision.error = error.what();
  }
  if (own.run.process.world_size() > 1) {
    const auto told = comm::broadcast_object(own.run.process.group(), std::vector<std::string>{decision.path, decision.error}, 0);
    decision = {told.at(0), told.at(1)};
  }
  if (!decision.error.empty()) throw UsageError(own.origin(), decision.error);
  return decision;
}

}  // namespace

void LoadTarget::check(const Checkpoints::Impl& own, const SavedRun& saved, const LoadOptions& options, Loaded& loaded) {
  for (const auto& model : models_) {
    const auto source = saved.weights(model.index);
    std::vector<WantedTensor> wanted;
    for (const auto& [name, tensor] : state_dict(*model.module)) {
      wanted.push_back({source.plain ? name : manifest_name(model.index, name), tensor});
    }
    if (source.source == nullptr) {
      loaded.missing.push_back(model_kind(model.index));
      if (options.strict) errors_.push_back(text("the folder has no weights of model ", model.index));
      continue;
    }
    auto match = match_weights(wanted, *source.source, source.names, options.rename);
    loaded.missing.insert(loaded.missing.end(), match.missing.begin(), match.missing.end());
    loaded.unexpected.insert(loaded.unexpected.end(), match.unexpected.begin(), match.unexpected.end());
    WeightMatch wrong = match;
    if (!options.strict) wrong.missing.clear(), wrong.unexpected.clear();
    if (const auto words = describe(wrong, wanted); !words.empty()) errors_.push_back(words);
    weights_.push_back({std::move(wanted), std::move(match), source.source});
  }
  for (const auto& object : own.run.registry->all()) {
    const std::string kind = name_of(object.kind);
    if (object.kind == StateKind::kOptimizer && options.optimizer == OptimizerLoad::kSkip) continue;
    if (saved.has(object)) continue;
    if (object.kind == StateKind::kLoader || object.kind == StateKind::kScaler || object.kind == StateKind::kTrackers) continue;
    loaded.missing.push_back(kind + " " + object.name);
    if (options.strict) errors_.push_back(text("the folder has no ", kind, " '", object.name, "'", saved.others(object.kind)));
  }
  for (const auto& component : *own.run.components) {
    if (saved.has_component(component.name)) continue;
    loaded.missing.push_back("component " + component.name);
    if (options.strict) errors_.push_back(text("the folder has no component '", component.name, "'"));
  }
  for (const auto& name : saved.without_object(*own.run.registry)) loaded.unexpected.push_back(name);
  if (options.optimizer == OptimizerLoad::kLoad) check_optimizers(own, saved);
  if (!errors_.empty()) {
    throw UsageError(own.origin(), "'", saved.path, "' does not fit this run: ", hasten::join(errors_, "; "),
                     ". Nothing was changed. LoadOptions has rename, strict and optimizer.");
  }
}

void LoadTarget::check_optimizers(const Checkpoints::Impl& own, const SavedRun& saved) {
  for (const auto& [name, optimizer] : own.run.registry->optimizers()) {
    const auto type = saved.optimizer_type(name);
    const auto* codec = find_codec(*optimizer);
    if (type.empty() || codec == nullptr || type == codec->name) continue;
    errors_.push_back(text("optimizer ", name, " is ", codec->name, ", the saved one ", type));
  }
}

void LoadTarget::apply(Checkpoints::Impl& own, const SavedRun& saved, const LoadOptions& options) {
  const bool shared = own.run.sharding != nullptr;
  for (const auto& model : weights_) {
    for (const auto& [index, name] : model.match.pairs) read_into(model.wanted[index].tensor, *model.source, name, shared);
  }
  const auto name_of_parameter = manifest_names(own.run);
  saved.load_masters(own, models_);
  // Schedulers set rates as well, so they come after optimizers.
  for (const auto kind : {StateKind::kOptimizer, StateKind::kScheduler, StateKind::kScaler, StateKind::kLoader, StateKind::kCustom,
                          StateKind::kTrackers}) {
    if (kind == StateKind::kOptimizer && options.optimizer == OptimizerLoad::kSkip) continue;
    for (const auto& object : own.run.registry->of(kind)) {
      if (!saved.has(object)) continue;
      if (kind == StateKind::kOptimizer && !object.state) {
        auto& optimizer = *static_cast<torch::optim::Optimizer*>(object.object.get());
        saved.load_optimizer(own, object.name, optimizer, name_of_parameter);
      } else {
        saved.load_object(own, object);
      }
    }
  }
  for (const auto& component : *own.run.components) {
    if (saved.has_component(component.name)) saved.load_component(component);
  }
  saved.load_gradients(own, models_);
  if (options.random) saved.load_random(own);
  if (own.run.accumulation != nullptr) own.run.accumulation->set_step(saved.accumulation_step);
  own.counter->set(saved.step);
  own.iteration = std::max(own.iteration, saved.iteration + 1);
}

namespace {

Loaded load_folder(Checkpoints::Impl& own, const std::string& path, const LoadOptions& options) {
  Loaded loaded;
  std::string words;
  LoadTarget target(models_of(own.run));
  std::unique_ptr<SavedRun> saved;
  try {
    for (const auto& [id, hook] : own.load_hooks) hook(target.models(), path);
    saved = open_saved_run(own, path);
    loaded = {.path = path, .step = saved->step, .iteration = saved->iteration, .unknown = saved->unknown};
    target.check(own, *saved, options, loaded);
  } catch (const std::exception& error) {
    words = error.what();
    agree_on_words(own.run.process, words);
    throw;
  }
  agree_on_words(own.run.process, words);
  try {
    target.apply(own, *saved, options);
  } catch (const std::exception& error) {
    words = error.what();
    agree_on_words(own.run.process, words);
    throw;
  }
  agree_on_words(own.run.process, words);
  return loaded;
}

}  // namespace

Loaded Checkpoints::load_state(const std::string& path, const LoadOptions& options) {
  impl_->settle_current();
  return load_folder(*impl_, decide(*impl_, path, {}, true).path, options);
}

std::optional<Loaded> Checkpoints::resume(const ResumeOptions& options) {
  impl_->settle_current();
  const auto decision = decide(*impl_, {}, options.step, false);
  if (decision.path.empty()) return std::nullopt;
  return load_folder(*impl_, decision.path, options.load);
}

}  // namespace hasten::checkpoint
