// Larc: layer-wise adaptive rates around any of libtorch's optimizers, for large batches (Apex's LARC).
//
// You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks", 2017. Each parameter's gradient is scaled
// by the ratio of its weight's norm to its gradient's. Then the wrapped optimizer steps without weight decay.
#pragma once

#include <torch/optim/optimizer.h>

namespace hasten::optim {

struct LarcOptions {
  double trust_coefficient = 0.02;
  /// The rate is at most the optimizer's (LARC); false: it is multiplied by the ratio (LARS).
  bool clip = true;
  double eps = 1e-8;
};

/// An optimizer whose groups are the wrapped one's: schedules change the rate here, and a step hands it on. The wrapped
/// optimizer is borrowed and keeps the state; save and load go to it.
class Larc : public torch::optim::Optimizer {
 public:
  /// Throws: UsageError for options out of range.
  explicit Larc(torch::optim::Optimizer& optimizer, const LarcOptions& options = {});

  /// Changes gradients in place, then steps the wrapped optimizer.
  /// Throws: UsageError for an optimizer whose options have no known weight decay; its
  /// exceptions and those of the closure.
  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override { optimizer_->save(archive); }
  void load(torch::serialize::InputArchive& archive) override;
  torch::optim::Optimizer& wrapped() const noexcept { return *optimizer_; }

 private:
  torch::optim::Optimizer* optimizer_;
  LarcOptions larc_;
};

}  // namespace hasten::optim
