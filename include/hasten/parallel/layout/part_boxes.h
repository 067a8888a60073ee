// Boxes of a part: where the elements that a rank holds of a cut tensor lie in the whole one. Pure arithmetic.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "hasten/files/base/box.h"
#include "hasten/parallel/layout/placement.h"

namespace hasten::parallel {

/// A box of the whole tensor, and the place of its elements in a box of the part.
struct PartBox {
  files::Box whole = {};
  files::Box in_part = {};
};

/// Returns the boxes of the whole tensor that the box `own` of a part stands for, one a block that it touches. Offsets
/// of `in_part` count from the beginning of `own`. Boxes without elements are left out.
/// Collective: no. Blocks: no. Throws: nothing.
std::vector<PartBox> part_boxes(const Placement& placement, int num_parts, int part, const files::Box& own);

/// As above, for a parameter whether it is cut or not: the box of a whole parameter is its own.
/// Collective: no. Blocks: no. Throws: nothing.
std::vector<PartBox> part_boxes(const at::Tensor& parameter, const files::Box& own);

}  // namespace hasten::parallel
