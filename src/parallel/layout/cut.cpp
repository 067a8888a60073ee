// See cut.h.
#include "hasten/parallel/layout/cut.h"

#include <algorithm>

namespace hasten::parallel {
namespace {

int64_t product(const std::vector<int64_t>& sizes, size_t begin) {
  int64_t all = 1;
  for (size_t i = begin; i < sizes.size(); ++i) all *= sizes[i];
  return all;
}

// The dimension itself stays where it is, whatever happens to those before and behind it.
std::optional<Cut> kept_dim(int64_t size, int64_t behind, Cut cut, const std::vector<int64_t>& view) {
  int64_t suffix = 1;
  for (size_t i = view.size(); i-- > 0;) {
    if (suffix == behind && view[i] == size) return Cut{static_cast<int64_t>(i), cut.blocks};
    suffix *= view[i];
  }
  return std::nullopt;
}

}  // namespace

CutInterval part_of(int64_t size, int num_parts, int part) noexcept {
  const int64_t most = (size + num_parts - 1) / num_parts;
  const int64_t begin = std::min(size, most * part);
  return {begin, std::min(size, begin + most)};
}

int64_t part_size(int64_t size, int64_t blocks, int num_parts, int part) noexcept {
  return blocks * part_of(size / blocks, num_parts, part).size();
}

bool divides_evenly(int64_t size, int64_t blocks, int num_parts) noexcept {
  return size % blocks == 0 && (size / blocks) % num_parts == 0;
}

std::optional<Cut> cut_of_view(const std::vector<int64_t>& sizes, Cut cut, const std::vector<int64_t>& view,
                               int num_parts) {
  const auto dim = static_cast<size_t>(cut.dim);
  const int64_t size = sizes[dim], behind = product(sizes, dim + 1);
  if (const auto kept = kept_dim(size, behind, cut, view)) return kept;
  if (!divides_evenly(size, cut.blocks, num_parts)) return std::nullopt;
  // In memory, a block begins every `period` elements, and a rank has `run` of each.
  const int64_t period = size / cut.blocks * behind, run = period / num_parts;
  if (run == 0) return std::nullopt;
  int64_t suffix = 1;
  for (size_t i = view.size(); i-- > 0;) {
    const bool whole_runs = run % suffix == 0 && period % suffix == 0;
    if (whole_runs && view[i] % (period / suffix) == 0 && view[i] % num_parts == 0) {
      return Cut{static_cast<int64_t>(i), view[i] / (period / suffix)};
    }
    suffix *= view[i];
    if (suffix == 0) return std::nullopt;
  }
  return std::nullopt;
}

std::optional<int64_t> sequence_dim(const std::vector<int64_t>& sizes, int num_parts) noexcept {
  for (size_t i = 0; i + 1 < sizes.size(); ++i) {
    if (sizes[i] > 1 && sizes[i] % num_parts == 0) return static_cast<int64_t>(i);
  }
  return std::nullopt;
}

std::string describe(const Cut& cut) {
  if (!cut.is_cut()) return "whole";
  std::string words = "dim " + std::to_string(cut.dim);
  if (cut.blocks > 1) words += " in " + std::to_string(cut.blocks) + " blocks";
  return words;
}

}  // namespace hasten::parallel
