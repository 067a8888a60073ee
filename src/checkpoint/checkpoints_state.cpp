// The room's front: hooks, numbers, waiting; see checkpoints.h. Saving is save_run.cpp's, loading load_run.cpp's.
#include "hasten/checkpoint/checkpoints.h"

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoint/checkpoints_state.h"
#include "hasten/comm/group/rejoin.h"
#include "hasten/comm/nested/objects.h"
#include "hasten/core/error.h"
#include "hasten/core/number.h"
#include "hasten/core/sentence.h"
#include "hasten/core/timeout.h"
#include "hasten/files/disk/durable_folder.h"
#include "hasten/files/folders/retention.h"
#include "hasten/flight/recorder.h"
#include "hasten/parallel/ddp/distributed_models.h"
#include "hasten/parallel/shard/sharding.h"
#include "hasten/training/gradient_state.h"
#include "hasten/training/verify_recorder.h"

namespace hasten::checkpoint {

const std::string& Save::path() const noexcept {
  static const std::string none;
  return state_ == nullptr ? none : state_->path;
}

bool Save::done() const noexcept {
  if (state_ == nullptr) return true;
  const std::lock_guard lock(state_->mutex);
  return state_->done;
}

void Save::wait() const {
  if (state_ == nullptr) return;
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->done; });
  if (state_->error.empty()) return;
  const bool again = std::exchange(state_->reported, true);
  if (!state_->cut_off) throw DataError(Origin{"checkpoint"}, state_->path, state_->error);
  // The loop has gone on without it (parallel/survive/).
  if (!again) throw CommError(Origin{"checkpoint"}, "save_state", state_->error);
}

void StepCounter::after_step(training::StepContext& context) {
  if (context.skip) return;
  if (const auto act = std::exchange(on_first, {})) act();
  for (auto& [optimizer, count] : counts_) {
    if (optimizer == &context.optimizer) {
      steps_ = std::max(steps_, base_ + ++count);
      return;
    }
  }
  counts_.emplace_back(&context.optimizer, 1);
  steps_ = std::max(steps_, base_ + 1);
}

Checkpoints::Impl::Impl(RunParts parts, ProjectConfiguration configuration)
    : run(std::move(parts)),
      project(std::move(configuration)),
      iteration(project.iteration),
      board(std::make_shared<SaveBoard>(run.process.group().store())) {
  if (project.automatic_checkpoint_naming && project.project_dir.empty()) {
    throw UsageError(origin(),
                     "automatic_checkpoint_naming without a project_dir; expected a folder. Set project_dir.");
  }
  if (project.iteration < 0) {
    throw UsageError(origin(), "iteration = ", project.iteration,
                     "; expected the number of the first checkpoint, 0 or more.");
  }
  require_timeout(origin(), project.save_timeout,
                  {"save_timeout", "the time that rank 0 waits for the other ranks' files", "30 minutes"});
  if (project.total_limit && *project.total_limit < 1) {
    throw UsageError(origin(), "total_limit = ", *project.total_limit, "; expected at least 1, or unset for no limit.");
  }
  if (project.keep_every && *project.keep_every < 1) {
    throw UsageError(origin(), "keep_every = ", *project.keep_every, "; expected at least 1, or unset.");
  }
  if (meetings) {
    meeting_part = meetings->add({.state = [this] { return meeting_state(); },
                                  .load_state = [this](const std::string& state) { load_meeting_state(state); },
                                  .leave = [this] { leave_meeting(); }});
  }
  counter->on_step = [this] { hold_device_copy(); };
  if (project.automatic_checkpoint_naming) counter->on_first = [this] { touch_memory(); };
  if (run.gradients) run.gradients->step_policies().add(training::StepOrder::kAfter, counter);
}

// The policy may outlast this.
Checkpoints::Impl::~Impl() {
  counter->on_step = counter->on_first = {};
  if (meetings) meetings->remove(meeting_part);
}

// The run's saves are numbered from here on; the folder may have the one that is made again.
std::string Checkpoints::Impl::meeting_state() {
  if (project.automatic_checkpoint_naming && !std::exchange(is_numbered, true)) {
    const auto numbers = checkpoint_numbers(checkpoints_folder());
    if (!numbers.empty()) iteration = std::max(iteration, numbers.back() + 1);
  }
  return core::Value::map({{"iteration", iteration}, {"steps", counter->steps()}}).to_json();
}

