// Where a message about a group's operation comes from.
#pragma once

#include "hasten/comm/group/group.h"
#include "hasten/core/error.h"

namespace hasten::comm::detail {

inline Origin origin_of(const Group& group) {
  return {"comm", group.rank(), group.world_size()};
}

}  // namespace hasten::comm::detail
