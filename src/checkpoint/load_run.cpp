// Loads a saved state on any number of ranks: agrees on the folder, checks everything, then writes. See checkpoints.h.
#include <ATen/Functions.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include "checkpoint/accelerate_folder.h"
#include "checkpoint/checkpoints_state.h"
#include "checkpoint/load_target.h"
#include "checkpoint/parts.h"
#include "hasten/checkpoint/python_tensor.h"
#include "hasten/checkpoint/weights.h"
#include "hasten/comm/group/rejoin.h"
#include "hasten/comm/nested/objects.h"
#include "hasten/comm/types/purpose.h"
#include "hasten/core/error.h"
#include "hasten/core/hash.h"
#include "hasten/core/sentence.h"
#include "hasten/files/folders/manifest.h"
#include "hasten/files/folders/retention.h"
#include "hasten/flight/recorder.h"
#include "hasten/optim/prepared/low_weights.h"
#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/layout/stages.h"
#include "hasten/parallel/shard/sharding.h"
#include "hasten/process/random.h"
#include "hasten/training/accumulation.h"

namespace hasten::checkpoint {
namespace {

using core::Value;
using training::StateKind;
namespace fs = std::filesystem;

// Rank 0 chooses, so that all ranks load one folder.
struct Decision {
  std::string path = {}, error = {};
};

// Returns the end of a sentence about a checkpoint that is not in `folder`, and what to do.
std::string complete_ones(const std::string& folder, const char* if_none) {
  std::vector<std::string> complete;
  for (const auto& found : files::find_checkpoints(folder)) {
    if (found.problem.empty()) complete.push_back(text("checkpoint_", found.number));
  }
  return complete.empty() ? if_none : text("; complete there: ", hasten::join(complete), ". Name one of these.");
}

std::string with_home(const std::string& path, const std::string& home) {
  if (home.empty() || (path != "~" && path.rfind("~/", 0) != 0)) return path;
  return home + path.substr(1);
}

using Paths = std::set<std::string>;

// Equal in all folders of one save, and in those alone; "-" for a folder without hasten's manifest.
std::string save_in(const std::string& path) {
  if (!fs::exists(fs::path(path) / files::kManifestFile)) return "-";
  const auto manifest = files::read_manifest(path);
  return text(manifest.save_id, ", step ", manifest.step);
}

// "node 0", of each host by its first rank; the other ranks have none.
std::vector<std::string> hosts_of(Checkpoints::Impl& own) {
  std::vector<std::string> names;
  std::set<int> seen;
  for (const int node : own.nodes()) names.push_back(seen.insert(node).second ? text("node ", node) : "");
  return names;
}

// Complete checkpoints, where each host keeps folders of its own.
struct HostSaves {
  /// Those that every host has of one save.
  std::set<int64_t> common = {};
  /// "node 0 has checkpoint_1, node 1 has none"; empty if no host has one.
  std::string words = {};
};

HostSaves saves_of_hosts(Checkpoints::Impl& own) {
  Value mine = Value::list();
  for (const auto& found : files::find_checkpoints(own.checkpoints_folder())) {
    if (found.problem.empty()) mine.push_back(Value::list({found.number, save_in(found.path)}));
  }
  HostSaves saves;
  std::map<std::pair<int64_t, std::string>, int> count;
  std::vector<std::string> sentences;
  bool is_any = false;
  const auto all = gather_texts(own.run.process, mine.to_json());
  const auto hosts = hosts_of(own);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const Value value = Value::parse_json(all[rank]);
    std::vector<std::string> names;
    for (const Value& one : value.as_list()) {
      const int64_t number = one.as_list()[0].as_int();
      if (++count[{number, one.as_list()[1].as_string()}] == static_cast<int>(all.size())) saves.common.insert(number);
      names.push_back(text("checkpoint_", number));
    }
    is_any = is_any || !names.empty();
    if (!hosts[rank].empty())
      sentences.push_back(text(hosts[rank], " has ", names.empty() ? "none" : hasten::join(names)));
  }
  if (is_any) saves.words = hasten::join(sentences, "; ");
  return saves;
}

// A run that ends while its hosts rename their folders leaves the new one on some of them. Collective: yes.
void require_same_save(Checkpoints::Impl& own, const std::string& path) {
  std::string mine;
  try {
    if (own.run.process.is_local_main_process()) {
      files::recover_folder(files::real_disk(), path);
      mine = fs::is_directory(path) ? save_in(path) : "none";
    }
  } catch (const std::exception& error) {
    mine = text("one that cannot be read: ", inner_words(error.what()));
  }
  const auto all = gather_texts(own.run.process, mine);
  const auto hosts = hosts_of(own);
  std::vector<std::string> sentences;
  bool differs = false;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (hosts[rank].empty()) continue;
    differs = differs || all[rank] != all[0];
    sentences.push_back(text(hosts[rank], " has ", all[rank] == "-" ? "one without a manifest" : all[rank]));
  }
  if (!differs) return;
  throw UsageError(own.origin(), "'", path, "' is not one save on all hosts: ", hasten::join(sentences, "; "),
                   ". A run may have ended while its hosts renamed their folders. Copy the folder of one host to the "
                   "others, or load one that all have.");
}

