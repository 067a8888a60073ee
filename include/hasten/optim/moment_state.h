// MomentState: the state that ApexAdam, ApexSgd, Lamb and NovoGrad keep for a parameter, for those that save it.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/optim/serialize.h>

#include <cstdint>

namespace hasten::optim::detail {

/// State of a parameter. Unused parts stay undefined or 0.
struct MomentState : torch::optim::OptimizerCloneableParamState<MomentState> {
  TORCH_ARG(int64_t, step) = 0;
  /// exp_avg, or the momentum buffer.
  TORCH_ARG(at::Tensor, first);
  TORCH_ARG(at::Tensor, second);
  TORCH_ARG(at::Tensor, master);
  /// NovoGrad's second moment.
  TORCH_ARG(double, moment) = 0;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

}  // namespace hasten::optim::detail
