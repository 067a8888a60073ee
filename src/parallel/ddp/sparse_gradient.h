// The sum of a sparse gradient over the ranks: rows that few samples touch, gathered instead of reduced.
#pragma once

#include <ATen/core/Tensor.h>

#include "hasten/comm/group/group.h"

namespace hasten::parallel {

/// .grad() of `parameter` becomes the ranks' rows, summed by index, times `scale`. An undefined one counts as no rows.
/// Returns true if any rank had rows. If none had, .grad() stays as it is. Collective.
bool exchange_sparse_gradient(const at::Tensor& parameter, const comm::Group& group, double scale);

}  // namespace hasten::parallel
