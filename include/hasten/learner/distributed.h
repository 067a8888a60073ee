// fastai.distributed: a Learner on several devices of one process, or in the world of an Accelerator.
//
// All of the Accelerator's options work: mixed precision, accumulation, compression, sharding. Changes by a fit are
// undone on every way out. Learner::distrib_ctx is the usual way in.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/accelerator.h"
#include "hasten/data/loader/distributed_dl.h"
#include "hasten/learner/callback.h"
#include "hasten/learner/learner_options.h"
#include "hasten/learner/model.h"
#include "hasten/process/ordered.h"

namespace hasten::learner {

/// A loader's contiguous block of a rank (data/loader/distributed_dl.h), by fastai's name.
using data::DistributedDL;

/// before_fit: the model runs as parallel::data_parallel over `devices`; after_fit: it is what it was. Empty: all
/// devices.
struct ParallelTrainer : Callback {
  explicit ParallelTrainer(std::vector<c10::Device> on = {}) : devices(std::move(on)) {}
  std::string_view name() const override { return "parallel_trainer"; }
  void before_fit(Learner& learn) override;
  void after_fit(Learner& learn) override;
  std::vector<c10::Device> devices;

 private:
  AnyModel before_ = {};
};

struct Engine;

/// before_fit puts SyncBatchNorm, model, optimizer and loaders into the Accelerator's world, and tables on rank 0 only.
/// after_fit leaves this process alone again, all ranks with equal weights.
struct DistributedTrainer : Callback {
  explicit DistributedTrainer(Accelerator world, DistributedOptions given = {})
      : accelerator(std::move(world)), options(given) {}
  std::string_view name() const override { return "distributed_trainer"; }
  int order() const override { return 11; }
  void before_fit(Learner& learn) override;
  void after_fit(Learner& learn) override;
  Accelerator accelerator;
  DistributedOptions options;

 private:
  std::shared_ptr<Engine> engine_ = {}, before_ = {};
  bool logging_ = true;
};

/// Returns the ranks that a Learner's fits run on: those of its DistributedTrainer, else of its own Accelerator.
int distributed_world_size(const Learner& learn);

/// fastai's setup_distrib and teardown_distrib: the process that the environment describes, and its end. Any backend,
/// CPU too. Collective: yes. Blocks: until all ranks have come. Throws: as Accelerator's constructor.
Accelerator setup_distrib(const AcceleratorOptions& options = {});
/// The same where a program names its GPU (fastai's setup_distrib(gpu)). A process computes on the GPU of its local
/// rank, so another number is refused. Nothing: this process alone, on the CPU.
/// Throws: UsageError besides.
Accelerator setup_distrib(std::optional<int> gpu, const AcceleratorOptions& options = {});
/// Collective: yes. Blocks: until all ranks have come. Throws: CommError.
void teardown_distrib(const Accelerator& accelerator);

namespace detail {
/// Runs on rank 0, then on the others; an exception on one rank reaches all.
void rank0_first(const comm::Group& group, const std::function<void()>& fn);
}  // namespace detail

/// Runs `fn` on rank 0, then on all others. Returns each rank's own value. In a world of one it is a single call.
/// Collective: yes. Blocks: for rank 0. Throws: the exceptions of fn; on the other ranks an Error with its words.
template <class Fn>
auto rank0_first(const comm::Group& group, Fn&& fn) {
  using Result = std::invoke_result_t<Fn>;
  if constexpr (std::is_void_v<Result>) {
    detail::rank0_first(group, [&] { fn(); });
  } else {
    std::optional<Result> result;
    detail::rank0_first(group, [&] { result.emplace(fn()); });
    return *std::move(result);
  }
}

}  // namespace hasten::learner
