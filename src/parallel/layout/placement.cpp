// See placement.h.
#include "hasten/parallel/layout/placement.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <utility>

#include "hasten/interception/interceptor.h"
#include "hasten/parallel/layout/stages.h"
#include "parallel/layout/values_away.h"

namespace hasten::parallel {

const PlacedParameters* placed_by(const at::Tensor& parameter) {
  for (const auto& interceptor : interceptors_of(parameter, interception::Level::kEveryOperator)) {
    const auto* const placed = dynamic_cast<const PlacedParameters*>(interceptor.get());
    if (placed != nullptr && placed->placement(parameter) != nullptr) return placed;
  }
  return nullptr;
}

void bring_values(const at::Tensor& tensor, bool writes) {
  for (const auto& interceptor : interceptors_of(tensor, interception::Level::kEveryOperator)) {
    if (auto* const away = dynamic_cast<ValuesAway*>(interceptor.get())) away->bring(tensor, writes);
  }
}

bool has_parts(const torch::nn::Module& module) {
  for (const at::Tensor& parameter : module.parameters()) {
    if (placed_by(parameter) != nullptr) return true;
  }
  return false;
}

std::vector<int64_t> whole_sizes(const at::Tensor& parameter) {
  if (const auto* const staged = staged_by(parameter)) return staged->whole_sizes(parameter);
  const auto* const placed = placed_by(parameter);
  return placed == nullptr ? parameter.sizes().vec() : placed->placement(parameter)->sizes;
}

at::Tensor gather_as(const at::Tensor& parameter, const at::Tensor& part) {
  const auto* const placed = placed_by(parameter);
  if (placed == nullptr) return part;
  bring_values(part);
  const interception::PassScope pass;
  const at::NoGradGuard no_grad;
  const Cut cut = placed->placement(parameter)->cut;
  // Parts of several sizes travel along the first dimension.
  std::vector<at::Tensor> parts = placed->group().all_gather(part.detach().movedim(cut.dim, 0).contiguous());
  for (auto& one : parts) one = one.movedim(0, cut.dim);
  return join_parts(parts, cut);
}

at::Tensor gather_parameter(const at::Tensor& parameter) {
  const auto* const staged = staged_by(parameter);
  if (staged != nullptr && !staged->is_first_holder(parameter)) return staged->from_holder(parameter, at::Tensor());
  if (staged != nullptr) bring_values(parameter);
  const interception::PassScope pass;
  const at::Tensor whole = placed_by(parameter) != nullptr ? gather_as(parameter, parameter) : parameter.detach();
  return staged != nullptr ? staged->from_holder(parameter, whole) : whole;
}

at::Tensor part_as(const at::Tensor& parameter, const at::Tensor& whole) {
  const auto* const placed = placed_by(parameter);
  if (placed == nullptr) return whole;
  const at::NoGradGuard no_grad;
  return cut_tensor(whole, placed->placement(parameter)->cut, placed->group().world_size(), placed->group().rank());
}

void copy_part_(const at::Tensor& parameter, const at::Tensor& whole) {
  bring_values(parameter, /*writes=*/true);
  const interception::PassScope pass;
  const at::NoGradGuard no_grad;
  parameter.detach().copy_(part_as(parameter, whole));
}

at::Tensor cut_tensor(const at::Tensor& whole, const Cut& cut, int num_parts, int part) {
  const int64_t block = whole.size(cut.dim) / cut.blocks;
  const auto mine = part_of(block, num_parts, part);
  if (cut.blocks == 1) return whole.narrow(cut.dim, mine.begin, mine.size());
  std::vector<at::Tensor> parts;
  for (int64_t b = 0; b < cut.blocks; ++b) {
    parts.push_back(whole.narrow(cut.dim, b * block + mine.begin, mine.size()));
  }
  return at::cat(parts, cut.dim);
}

at::Tensor join_parts(const std::vector<at::Tensor>& parts, const Cut& cut) {
  if (cut.blocks == 1) return at::cat(parts, cut.dim);
  std::vector<at::Tensor> pieces;
  for (int64_t b = 0; b < cut.blocks; ++b) {
    for (const at::Tensor& part : parts) {
      const int64_t size = part.size(cut.dim) / cut.blocks;
      pieces.push_back(part.narrow(cut.dim, b * size, size));
    }
  }
  return at::cat(pieces, cut.dim);
}

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
