// The room's front: hooks, numbers, waiting; see checkpoints.h. Saving is save_run.cpp's, loading load_run.cpp's.
#include "hasten/checkpoint/checkpoints.h"

#include <torch/optim/optimizer.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/impl.h"
#include "hasten/comm/nested/objects.h"
#include "hasten/core/error.h"
#include "hasten/files/retention.h"
#include "hasten/training/gradient_state.h"

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
  state_->reported = true;
  throw DataError(Origin{"checkpoint"}, state_->path, state_->error);
}

void StepCounter::after_step(training::StepContext& context) {
  if (context.skip) return;
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
    throw UsageError(origin(), "automatic_checkpoint_naming without a project_dir; expected a folder. Set project_dir.");
  }
  if (project.total_limit && *project.total_limit < 1) {
    throw UsageError(origin(), "total_limit = ", *project.total_limit, "; expected at least 1, or unset for no limit.");
  }
  if (project.keep_every && *project.keep_every < 1) {
    throw UsageError(origin(), "keep_every = ", *project.keep_every, "; expected at least 1, or unset.");
  }
  if (run.gradients) run.gradients->step_policies().add(training::StepOrder::kAfter, counter);
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
  return save_run(*impl_, path, options);
}

HookHandle Checkpoints::add_save_hook(Hook hook) {
  return impl_->add(impl_->save_hooks, std::move(hook));
}

HookHandle Checkpoints::add_load_hook(Hook hook) {
  return impl_->add(impl_->load_hooks, std::move(hook));
}

void Checkpoints::add_component(training::NamedStateful component) {
  for (const auto& other : *impl_->run.components) {
    if (other.name == component.name) {
      throw UsageError(impl_->origin(), "two components are named '", component.name, "'; expected a name for each.");
    }
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

void agree_on_words(const process::Process& process, const std::string& words) {
  const auto all = gather_texts(process, words);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    if (static_cast<int>(rank) == process.rank()) return;  // it throws its own
    throw UsageError(Origin{"checkpoint", process.rank(), process.world_size()}, "rank ", rank, " could not go on: ", all[rank]);
  }
}

}  // namespace hasten::checkpoint
