// See unit_pager.h.
#include "hasten/offload/units/unit_pager.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/offload/units/named_memory.h"

namespace hasten::offload {
namespace detail {

// The state of one unit, in memory that the host's processes share.
struct SharedUnit {
  enum State : uint32_t { kAbsent, kFilling, kPresent };
  std::atomic<uint32_t> lock{0};
  std::atomic<uint32_t> state{kAbsent};
  std::atomic<int32_t> holders{0};
  std::atomic<uint32_t> unused{0};
};
static_assert(sizeof(SharedUnit) == 16 && std::atomic<uint32_t>::is_always_lock_free);

class SharedLock {
 public:
  explicit SharedLock(SharedUnit& unit) : unit_(unit) {
    while (unit_.lock.exchange(1, std::memory_order_acquire) != 0) std::this_thread::yield();
  }
  ~SharedLock() { unit_.lock.store(0, std::memory_order_release); }
  SharedLock(const SharedLock&) = delete;
  SharedLock& operator=(const SharedLock&) = delete;

 private:
  SharedUnit& unit_;
};

}  // namespace detail

namespace {

using detail::SharedLock;
using detail::SharedUnit;
using Clock = std::chrono::steady_clock;

// Usable in a signal handler. Waits while the word has the value, for at most a millisecond.
void wait_while(std::atomic<uint32_t>& word, uint32_t value) {
  const timespec limit{0, 1'000'000};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, &limit, nullptr, 0);
}

void wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace

struct UnitPager::Impl {
  explicit Impl(UnitPagerOptions given)
      : options(std::move(given)), own(options.units.size()), shared(reinterpret_cast<SharedUnit*>(options.control)) {}

  // The state of one unit in this process.
  struct Own {
    std::atomic<uint32_t> readable{0};
    std::atomic<bool> requested{false};
    std::atomic<bool> failed{false};
    /// This process's place among the holders, and the time since which the unit is readable. Of the pager's thread.
    bool held = false;
    Clock::time_point since = {};
  };

  UnitPagerOptions options;
  std::vector<Own> own;
  SharedUnit* shared;
  FaultRange range;
  std::atomic<uint32_t> requests{0};
  /// Threads that wait for units.
  std::atomic<int> waiting{0};
  std::atomic<bool> ending{false}, paused{false}, resting{false};
  /// Whether a unit that is served brings the next one, and whether fill_next() waits to be served.
  std::atomic<bool> brings_next{true}, next_wanted{false};
  std::atomic<int64_t> fills{0}, found{0}, faults{0}, max_held{0};
  std::mutex error_mutex;
  std::exception_ptr error;
  /// The order of uses, for max_reuse_bytes: since the last drop, and between the two before.
  std::atomic<size_t> last_used{SIZE_MAX};
  std::mutex uses_mutex;
  std::vector<size_t> uses, earlier_uses;
  /// The rest is the thread's, or its owner's while the thread rests.
  std::deque<size_t> held;
  int64_t held_bytes = 0;
  std::map<std::pair<size_t, size_t>, size_t> successors;
  size_t last = SIZE_MAX, before_last = SIZE_MAX;
  std::thread thread;

  std::byte* begin_of(const std::byte* base, size_t unit) const {
    return const_cast<std::byte*>(base) + options.units[unit].begin;
  }
  size_t bytes_of(size_t unit) const { return static_cast<size_t>(options.units[unit].num_bytes); }

  void ask(size_t unit) {
    own[unit].requested.store(true);
    requests.fetch_add(1);
    wake_all(requests);
  }

  // In a signal handler: nothing here allocates or takes a mutex.
  bool await(size_t unit) {
    const auto limit = Clock::now() + options.timeout;
    waiting.fetch_add(1);
    bool there = own[unit].readable.load() != 0;
    while (!there && !own[unit].failed.load() && !ending.load() && Clock::now() < limit) {
      ask(unit);
      wait_while(own[unit].readable, 0);
      there = own[unit].readable.load() != 0;
    }
    waiting.fetch_sub(1);
    return there;
  }

  static bool on_fault(void* self, uintptr_t address) {
    auto& pager = *static_cast<Impl*>(self);
    const auto offset = static_cast<int64_t>(address - reinterpret_cast<uintptr_t>(pager.options.readable));
    const auto& units = pager.options.units;
    const auto after = std::upper_bound(units.begin(), units.end(), offset,
                                        [](int64_t at, const PagedUnit& unit) { return at < unit.begin; });
    if (after == units.begin()) return false;
    const auto unit = static_cast<size_t>(after - units.begin()) - 1;
    if (offset >= units[unit].begin + units[unit].num_bytes) return false;
    pager.faults.fetch_add(1);
    return pager.await(unit);
  }