std::string newest(Checkpoints::Impl& own, const std::optional<int64_t>& step, const Paths& damaged,
                   const std::optional<HostSaves>& hosts) {
  const auto all = files::find_checkpoints(own.checkpoints_folder());
  for (auto found = all.rbegin(); found != all.rend(); ++found) {
    if (!found->problem.empty()) {
      own.run.log.warning(
          text("'", found->path, "' is not complete (", found->problem, "); taking the checkpoint before it"));
      continue;
    }
    if (damaged.count(found->path)) continue;
    if (hosts && !hosts->common.count(found->number)) {
      own.run.log.warning(text("'", found->path, "' is not on every host, of one save (", hosts->words,
                               "); taking the checkpoint before it"));
      continue;
    }
    if (!step) return found->path;
    if (fs::exists(fs::path(found->path) / files::kManifestFile) && files::read_manifest(found->path).step == *step)
      return found->path;
  }
  return {};
}

Decision decide(Checkpoints::Impl& own, const std::string& given, const std::optional<int64_t>& step, bool must,
                const Paths& damaged = {}) {
  Decision decision;
  // Before the ranks have met each decides by itself, and alike: a run under --survive has one file system.
  const bool is_alone = comm::stands_in(own.run.process.group());
  const bool compares = own.has_several_hosts() && !is_alone;
  std::optional<HostSaves> hosts;
  if (given.empty() && compares) hosts = saves_of_hosts(own);
  try {
    if (own.run.process.rank() == 0 || is_alone) {
      if (given.empty()) {
        if (own.project.project_dir.empty()) {
          throw UsageError(own.origin(), "loading without a path; expected one, or ProjectConfiguration::project_dir.");
        }
        decision.path = newest(own, step, damaged, hosts);
        const std::string others =
            hosts && hosts->common.empty() && !hosts->words.empty() ? text(" on every host: ", hosts->words) : "";
        if (decision.path.empty() && (must || step)) {
          throw UsageError(own.origin(), "no complete checkpoint", step ? text(" of step ", *step) : std::string(),
                           " in '", own.checkpoints_folder(), "'", others,
                           complete_ones(own.checkpoints_folder(), ". Save one first, or correct project_dir."));
        }
        if (decision.path.empty() && !others.empty()) {
          own.run.log.warning(text("no checkpoint is complete", others,
                                   "; the run begins anew. Copy one to the other hosts to go on from it."));
        }
      } else {
        decision.path = with_home(given, own.run.home);
        files::recover_folder(files::real_disk(), decision.path);
        if (!fs::is_directory(decision.path)) {
          throw UsageError(own.origin(), "'", decision.path, "' is no folder",
                           complete_ones(fs::path(decision.path).parent_path().string(),
                                         "; no complete checkpoint lies beside it. Correct the path."));
        }
        decision.path = files::tagged_folder(decision.path);
      }
    }
  } catch (const std::exception& error) {
    decision.error = error.what();
  }
  if (own.run.process.world_size() > 1 && !is_alone) {
    const auto answers =
        comm::broadcast_object(own.run.process.group(), std::vector<std::string>{decision.path, decision.error}, 0);
    decision = {answers.at(0), answers.at(1)};
  }
  if (!decision.error.empty()) throw UsageError(own.origin(), inner_sentence(decision.error));
  // Each host may have a project_dir of its own.
  if (given.empty() && !decision.path.empty())
    decision.path = own.checkpoints_folder() + "/" + fs::path(decision.path).filename().string();
  if (compares && !decision.path.empty()) require_same_save(own, decision.path);
  return decision;
}

