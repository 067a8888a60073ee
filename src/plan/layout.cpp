// See layout.h.
#include "hasten/plan/layout.h"

#include <algorithm>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/core/text.h"

namespace hasten::plan {
namespace {

constexpr std::array<std::string_view, kAxes.size()> kAxisNames = {"pp", "dp_replicate", "dp_shard", "cp", "sp", "tp"};

// Those of the axes that have more than one rank.
std::vector<Axis> present(const LayoutSizes& sizes, std::initializer_list<Axis> axes) {
  std::vector<Axis> found;
  std::copy_if(axes.begin(), axes.end(), std::back_inserter(found), [&](Axis axis) { return sizes[axis] > 1; });
  return found;
}

// Each axis that alone could be changed so that the product is the world, as "dp_shard = 2". Axes in use come first.
std::string fitting_changes(const LayoutSizes& sizes, int64_t world_size) {
  std::vector<std::string> used, unused;
  for (const Axis axis : {Axis::kDpShard, Axis::kDpReplicate, Axis::kPp, Axis::kCp, Axis::kSp, Axis::kTp}) {
    const int64_t others = num_ranks(sizes) / sizes[axis];
    if (world_size % others != 0) continue;
    (sizes[axis] > 1 ? used : unused).push_back(text(axis_name(axis), " = ", world_size / others));
  }
  return join(used.empty() ? unused : used, " or ");
}

// "tp 3", or "tp 2 x pp 3 = 6".
std::string product_text(const LayoutSizes& sizes) {
  int in_use = 0;
  for (const Axis axis : kAxes) in_use += sizes[axis] != 1 ? 1 : 0;
  return in_use == 1 ? layout_text(sizes) : text(layout_text(sizes), " = ", num_ranks(sizes));
}

// Sizes of the axes in use each of which alone would let the product divide the world, as "tp may be 1, 2, 4, 8".
std::string dividing_sizes(const LayoutSizes& sizes, int64_t world_size) {
  std::vector<std::string> words;
  for (const Axis axis : kAxes) {
    const int64_t others = num_ranks(sizes) / sizes[axis];
    if (sizes[axis] == 1 || world_size % others != 0) continue;
    std::vector<int64_t> fitting;
    for (int64_t size = 1; size <= world_size / others; ++size) {
      if (world_size / others % size == 0) fitting.push_back(size);
    }
    words.push_back(text(axis_name(axis), " may be ", join(fitting)));
  }
  return join(words, ", or ");
}

void check_sizes(const LayoutSizes& sizes) {
  const Origin origin{"plan"};
  int open = 0;
  for (const Axis axis : kAxes) {
    if (sizes[axis] == -1) ++open;
    if (sizes[axis] < 1 && sizes[axis] != -1)
      throw UsageError(origin, axis_name(axis), " is ", sizes[axis],
                       "; expected at least 1, or -1 on one axis for the rest of the world.");
  }
  if (open > 1) throw UsageError(origin, count_text(open, "axis", "axes"),
                                 " are -1; expected one at most. Give the sizes of the others.");
  if (sizes.cp != 1 && sizes.sp != 1)
    throw UsageError(origin, "cp ", sizes.cp, " and sp ", sizes.sp,
                     " are given together; expected one of them, since both split the sequence. Set one to 1.");
}

}  // namespace

int& LayoutSizes::operator[](Axis axis) {
  int* const places[] = {&pp, &dp_replicate, &dp_shard, &cp, &sp, &tp};
  return *places[static_cast<size_t>(axis)];
}

int LayoutSizes::operator[](Axis axis) const {
  return const_cast<LayoutSizes&>(*this)[axis];
}

std::string_view axis_name(Axis axis) {
  return kAxisNames[static_cast<size_t>(axis)];
}

Axis parse_axis(std::string_view name) {
  const std::string_view bare = name.ends_with("_size") ? name.substr(0, name.size() - 5) : name;
  for (const Axis axis : kAxes) {
    if (axis_name(axis) == bare) return axis;
  }
  throw UsageError({"plan"}, "'", name, "' is no axis of a layout; expected one of ", join(kAxisNames),
                   guess_end(bare, {kAxisNames.begin(), kAxisNames.end()}));
}

int64_t num_ranks(const LayoutSizes& sizes) {
  int64_t product = 1;
  for (const Axis axis : kAxes) product *= sizes[axis];
  return product;
}

std::string layout_text(const LayoutSizes& sizes) {
  std::vector<std::string> parts;
  for (const Axis axis : {Axis::kTp, Axis::kPp, Axis::kSp, Axis::kCp, Axis::kDpShard, Axis::kDpReplicate}) {
    if (sizes[axis] != 1) parts.push_back(text(axis_name(axis), " ", sizes[axis]));
  }
  return parts.empty() ? "one rank" : join(parts, " x ");
}

LayoutSizes fit_to_world(LayoutSizes sizes, int64_t world_size) {
  const Origin origin{"plan"};
  if (world_size < 1) throw UsageError(origin, "the world has ", count_text(world_size, "rank"),
                                       "; expected at least 1.");
  check_sizes(sizes);
  for (const Axis axis : kAxes) {
    if (sizes[axis] != -1) continue;
    const int64_t others = -num_ranks(sizes);
    if (world_size % others != 0) {
      LayoutSizes known = sizes;
      known[axis] = 1;
      const std::string changes = dividing_sizes(known, world_size);
      throw UsageError(origin, product_text(known), " does not divide the world of ", world_size, ", so that no ",
                       axis_name(axis), " fills it; ",
                       changes.empty() ? "no change of one axis would do. Give sizes whose product divides the world."
                                       : changes + ".");
    }
    sizes[axis] = static_cast<int>(world_size / others);
  }
  if (num_ranks(sizes) == world_size) return sizes;
  const std::string changes = fitting_changes(sizes, world_size);
  const int64_t num = num_ranks(sizes);
  const std::string layout = num == 1 ? "a layout without axes" : "the layout " + layout_text(sizes);
  throw UsageError(origin, layout, " is for ", count_text(num, "process"), ", and this run has ", world_size, ". ",
                   changes.empty() ? "No change of one axis fits: give sizes whose product is " + text(world_size)
                                   : "Set " + changes,
                   ", or start ", count_text(num, "process"), " (hasten launch -n ", num, ").");
}

std::vector<Axis> mesh_axes(const LayoutSizes& sizes) {
  return present(sizes, {Axis::kPp, Axis::kDpReplicate, Axis::kDpShard, Axis::kCp, Axis::kSp, Axis::kTp});
}

std::vector<Axis> data_axes(const LayoutSizes& sizes) {
  return present(sizes, {Axis::kDpReplicate, Axis::kDpShard});
}

std::vector<Axis> shard_axes(const LayoutSizes& sizes) {
  return present(sizes, {Axis::kDpShard, Axis::kCp});
}

std::vector<Axis> loss_axes(const LayoutSizes& sizes) {
  return present(sizes, {Axis::kDpReplicate, Axis::kDpShard, Axis::kCp});
}

std::vector<Axis> model_axes(const LayoutSizes& sizes) {
  return present(sizes, {Axis::kPp, Axis::kTp});
}

Coordinate coordinate_of(const LayoutSizes& sizes, int64_t rank) {
  if (rank < 0 || rank >= num_ranks(sizes))
    throw UsageError({"plan"}, "rank ", rank, " is outside of ", layout_text(sizes), " = ",
                     count_text(num_ranks(sizes), "rank"),
                     ".");
  Coordinate coordinate;
  for (auto axis = kAxes.rbegin(); axis != kAxes.rend(); ++axis) {
    coordinate[*axis] = static_cast<int>(rank % sizes[*axis]);
    rank /= sizes[*axis];
  }
  return coordinate;
}

int64_t rank_at(const LayoutSizes& sizes, const Coordinate& coordinate) {
  int64_t rank = 0;
  for (const Axis axis : kAxes) {
    if (coordinate[axis] < 0 || coordinate[axis] >= sizes[axis])
      throw UsageError({"plan"}, axis_name(axis), " ", coordinate[axis], " is outside of its ",
                       count_text(sizes[axis], "rank"), ".");
    rank = rank * sizes[axis] + coordinate[axis];
  }
  return rank;
}

std::vector<int> group_of(const LayoutSizes& sizes, const std::vector<Axis>& axes, int64_t rank) {
  Coordinate start = coordinate_of(sizes, rank);
  for (const Axis axis : axes) start[axis] = 0;
  std::vector<int> ranks = {static_cast<int>(rank_at(sizes, start))};
  // From the innermost axis on, each one repeats what is there at its stride.
  int64_t stride = 1;
  for (auto axis = kAxes.rbegin(); axis != kAxes.rend(); stride *= sizes[*axis], ++axis) {
    if (std::find(axes.begin(), axes.end(), *axis) == axes.end()) continue;
    const std::vector<int> inner = ranks;
    for (int i = 1; i < sizes[*axis]; ++i) {
      for (const int member : inner) ranks.push_back(static_cast<int>(member + i * stride));
    }
  }
  return ranks;
}

std::vector<std::vector<int>> groups_along(const LayoutSizes& sizes, const std::vector<Axis>& axes) {
  std::vector<std::vector<int>> groups;
  for (int64_t rank = 0; rank < num_ranks(sizes); ++rank) {
    const Coordinate coordinate = coordinate_of(sizes, rank);
    const bool first = std::all_of(axes.begin(), axes.end(), [&](Axis axis) { return coordinate[axis] == 0; });
    if (first) groups.push_back(group_of(sizes, axes, rank));
  }
  return groups;
}

std::string coordinate_text(const LayoutSizes& sizes, int64_t rank) {
  const Coordinate coordinate = coordinate_of(sizes, rank);
  const bool one_data_axis = data_axes(sizes).size() == 1;
  std::vector<std::string> parts;
  for (const Axis axis : mesh_axes(sizes)) {
    const bool data = axis == Axis::kDpReplicate || axis == Axis::kDpShard;
    parts.push_back(text(data && one_data_axis ? "dp" : axis_name(axis), " ", coordinate[axis]));
  }
  return parts.empty() ? text("rank ", rank) : text("rank ", rank, " (", join(parts), ")");
}

}  // namespace hasten::plan
