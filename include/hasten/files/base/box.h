// Boxes: axis-parallel parts of a tensor of known global shape, the unit in which shards are described.
//
// A saved state is described by global names, shapes and boxes, never by ranks, so that any number of processes reads
// it. All offsets and sizes count elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace hasten::files {

/// The elements [offset[d], offset[d] + size[d]) in every dimension d. A box of no dimensions is one scalar.
struct Box {
  std::vector<int64_t> offset, size;
  bool operator==(const Box&) const = default;
};

/// Returns the box of the whole tensor.
Box whole_box(std::span<const int64_t> shape);
/// Returns the number of elements: the product of the sizes, 1 for a scalar.
/// Throws: UsageError if the product does not fit 63 bits.
int64_t numel_of(std::span<const int64_t> shape);
inline int64_t numel_of(const Box& box) {
  return numel_of(box.size);
}
/// Returns true if the box has as many dimensions as the shape and lies inside it.
bool fits(const Box& box, std::span<const int64_t> shape);
/// Returns the common part, nothing if it is empty or the numbers of dimensions differ.
std::optional<Box> intersection(const Box& one, const Box& other);
/// "[0:3, 2:4]"; "[]" for a scalar.
std::string describe(const Box& box);

/// Returns the strides, in elements, of a contiguous tensor.
std::vector<int64_t> contiguous_strides(std::span<const int64_t> shape);

/// Returns boxes that together are the flat range [begin, end) of a contiguous tensor, in the order of the range. Each
/// box is contiguous in the tensor. There are at most 2 * ndim - 1 of them. Throws: UsageError unless 0 <= begin <= end
/// <= numel.
std::vector<Box> boxes_of_range(std::span<const int64_t> shape, int64_t begin, int64_t end);

/// A contiguous piece of a tensor's elements: `count` elements from flat index `begin` on.
struct Run {
  int64_t begin, count;
  bool operator==(const Run&) const = default;
};
/// Calls `visit` for the maximal runs of `box` inside a contiguous tensor of `shape`, in ascending order.
void for_each_run(std::span<const int64_t> shape, const Box& box, const std::function<void(Run)>& visit);

/// Copies the common part of `have` and `want`: `source` holds the elements of `have` contiguously, `target` those of
/// `want`. `item_bytes` is the size of an element. Returns the number of elements copied.
int64_t copy_common(const void* source, const Box& have, void* target, const Box& want, size_t item_bytes);

/// Copies a box of `size` elements between two strided layouts. Strides are in elements; both pointers are at element
/// (0, …).
void copy_elements(const void* source, std::span<const int64_t> source_strides, void* target,
                   std::span<const int64_t> target_strides, std::span<const int64_t> size, size_t item_bytes);

/// Copies the box of a strided tensor (element (0, …) at `source`, strides in elements) to contiguous memory.
void copy_strided(const void* source, std::span<const int64_t> strides, const Box& box, void* target,
                  size_t item_bytes);

}  // namespace hasten::files
