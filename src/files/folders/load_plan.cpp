// Intersections of wanted boxes with pieces; see load_plan.h.
#include "hasten/files/folders/load_plan.h"

#include <algorithm>
#include <unordered_map>

#include "files/base/origin.h"
#include "hasten/core/sentence.h"

namespace hasten::files {
namespace {

/// Returns the flat range [first, last] of elements that `part` takes inside the contiguous piece `box`.
std::pair<int64_t, int64_t> extent_in(const Box& box, const Box& part) {
  const auto strides = contiguous_strides(box.size);
  int64_t first = 0, last = 0;
  for (size_t d = 0; d < box.size.size(); ++d) {
    first += (part.offset[d] - box.offset[d]) * strides[d];
    last += (part.offset[d] - box.offset[d] + part.size[d] - 1) * strides[d];
  }
  return {first, last};
}

struct Range {
  size_t file;
  LoadCopy copy;
};

/// Returns the index of the tensor that holds the values of `name`.
size_t holder_of(const Manifest& have, const std::unordered_map<std::string_view, size_t>& index,
                 const std::string& name) {
  const auto found = index.find(name);
  if (found == index.end()) {
    std::vector<std::string> names;
    for (const ManifestTensor& tensor : have.tensors) names.push_back(tensor.info.name);
    throw UsageError(kOrigin, "the checkpoint has no tensor '", name, "'", guess_end(name, names),
                     " Correct the name, or load with strict = false.");
  }
  const std::string& tied = have.tensors[found->second].tied_to;
  return tied.empty() ? found->second : index.at(tied);
}

}  // namespace

LoadPlan plan_load(const Manifest& have, const std::vector<WantedBox>& want, uint64_t max_gap, uint64_t max_read) {
  std::unordered_map<std::string_view, size_t> index;
  for (size_t i = 0; i < have.tensors.size(); ++i) index.emplace(have.tensors[i].info.name, i);
  std::vector<Range> ranges;
  for (size_t w = 0; w < want.size(); ++w) {
    const size_t t = holder_of(have, index, want[w].name);
    const ManifestTensor& tensor = have.tensors[t];
    if (!fits(want[w].box, tensor.info.shape)) {
      throw UsageError(kOrigin, "the box ", describe(want[w].box), " is not inside tensor '", want[w].name,
                       "' of shape [", join(tensor.info.shape), "].");
    }
    const uint64_t item = element_bytes(tensor.info.dtype);
    for (size_t p = 0; p < tensor.pieces.size(); ++p) {
      const ManifestPiece& piece = tensor.pieces[p];
      const auto common = intersection(piece.box, want[w].box);
      if (!common || numel_of(*common) == 0) continue;
      const auto [first, last] = extent_in(piece.box, *common);
      const uint64_t begin = piece.position + static_cast<uint64_t>(first) * item,
                     end = piece.position + static_cast<uint64_t>(last + 1) * item;
      ranges.push_back(
          {piece.file, {w, t, p, begin, end, end - begin == static_cast<uint64_t>(numel_of(piece.box)) * item}});
    }
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::tie(a.file, a.copy.begin, a.copy.end, a.copy.want) <
           std::tie(b.file, b.copy.begin, b.copy.end, b.copy.want);
  });
  LoadPlan plan;
  for (Range& range : ranges) {
    LoadRead* last = plan.reads.empty() || plan.reads.back().file != range.file ? nullptr : &plan.reads.back();
    const bool inside = last != nullptr && range.copy.end <= last->end;
    const bool near =
        last != nullptr && range.copy.begin <= last->end + max_gap && range.copy.end - last->begin <= max_read;
    if (inside || near) {
      last->end = std::max(last->end, range.copy.end);
      last->copies.push_back(range.copy);
    } else {
      plan.reads.push_back({range.file, range.copy.begin, range.copy.end, {range.copy}});
    }
  }
  for (const LoadRead& read : plan.reads) plan.bytes += read.end - read.begin;
  return plan;
}

void copy_read(const Manifest& have, const std::vector<WantedBox>& want, const LoadRead& read, const void* bytes,
               const std::vector<void*>& targets) {
  for (const LoadCopy& copy : read.copies) {
    const ManifestTensor& tensor = have.tensors[copy.tensor];
    const ManifestPiece& piece = tensor.pieces[copy.piece];
    const Box& requested = want[copy.want].box;
    const Box common = *intersection(piece.box, requested);
    const size_t item = element_bytes(tensor.info.dtype);
    const auto strides = contiguous_strides(requested.size);
    int64_t base = 0;
    for (size_t d = 0; d < strides.size(); ++d) base += (common.offset[d] - requested.offset[d]) * strides[d];
    // The bytes begin at the first element of the common part. Its rows lie as far apart as in the piece.
    copy_elements(static_cast<const char*>(bytes) + (copy.begin - read.begin), contiguous_strides(piece.box.size),
                  static_cast<char*>(targets[copy.want]) + base * static_cast<int64_t>(item), strides, common.size,
                  item);
  }
}

}  // namespace hasten::files
