// See segment_allocator.h.
#include "comm/shared/memory/segment_allocator.h"

#include <algorithm>
#include <iterator>

namespace hasten::comm::shared {
namespace {

constexpr size_t kAlign = 64;

size_t rounded(size_t num_bytes) {
  return std::max(kAlign, (num_bytes + kAlign - 1) / kAlign * kAlign);
}

}  // namespace

std::optional<size_t> SegmentAllocator::take(size_t num_bytes) {
  const size_t requested = rounded(num_bytes);
  const std::lock_guard lock(mutex_);
  const auto part =
      std::find_if(free_.begin(), free_.end(), [requested](const auto& p) { return p.second >= requested; });
  if (part == free_.end()) return std::nullopt;
  const auto [offset, size] = *part;
  free_.erase(part);
  if (size > requested) free_[offset + requested] = size - requested;
  return offset;
}

void SegmentAllocator::give(size_t offset, size_t num_bytes) {
  const std::lock_guard lock(mutex_);
  auto part = free_.emplace(offset, rounded(num_bytes)).first;
  if (const auto next = std::next(part); next != free_.end() && part->first + part->second == next->first) {
    part->second += next->second;
    free_.erase(next);
  }
  if (part == free_.begin()) return;
  const auto before = std::prev(part);
  if (before->first + before->second == part->first) {
    before->second += part->second;
    free_.erase(part);
  }
}

}  // namespace hasten::comm::shared