Failure failure_of(const std::exception& error) {
  return {error.what(), dynamic_cast<const DataError*>(&error) != nullptr};
}

// Options of two states of a scheduler, and of its parts.
void add_differences(const Value& saved, const Value& own, const std::string& scheduler,
                     std::vector<std::string>& differences) {
  const Value *theirs = saved.find("options"), *ours = own.find("options");
  if (theirs != nullptr && ours != nullptr && theirs->is_map() && ours->is_map()) {
    for (const auto& [key, value] : ours->as_map()) {
      const Value* other = theirs->find(key);
      const bool differs =
          other != nullptr &&
          (other->is_number() && value.is_number() ? other->as_double() != value.as_double() : !(*other == value));
      if (differs)
        differences.push_back(
            text(scheduler, ' ', key, " is ", value.to_json(), ", the saved run had ", other->to_json()));
    }
  }
  const Value *saved_parts = saved.find("schedulers"), *own_parts = own.find("schedulers");
  if (saved_parts == nullptr || own_parts == nullptr) return;
  for (size_t i = 0; i < std::min(saved_parts->size(), own_parts->size()); ++i) {
    const Value& part = own_parts->as_list()[i];
    const Value* name = part.find("scheduler");
    add_differences(saved_parts->as_list()[i], part,
                    text(scheduler, ": ", name == nullptr ? "part" : name->as_string()), differences);
  }
}

}  // namespace

void LoadTarget::check(const Checkpoints::Impl& own, const SavedRun& saved, const LoadOptions& options,
                       Loaded& loaded) {
  const auto objects = own.run.registry->all();
  const bool has_optimizer =
      std::any_of(objects.begin(), objects.end(), [](const auto& one) { return one.kind == StateKind::kOptimizer; });
  // A hook may have taken out a model that it loads itself.
  if (models_of(own.run).empty() && !has_optimizer && options.strict && saved.weights(0).source != nullptr) {
    throw UsageError(own.origin(), "'", saved.path,
                     "' holds a model, and none is prepared here, so that nothing of it would be loaded. Call prepare "
                     "first, and keep the handles that it gives; or load with strict = false.");
  }
  for (const auto& model : models_) {
    const auto source = saved.weights(model.index);
    std::vector<WantedTensor> requested;
    for (const auto& [name, tensor] : parts_dict(*model.module)) {
      requested.push_back({source.plain ? name : manifest_name(model.index, name), tensor});
    }
    if (source.source == nullptr) {
      loaded.missing.push_back(model_kind(model.index));
      if (options.strict) errors_.push_back(text("the folder has no weights of model ", model.index));
      continue;
    }
    auto match = match_weights(requested, *source.source, source.names, options.rename);
    loaded.missing.insert(loaded.missing.end(), match.missing.begin(), match.missing.end());
    loaded.unexpected.insert(loaded.unexpected.end(), match.unexpected.begin(), match.unexpected.end());
    WeightMatch wrong = match;
    if (!options.strict) wrong.missing.clear(), wrong.unexpected.clear();
    if (const auto words = describe(wrong, requested); !words.empty()) errors_.push_back(words);
    weights_.push_back({std::move(requested), std::move(match), source.source});
  }
  for (const auto& object : objects) {
    const std::string kind = name_of(object.kind);
    if (object.kind == StateKind::kOptimizer && options.optimizer == OptimizerLoad::kSkip) continue;
    if (saved.has(object)) continue;
    if (object.kind == StateKind::kLoader || object.kind == StateKind::kScaler || object.kind == StateKind::kTrackers)
      continue;
    loaded.missing.push_back(kind + " " + object.name);
    if (options.strict)
      errors_.push_back(text("the folder has no ", kind, " '", object.name, "'", saved.others(object.kind)));
  }
  for (const auto& component : *own.run.components) {
    if (saved.has_component(component.name)) continue;
    loaded.missing.push_back("component " + component.name);
    if (options.strict) errors_.push_back(text("the folder has no component '", component.name, "'"));
  }
  note_rest(own, saved, options, loaded);
  if (options.optimizer == OptimizerLoad::kLoad) check_optimizers(own, saved);
  if (!errors_.empty()) {
    throw UsageError(own.origin(), "'", saved.path, "' does not fit this run: ", hasten::join(errors_, "; "),
                     ". Nothing was changed. LoadOptions has rename, strict and optimizer.");
  }
}

