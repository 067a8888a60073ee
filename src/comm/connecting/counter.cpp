// See counter.h.
#include "comm/connecting/counter.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

#include "hasten/core/cpu_quota.h"

namespace hasten::comm::shared {
namespace {

// The atomic's own address is the futex; it is shared between processes, so not FUTEX_PRIVATE_FLAG.
long futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

int num_cores() {
  return usable_cpus();
}

void Counter::sleep(uint32_t seen, std::chrono::milliseconds at_most) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at_most);
  const timespec timeout{static_cast<time_t>(seconds.count()),
                         static_cast<long>(std::chrono::nanoseconds(at_most - seconds).count())};
  sleepers.fetch_add(1);
  if (value.load() == seen) futex(value, FUTEX_WAIT, seen, &timeout);
  sleepers.fetch_sub(1);
}

void Counter::wake_all() {
  futex(value, FUTEX_WAKE, INT_MAX, nullptr);
}

SpinPolicy SpinPolicy::of(int ranks) {
  if (ranks <= num_cores()) return {};
  return {.yields = true, .time = std::chrono::microseconds(20)};
}

std::chrono::milliseconds linger_of(int ranks) {
  return std::chrono::milliseconds(2 * ranks <= num_cores() ? 0 : 5);
}

void pause_or_yield(bool yields) {
  if (yields) {
    sched_yield();
    return;
  }
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace hasten::comm::shared
