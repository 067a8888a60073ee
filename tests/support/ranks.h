// run_ranks: N ranks as N threads of this process, each with its own group over one in-memory store.
//
// Quick (a world of 4 in 0.2 s), but the threads share what a process shares: the default random generator,
// the environment, exit codes. Tests of those use processes.h.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "hasten/process/process.h"

namespace hasten::testing {

using RankFunction = std::function<void(process::Process&)>;

struct RankOptions {
  std::chrono::milliseconds timeout = std::chrono::seconds(20);
  bool check = true;
  /// Changes a rank's options before it connects.
  std::function<void(int rank, comm::GroupOptions&)> adjust = {};
};

/// Runs `fn` on every rank, on the rank's test_device() (test_device.h). A rank that throws leaves its words, as a
/// failing process does. Returns what each rank threw, "" for those that returned.
std::vector<std::string> run_ranks_collecting(int world_size, const RankFunction& fn, const RankOptions& options = {});

/// As above; throws what the first failing rank threw.
void run_ranks(int world_size, const RankFunction& fn, const RankOptions& options = {});

}  // namespace hasten::testing
