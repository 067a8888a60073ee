// What Checkpoints keeps between its calls; filled by checkpoints.cpp, save_run.cpp and load_run.cpp.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/capture.h"
#include "checkpoint/held_memory.h"
#include "checkpoint/save_board.h"
#include "checkpoint/save_job.h"
#include "checkpoint/save_state.h"
#include "hasten/checkpoint/checkpoints.h"
#include "hasten/files/durable_folder.h"
#include "hasten/training/step_policy.h"

namespace hasten::checkpoint {

/// Counts the steps of each optimizer that were made.
class StepCounter : public training::StepPolicy {
 public:
  void after_step(training::StepContext& context) override;
  int64_t steps() const noexcept { return steps_; }
  void set(int64_t steps) noexcept {
    base_ = steps_ = steps;
    counts_.clear();
  }

 private:
  int64_t steps_ = 0, base_ = 0;
  std::vector<std::pair<const torch::optim::Optimizer*, int64_t>> counts_;
};

struct Checkpoints::Impl : std::enable_shared_from_this<Checkpoints::Impl> {
  Impl(RunParts parts, ProjectConfiguration configuration);

  RunParts run;
  ProjectConfiguration project;
  int64_t iteration = 0;
  using Hooks = std::list<std::pair<int64_t, Hook>>;
  Hooks save_hooks = {}, load_hooks = {};
  int64_t num_hooks = 0;
  std::shared_ptr<StepCounter> counter = std::make_shared<StepCounter>();

  std::shared_ptr<SaveBoard> board;
  std::shared_ptr<HeldMemory> memory = std::make_shared<HeldMemory>();
  /// The last save; its memory is in use until it is done.
  std::shared_ptr<Save::State> current = {};
  int64_t failures_in_a_row = 0;
  std::unique_ptr<files::FolderLock> lock = {};

  /// The plan of the last save, good as long as no rank's pieces change.
  std::string plan_hash = {};
  std::shared_ptr<const std::vector<PieceInfo>> joint = {};
  SavePlan plan = {};
  /// States of Python's generators that a load has read, for the next save in Python's form.
  files::PythonValue python_random = {}, numpy_random = {};

  Origin origin() const { return {"checkpoint", run.process.rank(), run.process.world_size()}; }
  std::string checkpoints_folder() const { return (project.project_dir / "checkpoints").string(); }
  HookHandle add(Hooks& hooks, Hook hook);
  /// Waits for the last save, and counts or throws its failure.
  void settle_current();
};

/// Numbers of the folders checkpoint_N in a folder, ascending; none if it is not there.
std::vector<int64_t> checkpoint_numbers(const std::string& folder);

Save save_run(Checkpoints::Impl& own, const std::string& path, const SaveOptions& options);

/// Every rank's text, by rank. Collective: yes.
std::vector<std::string> gather_texts(const process::Process& process, const std::string& text);
/// Throws on all ranks what any rank says that is not empty. Collective: yes.
void agree_on_words(const process::Process& process, const std::string& words);

}  // namespace hasten::checkpoint