  void run() {
    while (!ending.load()) {
      const uint32_t seen = requests.load();
      if (paused.load()) {
        resting.store(true);
        wait_while(requests, seen);
        continue;
      }
      resting.store(false);
      if (paused.load()) continue;
      if (serve_wanted()) continue;
      if (next_wanted.exchange(false) && last != SIZE_MAX) {
        fill_ahead(last);
      } else {
        wait_while(requests, seen);
      }
    }
    resting.store(true);
  }

  bool serve_wanted() {
    for (size_t unit = 0; unit < own.size(); ++unit) {
      if (!own[unit].requested.exchange(false)) continue;
      if (own[unit].readable.load() == 0) serve(unit);
      return true;
    }
    return false;
  }

  void fail(size_t unit, std::exception_ptr why) {
    const std::lock_guard lock(error_mutex);
    error = std::move(why);
    own[unit].failed.store(true);
    wake_all(own[unit].readable);
  }

  void serve(size_t unit) {
    try {
      hold(unit);
    } catch (...) {
      return fail(unit, std::current_exception());
    }
    if (mprotect(begin_of(options.readable, unit), bytes_of(unit), PROT_READ) != 0) {
      return fail(unit, std::make_exception_ptr(CommError(Origin{"offload"}, "unit", "the pages of unit ", unit,
                                                          " cannot be made readable")));
    }
    own[unit].since = Clock::now();
    own[unit].readable.store(1);
    wake_all(own[unit].readable);
    note_use(unit);
    if (last != SIZE_MAX) successors[{before_last, last}] = unit;
    before_last = std::exchange(last, unit);
    make_room(unit);
    if (brings_next.load()) fill_ahead(unit);
  }

  // Counts this process among the holders of a unit that is there, or that it is to fill; not while another one fills
  // it. Returns the state that it has found.
  SharedUnit::State join_holders(size_t unit) {
    SharedUnit& all = shared[unit];
    const SharedLock lock(all);
    const auto state = static_cast<SharedUnit::State>(all.state.load());
    if (state == SharedUnit::kFilling) return state;
    all.holders.fetch_add(1);
    if (state == SharedUnit::kPresent) found.fetch_add(1);
    if (state == SharedUnit::kAbsent) all.state.store(SharedUnit::kFilling);
    return state;
  }

