// What Process and a process that rejoins (rejoining.h) take from the environment alike.
#pragma once

#include <c10/core/Device.h>

#include <chrono>

#include "hasten/comm/group/group.h"
#include "hasten/comm/store/store.h"
#include "hasten/core/env.h"
#include "hasten/process/rank_info.h"

namespace hasten::process {

/// Returns the options of the group of all ranks. `Options` are ProcessOptions; Process's unit includes this one.
template <class Options>
comm::GroupOptions group_options(const RankInfo& identity, const Options& options) {
  return {.timeout = options.timeout,
          .check = options.check,
          .backend = options.backend,
          .address = is_loopback(identity.master_addr) ? "127.0.0.1" : "",
          .ignore_sigpipe = options.change_process};
}

/// libtorch starts a thread for each core of the machine, and a control group's quota then stops them all for most of
/// the time. A number that the user or the launcher has set stays.
void limit_threads(const Environment& environment);

/// Returns this rank's device, which becomes the current one. `stays`: on the CPU. `store`: null where ranks have not
/// met. Else a rank whose number is none of its devices' waits at most `timeout` for those of its host.
c10::Device take_device(const RankInfo& identity, bool stays, const Environment& environment,
                        const comm::Store* store = nullptr, std::chrono::milliseconds timeout = {});

/// Returns true if HASTEN_SURVIVE asks for replacements of dead ranks, and there are several.
bool asks_for_replacements(const RankInfo& identity, const Environment& environment);

/// Throws: UsageError if it does, for a process that cannot be replaced.
void require_none_replaced(const RankInfo& identity, const Environment& environment);

}  // namespace hasten::process
