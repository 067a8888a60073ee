// See survive_setup.h.
#include "accelerator/survive_setup.h"

#include <string>
#include <vector>

#include "accelerator/read_options.h"
#include "hasten/comm/group/rejoin.h"
#include "hasten/core/error.h"
#include "hasten/core/text.h"

namespace hasten {

void require_survivable(const AcceleratorOptions& options, const parallel::Layout& layout, const Plugins& plugins,
                        const Environment& environment, const process::Process& process) {
  std::vector<std::string> problems;
  if (plugins.uses_fsdp() || plugins.uses_deepspeed() ||
      shard_options(options, layout).stage != parallel::ShardStage::kNone) {
    problems.push_back(
        "sharding (ZeRO, FSDP, DeepSpeed): a rank's slices end with it, and a step that its end cuts off "
        "is torn. Go on from checkpoints with --max_restarts");
  }
  if (layout.divides_model()) {
    problems.push_back(
        "parallel.tp, pp, cp or sp: a rank's part of the model ends with it. Go on from checkpoints with "
        "--max_restarts");
  }
  if (!process.device().is_cpu()) {
    problems.push_back(
        "a device: its streams take steps before the host sees that a rank has ended in their collectives. Train on "
        "the CPU (--cpu), or go on from checkpoints with --max_restarts");
  }
  if (options.ddp.comm_hook) {
    problems.push_back(
        "ddp.comm_hook: what it keeps between steps ends with the rank. Use ddp.communication_dtype to "
        "send fewer bytes");
  }
  if (!options.ddp.broadcast_buffers) {
    problems.push_back(
        "ddp.broadcast_buffers = false: a rank's own buffers end with it. Leave it on, or use "
        "SyncBatchNorm");
  }
  if (options.precision.weights != precision::Weights::kParameter) {
    problems.push_back(
        "precision.weights below float32: exact values lie apart from the optimizer's state. Leave it at "
        "Weights::kParameter");
  }
  if (environment.has("HASTEN_VERIFY")) problems.push_back("hasten verify, which records whole runs");
  if (problems.empty()) return;
  throw UsageError(Origin{"survive", process.rank(), process.world_size()},
                   "hasten launch --survive does not go with\n  ", join(problems, ".\n  "), '.');
}

void refuse_where_replaced(const char* call, const process::Process& process) {
  if (!comm::meetings_of(process.group())) return;
  throw UsageError(
      Origin{"survive", process.rank(), process.world_size()}, call,
      " under hasten launch --survive: ranks differ in it, and a dead rank's part is lost. Leave it out, or "
      "start the program without --survive.");
}

}  // namespace hasten
