// Sharing: how the ranks on one host come to have one segment.
//
// The first of them makes it and sends its descriptor to the others over a Unix socket. The socket's name and a secret
// are in the run's store. A caller must have the secret and belong to the same user. A rank that is a thread of the
// first one's process is given the same mapping, so that a thread sanitizer follows the shared memory.
#pragma once

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/shared/memory/segment.h"
#include "hasten/comm/store/store.h"

namespace hasten::comm::shared {

/// Returns this host, as far as sharing memory goes: the kernel's boot id and the network namespace. Ranks connect by
/// the namespace's abstract sockets, and it distinguishes containers. Empty if it is unknown.
std::string this_host();

/// No segment can be shared; all ranks get the same reason.
struct NotShared : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Returns the segment of the `layout.world_size` ranks that use `store`, with this rank's place taken. Collective over
/// them. Blocks: until all have it. Throws: NotShared on all of them.
std::shared_ptr<Segment> share_segment(const Store& store, int rank, const Layout& layout,
                                       std::chrono::milliseconds timeout);

}  // namespace hasten::comm::shared
