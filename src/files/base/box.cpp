// Arithmetic of boxes; see box.h.
#include "hasten/files/base/box.h"

#include <algorithm>
#include <cstring>

#include "files/base/origin.h"

namespace hasten::files {
namespace {

/// Advances a counter over `size` and returns false after its last value.
bool next_index(std::vector<int64_t>& index, std::span<const int64_t> size) {
  for (size_t d = size.size(); d-- > 0;) {
    if (++index[d] < size[d]) return true;
    index[d] = 0;
  }
  return false;
}

bool is_empty(std::span<const int64_t> size) {
  return std::any_of(size.begin(), size.end(), [](int64_t n) { return n <= 0; });
}

/// Appends the boxes of the flat range [begin, end) of the sub-tensor that `prefix` selects by its first indices.
void append_range(std::span<const int64_t> shape, std::vector<int64_t>& prefix, int64_t begin, int64_t end,
                  std::vector<Box>& boxes) {
  if (begin >= end) return;
  const size_t depth = prefix.size();
  const auto add = [&](int64_t first, int64_t count) {
    Box box{prefix, std::vector<int64_t>(depth, 1)};
    box.offset.push_back(first);
    box.size.push_back(count);
    for (size_t d = depth + 1; d < shape.size(); ++d) {
      box.offset.push_back(0);
      box.size.push_back(shape[d]);
    }
    boxes.push_back(std::move(box));
  };
  int64_t row = 1;
  for (size_t d = depth + 1; d < shape.size(); ++d) row *= shape[d];
  const auto descend = [&](int64_t index, int64_t from, int64_t to) {
    prefix.push_back(index);
    append_range(shape, prefix, from, to, boxes);
    prefix.pop_back();
  };
  const int64_t first = begin / row, last = end / row, head = begin % row, tail = end % row;
  if (head != 0 && first == last) {
    descend(first, head, tail);
    return;
  }
  if (head != 0) descend(first, head, row);
  const int64_t whole = first + (head != 0 ? 1 : 0);
  if (whole < last) add(whole, last - whole);
  if (tail != 0) descend(last, 0, tail);
}

}  // namespace

Box whole_box(std::span<const int64_t> shape) {
  return {std::vector<int64_t>(shape.size(), 0), {shape.begin(), shape.end()}};
}

int64_t numel_of(std::span<const int64_t> shape) {
  if (is_empty(shape)) return 0;
  int64_t numel = 1;
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(numel, size, &numel)) {
      throw UsageError(kOrigin, "a tensor of shape [", join(shape), "] has more elements than 63 bits count.");
    }
  }
  return numel;
}

bool fits(const Box& box, std::span<const int64_t> shape) {
  if (box.offset.size() != shape.size() || box.size.size() != shape.size()) return false;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (box.offset[d] < 0 || box.size[d] < 0 || box.offset[d] > shape[d] - box.size[d]) return false;
  }
  return true;
}

std::optional<Box> intersection(const Box& one, const Box& other) {
  if (one.offset.size() != other.offset.size()) return std::nullopt;
  Box common;
  for (size_t d = 0; d < one.offset.size(); ++d) {
    const int64_t begin = std::max(one.offset[d], other.offset[d]);
    const int64_t end = std::min(one.offset[d] + one.size[d], other.offset[d] + other.size[d]);
    if (begin >= end) return std::nullopt;
    common.offset.push_back(begin);
    common.size.push_back(end - begin);
  }
  return common;
}

std::string describe(const Box& box) {
  std::vector<std::string> parts;
  for (size_t d = 0; d < box.offset.size(); ++d) parts.push_back(text(box.offset[d], ":", box.offset[d] + box.size[d]));
  return text("[", join(parts), "]");
}

std::vector<int64_t> contiguous_strides(std::span<const int64_t> shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<int64_t>(shape[d], 1);
  return strides;
}

std::vector<Box> boxes_of_range(std::span<const int64_t> shape, int64_t begin, int64_t end) {
  const int64_t numel = numel_of(shape);
  if (begin < 0 || begin > end || end > numel) {
    throw UsageError(kOrigin, "the range [", begin, ", ", end, ") is not inside the ", numel,
                     " elements of a tensor of shape [", join(shape), "].");
  }
  std::vector<Box> boxes;
  if (begin == end) return boxes;
  if (shape.empty()) return {Box{}};
  std::vector<int64_t> prefix;
  append_range(shape, prefix, begin, end, boxes);
  return boxes;
}

void for_each_run(std::span<const int64_t> shape, const Box& box, const std::function<void(Run)>& visit) {
  if (is_empty(box.size)) return;
  const auto strides = contiguous_strides(shape);
  // Trailing dimensions that the box covers whole belong to one run, and so does the dimension before them.
  size_t outer = shape.size();
  while (outer > 0 && box.size[outer - 1] == shape[outer - 1]) --outer;
  if (outer > 0) --outer;
  int64_t count = 1;
  for (size_t d = outer; d < shape.size(); ++d) count *= box.size[d];
  int64_t base = 0;
  for (size_t d = 0; d < shape.size(); ++d) base += box.offset[d] * strides[d];
  std::vector<int64_t> index(outer, 0);
  do {
    int64_t begin = base;
    for (size_t d = 0; d < outer; ++d) begin += index[d] * strides[d];
    visit({begin, count});
  } while (next_index(index, std::span(box.size).first(outer)));
}

void copy_elements(const void* source, std::span<const int64_t> source_strides, void* target,
                   std::span<const int64_t> target_strides, std::span<const int64_t> size, size_t item_bytes) {
  if (is_empty(size)) return;
  size_t outer = size.size();
  int64_t count = 1;
  while (outer > 0 &&
         (size[outer - 1] == 1 || (source_strides[outer - 1] == count && target_strides[outer - 1] == count)))
    count *= size[--outer];
  const size_t bytes = static_cast<size_t>(count) * item_bytes;
  const auto item = static_cast<int64_t>(item_bytes);
  std::vector<int64_t> index(outer, 0);
  do {
    int64_t from = 0, to = 0;
    for (size_t d = 0; d < outer; ++d) {
      from += index[d] * source_strides[d];
      to += index[d] * target_strides[d];
    }
    std::memcpy(static_cast<char*>(target) + to * item, static_cast<const char*>(source) + from * item, bytes);
  } while (next_index(index, size.first(outer)));
}

int64_t copy_common(const void* source, const Box& have, void* target, const Box& want, size_t item_bytes) {
  const auto common = intersection(have, want);
  if (!common) return 0;
  const auto from = contiguous_strides(have.size), to = contiguous_strides(want.size);
  int64_t source_base = 0, target_base = 0;
  for (size_t d = 0; d < common->size.size(); ++d) {
    source_base += (common->offset[d] - have.offset[d]) * from[d];
    target_base += (common->offset[d] - want.offset[d]) * to[d];
  }
  const auto item = static_cast<int64_t>(item_bytes);
  copy_elements(static_cast<const char*>(source) + source_base * item, from,
                static_cast<char*>(target) + target_base * item, to, common->size, item_bytes);
  return numel_of(*common);
}

void copy_strided(const void* source, std::span<const int64_t> strides, const Box& box, void* target,
                  size_t item_bytes) {
  int64_t base = 0;
  for (size_t d = 0; d < box.size.size(); ++d) base += box.offset[d] * strides[d];
  copy_elements(static_cast<const char*>(source) + base * static_cast<int64_t>(item_bytes), strides, target,
                contiguous_strides(box.size), box.size, item_bytes);
}

}  // namespace hasten::files
