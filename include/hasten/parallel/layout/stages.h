// Stages of a pipeline, for code that needs no more of it than whose a parameter is: norms, files.
//
// A parameter of another stage has no elements on this rank: its first size is 0. The record lies with the interceptor
// that stands for parameters on stages (parallel/pipeline/pipeline.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/interception/interceptor.h"

namespace hasten::parallel {

/// Knows the parameters and buffers that lie on stages. An interceptor of each parameter.
class StagedParameters {
 public:
  virtual ~StagedParameters() = default;
  /// The ranks that hold the stages.
  virtual const comm::Group& group() const noexcept = 0;
  /// Returns the number in group() of the first rank that holds the parameter or buffer; -1 if it has no stage.
  virtual int first_holder(const at::Tensor& tensor) const noexcept = 0;
  /// Returns true if this rank holds the parameter.
  virtual bool holds(const at::Tensor& parameter) const noexcept = 0;
  /// Returns true if this rank is the first of those that hold the parameter or buffer, or if it has no stage.
  bool is_first_holder(const at::Tensor& tensor) const noexcept {
    const int first = first_holder(tensor);
    return first < 0 || first == group().rank();
  }
  /// Returns the sizes of the whole parameter.
  virtual std::vector<int64_t> whole_sizes(const at::Tensor& parameter) const = 0;
  /// Gives every rank of the pipeline the first holder's `mine`, of the whole sizes of a parameter or buffer.
  /// Collective: yes. Blocks: yes. Throws: CommError.
  virtual at::Tensor from_holder(const at::Tensor& parameter, const at::Tensor& mine) const = 0;
  /// The state of the generator that this rank's stages draw from.
  virtual at::Tensor random_state() const = 0;
  virtual void set_random_state(const at::Tensor& state) = 0;
  /// Optimizers may hold state from now on.
  virtual void note_step() noexcept = 0;
};

/// Returns the owner of the record of a parameter; null for one that lies on no stage.
inline const StagedParameters* staged_by(const at::Tensor& parameter) {
  for (const auto& interceptor : interception::interceptors_of(parameter, interception::Level::kEveryOperator)) {
    if (const auto* const staged = dynamic_cast<const StagedParameters*>(interceptor.get())) return staged;
  }
  return nullptr;
}

/// Returns the owner of the records of a module's parameters; null for a module without stages.
inline StagedParameters* stages_of(const torch::nn::Module& module) {
  for (const at::Tensor& parameter : module.parameters()) {
    for (const auto& interceptor : interception::interceptors_of(parameter, interception::Level::kEveryOperator)) {
      if (auto* const staged = dynamic_cast<StagedParameters*>(interceptor.get())) return staged;
    }
  }
  return nullptr;
}

/// Returns true if the module is divided into stages.
inline bool has_stages(const torch::nn::Module& module) {
  return stages_of(module) != nullptr;
}

/// Returns true if other ranks alone hold the parameter, and it has no elements here.
inline bool is_elsewhere(const at::Tensor& parameter) {
  const auto* const staged = staged_by(parameter);
  return staged != nullptr && !staged->holds(parameter);
}

/// Returns true if norms and files take the parameter from this rank: it is the first holder, or there are no stages.
inline bool counts_on_this_stage(const at::Tensor& parameter) {
  const auto* const staged = staged_by(parameter);
  return staged == nullptr || staged->is_first_holder(parameter);
}

}  // namespace hasten::parallel
