// LocalSgd: ranks train by themselves and average their parameters every few steps, instead of their
// gradients at every step (Stich, "Local SGD Converges Fast and Communicates Little", 2019; Accelerate's
// LocalSGD).
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <optional>

#include "hasten/comm/group.h"
#include "hasten/parallel/no_sync.h"
#include "hasten/parallel/prepared_model.h"

namespace hasten::parallel {

struct LocalSgdOptions {
  /// Steps of the optimizer between two averages.
  int64_t num_steps = 8;
  /// false: gradients are exchanged at every step as always, and step and finish do nothing.
  bool enabled = true;
};

/// From its construction to finish, backward through the model keeps gradients on their rank. States of the
/// optimizer and buffers stay each rank's own. Move-only; if it ends without finish (an exception), the
/// exchange of gradients goes on, and parameters stay as they are.
class LocalSgd {
 public:
  /// The group is the one the model was prepared with.
  /// Collective: no. Blocks: no. Throws: UsageError if num_steps is below 1.
  template <class M>
  LocalSgd(const PreparedModel<M>& model, comm::Group group, const LocalSgdOptions& options = {})
      : LocalSgd(std::make_shared<PreparedModel<M>>(model), module_of(model.unwrap()), model.ddp(),
                 std::move(group), options) {}

  /// Call it after each step of the optimizer: averages the parameters after every num_steps-th.
  /// Collective: yes, at every num_steps-th call. Blocks: then. Throws: CommError; UsageError after finish.
  void step();
  /// Averages what was trained since the last average; gradients are exchanged again from here on. All ranks
  /// have then equal parameters. A second call does nothing.
  /// Collective: yes. Blocks: yes. Throws: CommError.
  void finish();

 private:
  LocalSgd(std::shared_ptr<const void> keeps_alive, torch::nn::Module& module, std::shared_ptr<const Ddp> ddp,
           comm::Group group, const LocalSgdOptions& options);
  void average() const;

  std::shared_ptr<const void> keeps_alive_;
  torch::nn::Module* module_;
  comm::Group group_;
  LocalSgdOptions options_;
  std::optional<NoSync> no_sync_;
  int64_t steps_ = 0;
  bool finished_ = false;
};

}  // namespace hasten::parallel