void LoadTarget::note_rest(const Checkpoints::Impl& own, const SavedRun& saved, const LoadOptions& options,
                           Loaded& loaded) {
  rest_ = saved.models_from(models_of(own.run).size());  // also those that a hook has taken out
  loaded.unexpected.insert(loaded.unexpected.end(), rest_.begin(), rest_.end());
  for (const auto& part : saved.without_object(*own.run.registry)) {
    loaded.unexpected.push_back(part.name);
    const bool is_skipped = part.kind == StateKind::kOptimizer && options.optimizer == OptimizerLoad::kSkip;
    // A run in another precision has no scaler.
    if (!is_skipped && part.kind != StateKind::kScaler) rest_.push_back(part.name);
  }
  if (!options.strict) rest_.clear();
}

void LoadTarget::warn_of_rest(const Checkpoints::Impl& own, const SavedRun& saved) const {
  if (rest_.empty()) return;
  own.run.log.warning_once(text("'", saved.path, "' also holds ", hasten::join(rest_),
                                ", for which nothing is prepared or registered here, so that this was not loaded. "
                                "Prepare or register it before the load; or load with strict = false, if this is "
                                "meant."));
}

void LoadTarget::check_optimizers(const Checkpoints::Impl& own, const SavedRun& saved) {
  for (const auto& [name, optimizer] : own.run.registry->optimizers()) {
    require_known_parts(own.run, *optimizer, "load_state");
    const auto type = saved.optimizer_type(name);
    const auto* codec = find_codec(*optimizer);
    if (type.empty() || codec == nullptr || type == codec->name) continue;
    errors_.push_back(text("optimizer ", name, " is ", codec->name, ", the saved one ", type));
  }
}

namespace {

// Writing to a parameter of which ranks have parts would be a collective, and readers come in any order.
template <class Reader>
void read_into_run(const RunParts& run, Reader& reader, const at::Tensor& target, const std::string& name) {
  if (run.sharding == nullptr || !run.sharding->value_part(target))
    return reader.into(target, name, /*through_copy=*/run.sharding != nullptr);
  reader.into([target, sharding = run.sharding](
                  const at::Tensor& value) { sharding->set_value(target, parallel::part_as(target, value)); },
              name);
}

}  // namespace

std::string LoadTarget::collect(Checkpoints::Impl& own, SavedRun& saved, const LoadOptions& options) {
  if (RunReader* reader = saved.reader(own, models_, options)) {
    for (const auto& model : weights_) {
      for (const auto& [index, name] : model.match.pairs) {
        const at::Tensor& target = model.requested[index].tensor;
        if (!parallel::is_elsewhere(target)) read_into_run(own.run, *reader, target, name);
      }
    }
    reader_ = reader;
    return reader->shared_digest();
  }
  std::string digest;
  for (const auto& model : weights_) {
    auto& source = sources_.emplace_back(*model.source);
    for (const auto& [index, name] : model.match.pairs) {
      const at::Tensor& target = model.requested[index].tensor;
      if (!parallel::is_elsewhere(target)) read_into_run(own.run, source, target, name);
    }
    digest += source.shared_digest();
  }
  return digest;
}

void LoadTarget::read(const comm::Group* share, Loaded& loaded) {
  std::exception_ptr error;
  const auto read_one = [&](auto& reader) {
    try {
      reader.read(share);
    } catch (const DataError&) {
      if (!error) error = std::current_exception();
    }
    loaded.bytes_read += reader.bytes_read();
  };
  if (reader_ != nullptr) read_one(*reader_);
  for (auto& source : sources_) read_one(source);  // all of them, since they are collective
  if (error) std::rethrow_exception(error);
}

// A stage that takes a parameter up later would have no state for it.
void LoadTarget::note_optimizer_state() {
  for (const auto& model : models_) {
    if (auto* const stages = parallel::stages_of(*model.module)) stages->note_step();
  }
}

