// See monitored_barrier.h. Rank 0 waits for the others and lets them go. They come in any order.
#include "comm/c10d/monitored_barrier.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <vector>

#include "hasten/comm/c10d/group_backend.h"
#include "hasten/comm/types/wait_check.h"
#include "hasten/core/error.h"

namespace hasten::comm {
namespace {

using Clock = std::chrono::steady_clock;
constexpr const char* kVerdict = "verdict";

// How long rank 0, which may serve the store, stays until the others have read the verdict.
constexpr std::chrono::milliseconds kLongestRead{5000};

std::string key_of(int rank) {
  return text("rank/", rank);
}

std::string read_key_of(int rank) {
  return text("read/", rank);
}

// Polls until `ready()` or the deadline; whether it is ready.
template <class Ready>
bool poll_until(Clock::time_point deadline, const Ready& ready) {
  auto pause = std::chrono::milliseconds(1);
  while (!ready()) {
    if (Clock::now() >= deadline) return false;
    WaitCheck::run();
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::milliseconds(20));
  }
  return true;
}

// Sets the verdict, and stays until `present` have read it: a process that ends takes the store that it serves along.
void give_verdict(const MonitoredBarrier& barrier, const std::string& verdict, const std::vector<int>& present) {
  barrier.keys.set(kVerdict, verdict);
  const auto deadline = Clock::now() + kLongestRead;
  for (const int rank : present) {
    poll_until(deadline, [&] { return barrier.keys.get(read_key_of(rank)).has_value(); });
  }
}

void wait_for_others(const MonitoredBarrier& barrier) {
  const Origin origin{"comm", 0, barrier.world_size};
  const auto limit = barrier.timeout.count();
  std::vector<int> present;
  const auto fail = [&](const std::string& words) {
    give_verdict(barrier, words, present);
    throw CommError(origin, "monitored_barrier", "[Rank 0]: ", words);
  };
  if (limit <= 0) fail(text("Rank 0 timed out in monitoredBarrier after ", limit, " ms."));
  const auto deadline = Clock::now() + barrier.timeout;
  std::vector<int> missing;
  for (int rank = 1; rank < barrier.world_size; ++rank) {
    if (poll_until(deadline, [&] { return barrier.keys.get(key_of(rank)).has_value(); })) {
      present.push_back(rank);
      continue;
    }
    missing.push_back(rank);
    if (!barrier.wait_all_ranks) break;
  }
  if (!missing.empty()) {
    fail(text(missing.size() == 1 ? "Rank " : "Ranks ", join(missing), " failed to pass monitoredBarrier in ", limit,
              " ms"));
  }
  give_verdict(barrier, "", present);
}

void wait_for_verdict(const MonitoredBarrier& barrier) {
  barrier.keys.set(key_of(barrier.rank), "");
  std::optional<std::string> verdict;
  poll_until(Clock::now() + barrier.timeout, [&] { return (verdict = barrier.keys.get(kVerdict)).has_value(); });
  barrier.keys.set(read_key_of(barrier.rank), "");
  if (verdict && verdict->empty()) return;
  throw CommError({"comm", barrier.rank, barrier.world_size}, "monitored_barrier", "[Rank ", barrier.rank, "]: Rank ",
                  barrier.rank, " successfully reached monitoredBarrier, but received errors while waiting for ",
                  "send/recv from rank 0. Please check rank 0 logs for faulty rank (",
                  verdict ? *verdict : text("rank 0 has not come within ", barrier.timeout.count(), " ms"), ").");
}

}  // namespace

void pass_monitored_barrier(const MonitoredBarrier& barrier) {
  if (barrier.rank == 0) {
    wait_for_others(barrier);
  } else {
    wait_for_verdict(barrier);
  }
}

void GroupBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  check_process();
  const auto store = group_.store();
  if (!store) return;
  const auto timeout = options.timeout == c10d::kUnsetTimeout ? options_->timeout : options.timeout;
  pass_monitored_barrier({.keys = store->scoped(text("monitored_barrier/", monitored_barriers_++)),
                          .rank = getRank(),
                          .world_size = getSize(),
                          .timeout = timeout,
                          .wait_all_ranks = wait_all_ranks});
}

}  // namespace hasten::comm
