// MasterWeights: float32 copies of half-precision parameters, which an optimizer steps in their place.
//
// The masters are in the optimizer's parameter groups, and its states move with them. So any of libtorch's optimizers
// and any schedule works on float32 values. After a step the model gets them rounded. Used by Fp16Optimizer
// (fp16_optimizer.h), Amp's O2 (amp.h) and prepared optimizers with Weights::kMaster.
#pragma once

#include <torch/optim/optimizer.h>

#include <optional>
#include <vector>

namespace hasten::precision {

class MasterWeights {
 public:
  /// Makes a master for each float16 or bfloat16 parameter in the optimizer's groups; float32 ones stay. The optimizer
  /// must outlive it.
  explicit MasterWeights(torch::optim::Optimizer& optimizer);

  /// Returns the parameters that have masters, and their masters, in the same order.
  const std::vector<at::Tensor>& model_parameters() const noexcept { return model_; }
  const std::vector<at::Tensor>& masters() const noexcept { return masters_; }
  /// Returns every parameter that the optimizer steps: masters, and float32 parameters of the model (Apex's
  /// master_params).
  std::vector<at::Tensor> all() const;
  /// Returns all parameters of the model: halves, and those float32 ones that the optimizer steps themselves.
  std::vector<at::Tensor> model_side() const;

  /// Writes the halves' gradients to the masters, in float32; those without one get none.
  void gradients_to_masters() const;
  /// Rounds the masters into the model.
  void to_model() const;
  /// Sets the masters from the model: after weights were loaded into it.
  void from_model() const;
  /// Clears the gradients of model and masters.
  void zero_grad(bool set_to_none) const;
  /// Puts the model's own parameters back into the optimizer's groups, with their states.
  void restore() const;

 private:
  torch::optim::Optimizer* optimizer_;
  std::vector<at::Tensor> model_, masters_;
};

}  // namespace hasten::precision
