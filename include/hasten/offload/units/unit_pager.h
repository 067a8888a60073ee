// UnitPager: memory that processes of a host share, of which only the units in use have pages.
//
// Every unit is a range of whole pages that no process may read until the pager has filled it. A read of a unit that is
// not there, by whatever code, ends in a fault. The handler waits while the pager's thread fills the unit, and the read
// goes on. So operators, copies and pointers of the program all get values, and nothing has to be called. touch() does
// the same before an operator, without a fault, and can throw. The unit that followed last time is filled ahead. A unit
// is freed when none of the host's processes holds it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace hasten::offload {

/// Bytes of a range of the memory; whole pages.
struct PagedUnit {
  int64_t begin = 0;
  int64_t num_bytes = 0;
};

struct UnitPagerOptions {
  std::vector<PagedUnit> units = {};
  /// The two mappings of the memory in this process: for readers, and for the pager.
  const std::byte* readable = nullptr;
  std::byte* writable = nullptr;
  /// Zeroed memory of control_bytes() that the host's processes share.
  std::byte* control = nullptr;
  /// Fills a unit through `writable`. Called in the pager's thread, for one unit at a time. Throws: any exception; it
  /// reaches touch(), and ends the process if a fault waits for it.
  std::function<void(size_t unit)> fill = {};
  /// Units that this process holds at a time, if they are more than max_live_bytes: at least 2.
  int64_t max_live_units = 2;
  int64_t max_live_bytes = 0;
  /// Units that the program reads again within this many bytes of other units stay, beyond the limits (DeepSpeed's
  /// stage3_max_reuse_distance). Expected is the order of reads between the last two drops, as long as the program
  /// follows it. 0: none stays for that.
  int64_t max_reuse_bytes = 0;
  /// Bytes that are filled ahead of their use.
  int64_t prefetch_bytes = 0;
  /// How long a reader waits for a unit.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
};

struct PagerCounts {
  int64_t fills = 0;   ///< units that this process has filled
  int64_t shared = 0;  ///< units that it found filled by others
  int64_t faults = 0;  ///< reads that waited in the fault handler
  int64_t max_held_bytes = 0;
};

/// Frees the memory of whole pages of a shared mapping in all processes. They read as zeros from then on.
void give_back_pages(std::byte* begin, int64_t num_bytes) noexcept;

class UnitPager {
 public:
  static int64_t control_bytes(size_t num_units);

  /// All units are taken for not filled. Starts a thread.
  explicit UnitPager(UnitPagerOptions options);
  /// Ends the thread after the fill in progress; the memory can be read no more.
  ~UnitPager();
  UnitPager(const UnitPager&) = delete;
  UnitPager& operator=(const UnitPager&) = delete;

  /// Returns once the unit can be read. It stays until other units have taken its place. `fills_ahead`: the unit that
  /// followed this one the last time is filled as well; this holds for faults until the next touch that waits.
  /// Blocks: until it is filled. Throws: what `fill` threw; CommError after the timeout.
  void touch(size_t unit, bool fills_ahead = true);
  /// Starts to fill the unit that followed the last one, as touch does with `fills_ahead`.
  void fill_next() noexcept;
  /// Waits for the fill in progress, and fills nothing from then on; readers wait.
  void pause();
  /// Gives all units back: their contents are old. After pause().
  void drop();
  void resume();
  bool is_paused() const noexcept;

  PagerCounts counts() const noexcept;
  const std::vector<PagedUnit>& units() const noexcept;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace hasten::offload
