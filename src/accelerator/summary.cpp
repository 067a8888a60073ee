// See summary.h.
#include "accelerator/summary.h"

#include "hasten/core/text.h"
#include "hasten/core/version.h"
#include "hasten/precision/policy.h"

namespace hasten {
namespace {

// As Accelerate's str(DistributedType).
const char* type_word(DistributedType type) {
  switch (type) {
    case DistributedType::kNo:
      return "NO";
    case DistributedType::kMultiCpu:
      return "MULTI_CPU";
    case DistributedType::kMultiGpu:
      return "MULTI_GPU";
    case DistributedType::kFsdp:
      return "FSDP";
    case DistributedType::kDeepSpeed:
      return "DEEPSPEED";
    case DistributedType::kMegatronLm:
      return "MEGATRON_LM";
  }
  return "NO";
}

}  // namespace

std::string summary_of(const Accelerator& accelerator) {
  const auto& process = accelerator.process();
  const int64_t batches = accelerator.options().gradient_accumulation_steps;
  return text("hasten ", version(), ", rank ", process.rank(), '/', process.world_size(), ", local rank ",
              process.local_rank(), '/', process.local_world_size(), ", ", type_word(accelerator.distributed_type()),
              ", device ", process.device().str(), ", backend ", process.group().backend_name(), ", mixed precision ",
              name_of(accelerator.mixed_precision()), ", ", batches, batches == 1 ? " batch" : " batches",
              " to a step");
}

}  // namespace hasten
