// See device_mesh.h.
#include "hasten/comm/mesh/device_mesh.h"

#include <torch/types.h>

#include <algorithm>
#include <set>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/core/text.h"

namespace hasten::comm {
namespace {

const Origin kOrigin{"mesh"};

std::string words(const std::vector<MeshAxis>& axes) {
  std::string all;
  for (const auto& axis : axes) all += text(all.empty() ? "" : ", ", axis.name, ' ', axis.size);
  return text('{', all, '}');
}

// The sizes as a tensor that the ranks compare: an axis a row, its size and a hash of its name.
at::Tensor fingerprint_of(const std::vector<MeshAxis>& axes) {
  at::Tensor rows = torch::zeros({16, 2}, at::kLong);
  for (size_t i = 0; i < std::min<size_t>(axes.size(), 16); ++i) {
    int64_t hash = 17;
    for (const char c : axes[i].name) hash = hash * 31 + c;
    rows[static_cast<int64_t>(i)][0] = axes[i].size;
    rows[static_cast<int64_t>(i)][1] = hash & 0xffffffff;
  }
  return rows;
}

void check_alike(const Group& group, const std::vector<MeshAxis>& axes) {
  const at::Tensor mine = fingerprint_of(axes);
  const at::Tensor all = torch::zeros({group.world_size() * 16, 2}, at::kLong);
  group.all_gather_into_(all, mine);
  for (int rank = 0; rank < group.world_size(); ++rank) {
    if (all.narrow(0, rank * 16, 16).equal(all.narrow(0, 0, 16))) continue;
    throw CommError({"mesh", group.rank(), group.world_size()}, "mesh", "rank ", rank,
                    " makes another mesh than rank 0; here it is ", words(axes),
                    ". Give all ranks the same axes in the same order.");
  }
}

}  // namespace

MeshLayout::MeshLayout(std::vector<MeshAxis> axes, int world_size) : axes_(std::move(axes)), world_size_(world_size) {
  std::set<std::string> names;
  int known = 1;
  MeshAxis* open = nullptr;
  for (auto& axis : axes_) {
    if (axis.name.empty() || !names.insert(axis.name).second) {
      throw UsageError(kOrigin, "axis '", axis.name, "' of mesh ", words(axes_), ": give each axis a name of its own.");
    }
    if ((axis.size < 1 && axis.size != -1) || (axis.size == -1 && open != nullptr)) {
      throw UsageError(kOrigin, "axis '", axis.name, "' has size ", axis.size, " in mesh ", words(axes_),
                       "; expected 1 or more, or -1 on one axis for the ranks that are left.");
    }
    if (axis.size == -1) {
      open = &axis;
    } else {
      known *= axis.size;
    }
  }
  if (open != nullptr && world_size % known == 0) known *= open->size = world_size / known;
  if (axes_.empty() || known != world_size || (open != nullptr && open->size < 1)) {
    throw UsageError(kOrigin, "mesh ", words(axes_), " has ", known, " places, but the group has ", world_size,
                     " ranks. Choose sizes whose product is the number of ranks.");
  }
}

size_t MeshLayout::index_of(const std::string& axis) const {
  const auto found = std::find_if(axes_.begin(), axes_.end(), [&](const MeshAxis& one) { return one.name == axis; });
  if (found != axes_.end()) return static_cast<size_t>(found - axes_.begin());
  throw UsageError(kOrigin, "no axis '", axis, "' in mesh ", words(axes_), ". Use one of its names.");
}

int MeshLayout::size(const std::string& axis) const {
  return axes_[index_of(axis)].size;
}

std::vector<int> MeshLayout::coordinates(int rank) const {
  std::vector<int> result(axes_.size());
  for (size_t i = axes_.size(); i-- > 0; rank /= axes_[i].size) result[i] = rank % axes_[i].size;
  return result;
}

int MeshLayout::coordinate(int rank, const std::string& axis) const {
  return coordinates(rank)[index_of(axis)];
}

int MeshLayout::rank_at(const std::vector<int>& coordinates) const {
  int rank = 0;
  bool fits = coordinates.size() == axes_.size();
  for (size_t i = 0; fits && i < axes_.size(); ++i) {
    fits = coordinates[i] >= 0 && coordinates[i] < axes_[i].size;
    rank = rank * axes_[i].size + coordinates[i];
  }
  if (fits) return rank;
  throw UsageError(kOrigin, "coordinates [", join(coordinates), "] are outside mesh ", words(axes_),
                   ". Give one for each axis, from 0 to its size - 1.");
}

std::vector<int> MeshLayout::ranks_along(int rank, const std::vector<std::string>& axes) const {
  std::vector<bool> is_free(axes_.size(), false);
  for (const auto& axis : axes) is_free[index_of(axis)] = true;
  const auto mine = coordinates(rank);
  std::vector<int> ranks;
  for (int other = 0; other < world_size_; ++other) {
    const auto theirs = coordinates(other);
    bool agrees = true;
    for (size_t i = 0; i < axes_.size(); ++i) agrees = agrees && (is_free[i] || theirs[i] == mine[i]);
    if (agrees) ranks.push_back(other);
  }
  return ranks;
}

DeviceMesh::DeviceMesh(const Group& group, std::vector<MeshAxis> axes, Group::Site site)
    : layout_(std::move(axes), group.world_size()), world_(group) {
  check_alike(group, layout_.axes());
  for (const auto& axis : layout_.axes()) groups_.emplace(axis.name, flatten({axis.name}, site));
}

const Group& DeviceMesh::group(const std::string& axis) const {
  layout_.size(axis);
  return groups_.at(axis);
}

Group DeviceMesh::flatten(const std::vector<std::string>& axes, Group::Site site) const {
  const auto ranks = layout_.ranks_along(world_.rank(), axes);
  // All groups of these axes are made by one split: their first ranks distinguish them.
  return *world_.split(ranks.front(), world_.rank(), {.lazy = true}, site);
}

}  // namespace hasten::comm
