// JoinedModels: distributed models as a component of a loop of uneven length.
#pragma once

#include <optional>
#include <string>

#include "hasten/comm/group/group.h"
#include "hasten/parallel/ddp/backward.h"
#include "hasten/parallel/ddp/distributed_models.h"
#include "hasten/training/gradient_state.h"
#include "hasten/training/joinable.h"

namespace hasten::parallel {

/// Shadows backward and the averages of LocalSgd. At the end all ranks take over parameters and buffers.
class JoinedModels : public training::Joinable {
 public:
  /// Takes the models that exist now, whose places stay. Until its end they notify `scope`, which must stay valid.
  /// Collective: yes, where a model's parameters have changed. Blocks: then. Throws: as Ddp::refresh_if_changed.
  JoinedModels(training::JoinScope& scope, const DistributedModels& models, comm::Group group,
               training::GradientState& gradients);
  ~JoinedModels() override;
  JoinedModels(const JoinedModels&) = delete;
  JoinedModels& operator=(const JoinedModels&) = delete;

  std::string name() const override { return kModelsComponent; }
  void shadow(const training::JoinCall& call, const training::ActiveRanks& active) override;
  void finish(int root) override;
  /// A rank's last batch ends its window (sync_with_dataloader), but others may go on with theirs. Of two such
  /// backwards it is the one that does not end the window.
  std::optional<training::JoinCall> merge(const training::JoinCall& one,
                                          const training::JoinCall& other) const override;

  /// Averages what LocalSgd has trained since its last average.
  /// Collective: yes. Blocks: yes. Throws: CommError.
  void average() const;

 private:
  void shadow_backward(const training::JoinCall& call, const training::ActiveRanks& active);
  DistributedModels::Models models_;
  comm::Group group_;
  training::GradientState& gradients_;
};

}  // namespace hasten::parallel
