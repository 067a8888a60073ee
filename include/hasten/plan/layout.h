// Layout sizes: the axes over which the ranks of a run are laid out, as numbers.
//
// Pure arithmetic: sizes are checked against a world, ranks become coordinates and back, and axes become groups. The
// command plans with it, and parallel/layout makes its mesh of it. The axes are those of Accelerate's
// ParallelismConfig, and pp before them. The order of ranks is Megatron-Core's tp-cp-dp-pp.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hasten::plan {

/// An axis of a layout, outermost first: consecutive ranks differ in tp.
enum class Axis { kPp, kDpReplicate, kDpShard, kCp, kSp, kTp };

/// All axes, outermost first.
inline constexpr std::array<Axis, 6> kAxes = {Axis::kPp, Axis::kDpReplicate, Axis::kDpShard,
                                              Axis::kCp, Axis::kSp,          Axis::kTp};

/// Number of ranks along each axis. One of them may be -1, which means the rest of the world (see fit_to_world).
struct LayoutSizes {
  int pp = 1;            ///< pipeline: ranks that each hold some stages
  int dp_replicate = 1;  ///< data parallel, state is repeated
  int dp_shard = 1;      ///< data parallel, state is split
  int cp = 1;            ///< context parallel: parts of the sequence, keys and values are gathered
  int sp = 1;            ///< sequence parallel by heads (Ulysses)
  int tp = 1;            ///< tensor parallel

  int& operator[](Axis axis);
  int operator[](Axis axis) const;
  bool operator==(const LayoutSizes&) const = default;
};

/// Returns "pp", "dp_replicate", "dp_shard", "cp", "sp" or "tp".
std::string_view axis_name(Axis axis);

/// Returns the axis of that name; a tail "_size", as Accelerate's options have it, is taken as well.
/// Throws: UsageError with the nearest name.
Axis parse_axis(std::string_view name);

/// Returns the product of all sizes.
int64_t num_ranks(const LayoutSizes& sizes);

/// Returns "tp 2 x pp 2 x dp_shard 3", innermost first and without axes of size 1; "one rank" if nothing is left.
std::string layout_text(const LayoutSizes& sizes);

/// Returns `sizes` with -1 replaced by the rest of the world.
/// Throws: UsageError for a size below 1 that is not the only -1; for cp beside sp; for a product that is not the
/// world, with every change of a single axis that would fit.
LayoutSizes fit_to_world(LayoutSizes sizes, int64_t world_size);

/// Returns the axes of more than one rank, outermost first: the dimensions of the mesh.
std::vector<Axis> mesh_axes(const LayoutSizes& sizes);

/// Joint axes, those of more than one rank. Data: dp_replicate, dp_shard. Shard: dp_shard, cp. Loss: dp_replicate,
/// dp_shard, cp. Model: pp, tp.
std::vector<Axis> data_axes(const LayoutSizes& sizes);
std::vector<Axis> shard_axes(const LayoutSizes& sizes);
std::vector<Axis> loss_axes(const LayoutSizes& sizes);
std::vector<Axis> model_axes(const LayoutSizes& sizes);

/// A rank's position along each axis, in the order of kAxes.
struct Coordinate {
  std::array<int, kAxes.size()> positions = {};

  int& operator[](Axis axis) { return positions[static_cast<size_t>(axis)]; }
  int operator[](Axis axis) const { return positions[static_cast<size_t>(axis)]; }
  bool operator==(const Coordinate&) const = default;
};

/// Returns a rank's coordinate, and the rank at a coordinate. Throws: UsageError if it lies outside of the layout.
Coordinate coordinate_of(const LayoutSizes& sizes, int64_t rank);
int64_t rank_at(const LayoutSizes& sizes, const Coordinate& coordinate);

/// Returns the ranks that differ from `rank` only along `axes`, ascending; `rank` is one of them.
std::vector<int> group_of(const LayoutSizes& sizes, const std::vector<Axis>& axes, int64_t rank);

/// Returns all groups along `axes`, in the order of their first ranks. Every rank is in exactly one.
std::vector<std::vector<int>> groups_along(const LayoutSizes& sizes, const std::vector<Axis>& axes);

/// Returns "rank 13 (pp 1, dp 0, tp 5)": axes of more than one rank. dp stands for the only one of its two axes.
std::string coordinate_text(const LayoutSizes& sizes, int64_t rank);

}  // namespace hasten::plan
