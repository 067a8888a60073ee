// LowWeights: weights below float32, and the steps that do not lose their small updates.
//
// A model is converted to half precision. The part of float32 that half precision lacks stays beside the weights, in
// the form that precision::Weights names. As a policy of prepared optimizers it makes the whole step in the loops of
// optim/steps/rules.h. They read half gradients, compute in float32, and write weights and their companions in one
// pass. Any of SGD, Adam, AdamW, Adagrad, RMSprop, ApexAdam and ApexSgd; on the CPU.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <memory>
#include <optional>

#include "hasten/precision/options.h"
#include "hasten/training/step_policy.h"

namespace hasten::optim {

struct LowWeightsOptions {
  precision::Weights form = precision::Weights::kMaster;
  /// The dtype of the model's weights; kBFloat16 but for kMaster, which also takes kHalf.
  at::ScalarType dtype = at::kBFloat16;
  /// The dtype of moments: kFloat, kBFloat16 or kHalf.
  at::ScalarType states = at::kFloat;
  /// Seed of kStochastic's random bits.
  uint64_t seed = 0;
  /// Maximises the loss, as PreparedOptimizerOptions::maximize.
  bool maximize = false;
};

class LowWeights : public training::StepPolicy {
 public:
  /// Throws: UsageError for a form and dtypes that do not go together.
  explicit LowWeights(const LowWeightsOptions& options);

  /// Converts the module in place, batch norms aside, and keeps what its float32 parameters had beyond the new dtype.
  /// Before or after its optimizer is made; parameters keep their identity. Throws:
  /// UsageError for parameters that are not on the CPU.
  void convert(torch::nn::Module& module);
  /// Refuses optimizers that have no loop. Throws: UsageError.
  static void require(const torch::optim::Optimizer& optimizer);

  /// Returns the exact value of a converted parameter, in float32; of another one itself. For checkpoints and tests.
  at::Tensor value_of(const at::Tensor& parameter) const;
  /// Sets a converted parameter, and what is beside it, from a float32 value.
  /// Throws: UsageError for another number of elements.
  void set_value(const at::Tensor& parameter, const at::Tensor& value);
  /// Bytes stored beside the weights.
  int64_t extra_bytes() const;

  bool step(training::StepContext& context) override;

 private:
  struct Beside {
    at::Tensor parameter;
    /// kMaster: float32. kSplit: int16. kKahan: bfloat16. kStochastic: none.
    at::Tensor rest;
  };
  const Beside* find(const at::Tensor& parameter) const;

  LowWeightsOptions options_;
  std::map<const void*, Beside> kept_;
  int64_t steps_ = 0;
};

}  // namespace hasten::optim
