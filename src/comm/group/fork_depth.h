// fork_depth: whether a process is the one that made a group, at the cost of one load.
#pragma once

#include "comm/group/call_name.h"
#include "hasten/core/error.h"

namespace hasten::comm {

/// Returns how many calls of fork() lie between this process and the one that called fork_depth first.
int fork_depth() noexcept;

/// Throws: UsageError that names the call of a child.
[[noreturn]] void throw_forked(const Origin& origin, CallName call);

}  // namespace hasten::comm
