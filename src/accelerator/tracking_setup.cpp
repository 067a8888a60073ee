// See accelerator/tracking_setup.h.
#include "accelerator/tracking_setup.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <cstdint>
#include <cstdio>
#include <ctime>
#include <list>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "hasten/comm/group/rejoin.h"
#include "hasten/comm/nested/objects.h"
#include "hasten/comm/types/purpose.h"
#include "hasten/core/text.h"
#include "hasten/core/value.h"
#include "hasten/training/verify_recorder.h"

namespace hasten {
namespace {

// Memory of the process's accelerator that tensors take.
tracking::Values device_memory(const c10::Device& device) {
  auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (allocator == nullptr || !allocator->initialized()) return {};
  const auto stats = allocator->getDeviceStats(device.index());
  return {{"device_memory_bytes",
           stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)].current}};
}

// Names a run whose dead ranks are replaced: a rank that replaces another finds the run that is there.
std::string run_id_of(int64_t started_us) {
  const auto seconds = static_cast<std::time_t>(started_us / 1'000'000);
  std::tm local{};
  localtime_r(&seconds, &local);
  char day[32], tail[16];
  std::strftime(day, sizeof day, "%Y%m%d-%H%M%S", &local);
  std::snprintf(tail, sizeof tail, "-%06x", static_cast<unsigned>(started_us % 1'000'000));
  return text(day, tail);
}

// The run's step follows the meetings of its ranks, as long as this exists.
class MeetingRun {
 public:
  MeetingRun(tracking::Trackers run, std::shared_ptr<comm::Meetings> meetings) : meetings_(std::move(meetings)) {
    part_ = meetings_->add({.state = [run] { return run.state().to_json(); },
                            .load_state =
                                [run, is_new = meetings_->replaces()](const std::string& state) mutable {
                                  // Nothing of what was logged has to be taken back.
                                  if (!std::exchange(is_new, false) && run.state().to_json() == state) return;
                                  run.load_state(core::Value::parse_json(state));
                                },
                            .leave = [] {}});
  }
  ~MeetingRun() { meetings_->remove(part_); }
  MeetingRun(const MeetingRun&) = delete;
  MeetingRun& operator=(const MeetingRun&) = delete;

 private:
  const std::shared_ptr<comm::Meetings> meetings_;
  std::list<comm::MeetingPart>::const_iterator part_;
};

}  // namespace

tracking::Trackers make_trackers(const AcceleratorOptions& options, const Environment& environment,
                                 const process::Process& process) {
  tracking::TrackersSetup setup{.log_with = options.log_with,
                                .options = options.tracking,
                                .logging_dir = options.project.logging_dir,
                                .rank = process.rank(),
                                .world_size = process.world_size(),
                                .run_key = {},
                                .environment = environment};
  // A run of hasten verify leaves no run behind: ranks but the main one follow none.
  if (training::verify_recorder() != nullptr) {
    setup.rank = 1;
    setup.options.per_rank_metrics = false;
  }
  if (!setup.log_with.empty()) {
    const auto started_us = environment.integer("HASTEN_RUN_STARTED", 1, INT64_MAX);
    const bool meets = comm::meetings_of(process.group()) != nullptr;
    // A run that is started again as a whole is another one.
    const int64_t attempt = environment.integer("TORCHELASTIC_RESTART_COUNT").value_or(0);
    setup.run_key = meets && started_us ? run_id_of(*started_us + attempt) : tracking::make_run_id();
    const comm::Purpose purpose("start of the trackers");
    if (process.world_size() > 1) setup.run_key = comm::gather_object(process.group(), setup.run_key).front();
  }
  tracking::Trackers trackers(std::move(setup));
  if (!process.device().is_cpu()) trackers.add_metrics([device = process.device()] { return device_memory(device); });
  return trackers;
}

std::shared_ptr<void> track_checkpoints(const tracking::Trackers& trackers, checkpoint::Checkpoints& checkpoints,
                                        training::StateRegistry& registry, const process::Process& process) {
  if (!trackers.is_used()) return nullptr;
  registry.add(training::StateKind::kTrackers, std::make_shared<tracking::Trackers>(trackers), "run");
  // On all ranks: those with and without hooks exchange other messages in a save.
  const auto note = [run = trackers, &checkpoints, notes = process.is_main_process()](
                        std::vector<checkpoint::ModelEntry>&, const std::string&) mutable {
    if (notes) run.note(text("saves a checkpoint at step ", checkpoints.step()));
  };
  auto hook = std::make_shared<checkpoint::HookHandle>(checkpoints.add_save_hook(note));
  const auto meetings = comm::meetings_of(process.group());
  if (!meetings) return hook;
  return std::make_shared<std::pair<std::shared_ptr<void>, MeetingRun>>(
      std::piecewise_construct, std::forward_as_tuple(std::move(hook)), std::forward_as_tuple(trackers, meetings));
}

}  // namespace hasten