void Checkpoints::Impl::load_meeting_state(const std::string& state) {
  const core::Value value = core::Value::parse_json(state);
  iteration = value.at("iteration").as_int();
  counter->set(value.at("steps").as_int());
  is_numbered = true;
  remove_unnamed();
  // The folder of a save that a rank's end has cut off. All ranks have left it when they have met.
  const std::string temporary = std::exchange(leftover, {});
  const size_t kind = temporary.rfind(".tmp-");
  if (kind == std::string::npos) return;
  std::string aside = temporary;
  aside.replace(kind, 5, ".old-");
  std::error_code error;
  std::filesystem::remove_all(temporary, error);
  const auto path = std::filesystem::path(temporary).parent_path() /
                    std::filesystem::path(temporary.substr(0, kind)).filename().string().substr(1);
  if (std::filesystem::exists(path, error)) std::filesystem::remove_all(aside, error);
}

// Those of a rank 0 that ended before the others had the name. No save of this run is under way when the ranks have
// met, and rank 0, which begins the next one, removes them before. Another run in the folder has its lock.
void Checkpoints::Impl::remove_unnamed() const {
  if (!project.automatic_checkpoint_naming || run.process.rank() != 0) return;
  std::error_code error;
  std::vector<std::filesystem::path> found;
  std::optional<files::FolderLock> meanwhile;
  try {
    if (!std::filesystem::is_directory(checkpoints_folder(), error)) return;
    if (lock == nullptr) meanwhile.emplace(checkpoints_folder());
  } catch (const std::exception&) {
    return;
  }
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints_folder(), error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".checkpoint_") && name.find(".tmp-") != std::string::npos) found.push_back(entry.path());
  }
  for (const auto& path : found) std::filesystem::remove_all(path, error);
}

// Behind it this rank's saves begin as those of a new process.
void Checkpoints::Impl::leave_meeting() {
  if (current != nullptr) {
    current->left = true;
    std::unique_lock lock(current->mutex);
    current->changed.wait(lock, [&] { return current->done; });
    if (!current->error.empty() && !std::exchange(current->reported, true))
      run.log.warning(text("a save has failed, and training goes on: ", current->error), {.main_process_only = false});
  }
  current = nullptr;
  failures_in_a_row = 0;
  plan_hash.clear();
  node_of_rank.clear();
  is_shared.clear();
  host_group.reset();
}

// Estimates this rank's share: what every rank has is dealt to all, slices of sharded state are the rank's own.
void Checkpoints::Impl::touch_memory() noexcept {
  try {
    size_t dealt = 0, own = 0;
    bool pinned = false;
    for (auto* module : run.models->modules()) {
      for (const auto& parameter : module->parameters()) {
        pinned = pinned || DeviceCopy::serves(parameter.device());
        dealt += parameter.nbytes();
      }
    }
    for (const auto& [name, optimizer] : run.registry->optimizers()) {
      if (find_codec(*optimizer) == nullptr) continue;
      auto& share = run.sharding != nullptr && run.sharding->steps(*optimizer) ? own : dealt;
      for (const auto& [parameter, slots] : optimizer_state(*optimizer, manifest_names(run)).state) {
        for (const auto& [slot, tensor] : training::split_tensors(training::State(slots)).tensors)
          share += tensor.nbytes();
      }
    }
    const auto world = static_cast<size_t>(run.process.world_size());
    memory->prepare(
        own + dealt / world + dealt / (16 * world) + (size_t{1} << 20),  // and some for headers and uneven parts
        pinned);
  } catch (const std::exception&) {
    // The first snapshot finds fresh pages.
  }
}

HookHandle Checkpoints::Impl::add(Hooks& hooks, Hook hook) {
  const int64_t id = num_hooks++;
  hooks.emplace_back(id, std::move(hook));
  const bool is_save = &hooks == &save_hooks;
  return HookHandle([weak = weak_from_this(), is_save, id] {
    const auto own = weak.lock();
    if (own == nullptr) return;
    (is_save ? own->save_hooks : own->load_hooks).remove_if([&](const auto& item) { return item.first == id; });
  });
}

void Checkpoints::Impl::settle_current() {
  if (current == nullptr) return;
  std::string error;
  {
    std::unique_lock state_lock(current->mutex);
    current->changed.wait(state_lock, [&] { return current->done; });
    error = current->reported ? std::string() : current->error;
    failures_in_a_row = current->error.empty() ? 0 : failures_in_a_row + 1;
    current->reported = true;
  }
  const std::string path = current->path;
  current = nullptr;
  if (error.empty()) return;
  if (failures_in_a_row >= 3) {
    throw DataError(origin(), path, "three saves in a row have failed, the last with: ", error);
  }
  run.log.warning(text("a save has failed, and training goes on with the checkpoint before it: ", error));
}

