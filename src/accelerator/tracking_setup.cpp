// See accelerator/tracking_setup.h.
#include "accelerator/tracking_setup.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <string>
#include <utility>
#include <vector>

#include "hasten/comm/nested/objects.h"
#include "hasten/comm/types/purpose.h"
#include "hasten/core/text.h"
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
    setup.run_key = tracking::make_run_id();
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
  return std::make_shared<checkpoint::HookHandle>(checkpoints.add_save_hook(note));
}

}  // namespace hasten
