// UnitCopy: the values that a unit of survive's loop changes before it is committed, as they were at its beginning.
//
// A unit is a window of batches that ends with an optimizer's step, or the end of an epoch. With one optimizer
// parameters need no copy: they change when the unit is committed.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hasten/parallel/survive/survive_parts.h"

namespace torch::optim {
class Optimizer;
}

namespace hasten::parallel {

class UnitCopy {
 public:
  explicit UnitCopy(const SurviveParts& parts) : parts_(parts) {}

  /// Copies buffers, schedulers, scaler and registered objects, and `with_loaders` the positions of all loaders.
  void begin(bool with_loaders);
  /// Copies parameters and optimizers, once a unit: an optimizer is about to step that is not the only one.
  void add_parameters();
  /// Puts all of it back.
  void restore();

 private:
  using Object = std::pair<training::Registered, training::State>;
  void copy_objects(training::StateKind kind);

  const SurviveParts& parts_;
  std::vector<at::Tensor> buffers_;
  std::vector<Object> objects_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::pair<std::shared_ptr<torch::optim::Optimizer>, std::string>> optimizers_;
  bool has_parameters_ = false;
};

}  // namespace hasten::parallel
