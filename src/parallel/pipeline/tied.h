// TiedGradients: parameters that several stages use have the sum of their gradients on each of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "parallel/pipeline/stage_axis.h"

namespace hasten::parallel::pipeline {

class TiedGradients {
 public:
  /// Sets aside the gradients that earlier steps of a window have left.
  explicit TiedGradients(StageAxis& axis);
  /// Sums those that have come since over the parameter's stages, and adds what was set aside.
  /// Collective: yes. Blocks: yes. Throws: CommError.
  void sum();

 private:
  struct Entry {
    at::Tensor parameter, earlier;
    std::vector<int> ranks;
    int tag;
  };
  StageAxis& axis_;
  std::vector<Entry> entries_ = {};
};

}  // namespace hasten::parallel::pipeline
