// Cut: how a tensor lies in parts on the ranks of an axis, as pure arithmetic.
//
// A dimension consists of equal blocks, and every rank has a part of each block, in the order of the blocks. One block
// is the ordinary cut. A matrix that holds queries, keys and values has three. Parts are torch.chunk's: if sizes do not
// divide, the last parts are smaller or empty.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hasten::parallel {

struct Cut {
  /// The dimension that is cut; -1: none.
  int64_t dim = -1;
  int64_t blocks = 1;

  bool is_cut() const noexcept { return dim >= 0; }
  bool operator==(const Cut&) const = default;
};

struct CutInterval {
  int64_t begin = 0, end = 0;
  int64_t size() const noexcept { return end - begin; }
};

/// Returns the part of a block of `size` that rank `part` of `num_parts` has: torch.chunk's.
CutInterval part_of(int64_t size, int num_parts, int part) noexcept;

/// Returns the size of a rank's part of a dimension of `size` that consists of `blocks`.
int64_t part_size(int64_t size, int64_t blocks, int num_parts, int part) noexcept;

/// Returns true if all parts of the dimension have one size.
bool divides_evenly(int64_t size, int64_t blocks, int num_parts) noexcept;

/// Returns the cut of a view with other sizes, which each rank makes of its own part. Nothing if there is none: the
/// parts of the view would not be views of the parts.
std::optional<Cut> cut_of_view(const std::vector<int64_t>& sizes, Cut cut, const std::vector<int64_t>& view,
                               int num_parts);

/// Returns the first dimension, but the last, that `num_parts` divides: where a sequence or batch is cut. Nothing if
/// none does.
std::optional<int64_t> sequence_dim(const std::vector<int64_t>& sizes, int num_parts) noexcept;

/// Returns "dim 0", "dim 0 in 3 blocks", "whole".
std::string describe(const Cut& cut);

}  // namespace hasten::parallel
