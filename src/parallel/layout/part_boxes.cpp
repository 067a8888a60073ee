// See part_boxes.h.
#include "hasten/parallel/layout/part_boxes.h"

#include <algorithm>
#include <utility>

namespace hasten::parallel {

std::vector<PartBox> part_boxes(const Placement& placement, int num_parts, int part, const files::Box& own) {
  const auto dim = static_cast<size_t>(placement.cut.dim);
  const int64_t block = placement.sizes[dim] / placement.cut.blocks;
  const auto mine = part_of(block, num_parts, part);
  std::vector<PartBox> boxes;
  for (int64_t b = 0; b < placement.cut.blocks; ++b) {
    const int64_t first = b * mine.size();
    const int64_t begin = std::max(first, own.offset[dim]);
    const int64_t end = std::min(first + mine.size(), own.offset[dim] + own.size[dim]);
    if (begin >= end) continue;
    PartBox box{own, {std::vector<int64_t>(own.size.size(), 0), own.size}};
    box.whole.offset[dim] = b * block + mine.begin + begin - first;
    box.in_part.offset[dim] = begin - own.offset[dim];
    box.whole.size[dim] = box.in_part.size[dim] = end - begin;
    if (files::numel_of(box.whole) > 0) boxes.push_back(std::move(box));
  }
  return boxes;
}

std::vector<PartBox> part_boxes(const at::Tensor& parameter, const files::Box& own) {
  if (const auto* const placed = placed_by(parameter)) {
    return part_boxes(*placed->placement(parameter), placed->group().world_size(), placed->group().rank(), own);
  }
  if (files::numel_of(own) == 0) return {};
  return {{own, {std::vector<int64_t>(own.size.size(), 0), own.size}}};
}

}  // namespace hasten::parallel
