// See named_memory.h.
#include "hasten/offload/units/named_memory.h"

#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>

namespace hasten::offload {
namespace {

struct Slot {
  /// 0: free. Written last, read first.
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
  std::array<char, 120> name{};
};

struct RangeSlot {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
  std::atomic<FaultRange::Serve> serve{nullptr};
  std::atomic<void*> self{nullptr};
};

// A handler gets an address and nothing else, so the table is the process's.
struct Table {
  std::mutex mutex;
  std::atomic<int> used{0};
  std::array<Slot, 8192> slots;
  std::array<RangeSlot, 256> ranges;
  bool installed = false;
  struct sigaction before {};

  static Table& instance() {
    static Table* const table = new Table;  // a fault may come after static objects have gone
    return *table;
  }
};

// Text for one write; a handler must not allocate, lock or format.
class Line {
 public:
  void add(const char* words) {
    while (*words != '\0' && size_ < bytes_.size()) bytes_[size_++] = *words++;
  }
  void add(size_t number) {
    std::array<char, 24> digits{};
    size_t at = digits.size() - 1;
    do {
      digits[--at] = static_cast<char>('0' + number % 10);
      number /= 10;
    } while (number > 0 && at > 0);
    add(digits.data() + at);
  }
  void write() const { (void)!::write(STDERR_FILENO, bytes_.data(), size_); }

 private:
  std::array<char, 320> bytes_{};
  size_t size_ = 0;
};

void name_fault(const Table& table, uintptr_t address, bool is_write) {
  const int used = table.used.load(std::memory_order_acquire);
  for (int i = 0; i < used; ++i) {
    const Slot& slot = table.slots[static_cast<size_t>(i)];
    const uintptr_t begin = slot.begin.load(std::memory_order_acquire);
    if (begin == 0 || address < begin || address >= slot.end.load()) continue;
    Line line;
    line.add(is_write ? "[offload] write to the read-only parameter '" : "[offload] read of the parameter '");
    line.add(slot.name.data());
    line.add("' at byte ");
    line.add(address - begin);
    line.add(is_write ? ": a kernel or a kept pointer wrote to memory that all ranks read. Write through the tensor.\n"
                      : ", whose values could not be fetched from the host that has them.\n");
    return line.write();
  }
}

// If the system gives no answer, a read is tried first.
bool is_write_fault([[maybe_unused]] const void* context) {
#if defined(__x86_64__)
  constexpr greg_t kWrite = 2;
  return (static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & kWrite) != 0;
#else
  return false;
#endif
}

bool serve_read(const Table& table, uintptr_t address) {
  for (const RangeSlot& range : table.ranges) {
    const uintptr_t begin = range.begin.load(std::memory_order_acquire);
    if (begin == 0 || address < begin || address >= range.end.load()) continue;
    const int before = errno;
    const bool served = range.serve.load()(range.self.load(), address);
    errno = before;
    return served;
  }
  return false;
}

void on_fault(int signal_number, siginfo_t* info, void* context) {
  Table& table = Table::instance();
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  const bool is_write = is_write_fault(context);
  if (!is_write && serve_read(table, address)) return;
  name_fault(table, address, is_write);
  const auto& before = table.before;
  if ((before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction != nullptr) {
    return before.sa_sigaction(signal_number, info, context);
  }
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) return before.sa_handler(signal_number);
  // The instruction runs again and ends the process as it would have.
  signal(signal_number, SIG_DFL);
}

void install(Table& table) {
  if (std::exchange(table.installed, true)) return;
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, &table.before);
}

}  // namespace

NamedMemory::NamedMemory(const void* begin, size_t num_bytes, const std::string& name) noexcept {
  Table& table = Table::instance();
  const std::lock_guard lock(table.mutex);
  const int used = table.used.load();
  install(table);
  const auto end = table.slots.begin() + used;
  const auto free = std::find_if(table.slots.begin(), end, [](const Slot& slot) { return slot.begin.load() == 0; });
  if (free == table.slots.end()) return;
  slot_ = static_cast<int>(free - table.slots.begin());
  const size_t size = std::min(name.size(), free->name.size() - 1);
  std::memcpy(free->name.data(), name.data(), size);
  free->name[size] = '\0';
  free->end.store(reinterpret_cast<uintptr_t>(begin) + num_bytes);
  free->begin.store(reinterpret_cast<uintptr_t>(begin), std::memory_order_release);
  if (free == end) table.used.store(used + 1, std::memory_order_release);
}

NamedMemory::~NamedMemory() {
  if (slot_ >= 0) Table::instance().slots[static_cast<size_t>(slot_)].begin.store(0);
}

NamedMemory::NamedMemory(NamedMemory&& other) noexcept : slot_(std::exchange(other.slot_, -1)) {}

NamedMemory& NamedMemory::operator=(NamedMemory&& other) noexcept {
  std::swap(slot_, other.slot_);
  return *this;
}

FaultRange::FaultRange(const void* begin, size_t num_bytes, Serve serve, void* self) noexcept {
  Table& table = Table::instance();
  const std::lock_guard lock(table.mutex);
  install(table);
  const auto free = std::find_if(table.ranges.begin(), table.ranges.end(),
                                 [](const RangeSlot& range) { return range.begin.load() == 0; });
  if (free == table.ranges.end()) return;
  slot_ = static_cast<int>(free - table.ranges.begin());
  free->serve.store(serve);
  free->self.store(self);
  free->end.store(reinterpret_cast<uintptr_t>(begin) + num_bytes);
  free->begin.store(reinterpret_cast<uintptr_t>(begin), std::memory_order_release);
}

FaultRange::~FaultRange() {
  if (slot_ >= 0) Table::instance().ranges[static_cast<size_t>(slot_)].begin.store(0);
}

FaultRange::FaultRange(FaultRange&& other) noexcept : slot_(std::exchange(other.slot_, -1)) {}

FaultRange& FaultRange::operator=(FaultRange&& other) noexcept {
  std::swap(slot_, other.slot_);
  return *this;
}

}  // namespace hasten::offload
