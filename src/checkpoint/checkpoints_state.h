// The members of Checkpoints between its calls. checkpoints_state.cpp, save_run.cpp and load_run.cpp fill them.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/save/capture.h"
#include "checkpoint/save/device_copy.h"
#include "checkpoint/save/held_memory.h"
#include "checkpoint/save/save_board.h"
#include "checkpoint/save/save_job.h"
#include "checkpoint/save/save_state.h"
#include "hasten/checkpoint/checkpoints.h"
#include "hasten/comm/group/rejoin.h"
#include "hasten/files/disk/durable_folder.h"
#include "hasten/training/step_policy.h"

namespace hasten::checkpoint {

/// Counts the steps of each optimizer that were made.
class StepCounter : public training::StepPolicy {
 public:
  void before_step(training::StepContext&) override {
    if (on_step) on_step();
  }
  /// Called before each step, and after the first one.
  std::function<void()> on_step = {}, on_first = {};
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

/// The ranks that write one folder together: all, or where each host has a folder of its own, those of a host.
struct Writers {
  std::vector<int> ranks = {};
  /// This rank's number among them; the first one commits.
  int index = 0;
  /// Folders written for one save, and the number of this one. The folder of number 0 holds rank 0's.
  int num_folders = 1, folder = 0;
};

struct Checkpoints::Impl : std::enable_shared_from_this<Checkpoints::Impl> {
  Impl(RunParts parts, ProjectConfiguration configuration);
  ~Impl();

  RunParts run;
  /// Meetings of a run whose dead ranks are replaced; null for others.
  const std::shared_ptr<comm::Meetings> meetings = comm::meetings_of(run.process.group());
  std::list<comm::MeetingPart>::const_iterator meeting_part = {};
  /// `iteration` is the next number whatever the folder has.
  bool is_numbered = false;
  /// A save without any object of the program has been reported.
  bool has_warned_of_nothing = false;
  /// The temporary folder of the last save.
  std::string leftover = {};
  std::string meeting_state();
  void load_meeting_state(const std::string& state);
  void leave_meeting();
  /// Removes temporary folders of this run whose name no rank has, where no other run saves into the same folder.
  void remove_unnamed() const;

  ProjectConfiguration project;
  int64_t iteration = 0;
  using Hooks = std::list<std::pair<int64_t, Hook>>;
  Hooks save_hooks = {}, load_hooks = {};
  int64_t num_hooks = 0;
  std::shared_ptr<StepCounter> counter = std::make_shared<StepCounter>();

  std::shared_ptr<SaveBoard> board;
  std::shared_ptr<HeldMemory> memory = std::make_shared<HeldMemory>();
  /// The copies of the last snapshot, which a step or a load must not overtake.
  std::shared_ptr<DeviceCopy> device_copy = {};
  /// What else holds them: a write to one of the tensors.
  std::vector<compat::StorageWatch> device_watches = {};
  void hold_device_copy() {
    if (const auto copy = std::exchange(device_copy, nullptr)) copy->hold();
    device_watches.clear();
  }
  /// Prepares memory for the first snapshot.
  void touch_memory() noexcept;
  /// The last save; its memory is in use until it is done.
  std::shared_ptr<Save::State> current = {};
  int64_t failures_in_a_row = 0;
  std::unique_ptr<files::FolderLock> lock = {};

  /// The node of each rank; empty until a run of several hosts needs it.
  std::vector<int> node_of_rank = {};
  /// Whether all hosts reach the folders above saves, as far as saves have checked.
  std::map<std::string, bool> is_shared = {};
  /// The ranks of this host, for loads that read once for all of them.
  std::optional<comm::Group> host_group = {};

  bool has_several_hosts() const { return run.process.local_world_size() < run.process.world_size(); }
  /// Collective: yes, the first time.
  const std::vector<int>& nodes();
  /// Returns the group that reads files together; null if each rank reads by itself. Collective: yes, the first time.
  const comm::Group* reading_group(ReadFiles read);

  /// The plan of the last save, good as long as no rank's pieces change.
  std::string plan_hash = {};
  std::shared_ptr<const std::vector<PieceInfo>> joint = {};
  /// True for a piece of `joint` of which several ranks have equal copies, beside those that every rank has.
  std::vector<bool> has_copies = {};
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

/// Returns every rank's text, by rank. Collective: yes.
std::vector<std::string> gather_texts(const process::Process& process, const std::string& text);
/// A failure of any rank: its message, and whether files are to blame.
struct Failure {
  std::string message = {};
  bool is_data_error = false;
};
/// Exchanges failures (no words: none) and a note of each rank. Throws on all ranks the first failure, as DataError if
/// it is one. Returns the notes by rank. Collective: yes.
std::vector<std::string> agree(const process::Process& process, const Failure& own, const std::string& note = {});

}  // namespace hasten::checkpoint
