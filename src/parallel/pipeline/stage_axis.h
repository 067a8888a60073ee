// StageAxis: the stages of one model over the ranks of a group, and the parameters that lie on them.
//
// It is an interceptor of each parameter and of each StagedTensor. While a forward is under way (forward_pass.h), their
// operators go there. A parameter of another stage keeps its place in the model and in optimizers, with no elements.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/core/error.h"
#include "hasten/interception/before_scopes.h"
#include "hasten/interception/claim.h"
#include "hasten/interception/interceptor.h"
#include "hasten/parallel/layout/stages.h"
#include "parallel/pipeline/messages.h"
#include "parallel/pipeline/staged_tensor.h"
#include "parallel/tensor/cut_axis.h"

namespace hasten::parallel::pipeline {

/// A parameter or buffer on stages.
struct StagedParameter {
  std::string name = {};
  /// Sizes of the whole parameter, and of the part that a rank which has the stage holds.
  std::vector<int64_t> sizes = {}, part_sizes = {};
  /// The stages that use it, ascending. More than one: it is tied, and each of their ranks holds it.
  std::set<int> stages = {};
  bool requires_grad = true;
  /// Weak, and only until forget_tensors.
  c10::weak_intrusive_ptr<c10::TensorImpl> tensor;

  int first_stage() const { return *stages.begin(); }
};

class StageAxis : public interception::Interceptor,
                  public interception::BeforeScopes,
                  public interception::Claim,
                  public StagedParameters,
                  public std::enable_shared_from_this<StageAxis> {
 public:
  /// `rank_of_stage`: the rank of each stage. `cut`: what cuts parameters over tp, outside of which stages are.
  StageAxis(Messages messages, std::vector<int> rank_of_stage, c10::Device device,
            std::shared_ptr<tensor::CutAxis> cut);
  ~StageAxis() override;

  interception::Level level() const override { return interception::Level::kEveryOperator; }
  std::string words() const override { return "on the stages of a pipeline"; }
  int order() const noexcept override { return 0; }
  bool intercept(const c10::OperatorHandle& op, interception::Stack& stack) override;
  int first_holder(const at::Tensor& tensor) const noexcept override;
  bool holds(const at::Tensor& parameter) const noexcept override;
  std::vector<int64_t> whole_sizes(const at::Tensor& parameter) const override;
  at::Tensor from_holder(const at::Tensor& parameter, const at::Tensor& mine) const override;
  at::Tensor random_state() const override { return own_random_.clone(); }
  void set_random_state(const at::Tensor& state) override { own_random_ = state.clone(); }
  /// Called when no batch can come any more. libtorch keeps a tensor's interceptors while there are weak
  /// references to it, so that this object would keep itself.
  void forget_tensors() noexcept;
  void note_step() noexcept override { has_stepped_ = true; }

  Messages& messages() noexcept { return messages_; }
  const comm::Group& group() const noexcept override { return messages_.group(); }
  /// Returns the ranks that hold parts of this rank's stages; a group of one without a cut.
  const comm::Group& cut_group() const noexcept;
  int rank() const noexcept { return messages_.rank(); }
  int num_stages() const noexcept { return static_cast<int>(rank_of_stage_.size()); }
  int rank_of(int stage) const { return rank_of_stage_.at(static_cast<size_t>(stage)); }
  bool has(int stage) const { return rank_of(stage) == rank(); }
  /// Returns a rank's first stage at or behind `stage`; -1 for none.
  int stage_of_rank_from(int rank, int stage) const;
  /// Returns where the parameters are: sharding moves those of a model that has been divided.
  c10::Device device() const;
  Origin origin() const noexcept { return {"pipeline", rank(), messages_.num_ranks()}; }

  /// Records a parameter. On ranks that have none of its stages its memory is freed.
  void add(const std::string& name, const at::Tensor& parameter, const std::set<int>& stages);
  void add_buffer(const at::Tensor& buffer, int stage);
  /// Returns the record; null if it is none of these.
  StagedParameter* find(const at::Tensor& parameter) noexcept;
  bool is_buffer(const at::Tensor& tensor) const { return buffers_.contains(tensor.unsafeGetTensorImpl()); }
  int stage_of_buffer(const at::Tensor& buffer) const { return buffers_.at(buffer.unsafeGetTensorImpl()); }
  /// A stage uses a parameter that it does not hold: gives it the value.
  /// Collective: yes. Blocks: yes. Throws: UsageError once steps have been taken; CommError.
  void add_holder(const at::Tensor& parameter, int stage);
  /// Parameters of several stages, in the order in which they were added.
  std::vector<std::pair<at::Tensor, std::set<int>>> tied() const;

  /// Returns the tensor of a value; an undefined one for none.
  at::Tensor wrap(StagedValue value);
  /// Returns what has memory of a value: a whole tensor, or the part of a cut one. Throws: UsageError for two cuts.
  at::Tensor memory_of(const at::Tensor& local) const;
  ValueFacts facts_of(const at::Tensor& local) const;
  std::vector<int64_t> part_sizes(const ValueFacts& facts) const;
  /// Returns the value of which `part` is the memory.
  at::Tensor from_memory(at::Tensor part, const ValueFacts& facts) const;

  /// While it exists, random operators draw from the generator of this rank's stages.
  class OwnRandom;

 private:
  void let_go(const at::Tensor& parameter, const StagedParameter& record);

  Messages messages_;
  std::vector<int> rank_of_stage_;
  c10::Device device_;
  std::shared_ptr<tensor::CutAxis> cut_;
  std::unordered_map<const c10::TensorImpl*, StagedParameter> parameters_;
  std::vector<const c10::TensorImpl*> in_order_;
  std::unordered_map<const c10::TensorImpl*, int> buffers_;
  interception::SharedInterceptor list_;
  at::Tensor own_random_;
  bool has_stepped_ = false;
};

class StageAxis::OwnRandom {
 public:
  explicit OwnRandom(StageAxis& axis);
  ~OwnRandom();
  OwnRandom(const OwnRandom&) = delete;
  OwnRandom& operator=(const OwnRandom&) = delete;

 private:
  StageAxis& axis_;
  at::Generator generator_;
  at::Tensor shared_;
};

}  // namespace hasten::parallel::pipeline
