// Counter: a number in shared memory that one rank raises and others wait for.
//
// A waiter polls for a while. A peer that is about to come is there within microseconds or, in a step of training, a
// few milliseconds. Then it sleeps in the kernel on a futex, so that it takes no core for long. Raising costs a system
// call only if a waiter sleeps. A raise writes the value and then reads the number of sleepers. A sleeper counts itself
// and then reads the value. All are sequentially consistent, so at least one side notices the other.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "hasten/comm/types/wait_check.h"

namespace hasten::comm::shared {

struct Counter {
  alignas(64) std::atomic<uint32_t> value{0};
  alignas(64) std::atomic<uint32_t> sleepers{0};

  /// Returns true if `seen` is `target` or later; the numbers wrap around.
  static bool reached(uint32_t seen, uint32_t target) { return static_cast<int32_t>(seen - target) >= 0; }
  bool reached(uint32_t target) const { return reached(value.load(std::memory_order_acquire), target); }

  void raise(uint32_t to) {
    value.store(to);
    wake();
  }
  void raise_by_one() {
    value.fetch_add(1);
    wake();
  }
  /// Wakes sleepers, so that they poll again.
  void wake() {
    if (sleepers.load() > 0) wake_all();
  }

  /// Sleeps until the value is no longer `seen`, a wake-up comes, or the time has passed.
  void sleep(uint32_t seen, std::chrono::milliseconds at_most);

 private:
  void wake_all();
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

/// Returns the number of cores that this process may use.
int num_cores();

/// How long to poll before sleeping. Every microsecond the core is yielded once, since the peer may be waiting for it,
/// or another thread of this process. Right after their start the kernel tends to put two processes that wake each
/// other on one core. If ranks outnumber the cores, the core is yielded between any two polls, for a much shorter time.
struct SpinPolicy {
  bool yields = false;
  /// Ranks of a training step come within a few milliseconds of each other, and a core that sleeps meanwhile is slow to
  /// wake. A step of two ranks takes 3 % less time than with 50 us.
  std::chrono::microseconds time = std::chrono::milliseconds(3);

  /// For `ranks` ranks on the cores that this process may use.
  static SpinPolicy of(int ranks);
};

/// How long an operation without a waiter is left alone, if ranks and threads of their own would outnumber the cores. A
/// thread that wakes there takes a core from a rank that computes.
std::chrono::milliseconds linger_of(int ranks);

/// How often a sleeper wakes to see whether waiting still makes sense.
constexpr std::chrono::milliseconds kSleep{100};

/// Polls until `ready()`; false when the patience is at its end.
template <class Ready>
bool look(const SpinPolicy& spin, const Ready& ready);

/// Waits until the counter has reached `target`. `check` is called between two sleeps and throws to give up. A peer
/// that has raised the counter and then gone has come all the same.
template <class Check>
void wait(Counter& counter, uint32_t target, const SpinPolicy& spin, const Check& check) {
  if (look(spin, [&] { return counter.reached(target); })) return;
  for (;;) {
    const uint32_t seen = counter.value.load();
    if (Counter::reached(seen, target)) return;
    counter.sleep(seen, kSleep);
    if (counter.reached(target)) return;
    try {
      WaitCheck::run();
      check();
    } catch (...) {
      if (counter.reached(target)) return;
      throw;
    }
  }
}

void pause_or_yield(bool yields);

template <class Ready>
bool look(const SpinPolicy& spin, const Ready& ready) {
  constexpr int kLooksPerClock = 64;
  if (ready()) return true;
  const auto end = std::chrono::steady_clock::now() + spin.time;
  do {
    for (int i = 0; i < kLooksPerClock; ++i) {
      if (ready()) return true;
      pause_or_yield(spin.yields);
    }
    pause_or_yield(true);
  } while (std::chrono::steady_clock::now() < end);
  return ready();
}

}  // namespace hasten::comm::shared
