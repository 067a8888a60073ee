// See placement.h.
#include "hasten/parallel/layout/placement.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include "hasten/interception/interceptor.h"
#include "hasten/parallel/layout/stages.h"

namespace hasten::parallel {

const PlacedParameters* placed_by(const at::Tensor& parameter) {
  for (const auto& interceptor : interceptors_of(parameter, interception::Level::kEveryOperator)) {
    const auto* const placed = dynamic_cast<const PlacedParameters*>(interceptor.get());
    if (placed != nullptr && placed->placement(parameter) != nullptr) return placed;
  }
  return nullptr;
}

bool has_parts(const torch::nn::Module& module) {
  for (const at::Tensor& parameter : module.parameters()) {
    if (placed_by(parameter) != nullptr) return true;
  }
  return false;
}

std::vector<int64_t> whole_sizes(const at::Tensor& parameter) {
  const auto* const placed = placed_by(parameter);
  return placed == nullptr ? parameter.sizes().vec() : placed->placement(parameter)->sizes;
}

namespace {

at::Tensor gather_parts(const at::Tensor& parameter) {
  const auto* const placed = placed_by(parameter);
  const interception::PassScope pass;
  const at::NoGradGuard no_grad;
  if (placed == nullptr) return parameter.detach();
  const Cut cut = placed->placement(parameter)->cut;
  // Parts of several sizes travel along the first dimension.
  std::vector<at::Tensor> parts = placed->group().all_gather(parameter.detach().movedim(cut.dim, 0).contiguous());
  for (auto& part : parts) part = part.movedim(0, cut.dim);
  return join_parts(parts, cut);
}

}  // namespace

at::Tensor gather_parameter(const at::Tensor& parameter) {
  const auto* const staged = staged_by(parameter);
  if (staged == nullptr) return gather_parts(parameter);
  return staged->from_holder(parameter, staged->is_first_holder(parameter) ? gather_parts(parameter) : at::Tensor());
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

}  // namespace hasten::parallel
