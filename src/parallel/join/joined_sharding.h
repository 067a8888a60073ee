// JoinedSharding: split optimizer state and gradients as a component of a loop of uneven length.
//
// A rank without data owns slices all the same. It answers each step of the others with the step of its slices, with
// their learning rates, and takes part in clipping. So after the loop every rank holds its own state, and nothing is
// handed on but the options of the optimizers' groups.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "hasten/parallel/join/joined_loop.h"
#include "hasten/training/joinable.h"

namespace hasten::parallel {

struct ShardCall;

class JoinedSharding : public training::Joinable {
 public:
  /// Until its end the sharding's calls are notified to `scope`. All of `loop` must stay valid.
  JoinedSharding(training::JoinScope& scope, const JoinedLoop& loop);
  ~JoinedSharding() override;
  JoinedSharding(const JoinedSharding&) = delete;
  JoinedSharding& operator=(const JoinedSharding&) = delete;

  std::string name() const override { return "sharding"; }
  void shadow(const training::JoinCall& call, const training::ActiveRanks& active) override;
  void finish(int root) override;

 private:
  training::JoinCall encode(const ShardCall& call);
  void shadow_step(const training::JoinCall& call);

  training::JoinScope& scope_;
  const JoinedLoop& loop_;
  /// The parameters that the models exchange, and the place of each.
  std::vector<at::Tensor> parameters_;
  std::unordered_map<const c10::TensorImpl*, int64_t> places_;
  bool shadows_ = false;
};

}  // namespace hasten::parallel