  // Fills the unit unless another process of the host has.
  void hold(size_t unit) {
    if (own[unit].held) return;
    const auto limit = Clock::now() + options.timeout;
    // Waits without the lock, which the filling process needs at its end.
    auto state = join_holders(unit);
    while (state == SharedUnit::kFilling) {
      if (ending.load() || Clock::now() > limit) {
        throw CommError(Origin{"offload"}, "unit", "another process of this host does not end the filling of unit ",
                        unit);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      state = join_holders(unit);
    }
    if (state == SharedUnit::kAbsent) fill(unit, shared[unit]);
    own[unit].held = true;
    held.push_back(unit);
    held_bytes += options.units[unit].num_bytes;
    max_held.store(std::max(max_held.load(), held_bytes));
  }

  void fill(size_t unit, SharedUnit& all) {
    try {
      options.fill(unit);
    } catch (...) {
      const SharedLock lock(all);
      all.state.store(SharedUnit::kAbsent);
      all.holders.fetch_sub(1);
      throw;
    }
    fills.fetch_add(1);
    const SharedLock lock(all);
    all.state.store(SharedUnit::kPresent);
  }

  void give_back(size_t unit) {
    mprotect(begin_of(options.readable, unit), bytes_of(unit), PROT_NONE);
    own[unit].readable.store(0);
    own[unit].held = false;
    held_bytes -= options.units[unit].num_bytes;
    SharedUnit& all = shared[unit];
    const SharedLock lock(all);
    if (all.holders.fetch_sub(1) > 1) return;
    give_back_pages(begin_of(options.writable, unit), options.units[unit].num_bytes);
    all.state.store(SharedUnit::kAbsent);
  }

  bool is_full(int64_t more) const {
    const bool many =
        static_cast<int64_t>(held.size()) + (more > 0 ? 1 : 0) > std::max<int64_t>(2, options.max_live_units);
    return many && held_bytes + more > options.max_live_bytes;
  }

  // A use in the program's thread, or the fill that a fault waits for.
  void note_use(size_t unit) {
    if (options.max_reuse_bytes == 0 || last_used.exchange(unit) == unit) return;
    const std::lock_guard lock(uses_mutex);
    uses.push_back(unit);
  }

  // Units that come within max_reuse_bytes, if the program goes on as it did before the last drop.
  std::vector<bool> soon_reused() {
    std::vector<bool> soon(own.size());
    if (options.max_reuse_bytes == 0) return soon;
    const std::lock_guard lock(uses_mutex);
    const size_t done = uses.size();
    if (done > earlier_uses.size() || !std::equal(uses.begin(), uses.end(), earlier_uses.begin())) return soon;
    int64_t distance = 0;
    for (size_t i = done; i < earlier_uses.size(); ++i) {
      if (distance > options.max_reuse_bytes) break;
      soon[earlier_uses[i]] = true;
      distance += options.units[earlier_uses[i]].num_bytes;
    }
    return soon;
  }

  // The oldest go. The unit in use and the one before stay, since an operator may read both. If several threads wait
  // for units, each of them gets the time to read its own.
  void make_room(size_t unit) {
    constexpr auto kGrace = std::chrono::milliseconds(5);
    const auto recently = waiting.load() > 1 ? Clock::now() - kGrace : Clock::time_point::max();
    const auto soon = soon_reused();
    for (size_t i = 0; i < held.size() && is_full(0);) {
      const bool is_new = recently != Clock::time_point::max() && own[held[i]].since > recently;
      if (held[i] == unit || held[i] == before_last || is_new || soon[held[i]]) {
        ++i;
        continue;
      }
      give_back(held[i]);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  // The unit that followed this one the last time. It becomes readable by the fault or touch that requests it. So the
  // pager can follow the program.
  void fill_ahead(size_t unit) {
    int64_t ahead = 0;
    size_t before = before_last, now = unit;
    while (!paused.load() && !ending.load()) {
      const auto next = successors.find({before, now});
      if (next == successors.end() || next->second == unit) return;
      const int64_t bytes = options.units[next->second].num_bytes;
      ahead += bytes;
      if (ahead > options.prefetch_bytes) return;
      if (!own[next->second].held) {
        if (is_full(bytes) && ahead > bytes) return;
        try {
          hold(next->second);
        } catch (...) {
          return;  // the reader gets the error
        }
      }
      if (any_wanted()) return;
      before = std::exchange(now, next->second);
    }
  }

  bool any_wanted() const {
    return std::any_of(own.begin(), own.end(), [](const Own& unit) { return unit.requested.load(); });
  }
};

void give_back_pages(std::byte* begin, int64_t num_bytes) noexcept {
  madvise(begin, static_cast<size_t>(num_bytes), MADV_REMOVE);
}

int64_t UnitPager::control_bytes(size_t num_units) {
  return static_cast<int64_t>(std::max<size_t>(1, num_units) * sizeof(SharedUnit));
}

UnitPager::UnitPager(UnitPagerOptions options) : impl_(std::make_shared<Impl>(std::move(options))) {
  auto& own = *impl_;
  for (size_t unit = 0; unit < own.own.size(); ++unit) {
    mprotect(own.begin_of(own.options.readable, unit), own.bytes_of(unit), PROT_NONE);
  }
  if (own.options.units.empty()) return;
  const auto& last = own.options.units.back();
  own.range = FaultRange(own.options.readable + own.options.units.front().begin,
                         static_cast<size_t>(last.begin + last.num_bytes - own.options.units.front().begin),
                         &Impl::on_fault, impl_.get());
  own.thread = std::thread([&own] { own.run(); });
}

UnitPager::~UnitPager() {
  auto& own = *impl_;
  own.range = {};
  own.ending.store(true);
  own.requests.fetch_add(1);
  wake_all(own.requests);
  if (own.thread.joinable()) own.thread.join();
  drop();
}

void UnitPager::fill_next() noexcept {
  auto& own = *impl_;
  own.next_wanted.store(true);
  own.requests.fetch_add(1);
  wake_all(own.requests);
}

void UnitPager::touch(size_t unit, bool fills_ahead) {
  auto& own = *impl_;
  if (own.own.at(unit).readable.load() != 0) return own.note_use(unit);
  own.brings_next.store(fills_ahead);
  if (own.await(unit)) return;
  const std::lock_guard lock(own.error_mutex);
  if (own.error) std::rethrow_exception(own.error);
  throw CommError(Origin{"offload"}, "unit", "a unit of parameters did not come within ",
                  std::chrono::duration_cast<std::chrono::seconds>(own.options.timeout).count(), " s");
}

void UnitPager::pause() {
  auto& own = *impl_;
  if (!own.thread.joinable()) return;
  own.resting.store(false);
  own.paused.store(true);
  own.requests.fetch_add(1);
  wake_all(own.requests);
  while (!own.resting.load()) std::this_thread::sleep_for(std::chrono::microseconds(20));
}

void UnitPager::drop() {
  auto& own = *impl_;
  for (const size_t unit : own.held) own.give_back(unit);
  own.held.clear();
  own.last = own.before_last = SIZE_MAX;
  const std::lock_guard lock(own.uses_mutex);
  own.last_used.store(SIZE_MAX);
  own.earlier_uses = std::exchange(own.uses, {});
}

void UnitPager::resume() {
  auto& own = *impl_;
  own.paused.store(false);
  own.requests.fetch_add(1);
  wake_all(own.requests);
}

bool UnitPager::is_paused() const noexcept {
  return impl_->paused.load();
}

PagerCounts UnitPager::counts() const noexcept {
  return {impl_->fills.load(), impl_->found.load(), impl_->faults.load(), impl_->max_held.load()};
}

const std::vector<PagedUnit>& UnitPager::units() const noexcept {
  return impl_->options.units;
}

}  // namespace hasten::offload