Checkpoints::Checkpoints(RunParts parts, ProjectConfiguration project)
    : impl_(std::make_shared<Impl>(std::move(parts), std::move(project))) {}

Checkpoints::~Checkpoints() = default;

Save Checkpoints::save_state(const std::string& path, const SaveOptions& options) {
  const flight::PhaseScope phase("checkpoint");
  // A run of hasten verify leaves the program's checkpoints alone.
  const auto* recorder = training::verify_recorder();
  return save_run(*impl_, recorder != nullptr ? recorder->scratch("checkpoint") : path, options);
}

HookHandle Checkpoints::add_save_hook(Hook hook) {
  return impl_->add(impl_->save_hooks, std::move(hook));
}

HookHandle Checkpoints::add_load_hook(Hook hook) {
  return impl_->add(impl_->load_hooks, std::move(hook));
}

void Checkpoints::add_component(training::NamedStateful component) {
  for (const auto& other : *impl_->run.components) {
    if (!training::names_collide(other.name, component.name)) continue;
    throw UsageError(impl_->origin(), "two components are named '", other.name, "' and '", component.name,
                     "'; expected names of which none is the other, nor begins with it and a '.'. Give the second "
                     "another name.");
  }
  impl_->run.components->push_back(std::move(component));
}

int64_t Checkpoints::save_iteration() const noexcept {
  return impl_->iteration;
}

int64_t Checkpoints::step() const noexcept {
  return impl_->counter->steps();
}

const ProjectConfiguration& Checkpoints::project() const noexcept {
  return impl_->project;
}

void Checkpoints::end() {
  if (impl_->current == nullptr) return;
  const Save last(impl_->current);
  if (last.done() && impl_->current->reported) return;
  last.wait();
}

training::StateRegistry& Checkpoints::registry() const noexcept {
  return *impl_->run.registry;
}

std::vector<int64_t> checkpoint_numbers(const std::string& folder) {
  std::vector<int64_t> numbers;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const auto number = files::checkpoint_number(entry.path().filename().string());
    if (number && entry.is_directory(error)) numbers.push_back(*number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

std::vector<std::string> gather_texts(const process::Process& process, const std::string& text) {
  if (process.world_size() == 1) return {text};
  return comm::gather_object(process.group(), text);
}

const std::vector<int>& Checkpoints::Impl::nodes() {
  if (node_of_rank.empty()) {
    for (const auto& node : gather_texts(run.process, std::to_string(run.process.node_rank())))
      node_of_rank.push_back(core::whole_number<int>(node).value());
  }
  return node_of_rank;
}

const comm::Group* Checkpoints::Impl::reading_group(ReadFiles read) {
  const bool is_alone = run.process.world_size() == 1 || comm::stands_in(run.process.group());
  if (is_alone || read == ReadFiles::kEachRank) return nullptr;
  if (read == ReadFiles::kOnce || !has_several_hosts()) return &run.process.group();
  if (!host_group) host_group = run.process.group().split(run.process.node_rank(), run.process.rank());
  return &*host_group;
}

std::vector<std::string> agree(const process::Process& process, const Failure& own, const std::string& note) {
  const core::Value mine = core::Value::list({own.message, own.is_data_error, note});
  std::vector<std::string> notes;
  std::optional<std::pair<size_t, Failure>> failed;
  for (const auto& each : gather_texts(process, mine.to_json())) {
    const core::Value parsed = core::Value::parse_json(each);
    const auto& list = parsed.as_list();
    if (!failed && !list[0].as_string().empty())
      failed.emplace(notes.size(), Failure{list[0].as_string(), list[1].as_bool()});
    notes.push_back(list[2].as_string());
  }
  if (!failed) return notes;
  const Origin origin{"checkpoint", process.rank(), process.world_size()};
  const auto& [rank, failure] = *failed;
  const std::string message = static_cast<int>(rank) == process.rank()
                                  ? inner_sentence(failure.message)
                                  : text("rank ", rank, " could not go on: ", inner_sentence(failure.message));
  if (failure.is_data_error) throw DataError(origin, "", message);
  throw UsageError(origin, message);
}

}  // namespace hasten::checkpoint
