// CastWeights: weights that rest in one dtype and compute in another.
//
// Operators that read such a weight get a cast of it, which autograd records, so that gradients arrive at the weight.
// The cast lasts as long as the operator. Copies, casts and detach() get the weight in its resting form, so saving
// stores that.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace hasten::offload {

class CastWeights {
 public:
  CastWeights(std::vector<at::Tensor> weights, at::ScalarType compute_type);
  /// Ends interception; the weights keep their dtype.
  ~CastWeights();
  CastWeights(CastWeights&&) noexcept;
  CastWeights& operator=(CastWeights&&) noexcept;

  at::ScalarType compute_type() const;
  const std::vector<at::Tensor>& weights() const;

 private:
  class Engine;
  friend at::ScalarType compute_type_of(const at::Tensor& tensor);
  void stop();
  std::shared_ptr<Engine> engine_;
};

/// Returns the dtype of this tensor in operators: that of a cast, or its own.
at::ScalarType compute_type_of(const at::Tensor& tensor);

}  // namespace hasten::offload
