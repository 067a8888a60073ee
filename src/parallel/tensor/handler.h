// The handler of an axis: the interceptor that carries operators out on parts.
#pragma once

#include <memory>

#include "parallel/tensor/cut_axis.h"

namespace hasten::parallel::tensor {

/// Returns an axis over the ranks of a group.
std::shared_ptr<CutAxis> make_axis(comm::Group group, AxisOptions options);

/// While it exists, operators of this thread on cut parameters alone are taken, also without gradients.
class ForwardScope {
 public:
  ForwardScope();
  ~ForwardScope();
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;
};

}  // namespace hasten::parallel::tensor
