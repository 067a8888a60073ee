// See accelerator/verify_setup.h.
#include "accelerator/verify_setup.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "accelerator/mixed_precision.h"
#include "hasten/core/error.h"
#include "hasten/core/text.h"
#include "hasten/parallel/norm/sync_batch_norm.h"

namespace hasten {
namespace {

using training::VerifyTensor;

std::vector<VerifyTensor> parameters_of(const VerifiedLoop& loop) {
  std::vector<VerifyTensor> all;
  std::set<const c10::TensorImpl*> seen;
  const auto modules = loop.models->modules();
  for (size_t i = 0; i < modules.size(); ++i) {
    const std::string prefix = modules.size() > 1 ? text(i, ".") : "";
    for (const auto& item : modules[i]->named_parameters()) {
      if (seen.insert(item.value().unsafeGetTensorImpl()).second) all.push_back({prefix + item.key(), item.value()});
    }
  }
  for (const auto& [name, optimizer] : loop.registry->optimizers()) {
    int number = 0;
    for (const auto& group : optimizer->param_groups()) {
      for (const auto& parameter : group.params()) {
        const auto own = number++;
        if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
        all.push_back({text("parameter ", own, " of optimizer ", name), parameter, false});
      }
    }
  }
  return all;
}

std::vector<VerifyTensor> buffers_of(const VerifiedLoop& loop) {
  std::vector<VerifyTensor> all;
  const auto modules = loop.models->modules();
  for (size_t i = 0; i < modules.size(); ++i) {
    const std::string prefix = modules.size() > 1 ? text(i, ".") : "";
    for (const auto& item : modules[i]->named_buffers()) {
      if (item.value().defined()) all.push_back({prefix + item.key(), item.value()});
    }
  }
  return all;
}

core::Value facts_of(const VerifiedLoop& loop) {
  const auto modules = loop.models->modules();
  return core::Value::map({{"precision", precision::name_of(loop.precision->precision())},
                           {"shard_stage", loop.sharding ? static_cast<int>(loop.sharding->options().stage) : 0},
                           {"sync_batch_norm", !parallel::UnevenBatchNorms(modules).empty()}});
}

// Throws: UsageError for what differs by design.
void refuse_what_differs(const VerifiedLoop& loop) {
  const Origin origin{"verify", loop.process.rank(), loop.process.world_size()};
  if (loop.ddp->comm_hook) {
    throw UsageError(origin,
                     "a communication hook changes gradients by design (PowerSGD, compression), so N processes do not "
                     "compute what one does. Leave DdpOptions::comm_hook out for this run.");
  }
}

}  // namespace

const ParallelOptions& comparable_layout(const Environment& environment, const process::Process& process,
                                         const ParallelOptions& options) {
  if (!environment.has("HASTEN_VERIFY")) return options;
  const plan::LayoutSizes sizes{.pp = options.pp, .cp = options.cp, .sp = options.sp, .tp = options.tp};
  if (sizes == plan::LayoutSizes{}) return options;
  throw UsageError(Origin{"verify", process.rank(), process.world_size()}, plan::layout_text(sizes),
                   ": runs whose ranks hold parts of a model are not compared in this version. Leave pp, tp, "
                   "cp and sp at 1.");
}

std::shared_ptr<training::VerifyRecorder> open_verify(const Environment& environment, const process::Process& process) {
  const auto options = training::VerifyOptions::of(environment);
  if (!options) return nullptr;
  if (options->num_shares > 1 && process.world_size() > 1) {
    throw UsageError(Origin{"verify", process.rank(), process.world_size()}, "HASTEN_VERIFY gives the shares of ",
                     options->num_shares, " ranks to a process of a world of ", process.world_size(),
                     "; expected a world of one. Run the program by hasten verify.");
  }
  return training::open_verify_recorder(*options, process.rank(), process.world_size());
}

process::Process share_process(const training::VerifyRecorder* recorder, const process::Process& process) {
  if (recorder == nullptr || recorder->num_shares() == 1) return process;
  process::RankInfo identity = process.identity();
  identity.rank = 0;
  identity.world_size = recorder->num_shares();
  return process::Process(std::move(identity), process.group(), process.device());
}

std::shared_ptr<void> attach_verify(const std::shared_ptr<training::VerifyRecorder>& recorder,
                                    const VerifiedLoop& loop) {
  if (!recorder) return nullptr;
  refuse_what_differs(loop);
  recorder->attach({.parameters = [loop] { return parameters_of(loop); },
                    .buffers = [loop] { return buffers_of(loop); },
                    .gradient = [sharding = loop.sharding](const at::Tensor& parameter) -> at::Tensor {
                      return sharding ? sharding->full_gradient(parameter) : parameter.grad();
                    },
                    .summon = [sharding = loop.sharding]() -> std::shared_ptr<void> {
                      if (!sharding || !sharding->reads_collectively()) return nullptr;
                      return std::make_shared<parallel::WholeParameters>(sharding->summon());
                    },
                    .scale =
                        [precision = loop.precision] {
                          const auto state = precision->scaler_state();
                          return state ? state->scale : 1.0;
                        },
                    .facts = [loop] { return facts_of(loop); },
                    .meet = [process = loop.process] { process.wait_for_everyone(); },
                    .gradients = loop.gradients});
  loop.gradients->step_policies().add(training::StepOrder::kAfter, recorder);
  loop.observers->add(recorder);
  const auto detach = [recorder, gradients = loop.gradients](void*) { recorder->detach(gradients); };
  return {static_cast<void*>(recorder.get()), detach};
}

}  // namespace hasten
