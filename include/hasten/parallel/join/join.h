// Join: a loop in which some ranks have more batches than others (torch's Join, Accelerate's
// join_uneven_inputs).
//
// While it lasts, a rank says what it is about to do with the others before each collective: one small
// gather of objects. A rank that has run out says so, hears what the others are about to do, and answers with
// nothing: gradients of weight zero, no rows, the neutral element of a reduction. What it would have to do
// besides (optimizer steps, schedules, clipping, code of the user's between them) it does not guess: at the
// end it takes over parameters, buffers, optimizers and schedulers from a rank that went on to the end.
// SyncBatchNorm's exchanges announce themselves (UnevenBatchNorms in sync_batch_norm.h), models theirs
// through Ddp::announce (LocalSgd), loaders theirs through GradientState::meet. What a rank without data
// cannot answer, since it has no such thing to do it with, is refused on all ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/comm/nested/nested_operations.h"
#include "hasten/parallel/ddp/distributed_models.h"
#include "hasten/training/accumulation.h"
#include "hasten/training/gradient_state.h"
#include "hasten/training/stateful.h"

namespace torch::optim {
class Optimizer;
}

namespace hasten::parallel {

struct JoinOptions {
  /// For loops over prepared loaders that begin inside: false gives every rank the batches there are, without
  /// repeated samples. Unset: as each loader was prepared.
  std::optional<bool> even_batches = {};
};

/// The ranks that still have data, and what they are about to do.
struct ActiveRanks {
  std::vector<int> ranks = {};
  /// As it was announced. Of backwards that end their window on some ranks only, because those are at their
  /// loader's end, it is one that does not.
  nlohmann::json call = {};
  int first() const { return ranks.front(); }
  bool all_of(int world_size) const noexcept { return static_cast<int>(ranks.size()) == world_size; }
};

/// The key under which LocalSgd announces an average; its value is the model's place (Ddp::set_join).
inline constexpr const char* kAverage = "average";

class Join {
 public:
  explicit Join(comm::Group group) : group_(std::move(group)) {}

  /// To be called before each collective of a rank with data; gives who takes part with data.
  /// Collective: yes. Blocks: yes. Throws: UsageError on every rank if two ranks with data are about to do
  /// different things; CommError.
  ActiveRanks announce(const nlohmann::json& call);

  /// The same for a collective that all ranks must take part in: goes on if all still have data.
  /// Collective: yes. Blocks: yes. Throws: as announce; UsageError on all ranks if some have run out.
  void meet(const std::string& call);

  /// For one that ranks without data could not take part in, whether or not all still have some.
  /// Collective: yes. Blocks: yes. Throws: UsageError on every rank, naming the call.
  [[noreturn]] void refuse(const std::string& call);

  /// For a rank without more data: calls `answer` for each announced call, until no rank has data. Gives
  /// those that had some last, if they were not all; the same on all ranks. Collective: yes. Blocks: until
  /// all ranks have run out. Throws: as announce; what answer throws.
  std::optional<ActiveRanks> answer(
      const std::function<void(const nlohmann::json&, const ActiveRanks&)>& answer);

 private:
  comm::Group group_;
  ActiveRanks last_ = {};
};

/// A collective on tensors in a loop of uneven length.
struct JointCall {
  enum class Kind { kGather, kReduce, kPad } kind = Kind::kGather;
  comm::ReduceOptions reduce = {};
  comm::PadOptions pad = {};
};

/// What a rank with data announces: the call, and dtypes and sizes of the tensors.
/// Collective: no. Blocks: no. Throws: nothing.
nlohmann::json describe(const JointCall& call, const std::vector<at::Tensor>& tensors);
/// What a rank without data offers instead: tensors without rows, or the neutral element of the reduction.
/// Collective: no. Blocks: no. Throws: nothing.
std::vector<at::Tensor> neutral_tensors(const nlohmann::json& description, c10::Device device);
/// Collective: yes. Blocks: yes. Throws: as the collectives. The mean is over the active ranks.
std::vector<at::Tensor> carry_out(const nlohmann::json& description, const std::vector<at::Tensor>& tensors,
                                  const ActiveRanks& active, const comm::Group& group);

using OptimizerRegistry = training::StateRegistry;

/// Gives every rank `root`'s states of optimizers, schedulers and the scaler.
/// Collective: yes. Blocks: yes. Throws: UsageError for a scheduler whose state holds tensors; CommError.
void broadcast_states(const training::StateRegistry& registry, const comm::Group& group, int root);

/// What a loop of uneven length trains.
struct JoinedLoop {
  comm::Group group;
  const DistributedModels& models;
  const OptimizerRegistry& optimizer_registry;
  training::Accumulation& accumulation;
  training::GradientState& gradients;
  /// Answers announced collectives; those of models (backward, LocalSgd) are answered by itself.
  std::function<void(const nlohmann::json&, const ActiveRanks&)> answer;
};

/// Runs `fn`, answers the others until all ranks have run out, averages what LocalSgd has trained apart, and
/// takes over what the loop trains from a rank that went on to the end. Collective: yes. Blocks: until all
/// ranks have run out. Throws: as Join::answer and UnevenBatchNorms::answer; what fn throws.
void run_joined(Join& join, const std::function<void()>& fn, const JoinOptions& options,
                const JoinedLoop& loop);

}  // namespace hasten::parallel
