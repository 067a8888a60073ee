// DeviceMesh: the ranks of a group as a grid with named axes (torch.distributed.device_mesh).
//
// The last axis varies fastest: with {{"dp", 2}, {"tp", 4}} ranks 0 to 3 are one "tp" group. Each axis has a Group of
// the ranks that differ in this axis alone. Its backends connect at their first collective, so an axis that is not used
// costs nothing.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "hasten/comm/group/group.h"

namespace hasten::comm {

struct MeshAxis {
  std::string name;
  /// At least 1. -1 on one axis: the ranks that the others leave.
  int size = 1;
};

/// The arithmetic of a mesh, without groups.
class MeshLayout {
 public:
  /// Throws: UsageError if sizes do not multiply to world_size, or for a name that is empty
  /// or used twice.
  MeshLayout(std::vector<MeshAxis> axes, int world_size);

  const std::vector<MeshAxis>& axes() const noexcept { return axes_; }
  int world_size() const noexcept { return world_size_; }
  /// Throws (these): UsageError for an unknown axis.
  int size(const std::string& axis) const;
  int coordinate(int rank, const std::string& axis) const;
  /// Coordinates, an entry an axis, in order.
  std::vector<int> coordinates(int rank) const;
  /// Throws: UsageError for a wrong number of coordinates, or one outside its axis.
  int rank_at(const std::vector<int>& coordinates) const;
  /// Returns the ranks that agree with `rank` on all axes but these, in the order of ranks.
  std::vector<int> ranks_along(int rank, const std::vector<std::string>& axes) const;

 private:
  size_t index_of(const std::string& axis) const;
  std::vector<MeshAxis> axes_;
  int world_size_;
};

/// A value handle; copies share the groups.
class DeviceMesh {
 public:
  /// Collective: yes. Blocks: until all ranks have called. Throws: as MeshLayout; CommError, also where the ranks give
  /// different axes.
  DeviceMesh(const Group& group, std::vector<MeshAxis> axes, Group::Site site = Group::Site::current());

  const MeshLayout& layout() const noexcept { return layout_; }
  /// Returns the group of the whole mesh.
  const Group& world() const noexcept { return world_; }
  int size(const std::string& axis) const { return layout_.size(axis); }
  /// Returns this rank's coordinate on an axis.
  int coordinate(const std::string& axis) const { return layout_.coordinate(world_.rank(), axis); }

  /// Returns the group of an axis; rank() in it is this rank's coordinate. Its first operation must be a collective
  /// (Group::connect_backends), not a message.
  /// Throws: UsageError for an unknown axis.
  const Group& group(const std::string& axis) const;

  /// Returns the group over several axes, for example the gradients' over {"dp", "cp"}; made anew at each call.
  /// Collective: yes. Blocks: until all ranks of the mesh have called. Throws: UsageError for an unknown axis;
  /// CommError.
  Group flatten(const std::vector<std::string>& axes, Group::Site site = Group::Site::current()) const;

 private:
  MeshLayout layout_;
  Group world_;
  std::map<std::string, Group> groups_;
};

}  // namespace hasten::comm