void LoadTarget::apply(Checkpoints::Impl& own, const SavedRun& saved, const LoadOptions& options) {
  const auto name_of_parameter = manifest_names(own.run);
  saved.load_masters(own, models_);
  // Schedulers set rates as well, so they come after optimizers.
  for (const auto kind : {StateKind::kOptimizer, StateKind::kScheduler, StateKind::kScaler, StateKind::kLoader,
                          StateKind::kCustom, StateKind::kTrackers}) {
    if (kind == StateKind::kOptimizer && options.optimizer == OptimizerLoad::kSkip) continue;
    for (const auto& object : own.run.registry->of(kind)) {
      if (!saved.has(object)) continue;
      if (kind == StateKind::kOptimizer && !object.state) {
        auto& optimizer = *static_cast<torch::optim::Optimizer*>(object.object.get());
        saved.load_optimizer(own, object.name, optimizer, name_of_parameter);
        note_optimizer_state();
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

void warn_of_options(const Checkpoints::Impl& own, const training::Registered& scheduler, const Value& saved) {
  std::vector<std::string> differences;
  const Value now = scheduler.state().value();
  const Value* name = now.find("scheduler");
  add_differences(saved, now, name == nullptr ? "scheduler" : name->as_string(), differences);
  if (differences.empty()) return;
  own.run.log.warning(
      text("scheduler ", scheduler.name, " goes on with this program's options: ", hasten::join(differences, "; ")));
}

namespace {

Loaded load_folder(Checkpoints::Impl& own, const std::string& path, const LoadOptions& options) {
  own.hold_device_copy();
  Loaded loaded;
  LoadTarget target(models_of(own.run));
  std::unique_ptr<SavedRun> saved;
  // Every rank comes to the agreement, whatever it met before; its own exception keeps its type.
  const auto together = [&](const std::function<std::string()>& act) {
    std::string note;
    std::exception_ptr error;
    Failure failure;
    try {
      note = act();
    } catch (const std::exception& caught) {
      failure = failure_of(caught);
      error = std::current_exception();
    }
    try {
      return agree(own.run.process, failure, note);
    } catch (const Error&) {
      if (error) std::rethrow_exception(error);
      throw;
    }
  };
  const auto digests = together([&] {
    for (const auto& [id, hook] : own.load_hooks) hook(target.models(), path);
    saved = open_saved_run(own, path);
    loaded = {.path = path, .step = saved->step, .unknown = saved->unknown};
    target.check(own, *saved, options, loaded);
    return target.collect(own, *saved, options);
  });
  const bool alike = std::all_of(digests.begin(), digests.end(), [&](const auto& each) { return each == digests[0]; });
  const comm::Group* share = own.reading_group(alike ? options.read : ReadFiles::kEachRank);
  together([&] {
    target.read(share, loaded);
    return std::string();
  });
  together([&] {
    target.apply(own, *saved, options);
    return std::string();
  });
  target.warn_of_rest(own, *saved);
  loaded.iteration = own.iteration;
  return loaded;
}

// Returns the newest one that can be read. A damaged one is reported and left.
std::optional<Loaded> load_newest(Checkpoints::Impl& own, const std::optional<int64_t>& step, bool must,
                                  const LoadOptions& options) {
  Paths damaged;
  for (;;) {
    const auto decision = decide(own, {}, step, must && damaged.empty(), damaged);
    if (decision.path.empty()) break;
    try {
      return load_folder(own, decision.path, options);
    } catch (const DataError& error) {
      own.run.log.warning(text("'", decision.path, "' could not be read, taking the checkpoint before it: ",
                               inner_words(error.what()), "."));
      damaged.insert(decision.path);
    }
  }
  if (damaged.empty()) return std::nullopt;
  throw DataError(own.origin(), *damaged.begin(), "no checkpoint in '", own.checkpoints_folder(),
                  "' can be read; damaged: ", hasten::join(std::vector<std::string>(damaged.begin(), damaged.end())),
                  ". Run hasten checkpoint verify for more.");
}

}  // namespace

Loaded Checkpoints::load_state(const std::string& path, const LoadOptions& options) {
  const comm::Purpose purpose("load_state");
  const flight::PhaseScope phase("checkpoint");
  impl_->settle_current();
  if (path.empty()) return *load_newest(*impl_, {}, true, options);
  return load_folder(*impl_, decide(*impl_, path, {}, true).path, options);
}

std::optional<Loaded> Checkpoints::resume(const ResumeOptions& options) {
  const comm::Purpose purpose("resume");
  const flight::PhaseScope phase("checkpoint");
  impl_->settle_current();
  return load_newest(*impl_, options.step, false, options.load);
}

}  // namespace hasten::checkpoint
