// See distributed.h.
#include "hasten/learner/distributed.h"

#include <ATen/ATen.h>

#include "hasten/core/error.h"
#include "hasten/learner/learner.h"
#include "hasten/parallel/norm/sync_batch_norm.h"
#include "hasten/training/verify_recorder.h"
#include "learner/learner_impl.h"

namespace hasten::learner {

void ParallelTrainer::before_fit(Learner& learn) {
  auto& model = learn.impl().model;
  const auto on = devices.empty() ? parallel::all_devices() : devices;
  before_ = model;
  model = model.data_parallel(on);
}

void ParallelTrainer::after_fit(Learner& learn) {
  if (before_) learn.impl().model = std::exchange(before_, AnyModel());
}

void DistributedTrainer::before_fit(Learner& learn) {
  if (training::verify_recorder() != nullptr) {
    throw UsageError(
        Origin{"verify", accelerator.rank(), accelerator.world_size()},
        "the loaders of a Learner give each rank batches of its own, which one process does not repeat, so "
        "a Learner in distrib_ctx is not compared. Compare a loop over loaders that accelerator.prepare gave.");
  }
  auto& impl = learn.impl();
  before_ = impl.current;
  logging_ = impl.logging;
  if (!engine_) engine_ = std::make_shared<Engine>(accelerator);
  engine_->order = options.order;
  impl.use(engine_);
  if (options.sync_bn && accelerator.world_size() > 1) {
    parallel::convert_sync_batchnorm(*learn.model().module(), accelerator.process().group());
  }
  impl.engine();  // prepares model and optimizer, in this order on all ranks
  if (!accelerator.is_main_process()) impl.logging = false;
}

void DistributedTrainer::after_fit(Learner& learn) {
  auto& impl = learn.impl();
  if (impl.current != engine_) return;
  if (options.sync_bn && accelerator.world_size() > 1) parallel::revert_sync_batchnorm(*learn.model().module());
  impl.use(before_);
  impl.logging = logging_;
}

int distributed_world_size(const Learner& learn) {
  if (const auto* trainer = learn.find<DistributedTrainer>()) return trainer->accelerator.world_size();
  return learn.accelerator().world_size();
}

Accelerator setup_distrib(const AcceleratorOptions& options) {
  return Accelerator(options);
}
Accelerator setup_distrib(std::optional<int> gpu, const AcceleratorOptions& options) {
  if (!gpu) return Accelerator(process::Process(process::RankInfo(), comm::Group()), options);
  Accelerator accelerator(options);
  const c10::Device device = accelerator.device();
  if (device.is_cuda() && device.index() == *gpu) return accelerator;
  throw UsageError({"learner", accelerator.rank(), accelerator.world_size()}, "setup_distrib(", *gpu, ") asks for GPU ",
                   *gpu, ", but this process computes on ", device.str(),
                   "; expected the GPU of its local rank. Give that number, or choose GPUs by CUDA_VISIBLE_DEVICES.");
}
void teardown_distrib(const Accelerator& accelerator) {
  accelerator.end_training();
}

void detail::rank0_first(const comm::Group& group, const std::function<void()>& fn) {
  if (group.world_size() == 1) return fn();
  const process::Process process(process::RankInfo{.rank = group.rank(), .world_size = group.world_size()}, group);
  process::detail::run_in_order(process, process.is_main_process(), "rank0_first", fn);
}

const Learner& Learner::to_parallel(std::vector<c10::Device> devices) const {
  return add(ParallelTrainer(std::move(devices)));
}
const Learner& Learner::detach_parallel() const {
  remove_cb("parallel_trainer");
  return *this;
}
void Learner::parallel_ctx(std::vector<c10::Device> devices, const std::function<void()>& fn) const {
  added_cbs(callbacks(ParallelTrainer(std::move(devices))), fn);
}

const Learner& Learner::to_distributed(const Accelerator& accelerator, const DistributedOptions& options) const {
  return add(DistributedTrainer(accelerator, options));
}
const Learner& Learner::detach_distributed() const {
  if (find<DistributedTrainer>() != nullptr) remove_cb("distributed_trainer");
  return *this;
}
void Learner::distrib_ctx(const Accelerator& accelerator, const DistributedOptions& options,
                          const std::function<void()>& fn) const {
  added_cbs(callbacks(DistributedTrainer(accelerator, options)), fn);
}

}  // namespace hasten::learner
