// LocalSgd: ranks train alone and average their parameters every few steps, instead of their gradients at every step.
// With a warm-up it is post-local SGD, with levels torch's HierarchicalModelAverager.
//
// Source: Stich, "Local SGD Converges Fast and Communicates Little", 2019; Accelerate's LocalSGD. Lin and others,
// "Don't Use Large Mini-Batches, Use Local SGD", 2020; torch's PostLocalSGDOptimizer.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/core/log.h"
#include "hasten/parallel/ddp/no_sync.h"
#include "hasten/parallel/model/prepared_model.h"

namespace hasten::parallel {

/// Averages over a part of the ranks.
struct LocalSgdLevel {
  /// Steps of the optimizer between two averages.
  int64_t num_steps = 0;
  comm::Group group;
};

struct LocalSgdOptions {
  /// Steps of the optimizer between two averages.
  int64_t num_steps = 8;
  /// false: gradients are exchanged at every step as always, and step and finish do nothing.
  bool enabled = true;
  /// Number of first steps that exchange gradients as always; the steps between averages count from there.
  int64_t warmup_steps = 0;
  /// Averages of different reach, in place of num_steps: {{4, ranks of my host}, {16, all ranks}}. A step at which
  /// several are due takes the widest alone. Each num_steps is a multiple of the one before, and the last group has all
  /// ranks.
  std::vector<LocalSgdLevel> levels = {};
  /// Called after each average over all ranks, outside of loops of uneven length: to bring together what else has
  /// parted.
  std::function<void()> on_average = {};
};

/// From its construction to finish, backward through the model leaves gradients on their rank. Weights of losses count
/// there only. States of the optimizer and buffers stay each rank's own. Move-only. If it ends without finish (an
/// exception), the exchange of gradients goes on, and parameters stay as they are.
///
/// In a loop of uneven length (Accelerator::join_uneven_inputs) each average is over the ranks that have
/// trained since the last one, and all ranks get it. The loop's end is one more, for what was trained since,
/// so finish inside it leaves its average to that. Warm-up steps and levels do not go with such a loop.
class LocalSgd {
 public:
  /// The group is the one the model was prepared with.
  /// Throws: UsageError if num_steps is below 1, or if the levels do not fit.
  template <class M>
  LocalSgd(const PreparedModel<M>& model, comm::Group group, const LocalSgdOptions& options = {})
      : LocalSgd(std::make_shared<PreparedModel<M>>(model), model.ddp(), std::move(group), options) {}

  /// Call it after each step of the optimizer: averages the parameters after every num_steps-th since the
  /// last average. Collective: yes, at every num_steps-th call, over the ranks of the level. Blocks: then. Throws:
  /// CommError; UsageError after finish, and in a loop of uneven length with warm-up steps or levels.
  void step();
  /// Averages what was trained since the last average; gradients are exchanged again from here on. All ranks
  /// have then equal parameters. A second call does nothing.
  /// Collective: yes, outside a loop of uneven length. Blocks: then. Throws: CommError.
  void finish();

 private:
  /// The model trains apart from the other ranks' while it exists.
  class Scope {
   public:
    Scope(std::shared_ptr<const Ddp> model, LogIdentity rank);
    /// Says that ranks differ, if they have stepped since their last average and the loop did not fail.
    ~Scope();
    Scope(Scope&&) noexcept = default;
    Scope& operator=(Scope&&) = delete;

   private:
    std::shared_ptr<const Ddp> model_;
    LogIdentity rank_;
    NoSync no_sync_;
  };
  LocalSgd(std::shared_ptr<const void> keeps_alive, std::shared_ptr<const Ddp> model, comm::Group group,
           const LocalSgdOptions& options);
  /// Opens the scope in which ranks train apart.
  void begin();

  std::shared_ptr<const void> keeps_alive_;
  std::shared_ptr<const Ddp> model_;
  comm::Group group_;
  LocalSgdOptions options_;
  std::vector<LocalSgdLevel> levels_;
  int64_t num_warmup_steps_ = 0;
  std::optional<Scope> scope_;
  bool finished_ = false;
};

/// On all ranks, the model's parameters become the mean over the ranks on which `took_part`. If it did on none, they
/// stay. Collective: yes. Blocks: yes. Throws: CommError.
void average_parameters(const Ddp& model, const comm::Group& group, bool took_part);

}  // namespace hasten::parallel
