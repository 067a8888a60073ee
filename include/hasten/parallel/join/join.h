// Join: a loop in which some ranks have more batches than others (torch's Join, Accelerate's join_uneven_inputs).
//
// While it lasts, a rank notifies the others before each collective: one small gather. A rank that has run out takes
// part with nothing: gradients of weight zero, no rows, the neutral element of a reduction. It takes no optimizer
// steps, schedules or clipping of its own. At the end it receives parameters, buffers, optimizers and schedulers from a
// rank that went on to the end. Each part is a component (training/joinable.h): joined_models.h, operations.h, and the
// states of optimizers and schedulers here. SyncBatchNorm's exchanges notify by themselves (UnevenBatchNorms in
// sync_batch_norm.h).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/parallel/ddp/distributed_models.h"
#include "hasten/parallel/join/joined_loop.h"
#include "hasten/training/accumulation.h"
#include "hasten/training/gradient_state.h"
#include "hasten/training/joinable.h"
#include "hasten/training/stateful.h"

namespace torch::optim {
class Optimizer;
}

namespace hasten::parallel {

using training::ActiveRanks;
using training::JoinCall;

struct JoinOptions {
  /// For loops over prepared loaders that begin inside: false gives every rank the batches there are, without
  /// repeated samples. Unset: as each loader was prepared.
  std::optional<bool> even_batches = {};
};

class Join : public training::JoinScope {
 public:
  /// `group`: ranks with other batches. `model`: the ranks that hold parts of one model and have one batch, which leave
  /// together. Each call goes over them first, so that ranks that part say so and none waits. `everyone`: all of them,
  /// whose connections an exception of such a rank closes.
  explicit Join(comm::Group group, comm::Group model = {}, comm::Group everyone = {})
      : group_(std::move(group)), model_(std::move(model)), everyone_(std::move(everyone)) {}

  /// Components shadow and finish in the order in which they were added. They must stay valid.
  void add(training::Joinable& component) { components_.push_back(&component); }

  ActiveRanks notify(const JoinCall& call) override;
  void require_all(const std::string& what) override;
  [[noreturn]] void reject(const std::string& what) override;

  /// For a rank without more data: lets the components shadow each call, until no rank has data. Returns those that had
  /// some last, if they were not all; the same on all ranks. Collective: yes. Blocks: until all ranks have run out.
  /// Throws: as notify; the exceptions of the components.
  std::optional<ActiveRanks> shadow();
  /// Notifies the other ranks that this one leaves the loop with an error. They throw it in the place of their next
  /// call. Does nothing if they have the notice.
  /// Collective: yes, with their next call. Blocks: until then.
  void fail(const std::string& message) noexcept;
  /// Lets the components finish. Collective: yes. Blocks: yes. Throws: the exceptions of the components.
  void finish(int root);

 private:
  ActiveRanks hold_round(const JoinCall& mine);
  JoinCall agreed_by_model(const JoinCall& mine) const;
  training::Joinable* find(const std::string& name) const noexcept;
  JoinCall merge(const ActiveRanks& active, const JoinCall& call, int rank) const;

  comm::Group group_, model_, everyone_;
  std::vector<training::Joinable*> components_;
  ActiveRanks last_ = {};
  /// The last round ended with an error on all ranks.
  bool ended_ = false;
};

/// Gives every rank `root`'s states of optimizers, but for those that `keeps` names, of schedulers and the scaler.
/// Collective: yes. Blocks: yes. Throws: UsageError for a scheduler whose state holds tensors; CommError.
void broadcast_states(const training::StateRegistry& registry, const comm::Group& group, int root,
                      const std::function<bool(const torch::optim::Optimizer&)>& keeps = {});

/// Runs `fn`, shadows the others until all ranks have run out, and averages the parameters that LocalSgd has trained on
/// each rank. Then takes over the loop's objects from a rank that went on to the end. Collective: yes. Blocks: until
/// all ranks have run out. Throws: as Join::shadow and UnevenBatchNorms::answer; the exceptions of fn.
void run_joined(Join& join, const std::function<void()>& fn, const JoinOptions& options, const JoinedLoop& loop);

}  // namespace hasten::parallel
